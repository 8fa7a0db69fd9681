"""Where a message spends what it costs: the steps of its path, by the functions that make them.

Product code is not touched: its functions are wrapped for the time of a measurement. A phase gets
the CPU of the event loop while one of its coroutines runs, not while it waits, and the CPU of
threads while they work for it; what it calls that is a phase of its own counts there.
"""

import asyncio
import importlib
import inspect
import threading
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median
from types import coroutine
from typing import Any
from unittest.mock import patch

from gateway.storage.engine import SqliteDatabase

PHASES: Mapping[str, tuple[str, ...]] = {
    "intake, admission": ("gateway.pipeline.intake:GatewayIntake.accept",),
    "claim": (
        "gateway.pipeline.worker:Worker._serve_line",
        "gateway.pipeline.worker:Worker._begin",
    ),
    "settle": ("gateway.pipeline.worker:Worker._settle",),
    "next turn, frozen": ("gateway.pipeline.next_turn:TurnStarter.start",),
    "view loaded": ("gateway.context.window:ContextParts.opened",),
    "tools of the turn": ("gateway.agent_ports.tools:Toolkit.for_turn",),
    "hygiene": ("gateway.pipeline.turn:hygiene",),
    "request": ("gateway.pipeline.turn:run_turn",),
    "answer rendered": ("gateway.pipeline.preview:TurnChat.parts",),
    "turn, committed": ("gateway.pipeline.turn:TurnRunner.run",),
    "preview": (
        "gateway.pipeline.preview:LiveAnswer._show_working",
        "gateway.pipeline.preview:LiveAnswer._show_previews",
    ),
    "delivery": ("gateway.pipeline.delivery:Delivery._drain",),
    "log": ("structlog._base:BoundLoggerBase._proxy_to_logger",),
    "search index": ("gateway.agent_ports.search:Indexer.feed_all",),
    "worker": ("gateway.pipeline.worker:Worker._serve",),
    "begin and commit": ("gateway.storage.engine:SqliteDatabase._commit",),
}
"""Phase → the functions that are its own, in the order of the path, each as "module:name"."""
BESIDE = "beside"


@dataclass(slots=True)
class Tally:
    """What one call, or one phase, took.

    Attributes:
        number: Of the call.
        loop_ns: CPU of the event loop's thread.
        threads_ns: CPU of all others.
        jobs: Transactions that were asked for.
        hops: Pieces of work that were given to another thread.
        peaks: Bytes that a step had allocated at most, for each call.
    """

    phase: str
    number: int = field(default_factory=count().__next__)
    loop_ns: int = 0
    threads_ns: int = 0
    jobs: int = 0
    hops: int = 0
    peaks: list[int] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add what a call took."""
        self.loop_ns += other.loop_ns
        self.threads_ns += other.threads_ns
        self.jobs += other.jobs
        self.hops += other.hops
        self.peaks.append(max(other.peaks, default=0))

    @property
    def peak_kb(self) -> float:
        """Of a usual call."""
        return median(self.peaks or [0]) / 1024


class _Here(threading.local):
    """What a thread works at, the innermost last; `since` is its CPU clock at the last change."""

    def __init__(self) -> None:
        self.stack: list[Tally] = []
        self.since = 0
        self.size = 0


class Phases:
    """Takes what each phase costs, while `measuring`."""

    def __init__(self) -> None:
        self._here = _Here()
        self._loop_thread = threading.get_ident()
        self._phases: dict[str, str] = {}
        self.clear()

    def clear(self) -> None:
        """Begin anew; calls that are under way count from their beginning."""
        self.tallies = {phase: Tally(phase) for phase in PHASES}

    def call(self) -> str:
        """Return the number of the call that this thread works for; empty for none."""
        return str(self._here.stack[-1].number) if self._here.stack else ""

    def phase_of(self, call: str) -> str:
        """Return the phase of a call that is over; `BESIDE` for none, or one that goes on."""
        return self._phases.get(call, BESIDE)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Wrap the functions of all phases."""
        with ExitStack() as wrapped:
            for phase, functions in PHASES.items():
                for function in functions:
                    owner, name = place_of(function)
                    wrapping = self._wrapped(phase, getattr(owner, name))
                    wrapped.enter_context(patch.object(owner, name, wrapping))
            for name in ("write", "read"):
                asking = self._asking(getattr(SqliteDatabase, name), is_hop=name == "write")
                wrapped.enter_context(patch.object(SqliteDatabase, name, asking))
            loop = asyncio.BaseEventLoop
            running = self._handing(loop.run_in_executor)
            wrapped.enter_context(patch.object(loop, "run_in_executor", running))
            yield

    def _wrapped(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            async def stepped(*args: Any, **options: Any) -> Any:
                tally = Tally(phase)
                try:
                    return await self._steps(tally, function(*args, **options))
                finally:
                    self._book(tally, phase)

            return stepped

        def called(*args: Any, **options: Any) -> Any:
            tally = Tally(phase)
            with self._within(tally):
                found = function(*args, **options)
            self._book(tally, phase)
            return found

        return called

    def _book(self, tally: Tally, phase: str) -> None:
        self.tallies[phase].add(tally)
        self._phases[str(tally.number)] = phase

    @coroutine
    def _steps(self, tally: Tally, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run a coroutine; each of its steps is the tally's, and no wait is."""
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            try:
                with self._within(tally):
                    awaited = step()
            except StopIteration as end:
                return end.value
            try:
                step = partial(work.send, (yield awaited))
            except BaseException as exc:  # noqa: BLE001 - goes on into the coroutine
                step = partial(work.throw, exc)

    def _asking(self, ask: Callable[..., Any], *, is_hop: bool) -> Callable[..., Any]:
        """Have a transaction function run for the phase that asks for it."""

        def asked(
            database: SqliteDatabase, fn: Callable[..., Any], *args: Any, **options: Any
        ) -> Any:
            if not self._here.stack:
                return ask(database, fn, *args, **options)
            tally = self._here.stack[-1]
            tally.jobs += 1
            tally.hops += is_hop
            return ask(database, self._for(tally, fn), *args, **options)

        return asked

    def _handing(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def handed(loop: Any, executor: Any, fn: Callable[..., Any], *args: Any) -> Any:
            if not self._here.stack:
                return run(loop, executor, fn, *args)
            tally = self._here.stack[-1]
            tally.hops += 1
            return run(loop, executor, self._for(tally, fn), *args)

        return handed

    def _for(self, tally: Tally, fn: Callable[..., Any]) -> Callable[..., Any]:
        def working(*args: Any, **options: Any) -> Any:
            with self._within(tally):
                return fn(*args, **options)

        return working

    @contextmanager
    def _within(self, tally: Tally) -> Iterator[None]:
        self._turn_over()
        self._here.stack.append(tally)
        try:
            yield
        finally:
            self._turn_over()
            self._here.stack.pop()

    def _turn_over(self) -> None:
        """Book what this thread took since its last change on what it works at."""
        here, now = self._here, time.thread_time_ns()
        size, peak = tracemalloc.get_traced_memory()
        if here.stack:
            tally = here.stack[-1]
            if threading.get_ident() == self._loop_thread:
                tally.loop_ns += now - here.since
            else:
                tally.threads_ns += now - here.since
            tally.peaks.append(peak - here.size)
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()
        here.since, here.size = now, size


def place_of(function: str) -> tuple[Any, str]:
    """Return the module or class that holds a function of the table, and its name there."""
    module, _, path = function.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    return owner, name
