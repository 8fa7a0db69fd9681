"""Files of messages and tools in the database."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.messages import Address, Attachment, OutgoingFile
from gateway.errors import LeaseLost
from gateway.storage.conversation import attachments
from gateway.storage.conversation.attachments import PART_BYTES, clean_mime, clean_name, size_text
from gateway.storage.queue import inbox as inbox_rows
from gateway.storage.queue import leases
from gateway.storage.schema import attachment, attachment_part, inbox
from tests.support.storage import Store, admit, claim_one, inbound, turn_of

PHOTO = Attachment(name="p.jpg", kind="image", mime="image/jpeg", size_bytes=9, ref="file-1")
LIMIT = 5_000_000
ACCOUNT = ("telegram", "default")


def enter(
    store: Store, *files: Attachment, limit: int = LIMIT, text: str = "see", state: str = "queued"
) -> tuple[int, int]:
    """Admit a message with files; returns (conversation, seq)."""
    place = store.run(admit, inbound(text), state=state)  # type: ignore[arg-type]
    store.run(attachments.append, *place, files, limit)
    return place


def is_waited_for(store: Store, conversation: int) -> bool:
    """Whether what waits in a conversation waits for a file."""
    return any(entry.awaits_files for entry in store.run(inbox_rows.queued, conversation))


def test_a_file_waits_to_be_fetched(store: Store) -> None:
    """With what its platform needs to find it, and where it was said."""
    conversation, seq = enter(store, PHOTO)
    [waiting] = store.run(attachments.next_pending, ACCOUNT, 9)
    assert (waiting.attachment, waiting.failures) == (PHOTO, 0)
    assert waiting.conversation == conversation
    assert waiting.address == Address("telegram", "default", "42")
    assert is_waited_for(store, conversation)
    assert store.one(attachment).inbox_seq == seq


@pytest.mark.parametrize("state", ["taken", "done", "cancelled", "refused"])
def test_nothing_is_fetched_for_a_message_that_no_turn_will_take(store: Store, state: str) -> None:
    """It was taken, dropped or refused meanwhile."""
    conversation, _ = enter(store, PHOTO, state=state)
    assert store.run(attachments.next_pending, ACCOUNT, 9) == []
    assert not is_waited_for(store, conversation)


def test_what_is_too_large_is_failed_at_once(store: Store) -> None:
    """Nothing is downloaded, and the model is told why."""
    enter(store, PHOTO, limit=8)
    assert store.run(attachments.next_pending, ACCOUNT, 9) == []
    row = store.one(attachment)
    assert (row.state, row.error) == ("failed", "it is larger than the limit of 8 bytes")


def test_where_no_files_are_taken_all_fail(store: Store) -> None:
    """Also those whose size nobody told are refused when they are fetched, see there."""
    enter(store, PHOTO, limit=0)
    assert store.one(attachment).error == "files are not taken here"


def content_of(size: int) -> bytes:
    """Return so many bytes, of which no part is like another one."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@pytest.mark.parametrize("size", [0, 3, PART_BYTES, 2 * PART_BYTES + 7])
def test_what_came_with_its_bytes_is_stored_in_parts(store: Store, size: int) -> None:
    """In the message's own transaction, and comes back as it was."""
    content = content_of(size)
    conversation, _ = enter(store, Attachment(name="a", kind="file", content=content))
    row = store.one(attachment)
    assert (row.state, row.size_bytes) == ("stored", size)
    assert row.sha256 == hashlib.sha256(content).hexdigest()
    assert len(store.rows(attachment_part)) == max(1, -(-size // PART_BYTES))
    assert store.run(attachments.outgoing, row.id) == OutgoingFile("a", "", content)
    assert not is_waited_for(store, conversation)


def test_a_content_larger_than_the_limit_is_not_stored(store: Store) -> None:
    """Whatever its platform said about the size."""
    enter(store, Attachment(name="a", kind="file", size_bytes=1, content=b"12345"), limit=4)
    assert store.one(attachment).state == "failed"
    assert store.rows(attachment_part) == []


def test_parts_of_an_attempt_that_was_cut_off_are_replaced(store: Store) -> None:
    """A second attempt begins with the first part."""
    enter(store, PHOTO)
    for n, body in [(0, b"old"), (1, b"old"), (0, b"new")]:
        assert store.run(attachments.store_part, 1, n, body)
    store.run(attachments.finish, 1, 3, "00")
    assert store.run(attachments.outgoing, 1).content == b"new"


def test_a_finished_file_is_not_changed_any_more(store: Store) -> None:
    """Two may have fetched it; the one that comes late changes nothing."""
    enter(store, Attachment(name="a", kind="file", content=b"abc"))
    assert not store.run(attachments.store_part, 1, 0, b"late")
    store.run(attachments.finish, 1, 4, "00")
    store.run(attachments.fail, 1, "late")
    assert store.run(attachments.outgoing, 1).content == b"abc"
    assert not store.run(attachments.store_part, 4711, 0, b"of nobody")


def test_a_failed_file_leaves_no_parts(store: Store) -> None:
    """What was downloaded of it is gone."""
    enter(store, PHOTO)
    store.run(attachments.store_part, 1, 0, b"half")
    store.run(attachments.fail, 1, "it is gone")
    assert (store.one(attachment).state, store.one(attachment).error) == ("failed", "it is gone")
    assert store.rows(attachment_part) == []


def test_attempts_are_counted(store: Store) -> None:
    """Across restarts: the row remembers."""
    enter(store, PHOTO)
    assert [store.run(attachments.attempt, 1) for _ in range(2)] == [1, 2]
    assert store.run(attachments.next_pending, ACCOUNT, 9)[0].failures == 2


def test_no_attempt_is_made_for_what_was_dropped(store: Store) -> None:
    """Its message was taken back between two looks."""
    conversation, _ = enter(store, PHOTO)
    assert store.run(attachments.dropped, [1]) == []
    store.run(lambda conn: inbox_rows.cancel_queued(conn, conversation))
    assert store.run(attachments.attempt, 1) == 0
    assert store.run(attachments.dropped, [1]) == [1]


def test_the_first_file_of_each_conversation_is_next(store: Store) -> None:
    """Those that were tried least come first; other accounts have their own."""
    for chat in ("a", "b"):
        place = store.run(admit, inbound(chat=chat))
        store.run(attachments.append, *place, [PHOTO, PHOTO], LIMIT)
    found = store.run(attachments.next_pending, ACCOUNT, 9)
    assert [each.id for each in found] == [1, 3]
    store.run(attachments.attempt, 1)
    assert [each.id for each in store.run(attachments.next_pending, ACCOUNT, 1)] == [3]
    assert store.run(attachments.next_pending, ("telegram", "other"), 9) == []


@pytest.mark.parametrize("how", ["finish", "fail"])
def test_a_conversation_goes_on_when_its_last_file_is_settled(store: Store, how: str) -> None:
    """In the same transaction, so that a crash leaves nothing behind."""
    settle = {
        "finish": lambda n: store.run(attachments.finish, n, 3, "00"),
        "fail": lambda n: store.run(attachments.fail, n, "gone"),
    }[how]
    conversation, _ = enter(store, PHOTO, PHOTO)
    lease = store.run(claim_one, conversation)
    assert not store.run(leases.release, lease)
    settle(1)
    assert store.run(leases.claim, lease.replica, 9, [ACCOUNT]) == []
    settle(2)
    assert len(store.run(leases.claim, lease.replica, 9, [ACCOUNT])) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("size", [0, 9, PART_BYTES, PART_BYTES + 1])
def test_the_beginning_of_a_file_is_as_long_as_is_asked_for(store: Store, size: int) -> None:
    """Across parts."""
    content = content_of(PART_BYTES + 9)
    enter(store, Attachment(name="a", kind="file", content=content))
    assert store.run(attachments.first_bytes, 1, size) == content[:size]


def test_a_tool_offers_a_file_once(store: Store) -> None:
    """The same turn, name and content is one file, so that a tool may run again."""
    current = store.run(turn_of, "write it down")
    offers = [("a.md", b"one"), ("a.md", b"one"), ("a.md", b"two"), ("b.md", b"two")]
    stored = [store.run(attachments.offer, current, n, "text/markdown", c, 3) for n, c in offers]
    assert [file and file.id for file in stored] == [1, 1, 2, 3]
    assert store.run(attachments.of_turn, current.id) == [stored[0], *stored[2:]]
    assert stored[0] is not None
    assert (stored[0].name, stored[0].kind, stored[0].size_bytes) == ("a.md", "file", 3)


def test_no_more_than_so_many_files_of_a_turn_are_stored(store: Store) -> None:
    """One that is there already comes back all the same."""
    current = store.run(turn_of, "write it down")
    offers = [(b"one", 1), (b"two", 1), (b"one", 1), (b"two", 2)]
    stored = [store.run(attachments.offer, current, "a", "", c, most) for c, most in offers]
    assert [file and file.id for file in stored] == [1, None, 1, 2]


def test_an_offer_needs_the_lease(store: Store) -> None:
    """A turn that was lost stores nothing."""
    current = store.run(turn_of, "write it down")
    store.run(leases.reap_others, 4711)
    with pytest.raises(LeaseLost):
        store.run(attachments.offer, current, "a.md", "text/markdown", b"one", 9)
    assert store.rows(attachment) == []


def test_a_file_is_found_in_its_own_conversation_only(store: Store) -> None:
    """And only once its bytes are there."""
    conversation, _ = enter(store, Attachment(name="a", kind="file", content=b"x"), PHOTO)
    assert store.run(attachments.in_conversation, conversation, 1) is not None
    assert store.run(attachments.in_conversation, conversation + 1, 1) is None
    assert store.run(attachments.in_conversation, conversation, 2) is None


def test_no_files_are_lost_by_taking_a_message(store: Store) -> None:
    """The rows stay with their message, whatever becomes of it."""
    conversation, seq = enter(store, PHOTO, PHOTO)
    store.run(lambda conn: conn.execute(inbox.update().values(state="done")))
    rows = store.run(attachments.of_messages, conversation, [seq])
    assert [row.id for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("photo.jpg", "photo.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\a.txt", "a.txt"),
        ("a\nb\tc.txt", "a b c.txt"),
        ("evil\u202egpj.exe", "evil gpj.exe"),
        ("..", "file"),
        ("", "file"),
        ("x" * 200 + ".tar", "x" * 115 + "….tar"),
        ("x" * 200, "x" * 119 + "…"),
        ("a." + "x" * 200, "a." + "x" * 117 + "…"),
    ],
)
def test_names_are_cleaned_for_display(name: str, clean: str) -> None:
    """One line, no path, nothing that changes how the text around it is read."""
    assert clean_name(name) == clean


@given(st.text(max_size=300))
def test_every_name_is_clean(name: str) -> None:
    """It is printable, short, and cleaning it again changes nothing."""
    clean = clean_name(name)
    assert 0 < len(clean) <= 120
    assert not set(clean) & set("/\\\n\r\x00\u202e")
    assert clean_name(clean) == clean


@pytest.mark.parametrize(
    ("mime", "clean"),
    [
        ("Text/Plain; charset=utf-8", "text/plain"),
        ("image/svg+xml", "image/svg+xml"),
        ("text/plain\r\nX-Evil: 1", ""),
        ("nothing", ""),
    ],
)
def test_media_types_are_cleaned(mime: str, clean: str) -> None:
    """What is none is not kept: it ends up in labels and headers."""
    assert clean_mime(mime) == clean


def test_sizes_are_told_in_words() -> None:
    """In the unit that people know."""
    sizes = (0, 999, 1000, 34_400, 999_499, 999_500, 3_200_000, 20_000_000)
    words = "0 bytes|999 bytes|1 KB|34 KB|999 KB|1 MB|3.2 MB|20 MB"
    assert "|".join(map(size_text, sizes)) == words
