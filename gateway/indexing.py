"""Feeds the search index in the background, from what turns have committed.

Rows are the truth: what is missing is read from the transcript, so a lost hint costs seconds and a
kill nothing. Terms are made in a thread, and each write is short: turns share the writer with it.
"""

import asyncio
from collections.abc import Iterable

import structlog

from gateway.errors import StorageError
from gateway.storage import searchindex
from gateway.storage.engine import Database
from gateway.storage.searchterms import VERSION

log = structlog.get_logger()

POLL_S = 30.0
"""How long a message whose hint was lost stays out of the index."""
GATHER_S = 0.5
"""A hint is followed by others: what a turn writes within this time is fed together."""
AT_ONCE = 50
"""Conversations that are looked up together."""


class Indexer:
    """Keeps the search index up with the transcripts."""

    def __init__(self, database: Database) -> None:
        """Feed nothing yet.

        Args:
            database: Where transcripts and index are.
        """
        self._database = database
        self._broken: set[int] = set()
        self._hinted = asyncio.Event()
        self._hinted.set()

    def notify(self, _conversation: int = 0) -> None:
        """Take the hint that a transcript has grown; returns at once."""
        self._hinted.set()

    async def run(self) -> None:
        """Feed until cancelled; an index of another version is built anew first."""
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._hinted.wait()
                    await asyncio.sleep(GATHER_S)
            except TimeoutError:
                pass
            self._hinted.clear()
            try:
                await self.feed_all()
            except StorageError as exc:
                log.warning("search_index_not_fed", error=str(exc))
            except Exception:
                log.exception("search_index_feeding_failed")

    async def feed_all(self) -> int:
        """Feed what is missing; returns how many messages were looked at."""
        if not await self._database.read(searchindex.is_current) and await self._database.write(
            searchindex.clear
        ):
            log.info("search_index_cleared", version=VERSION)
        fed = 0
        self._broken.clear()
        while found := await self._database.read(searchindex.behind, AT_ONCE, self._broken):
            fed += await self.catch_up(found)
        return fed

    async def catch_up(self, conversations: Iterable[int]) -> int:
        """Feed what these conversations lack now; returns how many messages were looked at."""
        return sum([await self._feed_alone(each) for each in conversations])

    async def _feed_alone(self, conversation: int) -> int:
        """Feed a conversation; what is wrong with one of its messages holds up no other."""
        try:
            return await self._feed(conversation)
        except StorageError:
            raise
        except Exception:
            log.exception("conversation_not_indexed", conversation=conversation)
            self._broken.add(conversation)
            return 0

    async def _feed(self, conversation: int) -> int:
        fed = 0
        while found := await self._database.read(searchindex.waiting, conversation):
            batch = await asyncio.to_thread(searchindex.prepared, found)
            if await self._database.write(searchindex.feed, batch):
                fed += len(found.rows)
        return fed
