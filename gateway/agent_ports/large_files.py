"""Moves large files to the object store, beside the path; imported where the settings name one.

What is stored lies in the database first: a message, a turn or an upload never waits for the object
store, and nothing is lost while that is down. Files are moved one at a time; objects that nobody
needs any more are deleted (gateway/storage/conversation/stored_objects.py).
"""

import asyncio
import time
from dataclasses import dataclass

import structlog

from gateway.errors import StorageError
from gateway.storage.conversation import attachments, stored_objects
from gateway.storage.conversation.attachments import StoredContent
from gateway.storage.conversation.message_content import needed_bytes
from gateway.storage.database import Database
from gateway.storage.object_store import ObjectStore

log = structlog.get_logger()

SWEEP_S = 30.0
"""How often it is looked for what is to be moved or deleted."""
LONGEST_PAUSE_S = 300.0
"""Longest pause after the object store has failed several times in a row."""


@dataclass(frozen=True, slots=True)
class LargeFiles:
    """Moves large files of a database to a store.

    Attributes:
        text_chars: As much of a text file is shown to the model (`attachments.text_chars`).
    """

    database: Database
    store: ObjectStore
    text_chars: int

    async def get(self, name: str) -> bytes:
        """Return the bytes of an object: `gateway.agent_ports.files.Objects`.

        Raises:
            NotFound: It is not there.
            ObjectsUnavailable: They cannot be had now.
        """
        return await self.store.get(name)

    async def run(self) -> None:
        """Move and delete until cancelled; nothing anew that another replica is doing."""
        pause_s = SWEEP_S
        while True:
            try:
                await self.sweep()
                pause_s = SWEEP_S
            except StorageError as exc:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                log.warning("objects_delayed", error=str(exc), pause_s=pause_s)
            await asyncio.sleep(pause_s)

    async def sweep(self) -> None:
        """Move what is to be moved now, and delete what nobody needs any more.

        Raises:
            StorageError: The object store or the database does not do it; the rest stays as it is.
        """
        after = 0
        while found := await self.database.read(stored_objects.movable, after):
            for after in found:
                await self._move(after)
        await self.database.write(stored_objects.abandon)
        while leaving := await self.database.read(stored_objects.leaving):
            for object_id, name in leaving:
                await self.store.delete(name)
                await self.database.write(stored_objects.erase, object_id)
                log.info("object_deleted", object=name)

    async def _move(self, attachment_id: int) -> None:
        started = time.monotonic()
        found = await self.database.read(attachments.stored_content, attachment_id)
        # Another replica has moved it, or it was erased.
        if found is None or found.object is not None:
            return
        kept = await asyncio.to_thread(self._needed_bytes, found)
        upload = await self.database.write(stored_objects.begin, attachment_id, kept)
        if upload is None:
            return
        await self.store.put(upload.name, found.file.content)
        moved = await self.database.write(stored_objects.finish, upload, kept)
        log.info(
            "file_moved",
            attachment=attachment_id,
            object=upload.name,
            bytes=len(found.file.content),
            needed=moved,
            duration_ms=round((time.monotonic() - started) * 1000),
        )

    def _needed_bytes(self, found: StoredContent) -> int:
        file = found.file
        return needed_bytes(file.content, found.kind, file.mime, self.text_chars)
