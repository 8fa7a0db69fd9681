"""Files on their way in and out: downloads before a turn, pictures for models, files of tools."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.base import Adapter
from adapters.errors import FetchDelayed
from adapters.messages import Address, Attachment
from agent.errors import ToolError
from gateway.agent_ports import files as attachments
from gateway.agent_ports.files import (
    AT_ONCE,
    MAX_FILES_OF_TURN,
    WITHIN_S,
    Attachments,
    Lane,
    load_image,
)
from gateway.errors import StorageUnavailable
from gateway.settings.tree import AttachmentSettings
from gateway.signals import Wakeups
from gateway.storage import schema
from gateway.storage.conversation import attachments as stored
from gateway.storage.database import Database
from gateway.storage.queue import blame, inbox
from gateway.storage.queue.blame import Death
from gateway.storage.schema import attachment, attachment_part
from tests.support.pictures import png
from tests.support.recording_adapter import RecordingAdapter
from tests.support.storage import admit, inbound, turn_of
from tests.support.thorough import WAIT_S

LIMIT = 3_000_000
TRIES = len(WITHIN_S)


class Platform(RecordingAdapter):
    """Also notes how many downloads run side by side, and can hold them."""

    def __init__(self, platform: str = "telegram") -> None:
        super().__init__(platform)
        self.running = self.most = 0
        self.gate: asyncio.Event | None = None
        self.held_failures: asyncio.Event | None = None

    async def fetch(self, address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        self.running += 1
        self.most = max(self.most, self.running)
        self.watch.note()
        try:
            if self.held_failures is not None:
                await self.held_failures.wait()
            content = await super().fetch(address, attachment, limit_bytes)
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.running -= 1
            self.watch.note()
        return content


class Place:
    """A database, a platform, and what fetches from it."""

    def __init__(self, database: Database, limit: int = LIMIT) -> None:
        self.database = database
        self.platform = Platform()
        self.pauses: list[float] = []
        self.settings = AttachmentSettings(max_bytes=limit)
        self.ready: list[int] = []
        self.use({("telegram", "default"): self.platform})

    def use(self, adapters: dict[tuple[str, str], Adapter]) -> None:
        """Fetch from these."""
        wakeups = Wakeups()
        wakeups.ready.listen(self.ready.append)
        self.attachments = Attachments(self.database, adapters, self.settings, wakeups, self._sleep)

    async def enter(self, *refs: str, size_bytes: int | None = None, **where: Any) -> int:
        """Admit a message with files; returns its conversation."""
        place = await self.database.write(admit, inbound(**where))
        files = [Attachment(name=ref, kind="file", ref=ref, size_bytes=size_bytes) for ref in refs]
        await self.database.write(stored.append, *place, files, LIMIT)
        return place[0]

    async def bring(self, *refs: str) -> list[tuple[str, str | None]]:
        """Enter files and fetch them."""
        await self.enter(*refs)
        return await self.fetch()

    async def fetch(self) -> list[tuple[str, str | None]]:
        """Fetch what is pending; returns state and error of each file."""
        async with self.at_work():
            await self.settled()
            # What a row says is told in the log, and to the worker, behind its commit.
            await self.settled(lambda _: not any(lane.running for lane in self.lanes()))
        return [(row.state, row.error) for row in await self.rows()]

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Fetch meanwhile; its end is a crash as far as the rows can tell."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.attachments.run())
            try:
                yield
            finally:
                task.cancel()

    def lanes(self) -> Iterable[Lane]:
        """Return what is being fetched, by account."""
        return self.attachments._lanes.values()

    async def settled(self, condition: Callable[[list[Any]], bool] | None = None) -> None:
        """Wait until the rows are as wanted, else until none is pending."""
        async with asyncio.timeout(WAIT_S):
            while True:
                rows = await self.rows()
                if condition(rows) if condition else all(row.state != "pending" for row in rows):
                    return

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
    await place.enter("a", "b")
    with capture_logs() as lines:
        assert await place.fetch() == [("stored", None), ("stored", None)]
    content = [await place.database.read(stored.outgoing, n) for n in (1, 2)]
    assert [each.content for each in content] == [b"hello", bytes(2_500_000)]
    assert sorted(line["bytes"] for line in lines) == [5, 2_500_000]
    assert {line["event"] for line in lines} == {"attachment_stored"}


async def test_where_nothing_is_pending_nothing_is_asked(place: Place) -> None:
    """The usual case."""
    await place.enter()
    await place.fetch()
    assert place.platform.fetched == []


async def test_a_file_that_is_gone_is_failed_with_the_platforms_words(place: Place) -> None:
    """The others are there all the same."""
    place.platform.files = {"a": b"hello"}
    await place.enter("gone", "a")
    with capture_logs() as lines:
        assert await place.fetch() == [("failed", "it is gone"), ("stored", None)]
    [line] = [line for line in lines if line["event"] == "attachment_failed"]
    assert (line["log_level"], line["reason"]) == ("warning", "it is gone")


async def test_trouble_is_waited_out(place: Place) -> None:
    """Three tries altogether, with longer and longer pauses."""
    place.platform.files = {"a": b"hello"}
    place.platform.fetch_failures["a"] = deque([FetchDelayed("503"), FetchDelayed("503")])
    assert await place.bring("a") == [("stored", None)]
    assert place.pauses == [1.0, 4.0]


async def test_trouble_that_stays_ends_in_words(place: Place) -> None:
    """A turn does not wait for ever, also where the process was restarted in between."""
    place.platform.fetch_failures["a"] = deque([FetchDelayed("503")] * TRIES)
    await place.enter("a")
    await place.database.write(stored.attempt, 1)
    assert await place.fetch() == [("failed", "it could not be downloaded")]
    assert place.platform.fetched == ["a"] * (TRIES - 1)


async def test_a_download_that_hangs_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt has its time."""
    monkeypatch.setattr(attachments, "WITHIN_S", (0, 0, 0))
    place.platform.files, place.platform.gate = {"a": b"x"}, asyncio.Event()
    assert await place.bring("a") == [("failed", "it could not be downloaded")]


async def test_more_than_may_be_is_not_stored(place: Place) -> None:
    """Whatever the platform said, or the adapter let through."""
    place.platform.files = {"a": bytes(LIMIT + 1)}
    [(state, error)] = await place.bring("a")
    assert (state, error) == ("failed", "it is larger than the limit of 3 MB")


async def test_an_adapter_that_breaks_ends_no_turn(place: Place) -> None:
    """The mistake is in the log; the conversation goes on."""
    place.platform.fetch_failures["a"] = deque([KeyError("oops")])
    with capture_logs() as lines:
        assert await place.bring("a") == [("failed", "it could not be downloaded")]
    assert "attachment_fetch_broke" in {line["event"] for line in lines}


async def test_downloads_of_an_account_run_side_by_side(place: Place) -> None:
    """A few of them; one of each conversation, however many came with it."""
    place.platform.files, place.platform.gate = {"a": b"x"}, asyncio.Event()
    for chat in range(AT_ONCE + 2):
        await place.enter("a", "a", chat=f"c{chat}")
    async with place.at_work():
        await place.platform.watch.until(lambda: place.platform.running == AT_ONCE)
        place.platform.gate.set()
        await place.settled()
    assert place.platform.most == AT_ONCE
    assert {row.state for row in await place.rows()} == {"stored"}


async def test_a_flood_of_files_lets_other_conversations_in(place: Place) -> None:
    """They take turns: the newest is not behind all that came before it."""
    place.platform.files = dict.fromkeys(["flood", "small"], b"x")
    for chat in range(AT_ONCE):
        await place.enter(*["flood"] * 5, chat=f"c{chat}")
    await place.enter("small", chat="late")
    async with place.at_work():
        await place.settled()
    assert place.platform.fetched.index("small") <= 2 * AT_ONCE


@pytest.mark.usefixtures("sqlite_alone")
async def test_files_that_hang_let_others_in_before_they_are_tried_again(place: Place) -> None:
    """Each attempt has its place; the next one goes to the end of the line."""
    place.platform.files, place.platform.gate = dict.fromkeys(["a", "small"], b"x"), asyncio.Event()
    for chat in range(AT_ONCE):
        await place.enter("a", chat=f"c{chat}")
        place.platform.fetch_failures["a"].append(FetchDelayed("503"))
    place.platform.held_failures = asyncio.Event()
    async with place.at_work():
        await place.platform.watch.until(lambda: place.platform.running == AT_ONCE)
        await place.enter("small", chat="late")
        place.platform.held_failures.set()
        place.platform.gate.set()
        await place.settled()
    assert place.platform.fetched.index("small") == AT_ONCE


@pytest.mark.parametrize(("size_bytes", "at_once"), [(None, 1), (LIMIT, 1), (LIMIT // 2, 2)])
async def test_what_is_in_memory_is_bounded(
    place: Place, monkeypatch: pytest.MonkeyPatch, size_bytes: int | None, at_once: int
) -> None:
    """By the sizes that are told, else by the largest that is taken; one file is always."""
    monkeypatch.setattr(attachments, "BUDGET_BYTES", LIMIT)
    place.platform.files, place.platform.gate = {"a": b"x"}, asyncio.Event()
    for chat in range(AT_ONCE):
        await place.enter("a", chat=f"c{chat}", size_bytes=size_bytes)
    async with place.at_work():
        await place.platform.watch.until(lambda: place.platform.running == at_once)
        place.platform.gate.set()
        await place.settled()
    assert place.platform.most == at_once


async def test_a_platform_that_hangs_holds_up_no_other(database: Database) -> None:
    """Each account has places and memory of its own."""
    place, other = Place(database), Platform("slack")
    place.platform.files = other.files = {"a": b"x"}
    place.platform.gate = asyncio.Event()
    place.use({("telegram", "default"): place.platform, ("slack", "default"): other})
    for chat in range(AT_ONCE + 1):
        await place.enter("a", chat=f"c{chat}")
    await place.enter("a", address=Address("slack", "default", "42"))
    async with place.at_work():
        await place.settled(lambda rows: rows[-1].state == "stored")
    assert [row.state for row in await place.rows()] == ["pending"] * (AT_ONCE + 1) + ["stored"]


async def test_a_stop_ends_a_download(place: Place) -> None:
    """And takes what was stored of it away."""
    place.platform.files, place.platform.gate = {"a": b"x"}, asyncio.Event()
    conversation = await place.enter("a", "a")
    async with place.at_work():
        await place.platform.watch.until(lambda: place.platform.running == 1)
        await place.database.write(stored.store_part, 1, 0, b"half")
        await place.database.write(inbox.cancel_queued, conversation)
        place.attachments.notify()
        await place.settled(lambda rows: rows[0].state == "failed")
    assert [row.error for row in await place.rows()] == [attachments.DROPPED, None]
    assert place.platform.fetched == ["a"]
    parts = await place.database.read(lambda conn: list(conn.execute(attachment_part.select())))
    assert parts == []


async def test_a_crash_in_mid_download_leaves_it_pending(place: Place) -> None:
    """The next start fetches it anew."""
    place.platform.files, place.platform.gate = {"a": b"hello"}, asyncio.Event()
    await place.enter("a")
    async with place.at_work():
        await place.platform.watch.until(lambda: place.platform.fetched)
    assert [(row.state, row.failures) for row in await place.rows()] == [("pending", 1)]
    place.platform.gate.set()
    assert await place.fetch() == [("stored", None)]


async def test_a_download_that_ends_the_process_is_not_made_for_ever(place: Place) -> None:
    """Each attempt was counted before it began."""
    place.platform.files, place.platform.gate = {"a": b"hello"}, asyncio.Event()
    await place.enter("a")
    for n in range(TRIES):
        async with place.at_work():
            await place.platform.watch.until(lambda n=n: len(place.platform.fetched) > n)
    assert await place.fetch() == [("failed", "it could not be downloaded")]
    assert len(place.platform.fetched) == TRIES


async def test_kills_from_outside_lose_no_file(place: Place) -> None:
    """However many there are while the download goes on."""
    place.platform.files, place.platform.gate = {"a": b"hello"}, asyncio.Event()
    await place.enter("a")
    for n in range(2 * TRIES):
        async with place.at_work():
            await place.platform.watch.until(lambda n=n: len(place.platform.fetched) > n)
        await place.database.write(blame.take_over, 1, Death("killed"))
    place.platform.gate.set()
    assert await place.fetch() == [("stored", None)]


async def test_a_file_that_is_given_up_is_told_to_its_sender(place: Place) -> None:
    """Once, by its name, before the answer; nothing that was refused with a reason is."""
    place.platform.fetch_failures["a`b"] = deque([FetchDelayed("503")] * TRIES)
    await place.bring("a`b", "gone")
    query = schema.outbox.select()
    [row] = await place.database.read(lambda conn: list(conn.execute(query)))
    assert (
        row.payload == "I could not download `a'b`, and answer without it. You can send it again."
    )
    assert (row.source_key, row.inbox_seq) == ("file:1:lost:1", 1)


async def test_a_disk_that_fails_ends_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays pending, and is tried again."""
    place.platform.files = {"a": b"hello"}
    await place.enter("a")
    troubles = [StorageUnavailable("full"), StorageUnavailable("full")]
    attempt, look = stored.attempt, stored.next_pending

    def failing(fn: Any) -> Any:
        def run(*args: Any) -> Any:
            if troubles:
                raise troubles.pop()
            return fn(*args)

        return run

    monkeypatch.setattr(attachments, "SWEEP_S", 0)
    monkeypatch.setattr(stored, "next_pending", failing(look))
    monkeypatch.setattr(stored, "attempt", failing(attempt))
    with capture_logs() as lines:
        assert await place.fetch() == [("stored", None)]
    assert lines[0]["event"] == "files_not_found"


async def test_a_file_that_cannot_be_stored_now_is_fetched_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause: the disk is not hammered."""
    place.platform.files = {"a": b"hello"}
    await place.enter("a")
    troubles, finish = [StorageUnavailable("full")], stored.finish

    def failing(*args: Any) -> None:
        if troubles:
            raise troubles.pop()
        finish(*args)

    monkeypatch.setattr(stored, "finish", failing)
    with capture_logs() as lines:
        assert await place.fetch() == [("stored", None)]
    assert [line["event"] for line in lines] == ["attachment_delayed", "attachment_stored"]
    assert place.pauses == [attachments.STORAGE_RETRY_S]


async def test_a_crash_between_parts_leaves_no_half_file(place: Place) -> None:
    """The parts that were stored are replaced."""
    place.platform.files = {"a": b"new"}
    await place.enter("a")
    for n in range(3):
        await place.database.write(stored.store_part, 1, n, b"old")
    await place.fetch()
    assert (await place.database.read(stored.outgoing, 1)).content == b"new"


async def test_a_file_of_a_chat_that_was_erased_meanwhile_is_dropped(place: Place) -> None:
    """Nothing is written for it."""
    place.platform.files, place.platform.gate = {"a": b"x"}, asyncio.Event()
    conversation = await place.enter("a")
    with capture_logs() as lines:
        async with place.at_work():
            await place.platform.watch.until(lambda: place.platform.fetched)
            gone = attachment.delete().where(attachment.c.conversation == conversation)
            await place.database.write(lambda conn: conn.execute(gone).rowcount)
            place.platform.gate.set()
            await place.platform.watch.until(lambda: not place.platform.running)
    assert lines == []
    parts = await place.database.read(lambda conn: list(conn.execute(attachment_part.select())))
    assert parts == []


async def test_a_picture_is_loaded_as_a_data_url(place: Place) -> None:
    """With the type that its bytes have; of its own conversation only."""
    place.platform.files = {"a": png(), "b": b"no picture"}
    conversation = await place.enter("a", "b")
    await place.fetch()
    load = partial(load_image, place.database)
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
