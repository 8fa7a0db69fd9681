"""The inbox: one row per update, in order, once."""

import itertools

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from adapters.messages import Cursor, Poison
from gateway.storage.conversation import conversations
from gateway.storage.conversation.conversations import TITLE_CHARS
from gateway.storage.queue import inbox
from gateway.storage.queue.inbox import InboxState
from gateway.storage.schema import alias, conversation, quarantine, session
from gateway.storage.schema import cursor as cursor_table
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
    row = store.run(inbox.find_or_create, "key", inbound(), "42")
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


SOURCE = "telegram:default"


def poison(key: str, reason: str = "malformed") -> Poison:
    return Poison(SOURCE, key, "{}", reason)


def test_a_new_conversation_has_a_key_a_title_and_a_session(store: Store) -> None:
    """The first message of a session key creates all that belongs to a conversation."""
    conversation_id, seq = store.run(admit, inbound("  Where\n is it? ", chat="7"))
    row = store.conversation(conversation_id)
    assert (row.platform, row.account, row.chat, row.thread, row.user, seq) == ((
        "telegram",
        "default",
        "7",
        None,
        "7",
        1,
    ))
    assert row.title == "Where is it?"
    assert store.one(alias).session_key == "telegram:default:7"
    assert row.active_session_id == store.one(session, parent_session_id=None).id


def test_the_same_key_finds_the_same_conversation(store: Store) -> None:
    """A later message joins the conversation, whose title stays."""
    first, _ = store.run(admit, inbound("one"))
    assert store.run(admit, inbound("two")) == (first, 2)
    assert store.one(conversation).title == "one"


def test_a_long_title_is_cut(store: Store) -> None:
    """A title is one line of limited length, with a mark where it was cut."""
    store.run(admit, inbound("word " * 100))
    title = store.one(conversation).title
    assert len(title) <= TITLE_CHARS
    assert title.endswith("…")


def test_a_title_is_given_once(store: Store) -> None:
    """A conversation without a name gets that of its first readable message."""
    conversation_id, _ = store.run(admit, inbound(""))
    store.run(conversations.set_title, conversation_id, "first words")
    store.run(conversations.set_title, conversation_id, "later words")
    assert store.one(conversation).title == "first words"


def test_a_known_key_is_recognised_within_its_source(store: Store) -> None:
    """The same dedupe key of another account is another message."""
    store.run(admit, inbound(dedupe_key="k"))
    store.run(inbox.set_aside, [poison("p")])
    assert store.run(inbox.is_known, SOURCE, "k")
    assert store.run(inbox.is_known, SOURCE, "p")
    assert not store.run(inbox.is_known, SOURCE, "other")
    assert not store.run(inbox.is_known, "telegram:second", "k")


def test_a_message_and_its_conversation_are_looked_up_in_one_statement(store: Store) -> None:
    """Whether it is known, and how much waits before it."""
    place, _ = store.run(admit, inbound("one", chat="7", dedupe_key="k"))
    store.run(inbox.set_aside, [poison("p")])
    here = store.run(conversations.locked, place)
    key = "telegram:default:7"
    looked_up = {
        each: store.run(inbox.arrival, key, inbound(chat="7", dedupe_key=each))
        for each in ("k", "p", "new")
    }
    assert looked_up == {"k": (True, here), "p": (True, here), "new": (False, here)}
    assert here.pending == 1
    assert store.statements(inbox.arrival, key, inbound()) == ["SELECT conversation"]


def test_a_message_without_a_conversation_is_known_by_its_key(store: Store) -> None:
    """A stranger's is in quarantine."""
    store.run(inbox.set_aside, [poison("p")])
    assert store.run(inbox.arrival, "nowhere", inbound(dedupe_key="p")) == (True, None)
    assert store.run(inbox.arrival, "nowhere", inbound(dedupe_key="new")) == (False, None)


def test_poison_is_set_aside_once(store: Store) -> None:
    """An update that comes again is not stored again."""
    store.run(inbox.set_aside, [poison("a"), poison("b")])
    store.run(inbox.set_aside, [poison("b"), poison("c")])
    assert [row.dedupe_key for row in store.rows(quarantine)] == ["a", "b", "c"]
    assert {row.reason for row in store.rows(quarantine)} == {"malformed"}


def test_poison_twice_in_one_batch_is_stored_once(store: Store) -> None:
    """A platform that repeats itself within one answer does no harm."""
    store.run(inbox.set_aside, [poison("a"), poison("a")])
    assert len(store.rows(quarantine)) == 1


def test_a_cursor_moves_forward_only(store: Store) -> None:
    """An older batch that comes late does not repeat what was read."""
    assert store.run(inbox.position, SOURCE) is None
    for position, expected in ((5, 5), (9, 9), (7, 9), (9, 9)):
        store.run(inbox.advance, Cursor(SOURCE, position))
        assert store.run(inbox.position, SOURCE) == expected
    assert store.run(inbox.position, "telegram:second") is None
    assert len(store.rows(cursor_table)) == 1


def test_raw_updates_are_pruned_by_age(store: Store) -> None:
    """Old originals go, rows and texts stay; new ones are kept."""
    store.run(admit, inbound("old", raw="old original"))
    store.run(lambda conn: conn.execute(update(inbox_table).values(at=inbox_table.c.at - 1000)))
    store.run(admit, inbound("new", raw="new original"))
    assert store.run(inbox.prune_raw, 500) == 1
    assert [row.raw for row in store.rows(inbox_table)] == [None, "new original"]
    assert [row.text for row in store.rows(inbox_table)] == ["old", "new"]


@pytest.mark.usefixtures("sqlite_alone")
def test_what_a_sender_has_sent_is_found_by_an_index(store: Store) -> None:
    """For quotas; whatever is in the inbox, only the rows of a day of one sender are read."""
    [only] = store.plans(inbox.ages_s, inbound(), 86_400.0, 5)
    assert only == "SEARCH inbox USING INDEX ix_inbox_sender_at (sender=? AND at>?)"


@pytest.mark.usefixtures("sqlite_alone")
def test_what_is_old_enough_is_found_by_indexes(store: Store) -> None:
    """The writer is not held up by a look at every row."""
    found = store.plans(inbox.prune_raw, 1.0)
    assert any("ix_inbox_raw_at" in line for line in found)
    assert not [line for line in found if line.startswith("SCAN")]


def test_what_was_overheard_is_pruned_with_its_text(store: Store) -> None:
    """Told or not; what nobody has asked about for so long is not told any more."""
    states: list[InboxState] = ["done", "noted"]
    for state in states:
        store.run(admit, inbound("psst"), kind="overheard", state=state)
    store.run(lambda conn: conn.execute(update(inbox_table).values(at=0)))
    assert store.run(inbox.prune_raw, 1) == 2
    rows = [(row.state, row.text, row.raw) for row in store.rows(inbox_table)]
    assert rows == [("done", "", None)] * 2


def test_pruning_is_bounded_and_ends(store: Store) -> None:
    """Each call drops at most `limit`, and 0 tells that nothing is left."""
    for n in range(5):
        store.run(admit, inbound(str(n)))
    store.run(lambda conn: conn.execute(update(inbox_table).values(at=0)))
    assert [store.run(inbox.prune_raw, 1, limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_poison_and_strangers_are_pruned_too(store: Store) -> None:
    """Originals in quarantine are kept no longer than those of answered messages."""
    store.run(inbox.set_aside, [Poison(SOURCE, "k", "private words of a stranger", "stranger")])
    store.run(lambda conn: conn.execute(update(quarantine).values(at=0)))
    store.run(inbox.prune_raw, 1)
    assert "private words" not in store.one(quarantine).raw
    assert store.run(inbox.is_known, SOURCE, "k")
