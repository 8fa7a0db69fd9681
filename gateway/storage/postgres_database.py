"""Runs transaction functions on PostgreSQL: each on a thread, with a connection of a pool.

A transaction is READ COMMITTED: of two that change one conversation the second one waits for the
first. A statement sees what was committed when it began, not when it got the lock (decision 252).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from gateway.errors import CommitUnknown, StorageUnavailable
from gateway.storage.database import DatabaseServer, Search, Transaction, retrieve
from gateway.storage.postgres import driver_of, engine_of, open_direct, reason
from gateway.storage.schema import SEARCH_INDEX

P = ParamSpec("P")
T = TypeVar("T")

SEARCHERS = 2
"""Connections for searches, beside those for transactions and reads."""
TRIES = 5
"""How often a transaction is begun that others' doing has rolled back."""
_READ: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""One snapshot for all statements."""
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
    """A PostgreSQL database: `write` and `read` share connections, `search` has its own."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self._loop = asyncio.get_running_loop()
        self._workers = ThreadPoolExecutor(server.connections, thread_name_prefix="postgres-worker")
        self._searchers = ThreadPoolExecutor(SEARCHERS, thread_name_prefix="postgres-searcher")
        self._engine = engine_of(server, pool_size=server.connections, max_overflow=0)
        self._reading = self._engine.execution_options(**_READ)
        # Not from that pool: a search that ends late is cancelled when others use the connection.
        # A plan that is kept would read all messages for each word.
        searchers = engine_of(server, prepares=False, pool_size=SEARCHERS, max_overflow=0)
        self._searching = searchers.execution_options(**_READ)
        self._closed = False

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
        running = self._begun(self._workers, self._engine, lambda conn: fn(conn, *args, **kwargs))
        return await asyncio.shield(running)

    async def read(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a reading `fn(conn, …)` on a snapshot that holds everything committed before.

        Raises `StorageUnavailable` if the database cannot be read, or is closed.
        """
        running = self._begun(self._workers, self._reading, lambda conn: fn(conn, *args, **kwargs))
        return await asyncio.shield(running)

    async def search(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a reading `fn(conn, …)` that may take long; it ends when its caller is cancelled.

        Raises `StorageUnavailable` if the database cannot be read, or is closed.
        """
        search = Search(lambda conn: fn(conn, *args, **kwargs), _cancel)
        running = self._begun(self._searchers, self._searching, search.run)
        try:
            return cast("T", await asyncio.shield(running))
        except asyncio.CancelledError:
            await search.end(running)
            raise

    def _begun(self, threads: Executor, engine: Engine, fn: Transaction[T]) -> asyncio.Future[T]:
        if self._closed:
            raise StorageUnavailable("the database is closed")
        running = self._loop.run_in_executor(threads, self._transact, engine, fn)
        running.add_done_callback(retrieve)
        return running

    def _transact(self, engine: Engine, fn: Transaction[T]) -> T:
        is_read = engine is not self._engine
        for tries_left in range(TRIES - 1, -1, -1):
            try:
                return _once(engine, fn, is_read=is_read)
            except DBAPIError as exc:
                if tries_left and (exc.connection_invalidated or isinstance(exc.orig, _AGAIN)):
                    continue
                raise _storage_error(exc, is_read=is_read) from None
        raise AssertionError("the last try returns or raises")

    async def scrub(self) -> None:
        """Take what was erased out of tables and indexes.

        Bytes of rows stay in the room that is left until that is used again, in the write-ahead log
        and in copies until these are given up: that is for who runs the database. Raises
        `StorageUnavailable` if the database is closed, or does not do it.
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
        for threads in (self._workers, self._searchers):
            await asyncio.to_thread(threads.shutdown)
        self._engine.dispose()
        self._searching.dispose()


async def _cancel(driver: "psycopg.Connection[Any]") -> None:
    """End the statement that a connection runs."""
    await asyncio.to_thread(driver.cancel_safe)


def _once(engine: Engine, fn: Transaction[T], *, is_read: bool) -> T:
    with engine.connect() as conn:
        found = fn(conn)
        if is_read:
            # With a ROLLBACK the driver would forget all statements that it has prepared.
            conn.commit()
        else:
            _commit(conn)
        return found


def _commit(conn: Connection) -> None:
    # The function has gone on behind an error: the server would answer ROLLBACK, and no error.
    if driver_of(conn).info.transaction_status == TransactionStatus.INERROR:
        raise StorageUnavailable("the database has rolled back what was to be committed")
    try:
        conn.commit()
    except DBAPIError as exc:
        if exc.connection_invalidated:
            raise CommitUnknown("the answer to a COMMIT was lost") from exc
        raise


def _storage_error(exc: DBAPIError, *, is_read: bool) -> Exception:
    """Return StorageUnavailable for trouble with the server, anything else without its details."""
    # What cannot be read is not there to be read, whyever; as for a file. And so answers a server
    # that follows another one, as long as nobody makes it the first.
    cannot = is_read or isinstance(exc.orig, psycopg.errors.ReadOnlySqlTransaction)
    if exc.connection_invalidated or cannot or isinstance(exc.orig, _SERVER_TROUBLE):
        return StorageUnavailable(reason(exc))
    return type(exc)(exc.statement, None, psycopg.Error(reason(exc)), hide_parameters=True)
