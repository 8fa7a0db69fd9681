"""The store alone: appends that are durable when they return, loading, and bytes on disk."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import Connection

from agent.messages import ChatMessage, assistant_message, user_message
from agent.view.view import ViewPlan
from gateway.storage.conversation import transcript
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from gateway.storage.queue import inbox
from tests.bench.figures import Figure, percentile
from tests.bench.running import Chats, inbound, running
from tests.bench.seeding import open_place, seed
from tests.support.storage import load_view

APPENDS = 2000
CALLERS = 64
LOADS = 30
TURNS = 500
TEXT = "".join(f"Order {n} left the warehouse and will be there soon. " for n in range(7))[:370]


def measure() -> Iterator[Figure]:
    """Yield one writer, 64 callers, a load, and the bytes of a message and of a whole turn."""
    yield from asyncio.run(_one_writer())
    yield asyncio.run(_many_callers())
    yield from asyncio.run(_load())
    yield asyncio.run(_bytes_of_a_turn())


@asynccontextmanager
async def _store() -> AsyncIterator[tuple[Database, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "parley.db"
        async with open_database(file) as database:
            yield database, file


async def _one_writer() -> list[Figure]:
    took: list[float] = []
    async with _store() as (database, _):
        place = await database.write(open_place, inbound("1", "1", ""))
        for message in _messages(APPENDS):
            started = time.perf_counter()
            await database.write(transcript.append, place, [message])
            took.append(time.perf_counter() - started)
    return [
        Figure("one caller appends, fsync each", len(took) / sum(took), "/s"),
        Figure("one caller appends, p99", percentile(took, 0.99) * 1e3, "ms", at_most=7.8),
        Figure("one caller appends, longest", max(took) * 1e3, "ms", at_most=100),
    ]


async def _many_callers() -> Figure:
    async with _store() as (database, _):
        places = [
            await database.write(open_place, inbound(f"{n}", f"{n}", "")) for n in range(CALLERS)
        ]
        messages = _messages(APPENDS // 20)
        started = time.perf_counter()

        async def caller(number: int) -> None:
            for message in messages:
                await database.write(transcript.append, places[number], [message])

        await asyncio.gather(*(caller(n) for n in range(CALLERS)))
        rate = CALLERS * len(messages) / (time.perf_counter() - started)
    return Figure(f"{CALLERS} callers append", rate, "/s", at_least=2000)


async def _load() -> list[Figure]:
    took: list[float] = []
    async with _store() as (database, file):
        place = await database.write(seed, inbound("1", "1", ""), _messages(1000))
        for _ in range(LOADS):
            started = time.perf_counter()
            view = await database.read(load_view, place.conversation, ViewPlan())
            took.append(time.perf_counter() - started)
            assert len(view) == 1000
        before = _size(file)
        for n in range(20):
            await database.write(seed, inbound(f"b{n}", f"b{n}", ""), _messages(1000))
        size = (_size(file) - before) / 20_000
    return [
        Figure("load of 1,000 messages", percentile(took, 0.5) * 1e3, "ms", at_most=5),
        Figure("transcript alone, per message of 370 bytes", size, "bytes", at_most=1300),
    ]


async def _bytes_of_a_turn() -> Figure:
    """Measure question and answer of 370 bytes through the whole path, raw updates pruned."""
    chats = Chats()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send) as gateway:
            chats.gateway = gateway
            file = Path(folder) / "parley.db"
            await chats.ask("1", TEXT)
            before = await gateway.database.write(_used_bytes)
            for _ in range(TURNS):
                await chats.ask("1", TEXT[9:])
            await gateway.database.write(inbox.prune_raw, -1.0, TURNS + 1)
            used = await gateway.database.write(_used_bytes) - before
            assert file.exists()
    name = "inbox, turn, transcript, outbox: per message of 370 bytes"
    return Figure(name, used / (2 * TURNS), "bytes", at_most=1300)


def _messages(count: int) -> list[ChatMessage]:
    return [user_message(TEXT) if n % 2 == 0 else assistant_message(TEXT) for n in range(count)]


def _used_bytes(conn: Connection) -> int:
    pages = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
    free = conn.exec_driver_sql("PRAGMA freelist_count").scalar_one()
    return int(pages - free) * int(conn.exec_driver_sql("PRAGMA page_size").scalar_one())


def _size(file: Path) -> int:
    return sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
