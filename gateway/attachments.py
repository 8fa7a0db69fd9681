"""Files on their way in and out: fetched before a turn begins, shown to models, made by tools.

What comes in is downloaded when its conversation's turn comes (step 4 of the path), not when it is
admitted: a platform that is slow with a file then delays that conversation alone.
"""

import asyncio
import base64
import hashlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from adapters.base import Adapter
from adapters.errors import FetchDelayed, FetchRejected
from agent.errors import ToolError
from gateway.pictures import look_at
from gateway.settings import AttachmentSettings
from gateway.storage import attachments
from gateway.storage.attachments import Pending, parts_of, size_text, too_large
from gateway.storage.engine import Database
from gateway.storage.turns import Turn

log = structlog.get_logger()

FETCH_WITHIN_S = 60.0
"""Longest download of one file."""
ALL_WITHIN_S = 180.0
"""How long a turn waits for its files; what is not there by then is not shown to the model."""
TRIES = 3
PAUSES_S = (1.0, 4.0)
AT_ONCE = 4
AT_ONCE_BY_ACCOUNT = 16
"""Downloads side by side, of a conversation and of a platform's account; each is in memory."""
MAX_FILES_OF_TURN = 10
NOT_IN_TIME = "it could not be downloaded in time"


class Attachments:
    """Fetches what came with messages, and hands out what is stored."""

    def __init__(
        self,
        database: Database,
        adapters: Mapping[tuple[str, str], Adapter],
        settings: AttachmentSettings,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database = database
        self._adapters = adapters
        self._settings = settings
        self._sleep = sleep
        self._places: defaultdict[tuple[str, str], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(AT_ONCE_BY_ACCOUNT)
        )

    async def fetch_pending(self, conversation_id: int) -> None:
        """Download what the conversation's waiting messages came with; then nothing is pending.

        What cannot be had is marked as failed, with words for the model. Cancelled, it leaves the
        rest pending.

        Raises:
            StorageUnavailable: Something could not be stored; what was, stays.
        """
        waiting = await self._database.read(attachments.pending, conversation_id)
        if not waiting:
            return
        deadline = asyncio.get_running_loop().time() + ALL_WITHIN_S
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for each in waiting:
                fetching = self._bring_in(conversation_id, each, places, deadline)
                tasks.create_task(fetching, name=f"attachment {each.id}")

    def files(self, turn: Turn) -> "TurnFiles":
        """Return where the tools of a turn put the files that they make."""
        return TurnFiles(self._database, turn, self._settings.max_bytes)

    async def load_image(self, conversation: str, attachment_id: int) -> str | None:
        """Return the data URL of a picture of this conversation: `agent.models.images`."""
        found = await self._database.read(
            attachments.of_conversation, int(conversation), attachment_id
        )
        picture = found and look_at(found.content)
        if found is None or picture is None:
            return None
        return await asyncio.to_thread(_data_url, picture.mime, found.content)

    async def _bring_in(
        self, conversation_id: int, wanted: Pending, places: asyncio.Semaphore, deadline: float
    ) -> None:
        """Fetch and store one file, or note why not."""
        started = time.monotonic()
        try:
            async with asyncio.timeout_at(deadline), places, self._places[_account(wanted)]:
                content = await self._fetched(wanted)
        except TimeoutError:
            await self._fail(conversation_id, wanted, NOT_IN_TIME)
        except FetchRejected as exc:
            await self._fail(conversation_id, wanted, str(exc))
        else:
            if not await self._store(wanted, content):
                return
            log.info(
                "attachment_stored",
                conversation=conversation_id,
                attachment=wanted.id,
                kind=wanted.attachment.kind,
                bytes=len(content),
                duration_ms=round((time.monotonic() - started) * 1000),
            )

    async def _fetched(self, wanted: Pending) -> bytes:
        """Return the bytes of a file, tried three times at most, also across restarts.

        Raises:
            FetchRejected: It cannot be had.
        """
        while True:
            try:
                return await self._fetch(wanted)
            except (FetchDelayed, TimeoutError) as exc:
                failures = await self._database.write(attachments.delay, wanted.id)
                if failures >= TRIES:
                    raise FetchRejected("it could not be downloaded") from exc
            await self._sleep(PAUSES_S[min(failures, len(PAUSES_S)) - 1])

    async def _fetch(self, wanted: Pending) -> bytes:
        limit_bytes = self._settings.max_bytes
        adapter = self._adapters[_account(wanted)]
        try:
            async with asyncio.timeout(FETCH_WITHIN_S):
                content = await adapter.fetch(wanted.address, wanted.attachment, limit_bytes)
        except (FetchDelayed, FetchRejected, TimeoutError):
            raise
        except Exception as exc:
            # A turn that cannot begin would be tried for ever.
            log.exception("attachment_fetch_broke", attachment=wanted.id)
            raise FetchRejected("it could not be downloaded") from exc
        if len(content) > limit_bytes:
            raise FetchRejected(too_large(limit_bytes))
        return content

    async def _store(self, wanted: Pending, content: bytes) -> bool:
        """Store a file in parts, each in a transaction of its own: others write in between.

        Returns:
            False where nobody waits for it any more.
        """
        digest = await asyncio.to_thread(hashlib.sha256, content)
        for n, body in enumerate(parts_of(content)):
            if not await self._database.write(attachments.store_part, wanted.id, n, body):
                return False
        sha256 = digest.hexdigest()
        await self._database.write(attachments.finish, wanted.id, len(content), sha256)
        return True

    async def _fail(self, conversation_id: int, wanted: Pending, reason: str) -> None:
        await self._database.write(attachments.fail, wanted.id, reason)
        log.warning(
            "attachment_failed",
            conversation=conversation_id,
            attachment=wanted.id,
            kind=wanted.attachment.kind,
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class TurnFiles:
    """`agent.ports.Files` of one turn; what it takes is shown when the turn commits."""

    database: Database
    turn: Turn
    limit_bytes: int

    async def offer(self, name: str, mime: str, content: bytes) -> str:
        """Store a file for the turn's answer.

        Raises:
            ToolError: It is too large, or there are too many.
        """
        if len(content) > self.limit_bytes:
            raise ToolError(f"the file is larger than {size_text(self.limit_bytes)}")
        if await self.database.read(attachments.count_of_turn, self.turn.id) >= MAX_FILES_OF_TURN:
            raise ToolError(f"an answer has at most {MAX_FILES_OF_TURN} files")
        stored = await self.database.write(attachments.offer, self.turn, name, mime, content)
        log.info("file_offered", attachment=stored.id, bytes=stored.size_bytes)
        return stored.name


def _account(wanted: Pending) -> tuple[str, str]:
    return wanted.address.platform, wanted.address.account


def _data_url(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"
