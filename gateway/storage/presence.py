"""Presence: a replica's dedicated PostgreSQL session, which proves that its process is alive.

The session holds the replica's lock, which the server releases as soon as the process or its
connection is gone; then others reap it (gateway/storage/queue/replicas.py). The replica renews and
checks over this session, so if that fails it also stops proving its life. It does not depend on
transaction threads, which may all be busy. A pooler in transaction mode would provide a different
session each time.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from sqlalchemy import BigInteger, Connection, bindparam, func, select, text
from sqlalchemy.exc import DBAPIError

from gateway.errors import StorageUnavailable
from gateway.storage import postgres
from gateway.storage.database import DatabaseServer, retrieve
from gateway.storage.postgres import driver_of
from gateway.storage.queue import replicas
from gateway.storage.queue.blame import Death, Inheritance

P = ParamSpec("P")
T = TypeVar("T")

USED_LOCK = 0x5061726C_75736564
"""Lock shared by all replicas; exclusive use of the database requires it."""
ANSWERS_IN_S = 4.0
"""Longest response time of the server, in seconds; then the connection counts as lost."""


LOCKS_IN_MS = 1000
"""Longest wait of its transactions for a lock, in milliseconds."""


class Presence:
    """The session of a replica, created by `enter`.

    Attributes:
        is_lost: Whether the session and its lock are known to be lost.
        on_lost: Called when the loss is known.
    """

    def __init__(self, conn: Connection, replica_id: int) -> None:
        self.replica_id = replica_id
        self.is_lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self._conn, self._driver = conn, driver_of(conn)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="presence")
        self._watched: int | None = None
        self._running = 0
        self._loop = asyncio.get_running_loop()
        self._watch()

    @classmethod
    async def enter(
        cls, server: DatabaseServer, name: str, death: Death, former: int | None = None
    ) -> tuple["Presence", Inheritance]:
        """Register a new replica, or this process under a new id; see `replicas.enter`.

        Raises `StorageUnavailable` if the server is unreachable or the database is being copied.
        """
        enter = partial(replicas.enter, name=name, death=death, former=former)
        conn, (replica_id, inherited) = await asyncio.to_thread(_entered, server, enter)
        return cls(conn, replica_id), inherited

    async def run(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a transaction function on this session, one at a time.

        Raises `StorageUnavailable` on failure; sets `is_lost` if the session is gone.
        """
        if self.is_lost:
            raise StorageUnavailable("the session of this replica is gone")
        # From here the thread reads from the socket.
        self._running += 1
        self._unwatch()
        running = self._loop.run_in_executor(
            self._thread, self._transact, partial(fn, **kwargs), args
        )
        running.add_done_callback(self._ran)
        try:
            async with asyncio.timeout(ANSWERS_IN_S):
                return await asyncio.shield(running)
        except TimeoutError:
            self._lose()
            raise StorageUnavailable("the server does not answer") from None

    def _ran(self, running: asyncio.Future[Any]) -> None:
        self._running -= 1
        retrieve(running)
        if self._is_gone():
            self._lose()
        elif not self._running:
            self._watch()

    def _transact(self, fn: Callable[..., T], args: tuple[object, ...]) -> T:
        # SQLAlchemy would open another session without the lock.
        if self._is_gone():
            raise StorageUnavailable("the session of this replica is gone")
        try:
            with self._conn.begin():
                return fn(self._conn, *args)
        except DBAPIError as exc:
            raise StorageUnavailable(postgres.reason(exc)) from None

    def _watch(self) -> None:
        """Call `_heard` when the server sends something or the connection ends."""
        if not self.is_lost:
            self._watched = self._driver.fileno()
            self._loop.add_reader(self._watched, self._heard)

    def _unwatch(self) -> None:
        # Only the added descriptor: after libpq closed it, the number may belong to another socket.
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            self._watched = None

    def _heard(self) -> None:
        try:
            self._driver.pgconn.consume_input()
        except psycopg.Error:
            self._lose()
            return
        if self._is_gone():
            self._lose()

    def _is_gone(self) -> bool:
        return self._driver.closed or self._driver.broken

    def _lose(self) -> None:
        if self.is_lost:
            return
        self._unwatch()
        self.is_lost = True
        # Wake a thread that waits for a response; it or `close` closes the session. Use the current
        # descriptor, since libpq may have closed the old one.
        libpq = self._driver.pgconn
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(libpq.socket)) as its:
            its.shutdown(socket.SHUT_RDWR)
        self.on_lost()

    async def close(self) -> None:
        """End the session; idempotent."""
        self._lose()
        await asyncio.to_thread(self._thread.shutdown)
        if not self._conn.closed:
            # Without a rollback, since the connection may be gone.
            self._conn.invalidate()
            self._conn.close()


def _entered(
    server: DatabaseServer, enter: Callable[[Connection], T], tries: int = 3
) -> tuple[Connection, T]:
    conn = postgres.connect(server, direct=True)
    try:
        with conn.begin():
            _use(conn)
            entered = enter(conn)
            # A reaped process may be frozen while holding locks; the next check tries again.
            conn.execute(text(f"SET lock_timeout = {LOCKS_IN_MS}"))
    except DBAPIError as exc:
        conn.close()
        # This process was suspended in between, as on a busy machine: everything was rolled back.
        if tries > 1 and exc.connection_invalidated:
            return _entered(server, enter, tries - 1)
        raise StorageUnavailable(f"cannot register: {postgres.reason(exc)}") from None
    except BaseException:
        conn.close()
        raise
    return conn, entered


def _use(conn: Connection) -> None:
    """Prevent copying of the database for the lifetime of this session."""
    # A server-wide timeout would end an idle session.
    conn.execute(text("SET idle_session_timeout = 0"))
    shared = func.pg_try_advisory_lock_shared(bindparam("lock", USED_LOCK, BigInteger))
    if not conn.execute(select(shared)).scalar_one():
        raise StorageUnavailable("the database is being copied: start when that is done")
