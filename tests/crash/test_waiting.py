"""Killed while a turn waits for a person, once the answer is in, and before what it allows is done.

Also around the end of the time for an answer. The oracle sees to it that no side effect happens
twice.
"""

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.crash.points import around
from tests.support.crash import KILLED, Crashes, describe
from tests.support.crash_script import RESENT

ASKED = {"note": "May I run", "ask": "Which?"}
ANSWERS = {"note": "/approve", "ask": "/answer this one"}
GIVEN_UP = {
    "note": "Nobody answered in time: `note` is not run.",
    "ask": "Nobody answered my question in time: I go on without an answer.",
}


async def die_at(crashes: Crashes, verb: str, point: str) -> None:
    """Have somebody write what a person is asked about, and live until the point."""
    crashes.configure(approval="side_effects", mode="followup")
    await crashes.write("a", verb)
    assert await crashes.ended(crashes.start(kill=[point, 1])) == KILLED, crashes.log()


def is_asked(crashes: Crashes, verb: str) -> bool:
    """Whether the chat shows the question."""
    return any(ASKED[verb] in text for text in crashes.platform.finals("a"))


async def recover(crashes: Crashes) -> None:
    """Live on, then ask the oracle; each question was asked once, and its call ran once."""
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)
    assert inquiries(crashes) == [("answered",)]
    assert len(crashes.events("effect begins")) == 1


def inquiries(crashes: Crashes) -> list[tuple[Any, ...]]:
    """Return the state of all that was asked."""
    with closing(sqlite3.connect(crashes.database)) as books:
        return books.execute("SELECT state FROM inquiry").fetchall()


@pytest.mark.parametrize(
    ("verb", "point"),
    [*(("note", point) for point in around("ask", "suspend")), ("ask", "after commit of suspend")],
)
async def test_a_kill_before_anybody_has_answered(crashes: Crashes, verb: str, point: str) -> None:
    """The question stands, or is asked by the next process; the answer is taken after that."""
    await die_at(crashes, verb, point)
    platform, before = crashes.platform, crashes.platform.polls
    pid = crashes.start()
    # The process before may have shown the question; this one is to be at work before it stops.
    await platform.wait_for(lambda: platform.polls > before and is_asked(crashes, verb))
    assert await crashes.stop(pid) == 0, crashes.log()
    await crashes.platform.push("a", ANSWERS[verb])
    await recover(crashes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("verb", "point"),
    [
        *(("note", point) for point in around("admit_all", "start_tool")),
        ("ask", "after commit of admit_all"),
    ],
)
async def test_a_kill_once_somebody_has_answered(crashes: Crashes, verb: str, point: str) -> None:
    """The answer is taken once, and what it allows is done once, or was never begun."""
    await die_at(crashes, verb, "after commit of suspend")
    await crashes.platform.push("a", ANSWERS[verb])
    assert await crashes.ended(crashes.start(kill=[point, 1])) == KILLED, crashes.log()
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)
    assert inquiries(crashes) == [("answered",)]
    assert len(crashes.events("effect begins")) <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("point", around("start_tool", "record_result"))
async def test_a_kill_once_somebody_has_denied(crashes: Crashes, point: str) -> None:
    """Nothing runs, whatever the next process would ask about; the model is told once."""
    await die_at(crashes, "note", "after commit of suspend")
    await crashes.platform.push("a", "/deny")
    assert await crashes.ended(crashes.start(kill=[point, 1])) == KILLED, crashes.log()
    crashes.configure(approval="never", mode="followup")
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)
    assert inquiries(crashes) == [("answered",)]
    assert not crashes.events("effect begins")
    assert results(crashes) == 1


OFF = ("withdraw: before the request", "withdraw: done, not stored yet")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("verb", "point"),
    [
        *(("note", point) for point in (*around("expire", "start_tool", "record_result"), *OFF)),
        ("ask", "after commit of expire"),
    ],
)
async def test_a_kill_when_nobody_has_answered_in_time(
    crashes: Crashes, verb: str, point: str
) -> None:
    """It is given up once, the model told once; nothing runs, and the buttons are gone."""
    await ask_in_vain(crashes, verb)
    assert await crashes.ended(crashes.start(kill=[point, 1])) == KILLED, crashes.log()
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)
    assert inquiries(crashes) == [("expired",)]
    assert len(crashes.events("effect begins")) == (verb == "ask")
    shown = crashes.platform.chats["a"]
    # Again, with a mark, where the process died while it was on its way.
    finals = {text.removeprefix(RESENT) for text in crashes.platform.finals("a")}
    assert [text for text in finals if "Nobody answered" in text] == [GIVEN_UP[verb]]
    [question] = [each for each in shown if ASKED[verb] in each.text]
    assert question.text.endswith("\n→ not answered in time")
    assert not question.buttons
    assert results(crashes) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("point", around("drop"))
async def test_a_kill_when_the_buttons_cannot_be_taken_off(crashes: Crashes, point: str) -> None:
    """They stay; nothing else is held up by that."""
    crashes.platform.keeps_buttons = True
    await ask_in_vain(crashes, "note")
    assert await crashes.ended(crashes.start(kill=[point, 1])) == KILLED, crashes.log()
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)
    assert [each.buttons for each in crashes.platform.chats["a"]] == [True, False, False]


async def ask_in_vain(crashes: Crashes, verb: str) -> None:
    """Have a question shown, and the time for its answer pass while no gateway runs."""
    crashes.configure(approval="side_effects", mode="followup")
    await crashes.write("a", verb)
    pid = crashes.start()
    await crashes.platform.wait_for(lambda: is_asked(crashes, verb))
    assert await crashes.stop(pid) == 0, crashes.log()
    with closing(sqlite3.connect(crashes.database)) as books, books:
        books.execute("UPDATE inquiry SET expires_at = 1.0")


def results(crashes: Crashes) -> int:
    """Return how many results of tools the model was given."""
    with closing(sqlite3.connect(crashes.database)) as books:
        (found,) = books.execute("SELECT count(*) FROM message WHERE body LIKE '%tool_call_id%'")
    return int(found[0])
