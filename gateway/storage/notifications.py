"""LISTEN and NOTIFY: hints between replicas, on one direct connection to PostgreSQL.

A hint says which rows to look at, never what stands in them, so that one that is lost costs no more
than the time until they are looked at anyway. They are sent after the commit that they tell of, on
this connection and not in it: transactions with a NOTIFY commit one after the other, in all of the
database (decision 270).

Imported where the database is PostgreSQL. Nothing here blocks the event loop: libpq is only asked
for what it has got.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, NoReturn, Protocol

import orjson
import psycopg
import structlog
from psycopg.pq import ExecStatus

from gateway.errors import StorageUnavailable
from gateway.storage.database import DatabaseServer
from gateway.storage.postgres import ended_if_late, open_direct

log = structlog.get_logger()

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
_TELL = (
    b"SELECT pg_notify(told ->> 0, told ->> 1) FROM json_array_elements($1::json) AS told (told)"
)
# Nobody reads a hint after a crash of the server, so nothing waits for its disk.
_BEGIN = "SET synchronous_commit = off; LISTEN {}"


def channel_of(replica: int) -> str:
    """Return the channel on which one replica is told."""
    return f"parley_{replica}"


class Listener(Protocol):
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

    async def run(self, listener: Listener) -> NoReturn:
        """Exchange hints until cancelled; a lost connection is opened anew."""
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                await self._exchange_as(listener.known_as, listener)
            except (psycopg.Error, StorageUnavailable, TimeoutError) as exc:
                # One that is lost once a day must not wait for long each time.
                pause_s = FIRST_PAUSE_S if time.monotonic() - began > STABLE_S else pause_s
                log.warning("hints_interrupted", error=_first_line(exc), retry_in_s=pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _exchange_as(self, replica: int, listener: Listener) -> None:
        """Exchange hints for as long as the listener is known by this id."""
        async with self._session(replica) as libpq:
            listener.look_anew()
            while listener.known_as == replica:
                await self._exchange(libpq, listener)

    @asynccontextmanager
    async def _session(self, replica: int) -> AsyncIterator[Any]:
        """Yield an open connection, as libpq has it, that listens."""
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, _listening, self._server, channel_of(replica))
        driver = await _to_its_end(opening)
        libpq = driver.pgconn
        libpq.nonblocking = 1
        # libpq closes it, and forgets its number, where it finds the connection lost.
        descriptor = libpq.socket
        loop.add_reader(descriptor, self._stirred.set)
        self._connected = True
        try:
            yield libpq
        finally:
            self._connected = False
            self._unsent.clear()
            loop.remove_reader(descriptor)
            driver.close()

    async def _exchange(self, libpq: Any, listener: Listener) -> None:
        """Hear and tell what there is, or wait for it."""
        # Before looking: what comes during it wakes again.
        self._stirred.clear()
        _take_in(libpq, listener)
        if self._unsent:
            told = list(self._unsent)[:AT_ONCE]
            for each in told:
                del self._unsent[each]
            await self._ask(libpq, listener, _TELL, orjson.dumps(told))
        elif not await self._stirs_within(PULSE_S):
            await self._ask(libpq, listener, b"SELECT 1")

    async def _stirs_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._stirred.wait()
        return False

    async def _ask(self, libpq: Any, listener: Listener, statement: bytes, *values: bytes) -> None:
        """Run a statement whose rows nobody wants; hints that come meanwhile are heard.

        Raises:
            OperationalError: The connection is lost, or the server does not do it.
            TimeoutError: It takes too long.
        """
        libpq.send_query_params(statement, values)
        async with asyncio.timeout(ANSWER_S):
            while libpq.flush():
                await _writable(libpq.socket)
            while True:
                self._stirred.clear()
                _take_in(libpq, listener)
                if libpq.is_busy():
                    await self._stirred.wait()
                elif (result := libpq.get_result()) is None:
                    return
                elif result.status != ExecStatus.TUPLES_OK:
                    raise psycopg.OperationalError(result.get_error_message())


def _take_in(libpq: Any, listener: Listener) -> None:
    """Hear what has come in."""
    libpq.consume_input()
    while (told := libpq.notifies()) is not None:
        listener.hear(told.extra.decode(errors="replace"))


def _listening(server: DatabaseServer, channel: str) -> "psycopg.Connection[Any]":
    with ExitStack() as opened:
        driver = open_direct(server)
        opened.callback(driver.close)
        with ended_if_late(driver, ANSWER_S):
            driver.execute(_BEGIN.format(channel).encode())
        opened.pop_all()
    return driver


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)


async def _to_its_end(
    opening: "asyncio.Future[psycopg.Connection[Any]]",
) -> "psycopg.Connection[Any]":
    """Return what is being opened; where nobody waits for it any more it is closed."""
    with ExitStack() as given_up:
        given_up.callback(opening.add_done_callback, _close)
        driver = await asyncio.shield(opening)
        given_up.pop_all()
    return driver


def _close(opened: "asyncio.Future[psycopg.Connection[Any]]") -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


def _first_line(exc: Exception) -> str:
    return (str(exc).splitlines() or [type(exc).__name__])[0]
