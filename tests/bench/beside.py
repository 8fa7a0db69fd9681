"""What commands and pruning do to the writes of others, on the database of `tests.bench aged`.

Somebody writes a message every few milliseconds: alone, and while a command runs, in turns, so that
whatever else the machine does falls upon both. Each ratio is that of all writes of one kind to all
of the other.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, func, insert, select, update

from agent.messages import user_message
from gateway.backup.pruning import DAY_S, Pruner
from gateway.http import control
from gateway.settings.tree import RetentionSettings
from gateway.storage.conversation import transcript
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from gateway.storage.schema import inbox, ledger, message
from gateway.storage.search import index
from tests.bench.figures import Figure, percentile
from tests.bench.running import inbound
from tests.bench.seeding import open_place

EVERY_S = 0.005
"""How often somebody writes."""
ALONE_S = 10.0
ROUNDS = 3
PRUNED_DAYS = 1
LONG = 2_000
"""Messages of the conversation that makes the largest steps of pruning."""
PARLEY = (sys.executable, "-m", "gateway.cli.main")


async def measure(home: Path, path: Path, conversations: int) -> list[Figure]:
    """Measure backup and check in turns with nothing, then forgetting and pruning once."""
    copy = home / "copy.db"
    commands = {"backup": ["backup", str(copy)], "db check": ["db", "check"]}
    async with open_database(path, home) as database:
        found = await _commands(database, home, commands)
        with suppress(FileNotFoundError):
            copy.unlink()
        for which, part in (("first", 2), ("second", 3)):
            erasing = control.carry_out(
                database, control.ACTIONS["forget"], str(conversations // part)
            )
            during, took_s = await _timed(database, erasing)
            found += [
                Figure(f"forget, the {which} one", took_s, "s"),
                Figure("writes beside it, p99", percentile(during, 0.99) * 1e3, "ms"),
                Figure("writes beside it, longest", max(during) * 1e3, "ms", at_most=200),
            ]
        found += await _pruning(database)
    return found


async def _commands(database: Database, home: Path, commands: dict[str, list[str]]) -> list[Figure]:
    alone: list[float] = []
    during: dict[str, list[float]] = {name: [] for name in commands}
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, arguments in commands.items():
            alone += await _writes(database, asyncio.sleep(ALONE_S))
            beside, took_s = await _timed(database, _run(home, arguments))
            during[name] += beside
            took[name].append(took_s)
    alone += await _writes(database, asyncio.sleep(ALONE_S))
    p99 = percentile(alone, 0.99)
    found = [
        Figure("writes alone, p99", p99 * 1e3, "ms"),
        Figure("writes alone, longest", max(alone) * 1e3, "ms"),
        Figure("load of the machine over the last minute", os.getloadavg()[0], ""),
    ]
    for name, beside in during.items():
        ratio = percentile(beside, 0.99) / p99
        found += [
            Figure(f"{name}, the middle one of {ROUNDS}", percentile(took[name], 0.5), "s"),
            Figure("writes beside it, p99 ÷ alone", ratio, "x", at_most=2),
            Figure("writes beside it, longest", max(beside) * 1e3, "ms"),
        ]
    return found


async def _run(home: Path, arguments: Sequence[str]) -> None:
    command = (*PARLEY, "--home", str(home), *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    if code := await process.wait():
        raise SystemExit(f"parley {' '.join(arguments)} ended with {code}")


class _Steps:
    """A database for a pruner; notes how long each of its transactions took, its commit too."""

    def __init__(self, database: Database) -> None:
        self.read = database.read
        self._write = database.write
        self.took: dict[str, list[float]] = {}

    async def write(self, fn: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        try:
            return await self._write(fn, *args)
        finally:
            self.took.setdefault(fn.__name__, []).append(time.perf_counter() - started)

    def figures(self) -> Iterator[Figure]:
        """Yield those of each kind of step: most are of the kinds that take the least."""
        for name, took in self.took.items():
            yield Figure(f"steps of {name}", len(took), "")
            yield Figure(f"{'':<4}p99", percentile(took, 0.99) * 1e3, "ms", at_most=50)
            yield Figure(f"{'':<4}longest", max(took) * 1e3, "ms")


async def _pruning(database: Database) -> list[Figure]:
    """Erase the oldest day of each class, and a long conversation of that age."""
    oldest = await database.read(lambda conn: conn.scalar(select(func.min(ledger.c.at))) or 0.0)
    days = int((time.time() - oldest) / DAY_S) - PRUNED_DAYS
    await _long_conversation(database, oldest)
    limited = ("transcript", "ledger", "audit")
    limits = {f"{name}_days": days for name in limited}
    steps = _Steps(database)
    settings = RetentionSettings(**limits)
    pruner = Pruner(cast("Database", steps), settings, days)
    alone = await _writes(database, asyncio.sleep(ALONE_S))
    during, took_s = await _timed(database, pruner.prune())
    alone += await _writes(database, asyncio.sleep(ALONE_S))
    p99 = percentile(alone, 0.99)
    return [
        Figure("writes alone, p99", p99 * 1e3, "ms"),
        Figure("load of the machine over the last minute", os.getloadavg()[0], ""),
        Figure("pruning a day", took_s, "s"),
        *steps.figures(),
        Figure("writes beside it, p99 ÷ alone", percentile(during, 0.99) / p99, "x"),
        Figure("writes beside it, longest", max(during) * 1e3, "ms"),
    ]


async def _long_conversation(database: Database, at: float) -> None:
    """Make one with a raw update for each message, all of it in the search index."""
    dice = random.Random(29)  # noqa: S311 - repeatable, guards nothing
    place = await database.write(open_place, inbound("long", str(time.time_ns()), ""))

    def fill(conn: Connection) -> None:
        texts = [" ".join(f"word{dice.randrange(20_000)}" for _ in range(60)) for _ in range(LONG)]
        transcript.append(conn, place, [user_message(text) for text in texts])
        here = message.c.conversation == place.conversation
        conn.execute(update(message).where(here).values(at=at))
        row = {"conversation": place.conversation, "source": "bench", "kind": "message"}
        row |= {"sender": "bench", "sender_name": "Ada", "state": "done", "at": at}
        keys = [{"seq": n, "dedupe_key": f"{place.conversation}:{n}"} for n in range(1, LONG + 1)]
        raws = [{"text": text, "raw": text * 4} for text in texts]
        conn.execute(insert(inbox), [row | a | b for a, b in zip(keys, raws, strict=True)])

    await database.write(fill)
    while rows := await database.read(index.waiting, place.conversation):
        await database.write(index.feed, index.prepared(rows))


async def _timed(database: Database, work: Awaitable[object]) -> tuple[list[float], float]:
    started = time.perf_counter()
    during = await _writes(database, work)
    return during, time.perf_counter() - started


async def _writes(database: Database, work: Awaitable[object]) -> list[float]:
    """Write a message every few milliseconds until some work is done; return what each took."""
    took: list[float] = []
    place = await database.write(open_place, inbound("bench", "bench", ""))

    async def write() -> None:
        while True:
            started = time.perf_counter()
            await database.write(transcript.append, place, [user_message("A line of a chat.")])
            took.append(time.perf_counter() - started)
            await asyncio.sleep(EVERY_S)

    writing = asyncio.ensure_future(write())
    try:
        await work
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
    return took
