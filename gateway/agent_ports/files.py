"""Files of messages and turns: downloaded in the background, shown to models, made by tools.

A task without a lease downloads a message's files after admission. The conversation continues when
all its files have arrived.
"""

import asyncio
import base64
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
from sqlalchemy import Connection

from adapters.base import Adapter
from adapters.errors import FetchDelayed, FetchRejected
from agent.errors import ToolError
from agent.spans import trace_of
from agent.turn.request import Agent, Images
from gateway.errors import StorageError
from gateway.settings.tree import AttachmentSettings
from gateway.signals import Wakeups
from gateway.storage.conversation import attachments
from gateway.storage.conversation.attachments import AwaitedFile, parts_of, size_text, too_large
from gateway.storage.conversation.message_content import look_at
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.queue import outbox
from gateway.storage.queue.outbox import OutboxPart

log = structlog.get_logger()

WITHIN_S = (20.0, 40.0, 60.0)
"""Time limits of successive tries: a hanging download frees its slot soon, a slow one gets more."""
PAUSES_S = (1.0, 4.0)
AT_ONCE = 4
"""Concurrent downloads of an account, at most one per conversation."""
BUDGET_BYTES = 64_000_000
"""Memory for all downloads; each account has a share, at least one file."""
LOOK = 100
"""Conversations of an account to consider at a time."""
SWEEP_S = 30.0
"""Longest delay of a file whose hint was lost, in seconds."""
STORAGE_RETRY_S = 1.0
MAX_FILES_OF_TURN = 10
DROPPED = "its message was dropped"
_LOST = "it could not be downloaded"
GIVEN_UP = "I could not download `{name}`, and answer without it. You can send it again."


@dataclass(slots=True)
class Lane:
    """The downloads of one account.

    Attributes:
        running: The current file and its task, by conversation.
        served: End of the newest download by conversation; one without any is next.
    """

    adapter: Adapter
    running: dict[int, tuple[AwaitedFile, asyncio.Task[None]]] = field(default_factory=dict)
    served: dict[int, float] = field(default_factory=dict)


class Attachments:
    """Downloads the files of messages."""

    def __init__(
        self,
        database: Database,
        adapters: Mapping[tuple[str, str], Adapter],
        settings: AttachmentSettings,
        wakeups: Wakeups,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database = database
        self._lanes = {account: Lane(adapter) for account, adapter in adapters.items()}
        self._settings = settings
        self._wakeups = wakeups
        self._sleep = sleep
        self._changed = asyncio.Event()

    def take(self, settings: AttachmentSettings) -> None:
        """Change the limits for later files."""
        self._settings = settings

    def notify(self) -> None:
        """Hint that a message with files came or was dropped."""
        self._changed.set()

    async def run(self) -> None:
        """Download until cancelled, starting with files of an earlier process.

        Mark a file that cannot be downloaded as failed, with a text for the model.
        """
        async with asyncio.TaskGroup() as tasks:
            while True:
                # Clear first, so that a later hint is not lost.
                self._changed.clear()
                await self._begin_and_end(tasks)
                await self._wait_for_change()

    def files(self, turn: Turn) -> "TurnFiles":
        """Return the store for files made by a turn's tools."""
        return TurnFiles(self._database, turn, self._settings.max_bytes)

    async def _begin_and_end(self, tasks: asyncio.TaskGroup) -> None:
        """Cancel unwanted downloads and start those that have room."""
        try:
            for lane in self._lanes.values():
                await self._drop_unwanted(lane)
            for account, lane in self._lanes.items():
                await self._fill(account, lane, tasks)
        except StorageError as exc:
            log.warning("files_not_found", error=str(exc))

    async def _wait_for_change(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SWEEP_S):
                await self._changed.wait()

    async def _drop_unwanted(self, lane: Lane) -> None:
        """Cancel downloads for which no message waits any more."""
        running = {wanted.id: task for wanted, task in lane.running.values()}
        if not running:
            return
        for attachment_id in await self._database.read(attachments.dropped, list(running)):
            running[attachment_id].cancel()
            await self._database.write(attachments.fail, attachment_id, DROPPED)

    async def _fill(self, account: tuple[str, str], lane: Lane, tasks: asyncio.TaskGroup) -> None:
        """Start as many downloads of an account as have room, one conversation after another.

        A file too large for the remaining room blocks the ones behind it; otherwise small files
        could delay it forever.
        """
        if len(lane.running) >= AT_ONCE:
            return
        found = await self._database.read(attachments.next_pending, account, LOOK)
        known = {each.conversation for each in found} | lane.running.keys()
        lane.served = {key: lane.served.get(key, 0.0) for key in known}
        waiting = [each for each in found if each.conversation not in lane.running]
        for wanted in sorted(waiting, key=lambda each: (lane.served[each.conversation], each.id)):
            if not self._has_room(lane, wanted):
                return
            task = tasks.create_task(self._bring_in(lane, wanted), name=f"attachment {wanted.id}")
            lane.running[wanted.conversation] = wanted, task

    def _has_room(self, lane: Lane, wanted: AwaitedFile) -> bool:
        held = sum(self._bytes_of(each) for each, _ in lane.running.values())
        fits = held + self._bytes_of(wanted) <= BUDGET_BYTES // len(self._lanes)
        return len(lane.running) < AT_ONCE and (fits or not lane.running)

    def _bytes_of(self, wanted: AwaitedFile) -> int:
        size_bytes = wanted.attachment.size_bytes
        return self._settings.max_bytes if size_bytes is None else size_bytes

    async def _bring_in(self, lane: Lane, wanted: AwaitedFile) -> None:
        """Try once to fetch and store a file; hold its slot until the bytes are stored."""
        # One task per file: its log lines belong to the file's message.
        trace = trace_of(wanted.conversation, wanted.inbox_seq)
        structlog.contextvars.bind_contextvars(trace=trace)
        try:
            await self._try(lane.adapter, wanted)
        except StorageError as exc:
            self._log_delayed(wanted, exc)
            await self._sleep(STORAGE_RETRY_S)
        finally:
            del lane.running[wanted.conversation]
            lane.served[wanted.conversation] = time.monotonic()
            self._changed.set()

    async def _try(self, adapter: Adapter, wanted: AwaitedFile) -> None:
        started = time.monotonic()
        tries = await self._database.write(attachments.attempt, wanted.id)
        # The file's message was dropped meanwhile.
        if tries == 0:
            return
        try:
            content = await self._fetch(adapter, wanted, tries)
        except FetchRejected as exc:
            await self._fail(adapter, wanted, str(exc))
        except (FetchDelayed, TimeoutError) as exc:
            if tries >= len(WITHIN_S):
                await self._fail(adapter, wanted, _LOST)
                return
            self._log_delayed(wanted, exc)
            await self._sleep(PAUSES_S[tries - 1])
        else:
            await self._store(wanted, content, started)

    async def _fetch(self, adapter: Adapter, wanted: AwaitedFile, tries: int) -> bytes:
        # The last try was counted before it began, then the process died.
        if tries > len(WITHIN_S):
            raise FetchRejected(_LOST)
        limit_bytes = self._settings.max_bytes
        try:
            async with asyncio.timeout(WITHIN_S[tries - 1]):
                content = await adapter.fetch(wanted.address, wanted.attachment, limit_bytes)
        except (FetchDelayed, FetchRejected, TimeoutError):
            raise
        except Exception as exc:
            # A message with an unsettled file would wait forever.
            log.exception("attachment_fetch_broke", attachment=wanted.id)
            raise FetchRejected(_LOST) from exc
        if len(content) > limit_bytes:
            raise FetchRejected(too_large(limit_bytes))
        return content

    async def _store(self, wanted: AwaitedFile, content: bytes, started: float) -> None:
        """Store a file in parts, one transaction each; stop if its message was dropped."""
        digest = await asyncio.to_thread(hashlib.sha256, content)
        for n, body in enumerate(parts_of(content)):
            if not await self._database.write(attachments.store_part, wanted.id, n, body):
                return
        sha256 = digest.hexdigest()
        await self._database.write(attachments.finish, wanted.id, len(content), sha256)
        self._wakeups.ready(wanted.conversation)
        log.info(
            "attachment_stored",
            conversation=wanted.conversation,
            attachment=wanted.id,
            kind=wanted.attachment.kind,
            bytes=len(content),
            duration_ms=round((time.monotonic() - started) * 1000),
        )

    async def _fail(self, adapter: Adapter, wanted: AwaitedFile, reason: str) -> None:
        """Mark a file as failed; notify its sender if the download was given up."""
        parts: list[OutboxPart] = []
        if reason == _LOST:
            text = GIVEN_UP.format(name=wanted.attachment.name.replace("`", "'"))
            parts = outbox.parts_of(adapter.render, f"file:{wanted.id}:lost", text)
        await self._database.write(_give_up, wanted, reason, parts)
        self._wakeups.ready(wanted.conversation)
        if parts:
            self._wakeups.outbox(wanted.conversation)
        log.warning(
            "attachment_failed",
            conversation=wanted.conversation,
            attachment=wanted.id,
            kind=wanted.attachment.kind,
            reason=reason,
        )

    def _log_delayed(self, wanted: AwaitedFile, reason: Exception) -> None:
        log.warning(
            "attachment_delayed",
            conversation=wanted.conversation,
            attachment=wanted.id,
            reason=str(reason) or "it took too long",
        )


def _give_up(
    conn: Connection, wanted: AwaitedFile, reason: str, parts: Sequence[OutboxPart]
) -> None:
    if attachments.fail(conn, wanted.id, reason):
        outbox.append(conn, wanted.conversation, parts, inbox_seq=wanted.inbox_seq)


@dataclass(frozen=True, slots=True)
class TurnFiles:
    """`agent.ports.Files` of one turn; its files are sent when the turn commits."""

    database: Database
    turn: Turn
    limit_bytes: int

    async def offer(self, name: str, mime: str, content: bytes) -> str:
        """Store a file for the turn's answer."""
        if len(content) > self.limit_bytes:
            raise ToolError(f"the file is larger than {size_text(self.limit_bytes)}")
        stored = await self.database.write(
            attachments.offer, self.turn, name, mime, content, MAX_FILES_OF_TURN
        )
        if stored is None:
            raise ToolError(f"an answer has at most {MAX_FILES_OF_TURN} files")
        log.info("file_offered", attachment=stored.id, bytes=stored.size_bytes)
        return stored.name


def with_pictures_of(database: Database, agent: Agent) -> Agent:
    """Return the agent with pictures loaded from stored files."""
    return replace(agent, images=Images(partial(load_image, database)))


async def load_image(database: Database, conversation: str, attachment_id: int) -> str | None:
    """Return a picture of this conversation as a data URL (`agent.turn.request.ImageLoader`)."""
    found = await database.read(attachments.in_conversation, int(conversation), attachment_id)
    picture = found and look_at(found.content)
    if found is None or picture is None:
        return None
    coded = await asyncio.to_thread(base64.b64encode, found.content)
    return f"data:{picture.mime};base64,{coded.decode()}"
