"""Files on their way in and out: downloads before a turn, pictures for models, files of tools."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.errors import FetchDelayed
from adapters.messages import Address, Attachment
from agent.errors import ToolError
from gateway import attachments
from gateway.attachments import AT_ONCE, MAX_FILES_OF_TURN, NOT_IN_TIME, TRIES, Attachments
from gateway.settings import AttachmentSettings
from gateway.storage import attachments as stored
from gateway.storage.engine import Database
from gateway.storage.models import attachment, attachment_part
from tests.support.pictures import png
from tests.support.recording_adapter import RecordingAdapter
from tests.support.storage import admit, inbound, turn_of

LIMIT = 3_000_000


class Platform(RecordingAdapter):
    """Also notes how many downloads run side by side, and can hold them."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self.most = 0
        self.gate: asyncio.Event | None = None

    async def fetch(self, address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            content = await super().fetch(address, attachment, limit_bytes)
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.running -= 1
        return content


class Place:
    """A database, a platform, and what fetches from it."""

    def __init__(self, database: Database, limit: int = LIMIT) -> None:
        self.database = database
        self.platform = Platform()
        self.pauses: list[float] = []
        settings = AttachmentSettings(max_bytes=limit)
        adapters = {("telegram", "default"): self.platform}
        self.attachments = Attachments(database, adapters, settings, self._sleep)

    async def enter(self, *refs: str, chat: str = "42") -> int:
        """Admit a message with files; returns its conversation."""
        place = await self.database.write(admit, inbound(chat=chat))
        files = [Attachment(name=ref, kind="file", ref=ref) for ref in refs]
        await self.database.write(stored.append, *place, files, LIMIT)
        return place[0]

    async def fetch(self, conversation: int) -> list[tuple[str, str | None]]:
        """Fetch what is pending; returns state and error of each file."""
        await self.attachments.fetch_pending(conversation)
        return [(row.state, row.error) for row in await self.rows()]

    async def rows(self) -> list[Any]:
        query = attachment.select().order_by(attachment.c.id)
        return await self.database.read(lambda conn: list(conn.execute(query)))

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def place(database: Database) -> Place:
    """A place where nothing has happened."""
    return Place(database)


async def test_what_is_pending_is_fetched_and_stored(place: Place) -> None:
    """In parts, and told in the log."""
    place.platform.files = {"a": b"hello", "b": bytes(2_500_000)}
    conversation = await place.enter("a", "b")
    with capture_logs() as lines:
        assert await place.fetch(conversation) == [("stored", None), ("stored", None)]
    content = [await place.database.read(stored.outgoing, n) for n in (1, 2)]
    assert [file.content for file in content] == [b"hello", bytes(2_500_000)]
    assert sorted(line["bytes"] for line in lines) == [5, 2_500_000]
    assert {line["event"] for line in lines} == {"attachment_stored"}


async def test_where_nothing_is_pending_nothing_is_asked(place: Place) -> None:
    """The usual case: it costs one look into the database."""
    await place.fetch(await place.enter())
    assert place.platform.fetched == []


async def test_a_file_that_is_gone_is_failed_with_the_platforms_words(place: Place) -> None:
    """The others are there all the same."""
    place.platform.files = {"a": b"hello"}
    conversation = await place.enter("gone", "a")
    with capture_logs() as lines:
        assert await place.fetch(conversation) == [("failed", "it is gone"), ("stored", None)]
    [line] = [line for line in lines if line["event"] == "attachment_failed"]
    assert (line["log_level"], line["reason"]) == ("warning", "it is gone")


async def test_trouble_is_waited_out(place: Place) -> None:
    """Three tries altogether, with longer and longer pauses."""
    place.platform.files = {"a": b"hello"}
    place.platform.fetch_failures["a"] = deque([FetchDelayed("503"), FetchDelayed("503")])
    assert await place.fetch(await place.enter("a")) == [("stored", None)]
    assert place.pauses == [1.0, 4.0]


async def test_trouble_that_stays_ends_in_words(place: Place) -> None:
    """A turn does not wait for ever, also where the process was restarted in between."""
    place.platform.fetch_failures["a"] = deque([FetchDelayed("503")] * TRIES)
    conversation = await place.enter("a")
    await place.database.write(stored.delay, 1)
    assert await place.fetch(conversation) == [("failed", "it could not be downloaded")]
    assert place.platform.fetched == ["a"] * (TRIES - 1)


async def test_a_download_that_hangs_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt has its time."""
    monkeypatch.setattr(attachments, "FETCH_WITHIN_S", 0)
    place.platform.files, place.platform.gate = {"a": b"x"}, asyncio.Event()
    assert await place.fetch(await place.enter("a")) == [("failed", "it could not be downloaded")]


async def test_all_files_of_a_turn_have_one_deadline(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not begun by then is not there either."""
    monkeypatch.setattr(attachments, "ALL_WITHIN_S", 0)
    place.platform.files, place.platform.gate = {"a": b"x"}, asyncio.Event()
    found = await place.fetch(await place.enter(*"aaaaaaaa"))
    assert found == [("failed", NOT_IN_TIME)] * 8


async def test_more_than_may_be_is_not_stored(place: Place) -> None:
    """Whatever the platform said, or the adapter let through."""
    place.platform.files = {"a": bytes(LIMIT + 1)}
    [(state, error)] = await place.fetch(await place.enter("a"))
    assert (state, error) == ("failed", "it is larger than the 3 MB that are taken")


async def test_an_adapter_that_breaks_ends_no_turn(place: Place) -> None:
    """The mistake is in the log; the conversation goes on."""
    place.platform.fetch_failures["a"] = deque([KeyError("oops")])
    with capture_logs() as lines:
        assert await place.fetch(await place.enter("a")) == [
            ("failed", "it could not be downloaded")
        ]
    assert "attachment_fetch_broke" in {line["event"] for line in lines}


async def test_a_few_downloads_run_side_by_side(place: Place) -> None:
    """Four of a conversation, so that another one's begin at once."""
    place.platform.files, place.platform.gate = {"a": b"x"}, asyncio.Event()
    one, other = await place.enter(*"a" * 9), await place.enter("a", chat="43")
    fetching = asyncio.gather(*map(place.attachments.fetch_pending, (one, other)))
    await place.platform.watch.until(lambda: len(place.platform.fetched) == AT_ONCE + 1)
    place.platform.gate.set()
    await fetching
    assert place.platform.most == AT_ONCE + 1
    assert {row.state for row in await place.rows()} == {"stored"}


async def cancelled(place: Place, conversation: int, when: Callable[[], Any]) -> None:
    """Begin to fetch and cancel it as a crash would."""
    task = asyncio.ensure_future(place.attachments.fetch_pending(conversation))
    await place.platform.watch.until(when)
    task.cancel()
    await asyncio.wait([task])


async def test_a_crash_in_mid_download_leaves_it_pending(place: Place) -> None:
    """The next start fetches it anew."""
    place.platform.files, place.platform.gate = {"a": b"hello"}, asyncio.Event()
    conversation = await place.enter("a")
    await cancelled(place, conversation, lambda: place.platform.fetched)
    assert [row.state for row in await place.rows()] == ["pending"]
    place.platform.gate.set()
    assert await place.fetch(conversation) == [("stored", None)]


async def test_a_crash_between_parts_leaves_no_half_file(place: Place) -> None:
    """The parts that were stored are replaced."""
    place.platform.files = {"a": b"new"}
    conversation = await place.enter("a")
    for n in range(3):
        await place.database.write(stored.store_part, 1, n, b"old")
    await place.fetch(conversation)
    assert (await place.database.read(stored.outgoing, 1)).content == b"new"


async def test_a_file_of_a_chat_that_was_erased_meanwhile_is_dropped(place: Place) -> None:
    """Nothing is written for it."""
    place.platform.files, place.platform.gate = {"a": b"x"}, asyncio.Event()
    conversation = await place.enter("a")
    task = asyncio.ensure_future(place.attachments.fetch_pending(conversation))
    await place.platform.watch.until(lambda: place.platform.fetched)
    await place.database.write(stored.forget, conversation)
    place.platform.gate.set()
    with capture_logs() as lines:
        await task
    assert lines == []
    parts = await place.database.read(lambda conn: list(conn.execute(attachment_part.select())))
    assert parts == []


async def test_a_picture_is_loaded_as_a_data_url(place: Place) -> None:
    """With the type that its bytes have; of its own conversation only."""
    place.platform.files = {"a": png(), "b": b"no picture"}
    conversation = await place.enter("a", "b")
    await place.fetch(conversation)
    load = place.attachments.load_image
    url = await load(str(conversation), 1)
    assert url is not None
    assert url.startswith("data:image/png;base64,iVBORw0KGgo")
    assert await load(str(conversation), 2) is None
    assert await load(str(conversation + 1), 1) is None


async def offering(place: Place) -> Callable[[str, bytes], Awaitable[str]]:
    """Return what a tool of a turn calls with a name and a content."""
    box = place.attachments.files(await place.database.write(turn_of, "write"))
    return lambda name, content: box.offer(name, "text/plain", content)


async def test_a_file_of_a_tool_is_stored_under_a_clean_name(place: Place) -> None:
    """The name that it is shown by comes back."""
    offer = await offering(place)
    assert await offer("../a.txt", b"hi") == "a.txt"
    [file] = await place.database.read(stored.of_turn, 1)
    assert (file.name, file.size_bytes) == ("a.txt", 2)


async def test_a_tool_cannot_flood_a_chat_with_files(place: Place) -> None:
    """Nor with one that no platform would take."""
    offer = await offering(place)
    with pytest.raises(ToolError, match="larger than 3 MB"):
        await offer("a", bytes(LIMIT + 1))
    for n in range(MAX_FILES_OF_TURN):
        await offer(f"{n}", b"")
    with pytest.raises(ToolError, match="at most 10 files"):
        await offer("x", b"")
