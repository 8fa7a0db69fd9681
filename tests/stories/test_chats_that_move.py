"""A chat that gets another id: its conversations, and what waits to be sent, go on there."""

from dataclasses import replace
from typing import Any

import pytest

from adapters.messages import Address, Choice, Cursor, Move, Poison, Receipt
from agent.messages import assistant_message
from gateway.session_keys import address_key
from gateway.storage.conversation import conversations, turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.queue import inbox, outbox, sending
from gateway.storage.schema import alias, quarantine, turn
from gateway.storage.schema import inbox as inbox_table
from gateway.storage.schema import outbox as outbox_table
from tests.support.storage import (
    BASE,
    Store,
    admit,
    begin_turn,
    find_running,
    forget,
    inbound,
    part,
    turn_of,
)

MOVE = Move("telegram", "default", "-5", "-1005")


def key(chat: str, thread: str | None = None) -> str:
    """Return a session key of the default account."""
    return address_key(Address("telegram", "default", chat, thread))


@pytest.fixture
def group(store: Store) -> int:
    """A group that two people talk in, each with a conversation; returns the first one."""
    first = store.run(admit, inbound(chat="-5", chat_kind="group", sender="1"))[0]
    store.run(admit, inbound(chat="-5", chat_kind="group", sender="2"))
    return first


def test_all_conversations_of_the_chat_go_on_under_its_new_id(store: Store, group: int) -> None:
    """A message of the same person in the new chat belongs to the same conversation."""
    assert store.run(inbox.move, MOVE)
    again = inbound(chat="-1005", chat_kind="group", sender="1")
    assert store.run(admit, again)[0] == group
    assert store.conversation(group).chat == "-1005"
    assert len(store.rows(alias)) == 4


def test_what_waits_is_sent_to_the_new_id(store: Store, group: int) -> None:
    """Rows of the outbox follow their conversation."""
    store.run(outbox.append, group, [part("k")], inbox_seq=1)
    store.run(inbox.move, MOVE)
    due = store.run(sending.next_due, group)
    assert due is not None
    assert due.message.address.chat == "-1005"


def test_buttons_that_stayed_behind_are_not_taken_off(store: Store, group: int) -> None:
    """Their message's id may be another message's in the new chat."""
    asked = replace(part("inquiry:1:buttons:1"), choices=(Choice("Yes", "/approve 1"),))
    store.run(outbox.append, group, [asked], inbox_seq=1)
    due = store.run(sending.next_due, group)
    assert due is not None
    store.run(sending.mark_sent, due.message, Receipt("m1"))
    store.run(inbox.move, MOVE)
    store.run(outbox.withdraw, group, "inquiry:1", "stopped", 1)
    due = store.run(sending.next_due, group)
    assert due is not None
    assert due.withdraws is not None
    assert due.withdraws.message_ref == ""


def test_a_move_that_is_told_twice_changes_nothing(store: Store, group: int) -> None:
    """Telegram tells it in the old chat and in the new one."""
    store.run(inbox.move, MOVE)
    before = store.rows(alias)
    assert store.run(inbox.move, MOVE)
    assert store.rows(alias) == before
    assert store.conversation(group).chat == "-1005"


def test_a_chat_moves_on_from_where_it_moved_to(store: Store) -> None:
    """Keys of before an earlier move stay what they are."""
    chat = store.run(admit, inbound(chat="-5"))[0]
    store.run(inbox.move, MOVE)
    assert store.run(inbox.move, Move("telegram", "default", "-1005", "-7"))
    assert [store.run(conversations.find, key(each)) for each in ("-5", "-1005", "-7")] == [
        chat
    ] * 3


def test_threads_move_with_their_chat(store: Store) -> None:
    """A topic keeps its number."""
    topic = store.run(admit, inbound(chat="-5", thread="3", chat_kind="thread"))[0]
    store.run(inbox.move, MOVE)
    assert store.run(conversations.find, key("-1005", "3")) == topic


def test_nobody_is_moved_into_another_conversation(store: Store) -> None:
    """Somebody wrote in the new chat before the move was told: both conversations stay."""
    old = store.run(admit, inbound(chat="-5"))[0]
    new = store.run(admit, inbound(chat="-1005"))[0]
    assert not store.run(inbox.move, MOVE)
    assert store.conversation(old).chat == "-5"
    assert store.run(conversations.find, key("-1005")) == new


def test_chats_with_a_similar_id_stay(store: Store) -> None:
    """-51 is not -5."""
    other = store.run(admit, inbound(chat="-51"))[0]
    store.run(inbox.move, MOVE)
    assert store.conversation(other).chat == "-51"
    assert store.run(conversations.find, key("-51")) == other


def test_positions_are_found_by_the_beginning_of_their_source(store: Store) -> None:
    """Those of one account, also where a name has a wildcard of LIKE in it."""
    for source, position in (("discord:a_b:1", 2**62), ("discord:a_b:2", 7), ("discord:axb:1", 9)):
        store.run(inbox.advance, Cursor(source, position))
    found = store.run(inbox.positions, "discord:a_b:")
    assert found == {"discord:a_b:1": 2**62, "discord:a_b:2": 7}


def test_ids_of_messages_do_not_move(store: Store) -> None:
    """They begin anew: neither a reply, a preview nor an edit means an old one."""
    current = store.run(turn_of, "one", chat="-5")
    store.run(turn_journal.set_preview, current, "p1")
    store.run(admit, inbound("two", chat="-5", message_ref="102"))
    store.run(inbox.move, MOVE)
    assert {row.message_ref for row in store.rows(inbox_table)} == {None}
    assert store.one(turn).preview_ref is None


@pytest.mark.parametrize("end", [turn_journal.commit, turn_journal.bury, turn_journal.cancel])
def test_a_turn_that_runs_while_its_chat_moves_forgets_ids(store: Store, end: Any) -> None:
    """Its answer is a new message in the new chat; so is what it tells meanwhile."""
    current = store.run(turn_of, "one", chat="-5")
    store.run(inbox.move, MOVE)
    store.run(turn_journal.set_preview, current, "p2")
    old = [replace(part(key), preview_ref="p1", reply_to="101") for key in "ab"]
    store.run(turn_journal.notify, current, old[:1])
    said = "" if end is turn_journal.cancel else [assistant_message("hi")]
    more = [old[1:], TurnEnd("x")]
    store.run(end, current, *(more if end is turn_journal.bury else [said, *more]))
    assert [(row.preview_ref, row.reply_to) for row in store.rows(outbox_table)] == [
        (None, None)
    ] * 2
    assert store.one(turn).preview_ref is None


def test_the_next_turn_knows_where_its_chat_is(store: Store) -> None:
    """Also under the lease of before, and when it is resumed."""
    lease = store.run(turn_of, "one", chat="-5").lease
    store.run(inbox.move, MOVE)
    resumed = store.run(find_running, lease, BASE)
    assert resumed is not None
    assert resumed.lease.address.chat == "-1005"
    store.run(turn_journal.commit, resumed, [], [], TurnEnd("empty"))
    store.run(admit, inbound("two", chat="-1005"))
    assert store.run(begin_turn, lease).lease.address.chat == "-1005"


def test_what_strangers_wrote_moves_along(store: Store, group: int) -> None:
    """So that it is erased with the chat."""
    kept = [Poison("telegram:default", "k", "words", "stranger")]
    store.run(inbox.set_aside, kept, "-5")
    store.run(inbox.move, MOVE)
    store.run(forget, group)
    assert store.one(quarantine).raw == ""
