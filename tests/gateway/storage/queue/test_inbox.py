"""The inbox: one row per update, in order, once."""

import itertools

import pytest
from sqlalchemy.exc import IntegrityError

from gateway.storage.conversation import conversations
from gateway.storage.queue import arrivals, inbox
from gateway.storage.queue.inbox import InboxState
from gateway.storage.schema import inbox as inbox_table
from tests.support.storage import Store, admit, inbound, seqs, turn_of


def texts(store: Store, conversation_id: int) -> list[str]:
    return [entry.text for entry in store.run(inbox.queued, conversation_id)]


def test_seqs_are_gapless_in_every_conversation(store: Store) -> None:
    """Whatever their order, messages of a conversation are numbered from 1 on, without gaps."""
    ids = [store.run(admit, inbound(chat=chat)) for chat in "abacbbac"]
    for conversation_id, group in itertools.groupby(sorted(ids), key=lambda pair: pair[0]):
        expected = [seq for _, seq in group]
        assert expected == list(range(1, len(expected) + 1))
        assert store.conversation(conversation_id).inbox_head == len(expected)


def test_a_failed_append_leaves_no_gap(store: Store) -> None:
    """A seq that was taken in a transaction that failed is given again."""
    conversation_id, _ = store.run(admit, inbound(dedupe_key="same"))
    with pytest.raises(IntegrityError):
        store.run(admit, inbound(dedupe_key="same"))
    store.run(admit, inbound())
    assert seqs(store.rows(inbox_table)) == [1, 2]
    assert store.conversation(conversation_id).inbox_head == 2


def test_queued_entries_come_in_order(store: Store) -> None:
    """Only what waits is returned, with all that a turn needs to know."""
    conversation_id, _ = store.run(admit, inbound("one", message_ref="m1", sender_name="Ada"))
    store.run(admit, inbound("refused"), state="refused")
    store.run(admit, inbound("/new"), kind="command")
    first, second = store.run(inbox.queued, conversation_id)
    assert (first.seq, first.kind, first.text, first.message_ref) == (1, "message", "one", "m1")
    assert (first.sender, first.sender_name) == ("42", "Ada")
    assert (second.seq, second.kind) == (3, "command")
    assert second.at >= first.at


def test_pending_counts_what_waits_and_what_is_being_answered(store: Store) -> None:
    """Taken entries count towards `queue.max_pending`, finished ones do not."""
    current = store.run(turn_of, "one", "two")
    store.run(admit, inbound("three"))
    store.run(admit, inbound("no"), state="refused")
    assert store.run(conversations.locked, current.lease.conversation).pending == 3
    store.run(inbox.finish_turn, current.lease.conversation, current.id, "done")
    assert store.run(conversations.locked, current.lease.conversation).pending == 1


@pytest.mark.parametrize(("state", "is_ready"), [("queued", True), ("done", False)])
def test_what_is_queued_makes_its_conversation_ready(
    store: Store, state: InboxState, *, is_ready: bool
) -> None:
    """In the statement that takes its seq."""
    row = store.run(arrivals.find_or_create, "key", inbound(), "42")
    store.run(inbox.append, row.id, inbound(), kind="message", state=state)
    assert (store.conversation(row.id).ready_no is not None) is is_ready


def test_a_turn_takes_its_entries(store: Store) -> None:
    """What a turn took waits no longer and is found by the turn's id."""
    current = store.run(turn_of, "one", "two")
    conversation_id = current.lease.conversation
    assert texts(store, conversation_id) == []
    taken = store.run(inbox.of_turn, conversation_id, current.id)
    assert [entry.text for entry in taken] == ["one", "two"]
    assert {row.state for row in store.rows(inbox_table)} == {"taken"}


def test_one_entry_can_be_finished(store: Store) -> None:
    """A command is done without a turn."""
    conversation_id, _ = store.run(admit, inbound("/new"), kind="command")
    store.run(admit, inbound("next"))
    store.run(inbox.finish, store.run(inbox.queued, conversation_id)[0], "done")
    assert texts(store, conversation_id) == ["next"]


def test_cancelling_drops_everything_that_waits(store: Store) -> None:
    """Commands are cancelled too; what is being answered is the turn's business."""
    current = store.run(turn_of, "running")
    store.run(admit, inbound("waiting"))
    store.run(admit, inbound("/new"), kind="command")
    store.run(admit, inbound("elsewhere", chat="other"))
    assert store.run(inbox.cancel_queued, current.lease.conversation) == 2
    states = [row.state for row in store.rows(inbox_table, conversation=current.lease.conversation)]
    assert states == ["taken", "cancelled", "cancelled"]
    assert len(store.rows(inbox_table, state="queued")) == 1
