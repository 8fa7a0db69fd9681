"""Files in the object store: moved beside the path, read from there, deleted; nothing is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.messages import Attachment, OutgoingFile
from gateway.agent_ports import large_files
from gateway.agent_ports.files import StoredFiles, load_image
from gateway.agent_ports.large_files import LargeFiles
from gateway.errors import NotFound, ObjectsUnavailable, StorageError
from gateway.settings.tree import StorageSettings
from gateway.storage import maintenance, object_store, retention
from gateway.storage.conversation import attachments, stored_objects
from gateway.storage.conversation.message_content import content_of
from gateway.storage.database import Database
from gateway.storage.object_store import ObjectStore
from gateway.storage.queue import inbox
from gateway.storage.schema import LARGE_BYTES, attachment, attachment_part, stored_object
from tests.support.object_server import S3Server
from tests.support.pictures import png
from tests.support.storage import admit, inbound

TEXT_CHARS = 1000
LETTERS = ("ein Wort, et un mot, и слово. " * 20_000).encode()
PICTURE = png(640, 480) + bytes(LARGE_BYTES)
BYTES = b"\x00\x01" * LARGE_BYTES


class Place:
    """A database and an object store."""

    def __init__(self, database: Database, s3: S3Server) -> None:
        self.database = database
        self.s3 = s3
        self.files = self.another()
        self.messages = 0

    def another(self) -> LargeFiles:
        """Return what another replica has."""
        store = ObjectStore(StorageSettings(**self.s3.settings()))
        return LargeFiles(self.database, store, TEXT_CHARS)

    @property
    def stored(self) -> StoredFiles:
        """What reads files."""
        return StoredFiles(self.database, self.files)

    async def enter(self, content: bytes, name: str = "a", mime: str = "", **where: Any) -> int:
        """Store a file that came a while ago; returns its id."""
        self.messages += 1
        place = await self.database.write(admit, inbound(f"look {self.messages}", **where))
        given = Attachment(name=name, kind="file", mime=mime, content=content)
        await self.database.write(attachments.append, *place, [given], 50_000_000)
        older = attachment.update().values(at=attachment.c.at - 1000)
        await self.database.write(lambda conn: conn.execute(older))
        return int((await self.rows())[-1].id)

    async def rows(self, table: Any = attachment) -> list[Any]:
        """Return all rows of a table."""
        return await self.database.read(lambda conn: list(conn.execute(table.select())))

    async def conversation(self) -> int:
        """Return the conversation of the newest file."""
        return int((await self.rows())[-1].conversation)

    async def shown(self) -> Any:
        """Return what the model reads of all messages of a conversation with their files."""
        conversation = await self.conversation()

        def read(conn: Any) -> Any:
            entries = inbox.queued(conn, conversation)
            return content_of(conn, conversation, entries, "look", TEXT_CHARS)

        return await self.database.read(read)


@pytest.fixture
async def place(database: Database) -> AsyncIterator[Place]:
    """Nothing is stored yet; the client does nothing that it should not."""
    async with S3Server().running() as s3:
        yield Place(database, s3)
        assert s3.violations == []


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gives up at once, and the pauses are none."""
    monkeypatch.setattr(object_store, "RETRY_S", 0)
    monkeypatch.setattr(large_files, "SWEEP_S", 0.005)
    monkeypatch.setattr(large_files, "LONGEST_PAUSE_S", 0.01)


@asynccontextmanager
async def at_work(*files: LargeFiles) -> AsyncIterator[None]:
    """Move files meanwhile; the end is a crash as far as the rows can tell."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in files]
        try:
            yield
        finally:
            for each in running:
                each.cancel()


async def until(condition: Any) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


async def test_a_large_file_goes_to_the_store_and_comes_back(place: Place) -> None:
    """Its bytes leave the database; who asks for the file notices nothing."""
    file = await place.enter(BYTES, "a.bin", "application/octet-stream")
    with capture_logs() as logs:
        await place.files.sweep()
    assert list(place.s3.objects.values()) == [BYTES]
    assert sum(len(row.body) for row in await place.rows(attachment_part)) < 5000
    expected = OutgoingFile("a.bin", "application/octet-stream", BYTES)
    assert await place.stored.outgoing(file) == expected
    assert await place.stored.of_conversation(await place.conversation(), file) == expected
    assert await place.stored.of_conversation(4711, file) is None
    [moved] = [each for each in logs if each["event"] == "file_moved"]
    assert (moved["attachment"], moved["bytes"], moved["needed"]) == (file, len(BYTES), True)


@pytest.mark.parametrize(
    ("content", "mime"),
    [(LETTERS, "text/plain"), (PICTURE, "image/png"), (BYTES, ""), (LETTERS[:-1], "")],
)
async def test_the_model_reads_the_same_before_and_after(
    place: Place, content: bytes, mime: str
) -> None:
    """A turn that begins after the move: texts, pictures and what is neither."""
    await place.enter(content, "a", mime)
    before = await place.shown()
    await place.files.sweep()
    assert len(place.s3.objects) == 1
    assert await place.shown() == before


async def test_small_files_stay_in_the_database(place: Place) -> None:
    """They are read as quickly as their rows."""
    file = await place.enter(b"small")
    await place.files.sweep()
    assert place.s3.asked == []
    assert (await place.stored.outgoing(file)).content == b"small"


async def test_without_a_store_all_bytes_are_in_the_database(place: Place) -> None:
    """As ever."""
    alone = StoredFiles(place.database)
    file = await place.enter(BYTES)
    assert (await alone.outgoing(file)).content == BYTES


async def test_a_store_that_the_settings_do_not_name_any_more(place: Place) -> None:
    """Nobody takes the beginning of a file for the file."""
    file = await place.enter(BYTES)
    await place.files.sweep()
    with pytest.raises(ObjectsUnavailable, match=r"storage\.files names none"):
        await StoredFiles(place.database).outgoing(file)


@pytest.mark.usefixtures("quick")
async def test_while_the_store_is_down_nothing_is_lost(place: Place) -> None:
    """Files are taken, and read from the database; once the store is up they go there."""
    place.s3.down = True
    first = await place.enter(BYTES)
    with capture_logs() as logs:
        async with at_work(place.files):
            await until(lambda: told(logs, "objects_delayed"))
            second = await place.enter(LETTERS)
            assert (await place.stored.outgoing(first)).content == BYTES
            assert (await place.stored.outgoing(second)).content == LETTERS
            place.s3.down = False
            # Whoever has failed is taken for dead after a while.
            await place.database.write(lambda conn: conn.execute(aged()))
            await until(lambda: stored(place, 2))
    assert (await place.stored.outgoing(first)).content == BYTES
    assert (await place.stored.outgoing(second)).content == LETTERS


def aged() -> Any:
    """Return what has all objects be older."""
    return stored_object.update().values(at=stored_object.c.at - stored_objects.UPLOAD_S - 1)


async def told(logs: list[Any], event: str) -> bool:
    """Whether the log has an event."""
    return any(each["event"] == event for each in logs)


async def stored(place: Place, count: int) -> bool:
    """Whether so many objects are in the store."""
    return [row.state for row in await place.rows(stored_object)] == ["there"] * count


@pytest.mark.usefixtures("quick")
async def test_a_file_that_was_moved_is_read_again_once_the_store_is_up(place: Place) -> None:
    """Until then who reads it is told to try again; a picture does not become another one."""
    picture = await place.enter(PICTURE, "a.png", "image/png")
    await place.files.sweep()
    place.s3.down = True
    chat = str(await place.conversation())
    with pytest.raises(ObjectsUnavailable):
        await load_image(place.stored, chat, picture)
    place.s3.down = False
    assert (await load_image(place.stored, chat, picture) or "").startswith(
        "data:image/png;base64,"
    )


async def test_an_object_that_somebody_has_deleted(place: Place) -> None:
    """That does not get better by waiting: the model sees a label, an answer is given up."""
    picture = await place.enter(PICTURE, "a.png", "image/png")
    await place.files.sweep()
    place.s3.objects.clear()
    with capture_logs() as logs, pytest.raises(NotFound):
        await place.stored.outgoing(picture)
    assert await told(logs, "object_missing")
    assert await load_image(place.stored, str(await place.conversation()), picture) is None


async def test_bytes_that_somebody_has_changed_are_not_taken(place: Place) -> None:
    """Their digest is that of the name, and of the row."""
    file = await place.enter(BYTES)
    await place.files.sweep()
    [key] = place.s3.objects
    place.s3.objects[key] = BYTES[:-1] + b"!"
    with capture_logs() as logs, pytest.raises(NotFound, match="is not what was stored"):
        await place.stored.outgoing(file)
    assert await told(logs, "object_damaged")


async def test_what_is_forgotten_is_deleted_in_the_store(place: Place) -> None:
    """With the next look of a running gateway; files of other chats stay."""
    await place.enter(LETTERS, chat="2")
    await place.enter(BYTES, chat="1")
    conversation = await place.conversation()
    await place.files.sweep()
    assert len(place.s3.objects) == 2
    await place.database.write(maintenance.forget, conversation)
    await place.files.sweep()
    assert list(place.s3.objects.values()) == [LETTERS]
    assert await stored(place, 1)


async def test_retention_deletes_in_the_store(place: Place) -> None:
    """What was removed says so, and its object goes."""
    await place.enter(BYTES)
    await place.files.sweep()
    answered = "UPDATE inbox SET state = 'done'"
    await place.database.write(lambda conn: conn.exec_driver_sql(answered))
    [due] = await place.database.read(retention.files_due, 500.0, None)
    assert await place.database.write(retention.remove_file, due)
    await place.files.sweep()
    assert place.s3.objects == {}
    assert await place.rows(stored_object) == []


@pytest.mark.usefixtures("quick")
async def test_a_deletion_that_fails_is_made_later(place: Place) -> None:
    """The row remembers it."""
    file = await place.enter(BYTES)
    await place.files.sweep()
    await place.database.write(attachments.release_objects, attachment.c.id == file)
    await place.database.write(attachments.forget, await place.conversation())
    place.s3.down = True
    with pytest.raises(StorageError):
        await place.files.sweep()
    place.s3.down = False
    await place.another().sweep()
    assert (place.s3.objects, await place.rows(stored_object)) == ({}, [])


@pytest.mark.usefixtures("quick")
async def test_replicas_side_by_side_upload_each_file_once(place: Place) -> None:
    """Also files with the same bytes."""
    for n in range(6):
        await place.enter(BYTES + bytes([n % 3]))
    async with at_work(place.files, place.another(), place.another()):
        await until(lambda: settled(place))
    assert sorted(place.s3.objects.values()) == [BYTES + bytes([n]) for n in range(3)]
    assert [method for method, _ in place.s3.asked] == ["PUT"] * 3


async def settled(place: Place) -> bool:
    """Whether all files were moved."""
    return all(row.object is not None for row in await place.rows())
