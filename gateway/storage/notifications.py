"""LISTEN and NOTIFY: hints between replicas, on one direct connection to PostgreSQL.

A hint says which rows to look at, never what stands in them, so that one that is lost costs no more
than the time until they are looked at anyway. They are sent after the commit that they tell of, on
this connection and not in it: transactions with a NOTIFY commit one after the other, in all of the
database (decision 270).

Imported where the database is PostgreSQL.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn, Protocol, TypeVar

import orjson
import psycopg
import structlog
from psycopg.abc import PQGen
from typing_extensions import override

from gateway.errors import StorageUnavailable
from gateway.storage.database import DatabaseServer
from gateway.storage.postgres import conninfo

log = structlog.get_logger()
T = TypeVar("T")

PULSE_S = 5.0
"""How often a silent connection is tried: one that was cut without a word would stay silent."""
ANSWER_S = 5.0
"""How long the server has for an answer."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
"""Before the connection is opened anew, doubled each time."""
STABLE_S = 1.0
"""A connection that has lived for so long begins that anew."""
AT_ONCE = 100
"""Hints in one statement."""
MOST_UNSENT = 1000
"""Hints that wait for being sent; who is not told finds out by the rows."""
HINT_BYTES = 400
"""Most bytes of a hint: a word and ids. PostgreSQL takes 7,999."""
_TELL = "SELECT pg_notify(told ->> 0, told ->> 1) FROM json_array_elements(%s::json) AS told (told)"
# Nobody reads a hint after a crash of the server, so nothing waits for its disk.
_BEGIN = "SET synchronous_commit = off; LISTEN {}"


class _HintSession(psycopg.AsyncConnection[Any]):
    """A session that raises OperationalError where the server does not answer in time."""

    @override
    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        return await super().wait(gen, interval, timeout or ANSWER_S)


def channel_of(replica: int) -> str:
    """Return the channel on which one replica is told."""
    return f"parley_{replica}"


class HintListener(Protocol):
    """Who hears hints."""

    @property
    def known_as(self) -> int:
        """The id of the replica; another one once others have taken it for dead."""
        ...

    def hear(self, hint: str) -> None:
        """Take a hint that came in; returns at once."""
        ...

    def look_anew(self) -> None:
        """Look at all rows soon: what was told before this moment was not heard."""
        ...


class Notifications:
    """Tells other replicas, and hears what they tell.

    Args:
        server: The database; past a pooler, since who listens keeps the session.
    """

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self._unsent: dict[tuple[str, str], None] = {}
        self._stirred = asyncio.Event()
        self._connected = False

    def tell(self, replica: int, hint: str) -> None:
        """Send a hint soon; the same one once. It is dropped while there is no connection."""
        is_short = len(hint.encode()) <= HINT_BYTES
        if self._connected and is_short and len(self._unsent) < MOST_UNSENT:
            self._unsent[channel_of(replica), hint] = None
            self._stirred.set()

    def check(self) -> None:
        """Have `run` look whether the listener is known by another id by now."""
        self._stirred.set()

    async def run(self, listener: HintListener) -> NoReturn:
        """Exchange hints until cancelled; a lost connection is opened anew."""
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                await self._exchange_as(listener.known_as, listener)
            except (psycopg.Error, StorageUnavailable) as exc:
                # One that is lost once a day must not wait for long each time.
                pause_s = FIRST_PAUSE_S if time.monotonic() - began > STABLE_S else pause_s
                log.warning("hints_interrupted", error=_first_line(exc), retry_in_s=pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _exchange_as(self, replica: int, listener: HintListener) -> None:
        """Exchange hints for as long as the listener is known by this id."""
        async with self._session(replica, listener) as driver:
            listener.look_anew()
            while listener.known_as == replica:
                await self._exchange(driver)

    @asynccontextmanager
    async def _session(self, replica: int, listener: HintListener) -> AsyncIterator[_HintSession]:
        """Yield an open connection that listens."""
        driver = await _HintSession.connect(conninfo(self._server.direct), autocommit=True)
        try:
            driver.add_notify_handler(lambda notified: listener.hear(notified.payload))
            await driver.execute(_BEGIN.format(channel_of(replica)).encode())
            self._connected = True
            yield driver
        finally:
            self._connected = False
            self._unsent.clear()
            await driver.close()

    async def _exchange(self, driver: _HintSession) -> None:
        """Tell what there is to tell, or wait for it; either way hear what has come in."""
        # Before looking: what is told during it wakes again.
        self._stirred.clear()
        told = list(self._unsent)[:AT_ONCE]
        for each in told:
            del self._unsent[each]
        if not told:
            await self._stirs_within(PULSE_S, driver.fileno())
        if told:
            await driver.execute(_TELL, (orjson.dumps(told).decode(),))
        else:
            await driver.execute("SELECT 1")

    async def _stirs_within(self, seconds: float, descriptor: int) -> None:
        """Wait until there is something to tell or to hear."""
        loop = asyncio.get_running_loop()
        # The driver takes its own reader away behind each statement.
        loop.add_reader(descriptor, self._stirred.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stirred.wait()
        finally:
            loop.remove_reader(descriptor)


def _first_line(exc: Exception) -> str:
    return (str(exc).splitlines() or [type(exc).__name__])[0]
