"""Runs transaction functions on PostgreSQL: each on a thread, with the connection of that thread.

A transaction is READ COMMITTED: of two that change one conversation the second one waits for the
first. A statement sees what was committed when it began, not when it got the lock (decision 252).
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from gateway.errors import StorageUnavailable
from gateway.storage.database import DatabaseServer, Job, JobResult, Results, retrieve
from gateway.storage.postgres import (
    READ,
    WRITE,
    PostgresConnection,
    connect,
    open_direct,
    reason,
)
from gateway.storage.schema import SEARCH_INDEX

P = ParamSpec("P")
T = TypeVar("T")

SEARCHERS = 2
"""Connections for searches, beside those for transactions and reads."""
TRIES = 5
"""How often a transaction is begun that others' doing has rolled back."""
CANCEL_EVERY_S = 0.05
"""A cancellation between two statements ends nothing: it is repeated until the search is over."""
LOOK_EVERY_S = 5.0
"""How long a server that has fallen silent can go unnoticed."""
SCRUB_WAIT_MS = 60_000
"""How long an index that is written anew waits for transactions that were there before, such as a
dump."""
_SCRUB = (
    "VACUUM (INDEX_CLEANUP ON)",
    # What is left of one that could not be finished.
    f"DROP INDEX CONCURRENTLY IF EXISTS {SEARCH_INDEX}_terms_ccnew",
    # It keeps each word that it has ever had. Source: PostgreSQL's src/backend/access/gin/README.
    f"REINDEX INDEX CONCURRENTLY {SEARCH_INDEX}_terms",
)
_AGAIN = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    # Two have entered the same thing at once: the second one finds it when it tries again.
    psycopg.errors.UniqueViolation,
    # What one refers to another one has erased: likewise.
    psycopg.errors.ForeignKeyViolation,
)
_SERVER_TROUBLE = (psycopg.OperationalError, psycopg.InterfaceError)


class PostgresDatabase:
    """A PostgreSQL database: `write`, `read` and `search` on connections of their own."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self._loop = asyncio.get_running_loop()
        self._own = threading.local()
        self._connections: set[PostgresConnection] = set()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results = Results(self._loop)
        self._workers: list[threading.Thread] = []
        self._asked = 0
        self._searchers = ThreadPoolExecutor(SEARCHERS, thread_name_prefix="postgres-searcher")
        self._closed = False
        self._watching = self._loop.call_later(LOOK_EVERY_S, self._watch)

    def _watch(self) -> None:
        """End connections whose other end does not answer any more; their threads go on."""
        for conn in list(self._connections):
            conn.end_if_silent()
        self._watching = self._loop.call_later(LOOK_EVERY_S, self._watch)

    async def write(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `fn(conn, …)` in a transaction and return its value once that is committed.

        A caller that is cancelled while it waits does not undo the transaction. The function runs
        again where others' doing has rolled it back: a deadlock, a key that somebody else has
        entered at the same moment, a connection that was lost before the COMMIT.

        Raises:
            CommitUnknown: The answer to the COMMIT was lost.
            StorageUnavailable: Rolled back; the database, not the function, is to blame.
            Exception: Whatever `fn` raised; its writes are rolled back.
        """
        return cast("T", await self._queued(WRITE, _bound(fn, *args, **kwargs)))

    async def read(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a reading `fn(conn, …)` on a snapshot that holds everything committed before.

        Raises:
            StorageUnavailable: The database cannot be read, or is closed.
        """
        return cast("T", await self._queued(READ, _bound(fn, *args, **kwargs)))

    async def search(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a reading `fn(conn, …)` that may take long; it ends when its caller is cancelled.

        Raises:
            StorageUnavailable: The database cannot be read, or is closed.
        """
        search = _Search(_bound(fn, *args, **kwargs))
        try:
            return cast("T", await self._searched(search))
        except asyncio.CancelledError:
            while not search.done.is_set():
                await asyncio.to_thread(search.cancel)
                await asyncio.to_thread(search.done.wait, CANCEL_EVERY_S)
            raise

    async def _queued(self, begin: str, fn: Callable[[Any], Any]) -> Any:
        """Run a function on a worker; there are as many as have been needed at once."""
        if self._closed:
            raise StorageUnavailable("the database is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._asked += 1
        at_once = self._asked - self._results.handed
        if len(self._workers) < min(at_once, self.server.connections):
            name = f"postgres-worker-{len(self._workers)}"
            self._workers.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._workers[-1].start()
        self._jobs.put(Job(fn, future, begin))
        return await future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._results.add([self._result_of(job)])
        # The next one ends by it, too.
        self._jobs.put(None)

    def _result_of(self, job: Job) -> JobResult:
        try:
            return JobResult(job, self._transact(job.begin, job.fn), None)
        except BaseException as exc:  # noqa: BLE001 - carried to the caller, whatever it is
            return JobResult(job, None, exc)

    async def _searched(self, search: "_Search") -> Any:
        if self._closed:
            raise StorageUnavailable("the database is closed")
        running = self._loop.run_in_executor(self._searchers, self._transact, READ, search.run)
        running.add_done_callback(retrieve)
        return await asyncio.shield(running)

    def _transact(self, begin: str, fn: Callable[..., T]) -> T:
        for tries_left in range(TRIES - 1, -1, -1):
            conn = self._of_this_thread()
            try:
                with conn.transaction(begin):
                    return fn(conn)
            except DBAPIError as exc:
                if tries_left and (conn.is_lost or isinstance(exc.orig, _AGAIN)):
                    continue
                raise _storage_error(exc, begin) from None
        raise AssertionError("the last try returns or raises")

    def _of_this_thread(self) -> PostgresConnection:
        conn: PostgresConnection | None = getattr(self._own, "connection", None)
        if conn is None or conn.is_lost:
            if conn is not None:
                self._drop(conn)
            conn = self._own.connection = connect(self.server)
            self._connections.add(conn)
        return conn

    def _drop(self, conn: PostgresConnection) -> None:
        self._connections.discard(conn)
        conn.driver.close()

    async def scrub(self) -> None:
        """Take what was erased out of tables and indexes.

        Bytes of rows stay in the room that is left until that is used again, in the write-ahead log
        and in copies until these are given up: that is for who runs the database.

        Raises:
            StorageUnavailable: The database is closed, or does not do it.
        """
        if self._closed:
            raise StorageUnavailable("the database is closed")
        await self._loop.run_in_executor(self._searchers, self._vacuum)

    def _vacuum(self) -> None:
        # No transaction, and limits of its own: behind a pooler others would get that session next.
        with closing(open_direct(self.server)) as driver:
            try:
                driver.execute(f"SET lock_timeout = {SCRUB_WAIT_MS}")
                for statement in _SCRUB:
                    driver.execute(statement)
            except psycopg.Error as exc:
                raise StorageUnavailable(str(exc.diag.message_primary or exc)) from None

    async def close(self) -> None:
        """Finish what was begun, then close all connections. Idempotent."""
        self._closed = True
        self._jobs.put(None)
        for worker in self._workers:
            await asyncio.to_thread(worker.join)
        await asyncio.to_thread(self._searchers.shutdown)
        self._watching.cancel()
        for conn in list(self._connections):
            self._drop(conn)


def _bound(
    fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
) -> Callable[..., T]:
    return lambda conn: fn(conn, *args, **kwargs)


class _Search:
    """A search on a thread, which another one may end."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._conn: PostgresConnection | None = None
        self._is_cancelled = False
        self.done = threading.Event()

    def run(self, conn: Connection) -> Any:
        self._conn = cast("PostgresConnection", conn)
        try:
            return None if self._is_cancelled else self._fn(conn)
        finally:
            self.done.set()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._conn is not None:
            self._conn.driver.cancel_safe()


def _storage_error(exc: DBAPIError, begin: str) -> Exception:
    """Return StorageUnavailable for trouble with the server, anything else without its details."""
    # What cannot be read is not there to be read, whyever; as for a file. And so answers a server
    # that follows another one, as long as nobody makes it the first.
    cannot = begin == READ or isinstance(exc.orig, psycopg.errors.ReadOnlySqlTransaction)
    if cannot or isinstance(exc.orig, _SERVER_TROUBLE):
        return StorageUnavailable(reason(exc))
    return type(exc)(exc.statement, None, psycopg.Error(reason(exc)), hide_parameters=True)
