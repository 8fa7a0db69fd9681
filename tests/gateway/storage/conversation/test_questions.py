"""Inquiries as rows: who waits, who goes on; and that nothing runs unasked, whatever happens."""

import re
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, update

from adapters.messages import Address
from agent.messages import assistant_message, tool_message
from agent.ports import Inquiry
from gateway.access.policy import Access, Owners
from gateway.agent_ports.questions import Inquiries
from gateway.commands import approvals
from gateway.errors import TurnCancelled
from gateway.replay.player import NullAdapter
from gateway.settings.tree import AccessSettings
from gateway.signals import Wakeups
from gateway.storage.conversation import delegates, questions, turn_journal
from gateway.storage.conversation.questions import Question
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import leases
from gateway.storage.schema import inquiry, outbox, turn
from tests.support.scripted_model import tool_call
from tests.support.storage import (
    BASE,
    Store,
    admit,
    begin_anew,
    find_running,
    forget,
    inbound,
    turn_of,
)
from tests.support.turns import asked, resume

APPROVAL = Inquiry("approval", "c1", "act", "May I?")
RENDERERS = {("telegram", "default"): NullAdapter(lambda _: None).render}
OWNED = Owners(Access(AccessSettings(owners=["telegram:42"])), RENDERERS)


def asking(current: Turn) -> Any:
    """Return the people of a turn; the database is the test's own connection."""
    database: Any = None
    return Inquiries(database, OWNED, 86_400.0, Wakeups()).people(current)


def ask(conn: Connection, current: Turn, asked: Inquiry = APPROVAL) -> Question:
    """Ask, or look up what was asked."""
    found, _ = asking(current)._ask(conn, asked)
    assert isinstance(found, Question)
    return found


def lapse(store: Store) -> None:
    """Let the time of all that waits be over."""
    store.run(lambda conn: conn.execute(update(inquiry).values(expires_at=1.0)))


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that runs."""
    return store.run(turn_of, "act")


def test_a_question_is_asked_once(store: Store, current: Turn) -> None:
    """One row and one message with buttons, however often it is asked."""
    first = store.run(ask, current)
    assert store.run(ask, current) == first
    assert first.state == "pending"
    assert store.one(outbox).source_key == f"inquiry:{first.id}:buttons:1"
    assert "/approve 1 once" in store.one(outbox).choices


def test_a_conversation_that_waits_has_no_work(store: Store, current: Turn) -> None:
    """Nor has anything that comes in meanwhile; it has work again when nothing is waited for."""
    found = store.run(ask, current)
    store.run(admit, inbound("more"))
    assert store.run(leases.release, current.lease) is False
    assert store.run(leases.ready_stuck) == 0
    assert store.run(questions.answer, found.id, "once", "telegram:42")
    assert store.run(leases.has_work, current.lease.conversation)
    assert store.run(leases.ready_stuck) == 1


def test_an_answer_is_taken_once_and_in_time(store: Store, current: Turn) -> None:
    """The first one stands; none is taken once the time is over, before the sweep too."""
    found = store.run(ask, current)
    assert store.run(questions.answer, found.id, "deny", "telegram:42")
    assert not store.run(questions.answer, found.id, "once", "telegram:42")
    other = store.run(ask, current, replace(APPROVAL, call_id="c2"))
    assert not store.run(questions.expire, other)
    lapse(store)
    assert not store.run(questions.answer, other.id, "once", "telegram:42")
    [due] = store.run(questions.overdue)
    assert store.run(questions.expire, due)
    assert not store.run(questions.expire, due)
    assert [row.state for row in store.rows(inquiry)] == ["answered", "expired"]


@pytest.mark.parametrize(
    ("where", "is_here"),
    [
        ({}, True),
        ({"chat": "43"}, False),
        ({"thread": "5"}, False),
        ({"address": Address("telegram", "second", "42")}, False),
        ({"address": Address("slack", "default", "42")}, False),
    ],
    ids=["here", "chat", "thread", "account", "platform"],
)
def test_an_answer_is_given_where_it_was_asked(
    store: Store, current: Turn, where: dict[str, Any], *, is_here: bool
) -> None:
    """In the same chat and thread, through the same account."""
    found = store.run(ask, current)
    answer = inbound(f"/approve {found.id}", **where)
    place = store.run(approvals.asked_in, answer, str(found.id))
    assert place == (found.conversation if is_here else None)


def test_a_call_with_an_id_of_an_earlier_one_is_asked_anew(store: Store, current: Turn) -> None:
    """Some servers number the calls of each step anew: an approval holds for one call."""
    found = store.run(ask, current)
    store.run(questions.answer, found.id, "once", "telegram:42")
    store.run(turn_journal.start_tool, current, tool_call("act", {}, "c1"), "side_effect")
    store.run(turn_journal.record_result, current, tool_message("c1", "act", "done"), "ok")
    again = store.run(ask, current)
    assert (again.id, again.state) == (found.id + 1, "pending")


def test_a_standing_approval_ends_with_its_root(store: Store, current: Turn) -> None:
    """It holds for one tool of one conversation, and names who gave it."""
    found = store.run(ask, current)
    store.run(questions.answer, found.id, "conversation", "telegram:42")
    given_again = store.run(ask, current, replace(APPROVAL, call_id="c2"))
    assert (given_again.state, given_again.by) == ("answered", "telegram:42")
    for call, other in enumerate(({"tool": "b"}, {"definition": "another"}), start=3):
        asked = replace(APPROVAL, call_id=f"c{call}", **other)
        assert store.run(ask, current, asked).state == "pending"
    elsewhere = store.run(turn_of, "act", chat="43")
    assert store.run(ask, elsewhere).state == "pending"
    store.run(turn_journal.bury, current, [], TurnEnd("gave_up"))
    store.run(leases.release, current.lease)
    store.run(begin_anew, current.lease.conversation)
    assert store.run(ask, store.run(turn_of, "act")).state == "pending"


def test_a_stopped_turn_asks_nothing(store: Store, current: Turn) -> None:
    """What waits is cancelled with it."""
    store.run(ask, current)
    store.run(turn_journal.cancel_running, current.lease.conversation)
    assert store.one(inquiry).state == "cancelled"
    with pytest.raises(TurnCancelled):
        store.run(ask, current, replace(APPROVAL, call_id="c2"))


def test_a_turn_that_ends_waits_for_nothing(store: Store, current: Turn) -> None:
    """However it ends."""
    message = assistant_message("")
    message["tool_calls"] = [tool_call("act", {}, "c1")]
    store.run(turn_journal.record_message, current, message)
    store.run(ask, current)
    store.run(turn_journal.bury, current, [], TurnEnd("gave_up"))
    assert store.one(inquiry).state == "cancelled"


def test_a_turn_that_is_answered_waits_for_nothing(store: Store, current: Turn) -> None:
    """A question that it has lost sight of holds up nobody behind it."""
    call = tool_call("act", {}, "c1")
    store.run(turn_journal.start_tool, current, call, "read")
    store.run(ask, current)
    store.run(turn_journal.commit, current, [assistant_message("done")], [], TurnEnd("final_text"))
    assert store.one(inquiry).state == "cancelled"


def test_a_question_stands_below_the_preview(store: Store, current: Turn) -> None:
    """The answer does not take the place of what is above it, wherever the process ends."""
    store.run(turn_journal.set_preview, current, "p1")
    store.run(ask, current)
    assert store.one(turn).preview_ref is None


def test_a_suspended_attempt_does_not_count(store: Store, current: Turn) -> None:
    """However often the turn waits."""
    for _ in range(3):
        store.run(turn_journal.suspend, current, [])
        again = store.run(find_running, current.lease, BASE)
        assert again is not None
        assert again.attempt == 1


def test_what_refused_a_call_may_change(store: Store, current: Turn) -> None:
    """A call that was refused before a crash, and runs after it, is no mere look any more."""
    call = tool_call("act", {}, "c1")
    store.run(turn_journal.record_message, current, asked(call))
    store.run(turn_journal.start_tool, current, call, "read")
    store.run(turn_journal.start_tool, resume(store, current), call, "side_effect")
    assert resume(store, current).started_calls == {"c1"}


def test_a_turn_of_an_older_version_holds_unknown_words(store: Store, current: Turn) -> None:
    """Whoever answers in it does not make it one that may act."""
    found = store.run(ask, current)
    store.run(lambda conn: conn.execute(update(turn).values(senders=None)))
    assert store.run(questions.senders, found) == ("?:",)
    store.run(questions.add_senders, found, ["telegram:42"])
    assert store.run(questions.senders, found) == ("?:", "telegram:42")


def test_who_answers_a_childs_question_counts_for_its_parent_too(
    store: Store, current: Turn
) -> None:
    """The child's words come back to the turn that has delegated."""
    call = tool_call("delegate_task", {"task": "t"}, "d1")
    store.run(turn_journal.start_tool, current, call, "idempotent")
    child = store.run(delegates.open_child, current, "d1", "t", BASE)
    assert isinstance(child, Turn)
    found = store.run(ask, child)
    store.run(questions.add_senders, found, ["telegram:9"])
    senders = {row.id: orjson.loads(row.senders) for row in store.rows(turn)}
    assert senders == {turn_id: ["telegram:42", "telegram:9"] for turn_id in (current.id, child.id)}


def test_forgetting_a_conversation_erases_what_was_asked(store: Store, current: Turn) -> None:
    """The questions hold arguments of tools."""
    store.run(ask, current)
    store.run(forget, current.lease.conversation)
    assert store.rows(inquiry) == []


@pytest.mark.usefixtures("sqlite_alone")
@pytest.mark.parametrize(
    "fn", [leases.has_work, questions.is_awaited, questions.pending, questions.cancel]
)
def test_the_hot_path_looks_only_at_what_waits(store: Store, current: Turn, fn: Any) -> None:
    """Every message pays for it: one look into the partial index, of pending rows alone."""
    found = store.plans(fn, current.lease.conversation)
    looks = [line for line in found if re.search(r"\binquiry\b", line)]
    assert looks
    assert all("ix_inquiry_pending (conversation=?)" in line for line in looks)


@pytest.mark.usefixtures("sqlite_alone")
def test_the_sweep_looks_only_at_what_waits(store: Store, current: Turn) -> None:
    """It runs every few seconds."""
    found = store.plans(questions.overdue)
    assert found
    assert all("ix_inquiry_pending" in line for line in found if "SCAN" in line)


class World:
    """One conversation with a turn of two calls, and what chance does to it."""

    def __init__(self, store: Store, chat: str) -> None:
        self.store = store
        self.turn: Turn | None = store.run(turn_of, "act", chat=chat)
        self.lease = self.turn.lease
        self.conversation = self.lease.conversation
        self.ran: list[str] = []
        self.yes: set[str] = set()
        calls = [tool_call("act", {}, "c1"), tool_call("act", {}, "c2")]
        message = assistant_message("")
        message["tool_calls"] = calls
        store.run(turn_journal.record_message, self.turn, message)

    def work(self, crash_at: int) -> None:
        """Do what a worker does with the turn, and die after so many commits."""
        if self.turn is None or not self._resume():
            return
        current = self.turn
        open_ = [call for call in ("c1", "c2") if call not in self._done()]
        for call in open_:
            if call in current.started_calls:
                if not self._commits(crash_at := crash_at - 1):
                    return
                self.store.run(
                    turn_journal.record_result, current, tool_message(call, "act", "?"), "unknown"
                )
                continue
            found = self.store.run(ask, current, replace(APPROVAL, call_id=call))
            if found.state != "answered" or found.answer == "deny":
                continue
            if not self._commits(crash_at := crash_at - 1):
                return
            self.store.run(
                turn_journal.start_tool, current, tool_call("act", {}, call), "side_effect"
            )
            assert call in self.yes
            self.ran.append(call)
            if not self._commits(crash_at := crash_at - 1):
                return
            self.store.run(
                turn_journal.record_result, current, tool_message(call, "act", "done"), "ok"
            )
        self.store.run(turn_journal.suspend, current, [])

    def say(self, what: str, call: str) -> None:
        """Answer what is asked for a call, if that is asked."""
        for row in self.store.rows(inquiry, conversation=self.conversation, call_id=call):
            taken = self.store.run(questions.answer, row.id, what, "telegram:1")
            if taken and what != "deny":
                self.yes.add(call)

    def stop(self) -> None:
        """Stop the turn."""
        self.store.run(turn_journal.cancel_running, self.conversation)

    def expire(self) -> None:
        """Let all that waits here lapse."""
        self.store.run(
            lambda conn: conn.execute(
                update(inquiry)
                .where(inquiry.c.conversation == self.conversation)
                .values(expires_at=1.0)
            )
        )
        for due in self.store.run(questions.overdue):
            self.store.run(questions.expire, due)

    def _resume(self) -> bool:
        if self.store.run(questions.is_awaited, self.conversation):
            return False
        found = self.store.run(find_running, self.lease, BASE)
        if found is None:
            self.turn = None
        elif found.stopped:
            self.store.run(turn_journal.cancel, found, "", [], TurnEnd("interrupted"))
            self.turn = None
        else:
            self.turn = found
        return self.turn is not None

    def _done(self) -> set[str]:
        assert self.turn is not None
        messages = [entry.message for entry in self.turn.entries]
        return {each["tool_call_id"] for each in messages if each["role"] == "tool"}

    def _commits(self, left: int) -> bool:
        return left != 0


says = st.tuples(
    st.just("say"), st.sampled_from(["once", "once", "deny"]), st.sampled_from(["c1", "c2"])
)
moves = st.one_of(
    st.tuples(st.just("work"), st.integers(1, 6)),
    says,
    says,
    st.tuples(st.just("stop")),
    st.tuples(st.just("expire")),
)
_chats = iter(range(1_000, 1_000_000))


@given(st.lists(moves, max_size=14))
@example([("say", "once", "c1"), ("say", "deny", "c2")])
@example([("say", "once", "c1"), ("say", "once", "c2"), ("work", 2), ("work", 9)])
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_nothing_runs_without_a_yes_and_nothing_twice(store: Store, happening: list[Any]) -> None:
    """Answers, stops, lapses, duplicates and crashes in any order."""
    store.without_sync()
    world = World(store, str(next(_chats)))
    for name, *args in [("work", 9), *happening, ("work", 9), ("work", 9)]:
        getattr(world, name)(*args)
    assert len(set(world.ran)) == len(world.ran)
    assert set(world.ran) <= world.yes
