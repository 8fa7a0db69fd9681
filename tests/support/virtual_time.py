"""Virtual time beside real sockets: an event loop whose clock jumps to its next timer when idle.

Idle is a loop on which no socket is ready and no thread works for it. Whoever talks over loopback
must run on the same loop: what one side has sent is readable at the other at once, so nothing is
ever under way that the loop does not see.
"""

import asyncio
import selectors
import socket
import sqlite3
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import aiohttp.connector
import pytest
from typing_extensions import override

from gateway.storage.database import Database

T = TypeVar("T")
# Long enough for the kernel to hand a segment from one loopback socket to the other.
_GRACE_S = 0.001
_UNIX_EPOCH_DAYS = 2440587.5


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time stands still while anything happens, and jumps when nothing does.

    Attributes:
        working: How many calls other threads are working on.
        unknown_hosts: Names that are resolved to nothing; all others lead to 127.0.0.1.
        jumps: How often the clock was moved.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self.working = 0
        self.jumps = 0
        self.unknown_hosts: set[str] = set()
        self._epoch = time.time() - self._now
        super().__init__(_IdleSelector(self))

    @override
    def time(self) -> float:
        return self._now

    def wall(self) -> float:
        """Return seconds since the epoch by the virtual clock."""
        return self._epoch + self._now

    def jump(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds
        self.jumps += 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the clock stand still while a thread works."""
        self.working += 1
        try:
            yield
        finally:
            self.working -= 1

    @override
    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        self.working += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._worked)
        return future

    @override
    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if (host.decode() if isinstance(host, bytes) else host) in self.unknown_hosts:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, ("127.0.0.1", int(port or 0)))]

    def _worked(self, _future: object) -> None:
        self.working -= 1


class _IdleSelector(selectors.DefaultSelector):
    """Waits for real only while something can come of it."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    @override
    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        while not (ready := super().select(_GRACE_S)):
            if not self._loop.working and timeout is not None:
                self._loop.jump(timeout)
                break
        return ready


def run_virtually(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of virtual time; all clocks of the process follow it meanwhile."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic", loop.time)
            patch.setattr(time, "time", loop.wall)
            patch.setattr(aiohttp.connector, "monotonic", loop.time)
            return runner.run(coroutine)


def virtual_loop() -> VirtualLoop:
    """Return the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def follow(database: Database, patch: pytest.MonkeyPatch) -> None:
    """Have the clock of a database's writer follow the loop, and the loop wait for its threads."""
    loop, write = virtual_loop(), database.write
    raw = database._connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    raw.create_function("julianday", 1, lambda _: loop.wall() / 86400.0 + _UNIX_EPOCH_DAYS)

    async def waited(*args: Any, **kwargs: Any) -> Any:
        with loop.held():
            return await write(*args, **kwargs)

    patch.setattr(database, "write", waited)
