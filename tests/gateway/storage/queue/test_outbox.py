"""The outbox: what will be shown, as rows."""

from typing import Any

from adapters.messages import Choice
from gateway.storage.conversation import attachments
from gateway.storage.queue import outbox
from gateway.storage.queue.outbox import MAX_MESSAGES, WHOLE_ANSWER, parts_of
from gateway.storage.schema import attachment
from gateway.storage.schema import outbox as table
from tests.support.storage import Store, admit, inbound, part, seqs


def words(markdown: str) -> list[str]:
    return markdown.split()


def add(store: Store, conversation_id: int, *keys: str, **values: Any) -> None:
    store.run(outbox.append, conversation_id, [part(key) for key in keys], inbox_seq=1, **values)


def test_a_text_becomes_one_part_for_each_chunk() -> None:
    """The first chunk keeps the whole text and replaces the preview; all keep the reply."""
    first, second = parts_of(words, "turn:1:answer", "one two", preview_ref="p", reply_to="r")
    assert (first.source_key, first.payload, first.markdown) == (
        "turn:1:answer:1",
        "one",
        "one two",
    )
    assert (first.preview_ref, first.reply_to) == ("p", "r")
    assert (second.source_key, second.payload) == ("turn:1:answer:2", "two")
    assert (second.preview_ref, second.reply_to) == (None, "r")
    assert second.markdown == "(part 2 of 2)"


def test_what_is_too_long_for_messages_is_whole_in_a_file(store: Store, chat: int) -> None:
    """The beginning is in the chat; file and last message say where the rest is."""
    text = " ".join(f"word{n}" for n in range(MAX_MESSAGES + 1))
    parts = parts_of(words, "turn:1:answer", text, choices=(Choice("Again", "/retry"),))
    store.run(outbox.append, chat, parts, inbox_seq=1)
    *shown, file, last = store.rows(table)
    assert [row.payload for row in shown] == text.split()[: MAX_MESSAGES - 2]
    assert store.run(attachments.outgoing, file.attachment).content.decode() == text
    assert WHOLE_ANSWER in last.markdown
    assert last.choices is not None
    assert len(parts) == MAX_MESSAGES


def test_a_repeated_commit_stores_no_second_file(store: Store, chat: int) -> None:
    """A row that is known brings nothing, its file included."""
    parts = parts_of(words, "turn:1:answer", "word " * 100)
    for _ in range(2):
        store.run(outbox.append, chat, parts, inbox_seq=1)
    assert len(store.rows(attachment)) == 1


def test_as_many_messages_as_may_be_need_no_file() -> None:
    """Only more of them do."""
    parts = parts_of(words, "turn:1:answer", "word " * MAX_MESSAGES)
    assert [part.content for part in parts] == [None] * MAX_MESSAGES


def test_rows_are_numbered_without_gaps(store: Store, chat: int) -> None:
    """Known source keys are skipped and use up no seq."""
    add(store, chat, "a", "b")
    add(store, chat, "b", "c")
    rows = store.rows(table)
    assert [(row.seq, row.source_key) for row in rows] == [(1, "a"), (2, "b"), (3, "c")]
    assert store.conversation(chat).outbox_head == 3


def test_conversations_are_numbered_apart(store: Store, chat: int) -> None:
    """Each conversation counts its own rows."""
    other, _ = store.run(admit, inbound(chat="other"))
    add(store, chat, "a")
    add(store, other, "b", "c")
    assert seqs(store.rows(table, conversation=other)) == [1, 2]


def test_buttons_are_at_the_end_of_a_long_text() -> None:
    """The last part has them, and it alone."""
    choices = (Choice("Yes", "/yes"), Choice("No", "/no"))
    first, last = parts_of(words, "k", "one two", choices=choices)
    assert (first.choices, last.choices) == ((), choices)
