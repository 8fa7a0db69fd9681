"""Rows of files whose bytes lie in an object store, on both databases."""

import hashlib

import pytest

from adapters.messages import Attachment
from gateway.storage.conversation import attachments, conversations, stored_objects
from gateway.storage.conversation.attachments import PART_BYTES
from gateway.storage.conversation.stored_objects import MOVED_AFTER_S, UPLOAD_S, Upload
from gateway.storage.schema import (
    LARGE_BYTES,
    attachment,
    attachment_part,
    stored_object,
)
from tests.support.storage import Store, admit, inbound

LARGE = LARGE_BYTES + 1
OLD_S = 10_000.0
SOON_S = MOVED_AFTER_S / 2


def enter(store: Store, content: bytes = b"", old_s: float = OLD_S, text: str = "look") -> int:
    """Store a file that came some time ago; returns its id."""
    given = Attachment(name="a", kind="file", content=content or bytes(LARGE))
    place = store.run(admit, inbound(text))
    store.run(attachments.append, *place, [given], 50_000_000)
    newest = store.rows(attachment)[-1].id
    back = attachment.update().where(attachment.c.id == newest).values(at=attachment.c.at - old_s)
    store.run(lambda conn: conn.execute(back))
    return int(newest)


def upload(store: Store, attachment_id: int, keep: int = 10) -> Upload:
    """Begin to move a file."""
    begun = store.run(stored_objects.begin, attachment_id, keep)
    assert begun is not None
    return begun


def moved(store: Store, attachment_id: int, keep: int = 10) -> Upload:
    """Move a file."""
    begun = upload(store, attachment_id, keep)
    assert store.run(stored_objects.finish, begun, keep)
    return begun


def states(store: Store) -> list[str]:
    """Return the states of all objects."""
    return [row.state for row in store.rows(stored_object)]


def age(store: Store, seconds: float) -> None:
    """Have the objects be older."""
    older = stored_object.update().values(at=stored_object.c.at - seconds)
    store.run(lambda conn: conn.execute(older))


def test_large_files_are_moved_once_their_turn_has_read_them(store: Store) -> None:
    """Neither small ones, nor those that came just now."""
    enter(store, bytes(LARGE_BYTES))
    old, _new = enter(store), enter(store, old_s=SOON_S)
    assert store.run(stored_objects.movable, 0) == [old]
    assert store.run(stored_objects.movable, old) == []


@pytest.mark.parametrize("keep", [10, PART_BYTES - 1, PART_BYTES, PART_BYTES + 7, 2 * PART_BYTES])
def test_what_was_moved_keeps_its_beginning(store: Store, keep: int) -> None:
    """Exactly so many bytes, and the digest of all of them."""
    content = (bytes(range(251)) * 12_000)[: 2 * PART_BYTES + 99]
    file = enter(store, content)
    begun = moved(store, file, keep)
    found = store.run(attachments.outgoing, file)
    assert (found.file.content, found.object) == (content[:keep], begun.name)
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert sum(len(row.body) for row in store.rows(attachment_part)) == keep
    assert store.run(stored_objects.movable, 0) == []


def test_a_name_begins_with_the_digest_and_is_given_once(store: Store) -> None:
    """The same bytes after an erasure get another name: a late request finds nothing of it."""
    names = set()
    for _ in range(2):
        file = enter(store)
        begun = moved(store, file)
        assert begun.name.startswith(f"{hashlib.sha256(bytes(LARGE)).hexdigest()[:2]}/")
        assert hashlib.sha256(bytes(LARGE)).hexdigest() in begun.name
        store.run(attachments.release_objects, attachment.c.id == file)
        store.run(attachments.forget, store.one(attachment).conversation)
        names.add(begun.name)
    assert len(names) == 2


def test_the_same_bytes_share_an_object(store: Store) -> None:
    """Of any chat; nothing is uploaded for the second file."""
    first, second = enter(store), enter(store)
    begun = moved(store, first)
    assert store.run(stored_objects.begin, second, 10) is None
    assert [row.object for row in store.rows(attachment)] == [begun.id, begun.id]


def test_only_one_uploads_the_same_bytes_at_a_time(store: Store) -> None:
    """Two replicas that find the same file; who has failed is replaced after a while."""
    file = enter(store)
    begun = upload(store, file)
    assert store.run(stored_objects.begin, file, 10) is None
    age(store, UPLOAD_S + 1)
    assert upload(store, file) == begun


def test_a_file_that_went_meanwhile_needs_no_object(store: Store) -> None:
    """What was put into the store for it is deleted."""
    file = enter(store)
    begun = upload(store, file)
    store.run(attachments.forget, store.one(attachment).conversation)
    assert not store.run(stored_objects.finish, begun, 10)
    assert store.run(stored_objects.leaving) == [(begun.id, begun.name)]
    store.run(stored_objects.erase, begun.id)
    assert states(store) == []


def test_an_upload_that_was_finished_twice_is_one(store: Store) -> None:
    """The answer to the first commit may have been lost."""
    file = enter(store)
    begun = moved(store, file)
    assert not store.run(stored_objects.finish, begun, 10)
    assert states(store) == ["there"]
    assert store.run(attachments.outgoing, file).object == begun.name


def test_an_object_leaves_with_the_last_file_that_needs_it(store: Store) -> None:
    """Not before."""
    first, second = enter(store), enter(store)
    moved(store, first)
    store.run(stored_objects.begin, second, 10)
    store.run(attachments.release_objects, attachment.c.id == first)
    assert states(store) == ["there"]
    store.run(attachments.release_objects, attachment.c.id == second)
    assert states(store) == ["leaving"]
    assert [row.object for row in store.rows(attachment)] == [None, None]


def test_what_leaves_is_given_to_no_other_file(store: Store) -> None:
    """It may be deleted at this moment: the bytes are uploaded under another name."""
    first = enter(store)
    gone = moved(store, first)
    store.run(attachments.release_objects, attachment.c.id == first)
    assert upload(store, enter(store)).name != gone.name


def test_a_conversation_that_is_forgotten_takes_its_objects_along(store: Store) -> None:
    """Those of other conversations stay."""
    first = enter(store)
    moved(store, first)
    store.run(attachments.forget, store.one(attachment).conversation + 1)
    assert states(store) == ["there"]
    store.run(attachments.forget, store.one(attachment).conversation)
    assert states(store) == ["leaving"]


def test_what_nobody_finished_is_deleted_once_its_file_is_gone(store: Store) -> None:
    """As long as a file waits, that goes on with it."""
    file = enter(store)
    upload(store, file)
    age(store, OLD_S)
    assert store.run(stored_objects.abandon) == 0
    conversation = store.one(attachment).conversation
    store.run(attachments.forget, conversation)
    store.run(conversations.withdraw, conversation)
    assert store.run(stored_objects.abandon) == 1
    assert states(store) == ["leaving"]
