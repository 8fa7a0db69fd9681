"""What the policy costs people who are not attacked: questions in real conversations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent.settings import TAINTED_ROWS
from agent.tools import policy
from agent.tools.policy import SIDE_EFFECT, WORLD, Facts, covered, decide
from tests.support.shared import SHARED

READS = ("get_", "search_", "list_", "calculate", "think")
"""Begin the names of the tools of tau-bench that change nothing."""


def dialogues(data: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the conversations of tau-bench, whose tools are those of a server."""
    for path in sorted((data / "tau-bench").glob("*.json")):
        for dialogue in orjson.loads(path.read_bytes()):
            yield dialogue["traj"]


def asked(
    messages: list[dict[str, Any]], *, once: bool, bound: bool, declared: bool = False
) -> tuple[int, int]:
    """Return how many turns a conversation has, and how many questions people are asked in it.

    Args:
        messages: The conversation; people say yes to everything.
        once: They approve each call; else for the conversation.
        bound: As the policy is now; else by `tools.approval` alone, for all calls of a tool.
        declared: Whether the tools are named as acting on the asker's own bookings alone.
    """
    table = policy.table("side_effects", without=() if bound else TAINTED_ROWS)
    standing: set[str] = set()
    turns = questions = 0
    tainted = False
    for message in messages:
        turns += message["role"] == "user"
        for call in message.get("tool_calls") or ():
            name = call["function"]["name"]
            acts = not name.startswith(READS)
            facts = Facts(
                tool=name,
                classes=frozenset({SIDE_EFFECT, WORLD} if acts else {WORLD}),
                roles=frozenset({"member"}),
                tainted=tainted,
            )
            arguments = orjson.loads(call["function"]["arguments"])
            own = {name} if declared else ()
            key = covered(name, arguments, tainted=tainted, own_records=own) if bound else ""
            if decide(table, facts).verdict == "ask" and (once or f"{name} {key}" not in standing):
                questions += 1
                standing.add(f"{name} {key}")
        tainted = tainted or bool(message.get("tool_calls"))
    return turns, questions


if SHARED is not None:

    @pytest.mark.parametrize(
        ("once", "declared", "most"),
        [(True, False, 0.0), (False, True, 2.0), (False, False, 6.0)],
        ids=["once", "own-records", "conversation"],
    )
    def test_benign_turns_are_hardly_asked_more(*, once: bool, declared: bool, most: float) -> None:
        """In 100 turns: none more where each call is approved, nor for the conversation.

        If nobody has declared that the tools act on the asker's own bookings these are 5.5: a yes
        is bound to all arguments but prose, and each change of a booking is asked about.
        """
        found = [
            (
                asked(each, once=once, bound=True, declared=declared),
                asked(each, once=once, bound=False),
            )
            for each in dialogues(SHARED)
        ]
        turns = sum(now[0] for now, _ in found)
        more = sum(now[1] - before[1] for now, before in found)
        assert turns > 1_000
        assert 0 <= 100 * more / turns <= most
