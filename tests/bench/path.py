"""What each phase of the path takes of one plain message: CPU, statements, threads, memory.

One conversation, one message after another, through the null platform; tests/bench/phases.py says
which functions are a phase. CPU is taken in a run of its own: to count costs CPU.
"""

import asyncio
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.bench.figures import Figure
from tests.bench.phases import BESIDE, PHASES, Phases, Tally
from tests.bench.running import Chats, running
from tests.house.path import alone
from tests.support.counting import PathCounter

WARM_UP = 30
MESSAGES = 300
COUNTED = 20
COLUMNS = (
    "CPU of the event loop",
    "CPU of threads",
    "statements",
    "transactions",
    "hops to a thread",
    "memory at its peak",
)


class Spent(NamedTuple):
    """What one message took, on average.

    Attributes:
        loop_ms: CPU of the event loop's thread.
        threads_ms: CPU of all others.
        peak_kb: Most that one step had allocated; None where nobody looked.
    """

    loop_ms: float
    threads_ms: float
    statements: float
    transactions: float
    hops: float
    peak_kb: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        """As a table shows them."""
        peak = "" if self.peak_kb is None else f"{self.peak_kb:,.0f} KB"
        counts = (f"{each:.1f}" for each in self[2:5])
        return (f"{self.loop_ms:.2f} ms", f"{self.threads_ms:.2f} ms", *counts, peak)


def measure() -> Iterator[Figure]:
    """Yield a row for each phase, what is in none of them, and all together."""
    for phase, spent in asyncio.run(profiled()).items():
        yield Figure(phase, spent.loop_ms + spent.threads_ms, "ms", cells=spent.cells)


async def profiled(messages: int = MESSAGES, counted: int = COUNTED) -> dict[str, Spent]:
    """Return what a message takes in each phase, in the order of the path."""
    timed = Phases()
    with timed.measuring():
        loop_ms, threads_ms = await _timed(timed, messages)
    found = Phases()
    tracemalloc.start()
    try:
        with alone(found.call) as counter, found.measuring():
            statements = await _counted(found, counter, counted)
    finally:
        tracemalloc.stop()
    rows = {
        phase: _spent(timed.tallies[phase], messages, found.tallies[phase], statements, counted)
        for phase in PHASES
    }
    rows = {phase: spent for phase, spent in rows.items() if any(spent)}
    loop_left = loop_ms - sum(spent.loop_ms for spent in rows.values())
    threads_left = threads_ms - sum(spent.threads_ms for spent in rows.values())
    beside = statements[BESIDE] / counted
    rows["event loop, queues, what runs beside"] = Spent(
        loop_left, threads_left, beside, 0, 0, None
    )
    whole = [sum(column) for column in zip(*(spent[:5] for spent in rows.values()), strict=True)]
    rows["all of it"] = Spent(*whole, peak_kb=None)
    return rows


def _spent(
    timed: Tally, messages: int, found: Tally, statements: "Counter[str]", counted: int
) -> Spent:
    return Spent(
        timed.loop_ns / messages / 1e6,
        timed.threads_ns / messages / 1e6,
        statements[timed.phase] / counted,
        found.jobs / counted,
        found.hops / counted,
        found.peak_kb,
    )


async def _timed(phases: Phases, messages: int) -> tuple[float, float]:
    """Return the CPU of a message in ms: of the event loop's thread, and of all others."""
    chats = Chats()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send) as gateway:
            chats.gateway = gateway
            for n in range(WARM_UP):
                await chats.ask("1", f"warm up {n}")
            await asyncio.sleep(0.2)
            phases.clear()
            loop, process = time.thread_time(), time.process_time()
            for n in range(messages):
                await chats.ask("1", f"hello {n}, how is order {n}")
            await asyncio.sleep(0.2)
            loop, process = time.thread_time() - loop, time.process_time() - process
    return loop / messages * 1e3, (process - loop) / messages * 1e3


async def _counted(phases: Phases, counter: PathCounter, messages: int) -> "Counter[str]":
    """Return how many statements each phase has run."""
    chats = Chats()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send) as gateway:
            chats.gateway = gateway
            for n in range(WARM_UP):
                await chats.ask("1", f"warm up {n}")
                await counter.idle()
            phases.clear()
            counter.take()
            for n in range(messages):
                await chats.ask("1", f"hello {n}, how is order {n}")
                await counter.idle()
            return Counter(phases.phase_of(call) for call, _ in counter.take().statements)
