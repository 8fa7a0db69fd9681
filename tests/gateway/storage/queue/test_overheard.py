"""What the next answer in a place is to know, bounded; and edits."""

from typing import Any

import pytest

from adapters.messages import Address, Attachment, InboundMessage
from gateway.storage.conversation import attachments
from gateway.storage.queue import inbox, overheard
from gateway.storage.queue.inbox import InboxState
from gateway.storage.queue.overheard import LISTENING, NOTES_KEPT, Fate
from gateway.storage.schema import conversation
from gateway.storage.schema import inbox as table
from tests.support.storage import Store, admit, begin_turn, claim_one, inbound, turn_of


def texts(store: Store, conversation_id: int) -> list[str]:
    return [entry.text for entry in store.run(inbox.queued, conversation_id)]


def test_an_edit_revises_what_still_waits(store: Store) -> None:
    """The turn answers the newest wording."""
    conversation_id, _ = store.run(admit, inbound("tipo", message_ref="m1"))
    store.run(admit, inbound("other", message_ref="m2"))
    store.run(overheard.revise, conversation_id, inbound("typo", message_ref="m1", kind="edit"))
    assert texts(store, conversation_id) == ["typo", "other"]


def test_an_edit_does_not_touch_what_is_being_answered(store: Store) -> None:
    """A turn's words are frozen when it begins."""
    current = store.run(turn_of, "asked")
    edit = inbound("changed", message_ref="ref-asked", kind="edit")
    store.run(overheard.revise, current.lease.conversation, edit)
    assert store.one(table).text == "asked"


def test_an_edit_that_names_no_message_changes_nothing(store: Store) -> None:
    """Messages without a platform id are not the edited one."""
    conversation_id, _ = store.run(admit, inbound("one"))
    store.run(overheard.revise, conversation_id, inbound("changed", kind="edit"))
    assert texts(store, conversation_id) == ["one"]


def test_what_an_edit_empties_is_cancelled(store: Store) -> None:
    """Unless a file is left of it; the later state is told."""
    photo = Attachment(name="cat.jpg", kind="image", ref="f")
    here, _ = store.run(admit, inbound("one", message_ref="m1"))
    _, seq = store.run(admit, inbound("two", message_ref="m2"))
    store.run(attachments.append, here, seq, [photo], 1000)
    emptied = [inbound(" ", message_ref=ref, kind="edit") for ref in ("m1", "m2", "m1")]
    told = [store.run(overheard.revise, here, edit) for edit in emptied]
    assert told == ["emptied", "reworded", None]
    rows = [(row.state, row.text) for row in store.rows(table)]
    assert rows == [("cancelled", ""), ("queued", "")]


@pytest.mark.parametrize("state", ["queued", "taken", "done", "cancelled", "refused", "dead"])
def test_the_fate_of_an_edited_message(store: Store, state: InboxState) -> None:
    """Its newest wording is known, too; an edit of it is no message."""
    here, seq = store.run(admit, inbound("old", message_ref="m1"), state=state)
    edit = inbound("new", message_ref="m1", kind="edit")
    assert store.run(overheard.fate, here, edit) == Fate(seq, "message", state, None, "old")
    store.run(inbox.append, here, edit, kind="edit", state="noted")
    assert store.run(overheard.fate, here, edit) == Fate(seq, "message", state, None, "new")


@pytest.mark.parametrize(("sender", "ref"), [("43", "m1"), ("42", "m2")])
def test_only_ones_own_message_is_edited(store: Store, sender: str, ref: str) -> None:
    """And none that the bot never took."""
    here, _ = store.run(admit, inbound(message_ref="m1"))
    edit = inbound("new", message_ref=ref, kind="edit", sender=sender)
    assert store.run(overheard.fate, here, edit) is None


@pytest.mark.usefixtures("sqlite_alone")
def test_an_edited_message_is_found_by_an_index(store: Store) -> None:
    """Not by a look at every row of the conversation."""
    edit = inbound("new", message_ref="m1", kind="edit")
    for plan in store.plans(overheard.fate, 1, edit):
        assert "ix_inbox_conversation_message_ref" in plan or "SEARCH turn" in plan


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
    assert store.run(overheard.hear, said()) is None
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
    assert store.run(overheard.hear, said("so"))
    assert [noted(store, each) for each in (*here, shared)] == [["so"]] * 3
    assert [noted(store, each) for each in there] == [[]] * 3


def test_a_thread_is_a_place_of_its_own(store: Store) -> None:
    """Its conversation does not hear the group."""
    asked(store)
    address = Address("telegram", "default", "g", "t")
    thread, _ = store.run(admit, inbound(address=address, chat_kind="thread"))
    store.run(overheard.hear, said("in the thread", thread="t"))
    assert noted(store, thread) == ["in the thread"]


def test_the_message_is_known_from_then_on(store: Store) -> None:
    """One row has its key, the raw update is kept once."""
    for sender in ("1", "2"):
        asked(store, sender)
    message = said(dedupe_key="k", raw='{"text":"hi"}')
    store.run(overheard.hear, message)
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
    assert store.run(overheard.hear, said()) == first
    listening = {row.conversation for row in store.rows(table, state="noted")}
    assert len(listening) == LISTENING
    assert first in listening


def test_the_newest_notes_are_kept(store: Store) -> None:
    """Older ones are done without having been told; other rows stay as they are."""
    here = asked(store)
    for n in range(NOTES_KEPT + 3):
        store.run(overheard.note, here, said(f"n{n}"), "overheard")
    assert noted(store, here) == [f"n{n}" for n in range(3, NOTES_KEPT + 3)]
    states = [row.state for row in store.rows(table, conversation=here)]
    assert (states[0], states.count("done")) == ("queued", 3)


def test_notes_of_one_conversation_do_not_push_out_others(store: Store) -> None:
    """Each has its own bound."""
    one, two = asked(store, "1"), asked(store, "2")
    store.run(overheard.note, one, said("early"), "edit")
    for n in range(NOTES_KEPT):
        store.run(overheard.note, two, said(f"n{n}"), "overheard")
    assert noted(store, one) == ["early"]


def test_chatter_does_not_push_out_edits(store: Store) -> None:
    """Each kind has its own bound."""
    here = asked(store)
    store.run(overheard.note, here, said("corrected"), "edit")
    for n in range(NOTES_KEPT + 2):
        store.run(overheard.note, here, said(f"n{n}"), "overheard")
    assert noted(store, here) == ["corrected", *(f"n{n}" for n in range(2, NOTES_KEPT + 2))]
