"""Delegated children as rows: found by their call, fenced by their parent, claimed by nobody."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from agent.messages import assistant_message, text_of, tool_message
from agent.ports import Delegated
from gateway.errors import LeaseLost, TurnCancelled
from gateway.storage.conversation import delegates, turn_journal, turns
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import leases
from gateway.storage.schema import conversation, turn
from tests.support.scripted_model import tool_call
from tests.support.storage import ACCOUNTS, BASE, Store, find_running, model_call, turn_of

CALL = tool_call("delegate_task", {"task": "t"}, "d1")


def parent_of(store: Store) -> Turn:
    """Return a turn that has begun to delegate."""
    parent = store.run(turn_of, "go")
    store.run(turn_journal.start_tool, parent, CALL, "idempotent")
    return parent


def open_child(store: Store, parent: Turn, call_id: str = "d1") -> Turn:
    """Return the turn of a child that has not ended."""
    child = store.run(delegates.open_child, parent, call_id, "the task", BASE)
    assert isinstance(child, Turn)
    return child


def resumed(store: Store) -> Turn:
    """Return the running turn after another process has taken it over."""
    replica = store.run(leases.register, "next")
    store.run(leases.reap_others, replica)
    [lease] = store.run(leases.claim, replica, 10, ACCOUNTS)
    found = store.run(find_running, lease, BASE)
    assert found is not None
    return found


def row_of(conn: Connection, child: Turn) -> Any:
    return conn.execute(select(turn).where(turn.c.id == child.id)).one()


def test_what_a_turn_and_its_children_have_done_is_on_record(store: Store) -> None:
    """With its marks; calls that will run again are left out, those of an ended child are not."""
    parent = parent_of(store)
    asked = assistant_message("")
    asked["tool_calls"] = [CALL]
    store.run(turn_journal.record_message, parent, asked)
    runs, ended = open_child(store, parent, "d1"), open_child(store, parent, "d2")
    for child in (runs, ended):
        for n in range(2):
            call = tool_call("fetch_url", {"url": "x"}, f"f{n}")
            store.run(turn_journal.start_tool, child, call, "idempotent")
        result = tool_message("f0", "fetch_url", "a page")
        store.run(turn_journal.record_result, child, result, "ok", (), ["linked"])
    end = TurnEnd("final_text", model_call())
    store.run(delegates.end_child, ended, [assistant_message("done")], end)
    done, cut_short = ("fetch_url", frozenset({"linked"})), ("fetch_url", None)
    goes_on = resumed(store)
    found = store.run(turns.tool_steps, goes_on)
    assert Counter((step.name, step.marks) for step in found) == {done: 2, cut_short: 1}
    told = store.run(turns.results_of_children, goes_on)
    assert [text_of(each) for each in told] == ["a page"] * 2


def test_a_call_has_one_child(store: Store) -> None:
    """Found again it counts an attempt; another call has another child."""
    parent = parent_of(store)
    child = open_child(store, parent)
    again = open_child(store, parent)
    assert (again.id, again.attempt, again.sender) == (child.id, 2, parent.sender)
    assert [text_of(message) for message in again.messages] == ["the task"]
    assert open_child(store, parent, "d2").id != child.id


def test_a_child_that_has_ended_gives_its_result(store: Store) -> None:
    """The same as when it ended; a repeat of its end changes nothing."""
    parent = parent_of(store)
    child = open_child(store, parent)
    end = TurnEnd("final_text", model_call())
    done = store.run(delegates.end_child, child, [assistant_message("done")], end)
    assert done == Delegated("final_text", "done", child.lease.conversation, 1, 0, None)
    assert store.run(delegates.open_child, parent, "d1", "the task", BASE) == done
    assert store.run(delegates.end_child, child, [assistant_message("done")], end) == done


def test_what_a_broken_child_has_said_is_handed_over(store: Store) -> None:
    """Open calls get a result, and why there is no answer stands before its last words."""
    child = open_child(store, parent_of(store))
    said = assistant_message("I look")
    said["tool_calls"] = [tool_call("look", {}, "l1")]
    store.run(turn_journal.record_message, child, said, model_call())
    done = store.run(delegates.end_child, child, [], TurnEnd("failed", error="KeyError"))
    assert done.text == "The agent that did the task broke. It had said: I look"


def test_nobody_claims_a_child(store: Store) -> None:
    """It has no place in the line, and is not stuck."""
    child = open_child(store, parent_of(store))
    replica = store.run(leases.register, "other")
    assert store.run(leases.claim, replica, 10, ACCOUNTS) == []
    assert store.run(leases.ready_stuck) == 0
    assert not store.run(leases.has_work, child.lease.conversation)


def test_who_has_lost_the_parent_writes_in_no_child(store: Store) -> None:
    """Its token is the parent's."""
    parent = parent_of(store)
    child = open_child(store, parent)
    now = resumed(store)
    with pytest.raises(LeaseLost):
        store.run(turn_journal.record_message, child, assistant_message("late"))
    with pytest.raises(LeaseLost):
        store.run(delegates.open_child, parent, "d1", "the task", BASE)
    taken = open_child(store, now)
    assert (taken.id, taken.attempt) == (child.id, 2)
    store.run(delegates.pause_child, child, [])
    assert store.run(row_of, child).attempt == 2
    store.run(turn_journal.record_message, taken, assistant_message("in time"))


def test_a_stop_of_the_parent_reaches_its_child(store: Store) -> None:
    """With its next write."""
    parent = parent_of(store)
    child = open_child(store, parent)
    here = conversation.c.id == parent.lease.conversation
    store.run(lambda conn: conn.execute(update(conversation).where(here).values(cancel_upto_seq=1)))
    with pytest.raises(TurnCancelled):
        store.run(turn_journal.record_message, child, assistant_message("more"))


@pytest.mark.parametrize("way", ["commit", "bury"])
def test_the_end_of_a_turn_ends_its_children(store: Store, way: str) -> None:
    """One that is still running has nobody who waits for it."""
    parent = parent_of(store)
    child = open_child(store, parent)
    end = TurnEnd("final_text")
    if way == "commit":
        store.run(turn_journal.commit, parent, [assistant_message("bye")], [], end)
    else:
        store.run(turn_journal.bury, parent, [], end)
    row = store.run(row_of, child)
    assert (row.state, row.outcome) == ("cancelled", "interrupted")


def test_what_a_child_does_is_progress_of_its_parent(store: Store) -> None:
    """A parent is not given up while its child gets on."""
    parent = parent_of(store)
    child = open_child(store, parent)
    assert [resumed(store).attempt, resumed(store).attempt] == [1, 2]
    now = resumed(store)
    assert now.attempt == 3
    store.run(turn_journal.record_message, open_child(store, now), assistant_message("a step"))
    assert resumed(store).attempt == 1
    assert child.attempt == 1


def test_a_paused_attempt_does_not_count(store: Store) -> None:
    """What was being asked is booked."""
    parent = parent_of(store)
    child = open_child(store, parent)
    lost = replace(model_call(), purpose="lost")
    store.run(delegates.pause_child, child, [lost])
    assert open_child(store, parent).attempt == 1
