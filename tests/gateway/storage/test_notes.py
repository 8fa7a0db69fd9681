"""Notes: what the next answer in a place is to know, bounded."""

from typing import Any

from adapters.messages import Address, InboundMessage
from gateway.storage import inbox, notes
from gateway.storage.models import conversation
from gateway.storage.models import inbox as table
from gateway.storage.notes import LISTENING, NOTES_KEPT
from tests.support.storage import Store, admit, begin_turn, claim_one, inbound


def said(text: str = "hi", sender: str = "9", thread: str | None = None, **more: Any) -> Any:
    """Return what somebody says in a group to others."""
    address = Address("telegram", "default", "g", thread)
    return inbound(
        text, address=address, chat_kind="group", sender=sender, addressed="overheard", **more
    )


def asked(store: Store, sender: str = "1", **changes: Any) -> int:
    """Have somebody ask the bot in the group; returns the conversation."""
    message: InboundMessage = said("you!", sender, **changes)
    return store.run(admit, message)[0]


def noted(store: Store, conversation_id: int) -> list[str]:
    rows = store.rows(table, conversation=conversation_id, state="noted")
    return [row.text for row in rows]


def test_nobody_listens_where_the_bot_has_no_conversation(store: Store) -> None:
    """Nothing is stored."""
    store.run(admit, inbound(chat="elsewhere"))
    assert store.run(notes.hear, said()) is None
    assert len(store.rows(table)) == 1


def test_every_conversation_of_a_group_listens(store: Store) -> None:
    """Each sender's own, and that of all; not that of a thread or of another group."""
    here = [asked(store, sender) for sender in ("1", "2")]
    store.run(inbox.find_or_create, "telegram:default:g", said(), None)
    there = [
        asked(store, thread="t"),
        store.run(admit, inbound(chat="g2"))[0],
        store.run(admit, inbound(chat="g:x"))[0],
    ]
    shared = max(row.id for row in store.rows(conversation) if row.id not in {*here, *there})
    assert store.run(notes.hear, said("so"))
    assert [noted(store, each) for each in (*here, shared)] == [["so"]] * 3
    assert [noted(store, each) for each in there] == [[]] * 3


def test_a_thread_is_a_place_of_its_own(store: Store) -> None:
    """Its conversation does not hear the group."""
    asked(store)
    address = Address("telegram", "default", "g", "t")
    thread, _ = store.run(admit, inbound(address=address, chat_kind="thread"))
    store.run(notes.hear, said("in the thread", thread="t"))
    assert noted(store, thread) == ["in the thread"]


def test_the_message_is_known_from_then_on(store: Store) -> None:
    """One row has its key, the raw update is kept once."""
    for sender in ("1", "2"):
        asked(store, sender)
    message = said(dedupe_key="k", raw='{"text":"hi"}')
    store.run(notes.hear, message)
    assert store.run(inbox.is_known, "telegram:default", "k")
    rows = store.rows(table, state="noted")
    assert sorted(row.raw for row in rows) == ['{"text":"hi"}', "{}"]
    assert {row.kind for row in rows} == {"overheard"}


def test_the_busiest_conversations_listen_in_a_large_group(store: Store) -> None:
    """Those with the newest turns; the one that is active is returned."""
    first = asked(store, "first")
    for n in range(LISTENING + 3):
        asked(store, f"idle {n}")
    begin = claim_one
    store.run(lambda conn: begin_turn(conn, begin(conn, first)))
    assert store.run(notes.hear, said()) == first
    listening = {row.conversation for row in store.rows(table, state="noted")}
    assert len(listening) == LISTENING
    assert first in listening


def test_the_newest_notes_are_kept(store: Store) -> None:
    """Older ones are done without having been told; other rows stay as they are."""
    here = asked(store)
    for n in range(NOTES_KEPT + 3):
        store.run(notes.note, here, said(f"n{n}"), "overheard")
    assert noted(store, here) == [f"n{n}" for n in range(3, NOTES_KEPT + 3)]
    states = [row.state for row in store.rows(table, conversation=here)]
    assert (states[0], states.count("done")) == ("queued", 3)


def test_notes_of_one_conversation_do_not_push_out_others(store: Store) -> None:
    """Each has its own bound."""
    one, two = asked(store, "1"), asked(store, "2")
    store.run(notes.note, one, said("early"), "edit")
    for n in range(NOTES_KEPT):
        store.run(notes.note, two, said(f"n{n}"), "overheard")
    assert noted(store, one) == ["early"]


def test_chatter_does_not_push_out_edits(store: Store) -> None:
    """Each kind has its own bound."""
    here = asked(store)
    store.run(notes.note, here, said("corrected"), "edit")
    for n in range(NOTES_KEPT + 2):
        store.run(notes.note, here, said(f"n{n}"), "overheard")
    assert noted(store, here) == ["corrected", *(f"n{n}" for n in range(2, NOTES_KEPT + 2))]
