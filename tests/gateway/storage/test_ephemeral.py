"""Rows that are only told beside a question: where they are read, and where not."""

from dataclasses import replace

from agent.messages import ChatMessage, context_message, decode, encode, user_message
from gateway.cli.sessions import OMITTED, Format, export, speaker
from gateway.storage.conversation import sessions, transcript, turns
from gateway.storage.conversation.transcript import MessagePlace
from gateway.storage.queue import inbox
from gateway.storage.reports import history
from tests.support.storage import BASE, Store, admit, begin, claim_one, find_running, inbound

EXAMPLE = ChatMessage(role="user", content="2+2?", synthetic=True, ephemeral=True)
TELLING = replace(BASE, prefill=(EXAMPLE,), context="<memory-context>c</memory-context>")


def begun(store: Store, asked: str | None = "one") -> turns.Turn:
    """Return a running turn about a question, with an example and context."""
    conversation_id, _ = store.run(admit, inbound())
    lease = store.run(claim_one, conversation_id)
    waiting = store.run(inbox.queued, conversation_id)
    found: turns.Turn = store.run(begin, lease, waiting, asked, TELLING)
    return found


def test_they_are_recorded_with_the_turn(store: Store) -> None:
    """The example belongs to the root, the context to the turn; the question comes last."""
    current = begun(store)
    bodies = [decode(body) for body in store.bodies(current.lease.conversation)]
    assert bodies == [EXAMPLE, context_message(TELLING.context), user_message("one")]
    assert [entry.seq for entry in current.entries] == [2, 3]
    found = store.run(find_running, current.lease, TELLING)
    assert found is not None
    assert found.entries == current.entries


def test_a_turns_question_is_the_persons(store: Store) -> None:
    """Not what stands before it; a turn that has recorded nothing has none."""
    current = begun(store)
    where = current.lease.conversation
    assert store.run(transcript.question_of_turn, where, current.id) == user_message("one")
    assert store.run(transcript.question_of_turn, where, 99) is None


def test_a_command_records_no_context(store: Store) -> None:
    """`/compress` asks nothing; the root begins with its examples all the same."""
    current = begun(store, None)
    assert [decode(body) for body in store.bodies(current.lease.conversation)] == [EXAMPLE]
    assert current.entries == ()


def test_the_past_is_what_was_said(store: Store) -> None:
    """A tool that reads earlier messages does not get them, whatever a person has written."""
    current = begun(store)
    tricky = user_message('{"a":1,"ephemeral":true,"b":2}')
    store.run(transcript.append, current.place, [tricky])
    where = current.lease.conversation
    found = store.run(transcript.read_past, where, from_seq=1, limit=2, contains=None)
    assert [past.text for past in found] == ["one", tricky["content"]]
    assert '\\"ephemeral\\"' in encode(tricky)


def test_people_see_that_they_are_context(store: Store) -> None:
    """`speaker` marks them, a Markdown export leaves their text out, JSON has it."""
    current = begun(store)
    assert speaker(EXAMPLE) == "user (by Parley, context only)"
    here = store.run(history.overview, current.lease.conversation)
    texts = {form: "".join(export(store.connection, here, form)) for form in Format}
    assert texts["md"].count(OMITTED) == 2
    assert "memory-context" not in texts["md"]
    assert "memory-context" in texts["json"]


def test_a_root_that_goes_on_has_its_examples_already(store: Store) -> None:
    """A child of it does not begin with them again."""
    current = begun(store)
    store.run(sessions.split, current.session, "compression", current.session.plan)
    root = store.run(sessions.active, current.lease.conversation)
    assert root.system_prompt is not None
    place = MessagePlace(current.lease.conversation, root.id, None)
    assert store.run(transcript.append, place, ()) == 3
