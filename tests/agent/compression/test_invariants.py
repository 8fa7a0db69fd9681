"""What holds for every conversation that is compacted, whatever came in (ARCHITECTURE 4 to 8)."""

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest, Limits
from agent.errors import SummaryFailed
from agent.library import compact_messages
from agent.messages import ChatMessage
from agent.tokens import estimate_message
from agent.view import MARKER, NOTE, Entry, View, ViewPlan, dump_plan, load_plan
from tests.support.conversations import conversation_of, faults, plain
from tests.support.crash import DEEP

SHARDS = 4
CASES = (200_000 if DEEP else 20_000) // SHARDS
WINDOWS = (24_000, 60_000, 200_000)
SYSTEM = ChatMessage(role="system", content="You are a careful assistant. " * 20)

GOOD = "## Goal\nShip order 4711.\n## Progress\n### Done\n1. asked\n## Critical Context\n2026-05-07"
SUMMARIES = (GOOD, "", "no headings at all", GOOD * 400, None)

programs = st.binary(min_size=2, max_size=100)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_view_is_valid_small_and_true(shard: int) -> None:
    """All invariants of a compaction, of a second one on its result, and of one that goes on."""

    @seed(shard)
    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(programs, st.sampled_from(WINDOWS), st.sampled_from(SUMMARIES))
    def check(program: bytes, window: int, summary: str | None) -> None:
        messages = [SYSTEM, *conversation_of(program)]
        before = orjson.dumps(messages)
        first = compacted(messages, window, summary)
        again = compacted(first, window, summary)
        later = compacted([*again, *conversation_of(program[: len(program) // 2])], window, None)
        assert orjson.dumps(messages) == before
        assert later[0]["content"] in {SYSTEM["content"], f"{SYSTEM['content']}{NOTE}"}

    check()


def compacted(messages: list[ChatMessage], window: int, summary: str | None) -> list[ChatMessage]:
    """Compact, hold the result against the invariants, and return it."""

    def write(_prompt: str, _max_tokens: int) -> str:
        if not summary:
            raise SummaryFailed("down")
        return summary

    given = plain(messages)
    result = compact_messages(
        given, context_length=window, summarise=None if summary is None else write
    )
    shown: list[Any] = result.messages
    assert faults(shown) == []
    assert shown[0]["content"].startswith(SYSTEM["content"])
    assert seams_fit(shown)
    newest = newest_user(given)
    if newest is not None and result.level != "clip_newest":
        assert newest in shown
    assert result.tokens_after <= max(0.6 * 0.5 * window, floor(shown))
    return shown


def floor(shown: list[Any]) -> float:
    """Return what cannot be made smaller: the newest message where it is kept whole."""
    newest = newest_user(shown)
    return estimate_message(newest) + 8_000 if newest else 0


def newest_user(messages: list[Any]) -> Any:
    """Return the newest message of the user; None if there is none."""
    users = [m for m in messages if m["role"] == "user" and not is_summary(m)]
    return users[-1] if users else None


def is_summary(message: Any) -> bool:
    """Whether a message is a summary."""
    return isinstance(message["content"], str) and message["content"].startswith(MARKER)


def seams_fit(shown: list[Any]) -> bool:
    """Whether a summary stands between messages of other roles."""
    roles = [m["role"] for m in shown]
    return all(
        one != two
        for (one, two), (a, b) in zip(pairwise(roles), pairwise(shown), strict=True)
        if is_summary(a) or is_summary(b)
    )


def test_a_plan_renders_the_same_after_a_restart() -> None:
    """The plan that was stored shows the very bytes that the turn saw."""

    @seed(1)
    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(programs, st.sampled_from(WINDOWS))
    def check(program: bytes, window: int) -> None:
        entries = [Entry(3 * n, m) for n, m in enumerate(conversation_of(program), start=5)]
        found = planned(entries, window)
        if found is None:
            return
        view = View("system", ViewPlan(), list(entries))
        view.adopt(found.plan)
        again = View("system", load_plan(dump_plan(found.plan)), list(entries))
        assert orjson.dumps(view.messages) == orjson.dumps(again.messages)

    check()


def planned(entries: list[Entry], window: int) -> Compressed | None:
    """Return what the compressor makes of the entries, without any model."""
    limits = Limits(window)
    tokens = sum(estimate_message(entry.message) for entry in entries)
    request = CompressionRequest(
        plan=ViewPlan(),
        entries=entries,
        tokens=tokens,
        fixed_tokens=0,
        limits=limits,
        estimate=estimate_message,
        trigger="threshold",
    )
    return ContextCompressor(limits, {}).compress(request)
