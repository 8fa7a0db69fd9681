"""Stores what platforms have shown: receipts that come while others are stored go together.

Each commit costs a wait for the disk, and on PostgreSQL a thread and a connection besides. A
receipt locks nothing but its own row, so that nobody waits for those that are stored with it.
"""

import asyncio
from dataclasses import dataclass

from gateway.storage.database import Database
from gateway.storage.queue import sending
from gateway.storage.queue.sending import Due, Shown


@dataclass(slots=True, eq=False)
class _Waiting:
    """A receipt, and once it is stored the next row of its conversation."""

    shown: Shown
    is_stored: bool = False
    following: Due | None = None


class Receipts:
    """Stores receipts, one transaction at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Waiting] = []
        self._storing = asyncio.Lock()

    async def store(self, shown: Shown) -> Due | None:
        """Store a receipt; return the next row of its conversation.

        Raises:
            StorageError: It may not be stored; to store it again has no other effect.
        """
        mine = _Waiting(shown)
        self._waiting.append(mine)
        try:
            async with self._storing:
                if not mine.is_stored:
                    await self._store_all()
        finally:
            self._waiting.remove(mine)
        return mine.following

    async def _store_all(self) -> None:
        """Store all that wait; where it fails, each of them tries again."""
        together = [each for each in self._waiting if not each.is_stored]
        found = await self._database.write(sending.mark_sent, [each.shown for each in together])
        for each, following in zip(together, found, strict=True):
            each.is_stored, each.following = True, following
