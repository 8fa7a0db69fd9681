"""PostgreSQL through SQLAlchemy and psycopg: opens connections and runs transaction functions."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, TypeVar, cast

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import NumericBinaryLoader, NumericLoader
from psycopg.types.string import StrDumperUnknown
from pydantic import SecretStr
from sqlalchemy import Connection, Engine, ExceptionContext, NullPool, create_engine, event
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from typing_extensions import override

from gateway.errors import CommitUnknown, StorageUnavailable
from gateway.storage.database import Database, DatabaseServer, Search, Transaction, retrieve
from gateway.storage.schema import SEARCH_INDEX

T = TypeVar("T")

TIMEOUTS_MS = {
    "statement_timeout": 30_000,
    "lock_timeout": 10_000,
    # A frozen replica's locks are released before its 12 s lease expires, even if its six
    # transactions waited for each other: each is idle only after it got its lock.
    "idle_in_transaction_session_timeout": 2_000,
}
_SESSION = {
    **TIMEOUTS_MS,
    # All statements are short: starting workers or compiling would take longer.
    "max_parallel_workers_per_gather": 0,
    "jit": "off",
}
CONNECTING = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    # While waiting for a response, all data is acknowledged: without keepalives a failed host would
    # go unnoticed for two hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "application_name": "parley",
}
"""libpq defaults that the URL may override; in seconds, `tcp_user_timeout` in milliseconds."""
KEPT_ALIVE = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
"""Server-side keepalives: sessions of a failed host end after a minute."""
SILENCE_S = 5.0
"""Seconds that a server may take beyond its own limit to report a timed-out statement."""
ENCODING = "UTF8"
_REPLACEMENT = "\ufffd"
_NUL = "\0"
_STARTING = (
    "the database system is",  # starting up, not yet accepting connections, shutting down, …
    "Connection refused",
    "No such file or directory",
)
"""Error texts of a server that is starting or not listening yet."""
_LAST_WORDS = frozenset({"FATAL", "PANIC"})
"""Source: postgresql.org/docs/18/runtime-config-logging.html, Message Severity Levels."""

SEARCHERS = 2
"""Additional connections for searches."""
TRIES = 5
"""Attempts of a transaction rolled back by a conflict with another."""
_READ: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""One snapshot for all statements."""
SCRUB_WAIT_MS = 60_000
"""Longest wait of an index rewrite for earlier transactions such as a dump."""
_SCRUB = (
    "VACUUM (INDEX_CLEANUP ON)",
    # Leftover of an unfinished rewrite.
    f"DROP INDEX CONCURRENTLY IF EXISTS {SEARCH_INDEX}_terms_ccnew",
    # A GIN index keeps every word it ever had. Source: PostgreSQL's src/backend/access/gin/README.
    f"REINDEX INDEX CONCURRENTLY {SEARCH_INDEX}_terms",
)
_AGAIN = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    # Two transactions inserted the same key; the second finds it on its retry.
    psycopg.errors.UniqueViolation,
    # Another transaction erased a referenced row; likewise.
    psycopg.errors.ForeignKeyViolation,
)
_SERVER_TROUBLE = (psycopg.OperationalError, psycopg.InterfaceError)


def text_of(value: str) -> str:
    """Replace NUL, which PostgreSQL cannot store, with U+FFFD.

    The only place for this; platforms' texts contain none (`storable`).
    """
    return value.replace(_NUL, _REPLACEMENT) if _NUL in value else value


class _TextDumper(StrDumperUnknown):
    @override
    def dump(self, obj: str) -> Any:
        return super().dump(text_of(obj))


class _Number(NumericLoader):
    """Loads sums of integers, which arrive as `numeric`; no column has this type."""

    @override
    def load(self, data: Any) -> Any:
        return _plain(super().load(data))


class _BinaryNumber(NumericBinaryLoader):
    @override
    def load(self, data: Any) -> Any:
        return _plain(super().load(data))


def _plain(number: Any) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)


class TimedSession(psycopg.Connection[Any]):
    """A session that closes if the server does not answer in time.

    Otherwise a dead server goes unnoticed while the kernel still sees, for example, a balancer.
    """

    answers_in_s: float | None = None

    @override
    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        return super().wait(gen, interval, timeout or self.answers_in_s)


def engine_of(
    server: DatabaseServer, *, direct: bool = False, prepares: bool = True, **pool: Any
) -> Engine:
    """Return an engine for a server; a `direct` one bypasses the pooler.

    Its connections raise StorageUnavailable if the server refuses, does not answer, or does not use
    UTF-8. With `prepares`, frequent statements keep generic plans.
    """
    pooled = server.pooled and not direct
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: _open(
            server.direct if direct else server.url, pooled=pooled, prepares=prepares
        ),
        hide_parameters=True,
        # Otherwise it queries the server for a type that no column has.
        use_native_hstore=False,
        **pool,
    )
    event.listen(engine, "handle_error", _note_loss)
    if pooled:
        # Each transaction may use another session.
        limits = "; ".join(f"SET LOCAL {name} = {value}" for name, value in _SESSION.items())
        event.listen(engine, "begin", lambda conn: conn.exec_driver_sql(limits))
    return engine


def connect(server: DatabaseServer, *, direct: bool = False) -> Connection:
    """Open a dedicated connection; a `direct` one bypasses the pooler. Raises like `engine_of`."""
    try:
        return engine_of(server, direct=direct, poolclass=NullPool).connect()
    except DBAPIError as exc:
        raise StorageUnavailable(f"cannot reach the database: {reason(exc)}") from None


def driver_of(conn: Connection) -> "TimedSession":
    """Return the driver's connection."""
    return cast("TimedSession", conn.connection.driver_connection)


def _note_loss(context: ExceptionContext) -> None:
    """Recognize a lost connection before the driver does.

    An error without a code comes from libpq, or from psycopg for a broken session. A stopping
    server reports it, as does PgBouncer.
    """
    error = context.original_exception
    if isinstance(error, psycopg.Error):
        is_own = isinstance(error, psycopg.OperationalError | psycopg.InternalError)
        if (is_own and not error.sqlstate) or error.diag.severity_nonlocalized in _LAST_WORDS:
            context.is_disconnect = True


def why_not_started(server: DatabaseServer) -> str | None:
    """Return why a server does not accept connections yet; None if it does or refuses this one."""
    try:
        open_direct(server).close()
    except StorageUnavailable as exc:
        return str(exc) if any(words in str(exc) for words in _STARTING) else None
    return None


def open_direct(server: DatabaseServer) -> "psycopg.Connection[Any]":
    """Open a session past the pooler, without time limits or transaction; raises like `connect`."""
    try:
        return psycopg.connect(conninfo(server.direct), autocommit=True)
    except psycopg.Error as exc:
        raise StorageUnavailable(f"cannot reach the database: {_first_line(exc)}") from None


def _open(url: SecretStr, *, pooled: bool, prepares: bool) -> TimedSession:
    limits = [KEPT_ALIVE, *(f"-c {name}={value}" for name, value in _SESSION.items())]
    try:
        # Prepared statements belong to a session, and behind a pooler the next transaction gets
        # another.
        driver = TimedSession.connect(
            conninfo(url, "" if pooled else " ".join(limits)),
            prepare_threshold=5 if prepares and not pooled else None,
        )
    except psycopg.Error as exc:
        raise StorageUnavailable(f"cannot reach the database: {_first_line(exc)}") from None
    driver.answers_in_s = TIMEOUTS_MS["statement_timeout"] / 1000 + SILENCE_S
    if (found := driver.info.parameter_status("server_encoding")) != ENCODING:
        driver.close()
        raise StorageUnavailable(
            f"the database stores {found}; create it with ENCODING '{ENCODING}'"
        )
    driver.adapters.register_dumper(str, _TextDumper)
    for loader in (_Number, _BinaryNumber):
        driver.adapters.register_loader("numeric", loader)
    return driver


def conninfo(url: SecretStr, limits: str = "") -> str:
    """Build libpq's connection string: the URL's options, then ours.

    Raises `StorageUnavailable` if libpq cannot parse the URL.
    """
    try:
        told = conninfo_to_dict(url.get_secret_value())
    except psycopg.Error:
        # Not `from exc`: libpq's error may quote part of the password.
        raise StorageUnavailable(
            "the URL of the database cannot be read; write special characters of the password as"
            " %XX (`@` is %40)"
        ) from None
    options = " ".join(filter(None, (limits, str(told.pop("options", "") or ""))))
    said: Any = {**CONNECTING, **told, "options": options, "client_encoding": ENCODING}
    return make_conninfo(**said)


@contextmanager
def told_as_unavailable(what: str) -> Iterator[None]:
    """Map server errors to StorageUnavailable: "cannot {what}: …"."""
    try:
        yield
    except (DBAPIError, psycopg.Error) as exc:
        raise StorageUnavailable(f"cannot {what}: {reason(exc)}") from None


def reason(exc: DBAPIError | psycopg.Error) -> str:
    """Return the first line of the server's message; other lines may quote users' text."""
    return _first_line(exc.orig if isinstance(exc, DBAPIError) else exc)


def _first_line(error: BaseException | None) -> str:
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return said or (str(error).splitlines() or [""])[0]


class PostgresDatabase(Database):
    """Runs transaction functions; `write` and `read` share connections, `search` has its own.

    Transactions are READ COMMITTED: the second of two that change a conversation waits for the
    first. A statement sees the data committed at its start, not when it got the lock (decision
    252).
    """

    server: DatabaseServer

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self._loop = asyncio.get_running_loop()
        self._workers = ThreadPoolExecutor(server.connections, thread_name_prefix="postgres-worker")
        self._searchers = ThreadPoolExecutor(SEARCHERS, thread_name_prefix="postgres-searcher")
        self._engine = engine_of(server, pool_size=server.connections, max_overflow=0)
        self._reading = self._engine.execution_options(**_READ)
        # Not from that pool: a search that ends late would be cancelled while others use the
        # connection. A generic plan would read all messages for each word.
        searchers = engine_of(server, prepares=False, pool_size=SEARCHERS, max_overflow=0)
        self._searching = searchers.execution_options(**_READ)

    @override
    async def _write(self, fn: Transaction[T]) -> T:
        # Retried if others caused the rollback: a deadlock, a key inserted by another replica at
        # the same moment, a connection lost before the COMMIT.
        return await asyncio.shield(self._begun(self._workers, self._engine, fn))

    @override
    async def _read(self, fn: Transaction[T]) -> T:
        return await asyncio.shield(self._begun(self._workers, self._reading, fn))

    @override
    async def _search(self, fn: Transaction[T]) -> T:
        search = Search(fn, lambda driver: asyncio.to_thread(driver.cancel_safe))
        running = self._begun(self._searchers, self._searching, search.run)
        try:
            return cast("T", await asyncio.shield(running))
        except asyncio.CancelledError:
            await search.end(running)
            raise

    def _begun(self, threads: Executor, engine: Engine, fn: Transaction[T]) -> asyncio.Future[T]:
        self._require_open()
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
            except PendingRollbackError:
                # The function continued after the connection was lost: nothing was committed.
                continue
        raise StorageUnavailable("the connection to the database was lost")

    @override
    async def scrub(self) -> None:
        # Erased bytes stay in free space until reused, in the write-ahead log and in copies, which
        # are the server operator's responsibility.
        self._require_open()
        await self._loop.run_in_executor(self._searchers, self._vacuum)

    def _vacuum(self) -> None:
        # Direct, since it sets session limits, and behind a pooler others would get the session
        # next.
        with closing(open_direct(self.server)) as driver:
            try:
                driver.execute(f"SET lock_timeout = {SCRUB_WAIT_MS}")
                for statement in _SCRUB:
                    driver.execute(statement)
            except psycopg.Error as exc:
                raise StorageUnavailable(str(exc.diag.message_primary or exc)) from None

    @override
    async def close(self) -> None:
        self._closed = True
        for threads in (self._workers, self._searchers):
            await asyncio.to_thread(threads.shutdown)
        self._engine.dispose()
        self._searching.dispose()


def _once(engine: Engine, fn: Transaction[T], *, is_read: bool) -> T:
    with engine.connect() as conn:
        found = fn(conn)
        if is_read:
            # A ROLLBACK would make the driver forget its prepared statements.
            conn.commit()
        else:
            _commit(conn)
        return found


def _commit(conn: Connection) -> None:
    # The function continued after an error: the server would roll back silently.
    if driver_of(conn).info.transaction_status == TransactionStatus.INERROR:
        raise StorageUnavailable("the database has rolled back what was to be committed")
    try:
        conn.commit()
    except DBAPIError as exc:
        if exc.connection_invalidated:
            raise CommitUnknown("the answer to a COMMIT was lost") from exc
        raise


def _storage_error(exc: DBAPIError, *, is_read: bool) -> Exception:
    """Map server failures to StorageUnavailable, and strip the details of other errors."""
    # Any failed read counts as unavailable, as with a file, and so does a read-only standby server.
    cannot = is_read or isinstance(exc.orig, psycopg.errors.ReadOnlySqlTransaction)
    if exc.connection_invalidated or cannot or isinstance(exc.orig, _SERVER_TROUBLE):
        return StorageUnavailable(reason(exc))
    return type(exc)(exc.statement, None, psycopg.Error(reason(exc)), hide_parameters=True)
