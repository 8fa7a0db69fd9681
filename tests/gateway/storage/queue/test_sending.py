"""The rows of the outbox on their way: shown in order, once."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, update

from adapters.messages import Address, Choice, Outgoing, Receipt
from gateway.storage.queue import leases, outbox, sending
from gateway.storage.queue.sending import Due, nonce_of
from gateway.storage.schema import now_s, replica
from gateway.storage.schema import outbox as table
from tests.support.storage import ACCOUNTS, RECEIPT, Store, admit, inbound, part, turn_of


@pytest.fixture
def me(store: Store) -> int:
    """The replica that sends."""
    return store.run(leases.register, "me")


def next_row(store: Store, conversation_id: int) -> Due:
    due = store.run(sending.next_due, conversation_id)
    assert due is not None
    return due


def next_message(store: Store, conversation_id: int) -> Outgoing:
    return next_row(store, conversation_id).message


def add(store: Store, conversation_id: int, *keys: str, **values: Any) -> None:
    store.run(outbox.append, conversation_id, [part(key) for key in keys], inbox_seq=1, **values)


def states(store: Store) -> list[str]:
    return [row.state for row in store.rows(table)]


@pytest.mark.parametrize("is_unknown", [False, True])
def test_what_was_dropped_on_its_way_is_not_tried_again(
    store: Store, chat: int, *, is_unknown: bool
) -> None:
    """Its turn was stopped while the platform kept it waiting."""
    add(store, chat, "a", turn_id=1)
    due = next_row(store, chat)
    store.run(outbox.drop_unsent, chat, 1)
    store.run(sending.postpone, due, 0.0, "busy", is_unknown=is_unknown)
    assert not store.run(sending.mark_dead, due, "blocked")
    assert states(store) == ["dropped"]


def test_a_new_row_is_due_at_once(store: Store, chat: int) -> None:
    """The next message holds all that an adapter needs."""
    row = outbox.OutboxPart("k:1", "payload", "markdown", preview_ref="p", reply_to="r")
    store.run(outbox.append, chat, [row], inbox_seq=1)
    due = store.run(sending.next_due, chat)
    assert due is not None
    assert replace(due.message, age_s=0.0) == Outgoing(
        conversation=chat,
        address=Address("telegram", "default", "7", "3"),
        seq=1,
        payload="payload",
        nonce=nonce_of("k:1"),
        preview_ref="p",
        reply_to="r",
        question="r",
    )
    assert due.in_s < 0
    assert due.failures == 0
    assert 0 <= due.message.age_s < 10


@pytest.mark.parametrize("key", ["t:2", "t:11", "t:file", "turn:1:file:1"])
def test_only_the_first_part_replies_on_every_platform(store: Store, chat: int, key: str) -> None:
    """Later parts and files still name the question."""
    store.run(outbox.append, chat, [outbox.OutboxPart(key, "p", "m", reply_to="r")], inbox_seq=1)
    due = store.run(sending.next_due, chat)
    assert due is not None
    assert (due.message.reply_to, due.message.question) == (None, "r")


def mark_sent(
    conn: Connection, message: Outgoing, receipt: Receipt, by: int | None = None
) -> Due | None:
    """Record a receipt; return the next row, which is looked for if there is one."""
    more = sending.mark_sent(conn, message, receipt)
    following = sending.next_due(conn, message.conversation, by)
    assert more or following is None
    return following


def test_rows_are_sent_in_order(store: Store, chat: int) -> None:
    """The first unsent row is next, and after the last there is none."""
    add(store, chat, "a", "b")
    for seq in (1, 2):
        message = next_message(store, chat)
        assert message.seq == seq
        store.run(mark_sent, message, RECEIPT)
    assert store.run(sending.next_due, chat) is None


def test_a_receipt_is_recorded(store: Store, chat: int, me: int) -> None:
    """The platform's id and the mark "(re-sent)" are kept."""
    add(store, chat, "a")
    message = next_message(store, chat)
    store.run(sending.postpone, next_row(store, chat), 0.0, "busy")
    store.run(sending.mark_sending, message, me)
    store.run(mark_sent, message, Receipt("m-9", resent=True))
    row = store.one(table)
    assert (row.state, row.platform_ref, row.resent, row.error) == ("sent", "m-9", 1, None)
    assert row.sent_at >= row.at


def test_a_send_is_marked(store: Store, chat: int, me: int) -> None:
    """The mark names its replica."""
    add(store, chat, "a")
    assert store.run(sending.mark_sending, next_message(store, chat), me)
    row = store.one(table)
    assert (row.state, row.sender) == ("sending", me)


def test_another_replica_cannot_take_a_row_that_is_being_sent(
    store: Store, chat: int, me: int
) -> None:
    """The second mark is refused."""
    add(store, chat, "a")
    message = next_message(store, chat)
    other = store.run(leases.register, "other")
    assert store.run(sending.mark_sending, message, me)
    assert not store.run(sending.mark_sending, message, other)


def test_a_dropped_row_is_not_sent(store: Store) -> None:
    """A row that was cancelled between look and mark stays dropped."""
    current = store.run(turn_of, "hello")
    add(store, current.lease.conversation, "a", turn_id=current.id)
    message = next_message(store, current.lease.conversation)
    store.run(outbox.drop_unsent, current.lease.conversation, current.id)
    assert not store.run(sending.mark_sending, message, current.lease.replica)
    assert states(store) == ["dropped"]


def test_what_was_shown_is_not_sent_again(store: Store, chat: int, me: int) -> None:
    """A look from before the receipt finds the row marked by the same replica; it is done."""
    add(store, chat, "a")
    message = next_message(store, chat)
    store.run(sending.mark_sending, message, me)
    store.run(mark_sent, message, RECEIPT)
    assert not store.run(sending.mark_sending, message, me)
    assert states(store) == ["sent"]


def test_only_what_nobody_has_seen_is_dropped(store: Store) -> None:
    """Rows of other turns, and rows that may have been shown, stay."""
    current = store.run(turn_of, "hello")
    chat, me = current.lease.conversation, current.lease.replica
    add(store, chat, "sent", "doubtful", "unsent", turn_id=current.id)
    add(store, chat, "other")
    store.run(mark_sent, next_message(store, chat), RECEIPT)
    store.run(sending.mark_sending, next_message(store, chat), me)
    store.run(sending.postpone, next_row(store, chat), 0.0, "cut", is_unknown=True)
    store.run(outbox.drop_unsent, chat, current.id)
    assert states(store) == ["sent", "unknown", "dropped", "pending"]


def test_a_delayed_row_waits(store: Store, chat: int) -> None:
    """Nothing was shown: the same row, later, and nothing behind it before."""
    add(store, chat, "a", "b")
    store.run(sending.postpone, next_row(store, chat), 30.0, "flood wait")
    due = store.run(sending.next_due, chat)
    assert due is not None
    assert 20 < due.in_s <= 30
    assert (due.message.seq, due.message.outcome_unknown) == (1, False)
    assert store.rows(table)[0].error == "flood wait"


@pytest.mark.usefixtures("sqlite_alone")
def test_the_next_row_is_found_among_thousands(store: Store, chat: int) -> None:
    """In the order of an index: who was away for a day may have as many."""
    add(store, chat, "a", "b")
    found = store.plans(sending.next_due, chat)
    assert [line for line in found if "outbox" in line] == [
        "SEARCH outbox USING INDEX ix_outbox_unsent (conversation=?)"
    ]
    assert not any("TEMP B-TREE" in line for line in found)


def test_a_row_of_unknown_outcome_is_to_be_resolved(store: Store, chat: int, me: int) -> None:
    """It may have been shown: the next attempt knows that."""
    add(store, chat, "a")
    first = next_row(store, chat)
    message = first.message
    store.run(sending.mark_sending, message, me)
    store.run(sending.postpone, first, 5.0, "cut", is_unknown=True)
    due = store.run(sending.next_due, chat)
    assert due is not None
    assert due.message.outcome_unknown
    assert due.message.nonce == message.nonce
    assert due.failures == 1
    assert 0 < due.in_s <= 5


def test_failures_are_counted(store: Store, chat: int, me: int) -> None:
    """Each delay and each doubt is one; a mark is none."""
    add(store, chat, "a")
    for expected in range(1, 4):
        first = next_row(store, chat)
        store.run(sending.mark_sending, first.message, me)
        store.run(sending.postpone, first, 0.0, "busy", is_unknown=bool(expected % 2))
        due = store.run(sending.next_due, chat)
        assert due is not None
        assert due.failures == expected


def test_a_doubt_survives_a_delay(store: Store, chat: int, me: int) -> None:
    """That a later attempt was refused says nothing about the earlier one."""
    add(store, chat, "a")
    store.run(sending.postpone, next_row(store, chat), 0.0, "cut", is_unknown=True)
    doubtful = next_row(store, chat)
    store.run(sending.mark_sending, doubtful.message, me)
    store.run(sending.postpone, doubtful, 0.0, "busy")
    assert next_message(store, chat).outcome_unknown


def test_a_receipt_that_could_not_be_stored_leaves_a_doubt(
    store: Store, chat: int, me: int
) -> None:
    """A row that this replica marked and did not finish can be taken up again, as doubtful."""
    add(store, chat, "a")
    store.run(sending.mark_sending, next_message(store, chat), me)
    again = next_message(store, chat)
    assert again.outcome_unknown
    assert store.run(sending.mark_sending, again, me)


def test_a_dead_row_blocks_nothing(store: Store, chat: int) -> None:
    """What will never be shown is left to the operator, and the next row is sent."""
    add(store, chat, "a", "b")
    store.run(sending.mark_dead, next_row(store, chat), "blocked by the user")
    assert next_message(store, chat).seq == 2
    assert store.rows(table)[0].error == "blocked by the user"


def test_what_waits_too_long_is_buried_with_the_row_before_it(store: Store, chat: int) -> None:
    """Not what came later, what tells of dead letters, and what takes buttons off."""
    old = ["a", "b", f"{outbox.DEAD_NOTICE}{chat}:1", "inquiry:7:over:1"]
    add(store, chat, *old)
    store.run(lambda conn: conn.execute(update(table).values(at=now_s() - 100)))
    add(store, chat, "new")
    first = replace(next_row(store, chat), failures=4)
    assert store.run(sending.bury_older, first, 50.0, "nobody there") == 1
    assert states(store) == ["pending", "dead", "pending", "pending", "pending"]
    assert [row.failures for row in store.rows(table)] == [0, 0, 4, 0, 0]


def test_conversations_with_unsent_rows_are_found(store: Store, chat: int) -> None:
    """At start, those of the adapters that run, whatever state their rows are in."""
    web = inbound().address.__class__("web", "default", "w")
    other, _ = store.run(admit, inbound(address=web))
    third, _ = store.run(admit, inbound(chat="third"))
    for conversation_id in (chat, other, third):
        add(store, conversation_id, f"k{conversation_id}")
    store.run(mark_sent, next_message(store, third), RECEIPT)
    store.run(
        lambda conn: conn.execute(
            update(table).where(table.c.conversation == chat).values(state="unknown")
        )
    )
    assert store.run(sending.unsent_conversations, ACCOUNTS) == [chat]
    assert store.run(sending.unsent_conversations, [*ACCOUNTS, ("web", "default")]) == [chat, other]
    assert store.run(sending.unsent_conversations, []) == []


@given(st.text(), st.text())
def test_a_nonce_is_24_hex_characters_of_its_cause(one: str, other: str) -> None:
    """The same for every attempt at a row, another for every other row."""
    assert len(nonce_of(one)) == 24
    assert int(nonce_of(one), 16) >= 0
    assert (nonce_of(one) == nonce_of(other)) == (one == other)


def test_buttons_and_files_reach_the_adapter(store: Store, chat: int) -> None:
    """What was entered with a row is there when it is due."""
    choices = (Choice("Ja, „gern“", "/yes"),)
    rows = [outbox.OutboxPart("k", "p", "m", choices=choices), outbox.file_part("f", 7, "a.txt")]
    store.run(outbox.append, chat, rows, inbox_seq=1)
    first = store.run(sending.next_due, chat)
    assert first is not None
    assert (first.message.choices, first.attachment) == (choices, None)
    second = store.run(mark_sent, first.message, RECEIPT)
    assert second is not None
    assert (second.message.payload, second.attachment) == ("", 7)


class Two(NamedTuple):
    """Two replicas, and a conversation with two rows to be shown."""

    one: int
    two: int
    chat: int


@pytest.fixture
def both(store: Store) -> Two:
    """Nobody sends the rows yet."""
    chat, _ = store.run(admit, inbound())
    store.run(outbox.append, chat, [part("a"), part("b")], inbox_seq=1)
    return Two(store.run(leases.register, "one"), store.run(leases.register, "two"), chat)


def due_of(store: Store, both: Two, replica_id: int) -> sending.Due:
    due = store.run(sending.next_due, both.chat, replica_id)
    assert due is not None
    return due


def age(store: Store) -> None:
    """Let time pass for the rows."""
    store.run(lambda conn: conn.execute(update(table).values(at=now_s() - 60)))


def test_who_looks_first_sends_all(store: Store, both: Two) -> None:
    """The other one finds nothing that it may send, from the first row to the last."""
    first = due_of(store, both, both.one)
    assert store.run(sending.next_due, both.chat, both.two) is None
    assert store.run(sending.mark_sending, first.message, both.one)
    assert not store.run(sending.mark_sending, first.message, both.two)
    second = store.run(mark_sent, first.message, RECEIPT, both.one)
    assert second is not None
    assert store.run(sending.next_due, both.chat, both.two) is None
    assert store.run(mark_sent, second.message, RECEIPT, both.one) is None
    assert {row.state for row in store.rows(table)} == {"sent"}


def test_what_comes_later_is_sent_by_who_is_at_it(store: Store, both: Two) -> None:
    """Also where another replica has entered it."""
    first = due_of(store, both, both.one)
    store.run(outbox.append, both.chat, [part("c")], inbox_seq=1)
    assert store.run(sending.next_due, both.chat, both.two) is None
    second = store.run(mark_sent, first.message, RECEIPT, both.one)
    assert second is not None
    third = store.run(mark_sent, second.message, RECEIPT, both.one)
    assert third is not None
    assert third.sender == both.one


def test_the_rows_of_a_dead_replica_are_anybodys(store: Store, both: Two) -> None:
    """What it was sending is in doubt, and stays the first."""
    first = due_of(store, both, both.one)
    assert store.run(sending.mark_sending, first.message, both.one)
    store.run(leases.reap, both.one)
    again = due_of(store, both, both.two)
    assert again.message.seq == first.message.seq
    assert again.message.outcome_unknown


def test_a_replica_that_was_forgotten_holds_no_line_up(store: Store, both: Two) -> None:
    """A copied database names replicas that are none there."""
    due_of(store, both, both.one)
    store.run(lambda conn: conn.execute(replica.delete().where(replica.c.id == both.one)))
    assert due_of(store, both, both.two).sender == both.two


def test_who_was_reaped_sends_nothing_and_notes_nothing(store: Store, both: Two) -> None:
    """Another one is at its row; its receipt alone is taken, since that is true."""
    first = due_of(store, both, both.one)
    assert store.run(sending.mark_sending, first.message, both.one)
    store.run(leases.reap, both.one)
    # Also as long as nobody else is at it.
    assert not store.run(sending.mark_sending, first.message, both.one)
    store.run(sending.postpone, first, 60.0, "busy")
    mine = due_of(store, both, both.two)
    assert mine.failures == 0
    assert store.run(sending.mark_sending, mine.message, both.two)
    assert store.run(sending.next_due, both.chat, both.one) is None
    assert not store.run(sending.mark_sending, first.message, both.one)
    store.run(sending.postpone, first, 60.0, "busy")
    store.run(sending.postpone, first, 60.0, "cut", is_unknown=True)
    store.run(sending.drop, first, "gone")
    assert not store.run(sending.mark_dead, first, "blocked")
    row = store.rows(table)[0]
    assert (row.state, row.sender, row.failures) == ("sending", both.two, 0)
    store.run(mark_sent, first.message, Receipt("m-1"), both.one)
    assert store.rows(table)[0].platform_ref == "m-1"


def test_a_delay_keeps_the_line(store: Store, both: Two) -> None:
    """Who was told to wait goes on with it; nobody else tries meanwhile."""
    first = due_of(store, both, both.one)
    store.run(sending.postpone, first, 0.0, "busy")
    assert store.run(sending.next_due, both.chat, both.two) is None
    assert due_of(store, both, both.one).failures == 1


def test_a_look_finds_ones_own_and_what_nobody_sends(store: Store, both: Two) -> None:
    """What is fresh is left to where it was entered."""
    assert store.run(sending.unsent_conversations, ACCOUNTS, both.two) == []
    age(store)
    assert store.run(sending.unsent_conversations, ACCOUNTS, both.two) == [both.chat]
    due_of(store, both, both.one)
    assert store.run(sending.unsent_conversations, ACCOUNTS, both.two) == []
    assert store.run(sending.unsent_conversations, ACCOUNTS, both.one) == [both.chat]
    assert store.run(sending.unsent_conversations, [("web", "default")], both.one) == []
    store.run(leases.reap, both.one)
    assert store.run(sending.unsent_conversations, ACCOUNTS, both.two) == [both.chat]


def test_what_waits_is_counted_where_it_is_sent(store: Store, both: Two) -> None:
    """Another replica's rows say nothing about whether this one is silent."""
    assert [each.rows for each in store.run(sending.waiting, both.two)] == [2]
    due_of(store, both, both.one)
    assert store.run(sending.waiting, both.two) == []
    assert [each.rows for each in store.run(sending.waiting, both.one)] == [2]
