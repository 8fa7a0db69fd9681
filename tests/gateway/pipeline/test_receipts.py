"""Receipts that come while others are stored go together, and one that fails takes none along."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from adapters.messages import Address, Outgoing, Receipt
from gateway.errors import StorageUnavailable
from gateway.pipeline.receipts import Receipts
from gateway.storage.database import Database
from gateway.storage.queue.sending import Shown


class Books:
    """Stands for a database that is as slow, and as broken, as a test has it.

    Attributes:
        stored: The seqs of each transaction that was begun.
    """

    def __init__(self) -> None:
        self.stored: list[list[int]] = []
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        self.fails = False

    async def write(self, _fn: Any, shown: Sequence[Shown]) -> list[None]:
        """Store receipts once the gate is open."""
        self.stored.append([each.message.seq for each in shown])
        self.begun.set()
        await self.gate.wait()
        if self.fails:
            self.fails = False
            raise StorageUnavailable("the disk is full")
        return [None] * len(shown)


def shown(seq: int) -> Shown:
    address = Address("telegram", "default", f"c{seq}")
    message = Outgoing(conversation=seq, address=address, seq=seq, payload="", nonce="")
    return Shown(message, Receipt(f"m{seq}"))


async def storing(books: Books) -> list[Any]:
    """Have three receipts be stored; the last two come while the first one is."""
    receipts = Receipts(cast("Database", books))
    tasks = [asyncio.create_task(receipts.store(shown(seq))) for seq in (1, 2, 3)]
    await books.begun.wait()
    books.gate.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert receipts._waiting == []
    return found


async def test_what_comes_meanwhile_goes_together() -> None:
    """Nobody is stored twice."""
    books = Books()
    assert await storing(books) == [None] * 3
    assert books.stored == [[1], [2, 3]]


async def test_a_failure_is_told_to_one_and_the_others_try_again() -> None:
    """Who was told tries again by itself."""
    books = Books()
    books.fails = True
    first, *others = await storing(books)
    assert isinstance(first, StorageUnavailable)
    assert others == [None] * 2
    assert books.stored == [[1], [2, 3]]
