"""Killed around each step of a delegated child: it is resumed, its result is found, once."""

import os
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import orjson
import pytest

from agent.messages import ChatMessage, decode, text_of
from tests.crash.points import around
from tests.support.crash import KILLED, Crashes
from tests.support.crash_script import answer, task_of

TASK = task_of("m1", "child")
STEPS = [
    *((point, 1) for point in around("open_child", "end_child")),
    ("after commit of record_message", 2),
    ("after commit of start_tool", 2),
    ("note: within its effect", 1),
    ("after commit of record_result", 1),
    ("model: asked", 3),
]
"""The second of each is the child's; the first belongs to its parent."""


def rows(crashes: Crashes, query: str) -> list[tuple[Any, ...]]:
    """Return what a query finds."""
    with closing(sqlite3.connect(crashes.database)) as database:
        return database.execute(query).fetchall()


def transcript(crashes: Crashes, conversation: int) -> list[ChatMessage]:
    """Return the messages of a conversation, whose seqs have no gap."""
    query = f"SELECT seq, body FROM message WHERE conversation = {conversation} ORDER BY seq"  # noqa: S608
    found = rows(crashes, query)
    assert [seq for seq, _ in found] == list(range(1, len(found) + 1))
    return [decode(body) for _, body in found]


def roles(messages: Sequence[ChatMessage]) -> list[str]:
    """Return who spoke."""
    return [message["role"] for message in messages]


def asked_children(crashes: Crashes) -> int:
    """Return how often the model was asked for a child."""
    return sum(event["text"].startswith("m1c") for event in crashes.events("model"))


async def live_on(crashes: Crashes) -> dict[str, Any]:
    """Live until all is answered; return the child's result as its parent got it."""
    await crashes.live_until_answered()
    assert len(crashes.platform.finals("a")) == 1, crashes.log()
    [(child, owner)] = rows(
        crashes, "SELECT id, owner FROM conversation WHERE parent_turn_id IS NOT NULL"
    )
    assert owner is None
    assert rows(crashes, f"SELECT state FROM turn WHERE conversation = {child}") == [("done",)]  # noqa: S608
    own = transcript(crashes, 1)
    assert roles(own) == ["user", "assistant", "tool", "assistant"]
    result: dict[str, Any] = orjson.loads(text_of(own[2]))
    assert result["conversation"] == child
    return result


@pytest.mark.parametrize("step", STEPS, ids=[f"{point} {time}" for point, time in STEPS])
async def test_a_child_goes_on_after_a_kill(crashes: Crashes, step: tuple[str, int]) -> None:
    """Its side effect happens once or is reported as unknown; a result needs no model again."""
    await crashes.write("a", "child")
    pid = crashes.start(kill=list(step))
    assert await crashes.ended(pid) == KILLED, crashes.log()
    before = asked_children(crashes)
    result = await live_on(crashes)
    messages = transcript(crashes, result["conversation"])
    assert roles(messages) == ["user", "assistant", "tool", "assistant"]
    assert (result["outcome"], result["answer"]) == ("final_text", answer("", TASK, messages[2:3]))
    begun = [event["call"] for event in crashes.events("effect begins")]
    is_unknown = text_of(messages[2]).startswith("Error")
    assert begun == ([] if step[0] == "after commit of start_tool" else ["m1c-note"])
    assert is_unknown == (step[0] in {"after commit of start_tool", "note: within its effect"})
    if step[0] == "after commit of end_child":
        assert asked_children(crashes) == before == 2


@pytest.mark.thorough
async def test_a_child_survives_a_stop_of_the_process(crashes: Crashes) -> None:
    """The process is asked to end while the child waits for its model, and dies at that."""
    await crashes.write("a", "waits")
    pid = crashes.start(kill=["after commit of pause_child", 1], grace_s=0)
    await crashes.platform.wait_for(lambda: crashes.platform.gate.reached)
    os.kill(pid, signal.SIGTERM)
    assert await crashes.ended(pid) == KILLED, crashes.log()
    await crashes.platform.open_gate()
    assert (await live_on(crashes))["outcome"] == "final_text"


@pytest.mark.thorough
async def test_a_child_whose_time_was_up_ends_all_the_same(crashes: Crashes) -> None:
    """The next process begins its time anew."""
    await crashes.write("a", "waits")
    assert (
        await crashes.ended(crashes.start(kill=["after commit of cut_short", 1], child_s=0.3))
        == KILLED
    )
    await crashes.platform.open_gate()
    assert (await live_on(crashes))["outcome"] == "final_text"
