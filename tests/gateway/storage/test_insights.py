"""How a conversation fared lately."""

from collections import Counter

import pytest
from sqlalchemy import Connection

from agent.messages import ChatMessage, assistant_message, tool_message
from agent.models.base import Usage
from agent.models.scripted import tool_call
from gateway.storage import endings, inbox, leases, steps
from gateway.storage.endings import TurnEnd
from gateway.storage.insights import Insights, insights
from gateway.storage.models import turn
from gateway.storage.turns import Turn
from tests.support.storage import (
    Store,
    admit,
    begin,
    begin_turn,
    claim_one,
    inbound,
    model_call,
    parts,
    turn_of,
)

USAGE = Usage(100, 20, 300)


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that runs."""
    return store.run(turn_of, "What is it?")


def found(store: Store, current: Turn, since: float = 0.0) -> Insights:
    return store.run(insights, current.lease.conversation, since)


def look(store: Store, current: Turn, call_id: str, name: str = "look") -> None:
    """Have a step of the model call a tool."""
    call = tool_call(name, {}, call_id)
    asked = ChatMessage(role="assistant", content=None, tool_calls=[call])
    store.run(steps.record_message, current, asked, model_call(USAGE))
    store.run(steps.start_tool, current, call, "read")
    store.run(steps.record_result, current, tool_message(call_id, name, "ok"), "ok")


def finish(store: Store, current: Turn, outcome: str = "final_text") -> Turn:
    """End a turn and begin the next one."""
    end = TurnEnd(outcome, model_call(USAGE))
    store.run(endings.commit, current, [assistant_message("ok")], parts(current), end)
    store.run(admit, inbound("And then?"))
    return store.run(begin_turn, current.lease)


def test_turns_and_tools_are_counted(store: Store, current: Turn) -> None:
    """By how turns ended and by the names of the tools, the running turn included."""
    look(store, current, "c1")
    look(store, current, "c2", "dig")
    current = finish(store, current)
    look(store, current, "c3")
    current = finish(store, current, "partial")
    seen = found(store, current)
    assert seen.outcomes == {"final_text": 1, "partial": 1, "running": 1}
    assert seen.tools == {"look": 2, "dig": 1}
    [model] = seen.models
    assert (model.name, model.spent.calls) == ("model-1", 5)


def command(store: Store, text: str, asked: str | None, outcome: str) -> None:
    """Have a command that waited take a turn, and end it."""
    conversation_id, _ = store.run(admit, inbound(text), kind="command")
    lease = store.run(claim_one, conversation_id)
    waiting = store.run(inbox.queued, conversation_id)
    current = store.run(begin, lease, waiting, asked)
    store.run(endings.commit, current, [], parts(current), TurnEnd(outcome))
    store.run(leases.release, lease)


@pytest.mark.parametrize("text", ["/model", "/model@bot other", "/Compress the chain", "/compact"])
def test_a_command_that_the_agent_does_not_answer_is_no_turn(store: Store, text: str) -> None:
    """Whatever it ended as; it took no time of anybody who waits for an answer."""
    command(store, text, None, "model_chosen")
    command(store, text, None, "interrupted")
    seen = store.run(insights, 1, 0.0)
    assert (seen.outcomes, seen.durations_s) == ({}, [])


@pytest.mark.parametrize("text", ["/retry", "/new What is it?"])
def test_a_command_that_asks_the_agent_is_a_turn(store: Store, text: str) -> None:
    """It answers people."""
    command(store, text, "What is it?", "final_text")
    assert store.run(insights, 1, 0.0).outcomes == {"final_text": 1}


def test_only_turns_that_ended_have_a_duration(store: Store, current: Turn) -> None:
    """From their beginning to their end, in ascending order."""
    for seconds in (30, 10):
        times = {"started_at": 100, "finished_at": 100 + seconds}
        took = turn.update().where(turn.c.id == current.id).values(times)
        current = finish(store, current)
        store.run(Connection.execute, took)
    assert found(store, current).durations_s == [10, 30]


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 50), (0.95, 95), (1.0, 100), (0.0, 1)])
def test_a_share_of_turns_ended_within(share: float, seconds: float) -> None:
    """The time of the turn at that rank."""
    seen = Insights(Counter(), Counter(), (), [float(n) for n in range(1, 101)])
    assert seen.duration_s(share) == seconds


def test_without_a_turn_there_is_nothing(store: Store, current: Turn) -> None:
    """No outcome, no tool, no time."""
    seen = found(store, current, since=2e9)
    assert (seen.outcomes, seen.tools, seen.models) == ({}, {}, ())
    assert seen.duration_s(0.5) is None


def test_another_conversation_does_not_count(store: Store, current: Turn) -> None:
    """Neither its turns nor its tools nor its cost."""
    other = store.run(turn_of, "hi", chat="43")
    look(store, other, "c1")
    seen = found(store, current)
    assert (seen.outcomes, seen.tools, seen.models) == ({"running": 1}, {}, ())
