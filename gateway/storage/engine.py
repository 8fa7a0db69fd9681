"""Runs transaction functions on SQLite: one writer thread, a few reader threads, some searches.

The writer owns the only connection that writes. It runs the queued functions one after another,
each inside a savepoint, and commits them together: one fsync for many callers. A function that only
reads runs as a whole on a reader thread: switching threads costs more than a statement. Searches,
which may take long, use aiosqlite and are interrupted if their callers are cancelled.
"""

import asyncio
import contextlib
import fcntl
import math
import os
import queue
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import aiosqlite
from filelock import FileLock, Timeout
from sqlalchemy import (
    URL,
    AsyncAdaptedQueuePool,
    Connection,
    Engine,
    NullPool,
    QueuePool,
    create_engine,
)
from sqlalchemy.exc import DBAPIError

# At the top: statements that other threads build while the ORM is being imported fail.
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from typing_extensions import override

from agent.processes.descriptors import RESERVE
from gateway.errors import DatabaseLocked, StorageUnavailable
from gateway.storage.database import Database, Search, retrieve
from gateway.storage.identity import FileWatch
from gateway.storage.scrubbing import Scrubber, empty_log

P = ParamSpec("P")
T = TypeVar("T")

BATCH = 256
"""Most functions in one commit; beyond that the first caller would wait too long."""
BUSY_TIMEOUT_S = 10.0
_FILE_TROUBLE = (sqlite3.OperationalError, sqlite3.DatabaseError)
"""Full, read-only, locked; malformed. Their siblings are a function's own mistakes."""
READERS = 4
SEARCHERS = 2
READER_WAIT_S = 10.0
"""How long a step outside of transactions waits for readers of the log, and how often it tries."""
READER_PAUSE_S = 0.1
# /proc/self/mounts writes a blank in a path as \040. Source: getmntent(3).
_OCTAL = re.compile(r"\\([0-7]{3})")
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs"})
"""SQLite's locks and WAL do not hold there. Source: sqlite.org/useovernet.html."""


_DISCREET: dict[str, Any] = {"hide_parameters": True}
"""Errors and logs do not quote what people wrote."""


class _Job(NamedTuple):
    """A function for the writer; an `apart` one runs on the driver's, outside of transactions."""

    fn: Callable[[Any], Any]
    future: asyncio.Future[Any]
    apart: bool = False


_Result = tuple[_Job, Any, BaseException | None]
"""What became of a job: its value, or the exception that its caller gets."""


class SqliteDatabase(Database):
    """An open SQLite file: `write` through the writer thread, `read` on read-only connections."""

    server: None = None

    def __init__(
        self, path: Path, connection: Connection, watch: FileWatch, scrubber: Scrubber
    ) -> None:
        self._connection = connection
        self._watch = watch
        self._scrubber = scrubber
        self._raw = cast("sqlite3.Connection", connection.connection.driver_connection)
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._writer = threading.Thread(target=self._write_loop, name="sqlite-writer", daemon=True)
        self._writer.start()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-reader")
        self._read_only = create_engine(
            "sqlite://",
            creator=RESERVE.lending(partial(_reader, path)),
            poolclass=QueuePool,
            pool_size=READERS,
            max_overflow=0,
            **_DISCREET,
        )
        _begin_with(self._read_only, "BEGIN")
        self._path = path
        self._searchers: AsyncEngine | None = None
        self._searches: dict[asyncio.Future[Any], Search] = {}

    @override
    async def write(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed:
            raise StorageUnavailable("the database is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(lambda conn: fn(conn, *args, **kwargs), future))
        return await future

    @override
    async def read(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed:
            raise StorageUnavailable("the database is closed")
        reading = partial(self._read, fn, *args, **kwargs)
        return await self._loop.run_in_executor(self._readers, reading)

    def _read(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            with self._read_only.begin() as conn:
                try:
                    return fn(conn, *args, **kwargs)
                except BaseException:
                    # Rows that it has not fetched would keep later reads on this old snapshot.
                    conn.invalidate()
                    raise
        except DBAPIError as exc:
            raise StorageUnavailable(str(exc.orig)) from exc

    @override
    async def search(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        # Between its statements it holds the event loop.
        if self._closed:
            raise StorageUnavailable("the database is closed")
        search = Search(lambda conn: fn(conn, *args, **kwargs), lambda raw: raw.interrupt())
        running = asyncio.ensure_future(self._search(search))
        self._searches[running] = search
        running.add_done_callback(self._forget_search)
        try:
            return cast("T", await asyncio.shield(running))
        except asyncio.CancelledError:
            await search.end(running)
            raise

    async def _search(self, search: Search) -> Any:
        self._searchers = self._searchers or _searchers(self._path)
        try:
            async with self._searchers.begin() as conn:
                return await conn.run_sync(search.run)
        except DBAPIError as exc:
            raise StorageUnavailable(str(exc.orig)) from exc

    def _forget_search(self, searching: asyncio.Future[Any]) -> None:
        del self._searches[searching]
        retrieve(searching)

    @override
    async def scrub(self) -> None:
        # Seconds per gigabyte, in steps that hold up other writes for milliseconds.
        await self._between_readers(empty_log)
        pages = await asyncio.to_thread(self._scrubber.find)
        while pages:
            await self._between_readers(partial(self._scrubber.clean, pages=pages))

    async def _between_readers(self, step: Callable[[sqlite3.Connection], bool]) -> None:
        """Run a step of the writer outside of transactions, once no reader is in its way."""
        tries = math.ceil(READER_WAIT_S / READER_PAUSE_S)
        for _ in range(tries):
            if await self._apart(step):
                return
            await asyncio.sleep(READER_PAUSE_S)
        raise StorageUnavailable("a reader holds on to the write-ahead log")

    async def _apart(self, step: Callable[[sqlite3.Connection], bool]) -> bool:
        if self._closed:
            raise StorageUnavailable("the database is closed")
        future: asyncio.Future[bool] = self._loop.create_future()
        self._jobs.put(_Job(step, future, apart=True))
        return await future

    @override
    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._writer.join)
        await asyncio.to_thread(self._readers.shutdown)
        for running, search in list(self._searches.items()):
            await search.end(running)
        if self._searchers is not None:
            await self._searchers.dispose()
        self._read_only.dispose()

    def _write_loop(self) -> None:
        while batch := self._next_batch():
            done = self._commit([job for job in batch if not job.apart])
            done += [self._run_apart(job) for job in batch if job.apart]
            self._loop.call_soon_threadsafe(_report, done)

    def _next_batch(self) -> list[_Job]:
        job = self._jobs.get()
        batch: list[_Job] = []
        while job is not None:
            batch.append(job)
            if len(batch) == BATCH or self._jobs.empty():
                return batch
            job = self._jobs.get()
        # Put back: the next call finds the end again, with no jobs before it.
        self._jobs.put(None)
        return batch

    def _commit(self, batch: list[_Job]) -> list[_Result]:
        if not batch:
            return []
        try:
            self._watch.before(self._raw)
            with self._connection.begin():
                done = [self._run(job) for job in batch]
                self._watch.count(self._raw)
            # Before any caller is told: what a lost file took is not acknowledged (decision 025).
            self._watch.after()
        except (DBAPIError, sqlite3.Error, StorageUnavailable) as exc:
            lost = _unavailable(exc)
        else:
            return done
        # A COMMIT that failed leaves the transaction open.
        with contextlib.suppress(sqlite3.Error):
            self._raw.rollback()
        return [(job, None, lost) for job in batch]

    def _run_apart(self, job: _Job) -> _Result:
        try:
            self._watch.before(self._raw)
            value = job.fn(self._raw)
            self._watch.after()
        except (sqlite3.Error, OSError, StorageUnavailable) as exc:
            return (job, None, _unavailable(exc))
        return (job, value, None)

    def _run(self, job: _Job) -> _Result:
        conn = self._connection
        # One function that fails is rolled back alone: the batch is one commit for all others.
        self._raw.execute("SAVEPOINT job")
        try:
            done = (job, job.fn(conn), None)
        except Exception as exc:  # noqa: BLE001 - carried to the caller, whatever it is
            self._undo(exc)
            is_trouble = isinstance(exc, DBAPIError) and type(exc.orig) in _FILE_TROUBLE
            return (job, None, _unavailable(exc) if is_trouble else exc)
        self._raw.execute("RELEASE job")
        return done

    def _undo(self, cause: Exception) -> None:
        """Roll one function back; a full disk may have made SQLite roll back the whole batch."""
        if not self._raw.in_transaction:
            raise StorageUnavailable(f"the batch was rolled back: {cause}") from cause
        self._connection.exec_driver_sql("ROLLBACK TO job")
        self._connection.exec_driver_sql("RELEASE job")


def _unavailable(exc: Exception) -> StorageUnavailable:
    if isinstance(exc, StorageUnavailable):
        return exc
    error = StorageUnavailable(str(exc.orig if isinstance(exc, DBAPIError) else exc))
    error.__cause__ = exc
    return error


@contextlib.contextmanager
def lock_database(path: Path) -> Iterator[None]:
    """Be the only process that writes to a database, or creates it, while in this context.

    Two locks: a lock file next to the database covers one that does not exist yet; the lock on the
    database itself applies if that file was removed, and through every link to the database.

    Raises:
        DatabaseLocked: Another process holds it.
        StorageUnavailable: The folder cannot be written, or the file cannot be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{path}.lock")
        lock.acquire(timeout=0)
    except Timeout as exc:
        raise _in_use(path) from exc
    except OSError as exc:
        raise StorageUnavailable(f"cannot write to {path.parent}: {exc.strerror}") from exc
    try:
        with hold_file(path):
            yield
    finally:
        lock.release()


def _in_use(path: Path) -> DatabaseLocked:
    used = f"{path} is in use by another Parley process"
    return DatabaseLocked(f"{used}: `parley status` shows it")


@contextlib.contextmanager
def hold_file(path: Path) -> Iterator[None]:
    """Hold the lock on a database's own file, if the file exists. The kernel drops it at a kill.

    SQLite locks with `fcntl`, which Linux keeps apart from `flock` on a local disk (a network
    filesystem is refused anyway). Closing any handle of a file drops the process's `fcntl` locks
    on it (sqlite.org/howtocorrupt.html, 2.2): leave this context after all connections closed.
    """
    if not path.exists():
        yield
        return
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as exc:
        raise StorageUnavailable(f"cannot open {path}: {exc.strerror}") from exc
    try:
        _lock(handle, path)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise _in_use(path) from exc


@contextlib.contextmanager
def connected(path: Path) -> Iterator[Connection]:
    """Open the writing connection within `lock_database`; a new file is locked from here on.

    Raises `DatabaseLocked` if another process has just created the file; else as `connect`.
    """
    with contextlib.ExitStack() as until_closed:
        if not path.exists():
            with contextlib.suppress(OSError):
                # A failure here occurs again below, with its own error.
                path.touch(mode=0o644)
            until_closed.enter_context(hold_file(path))
        connection = until_closed.enter_context(contextlib.closing(connect(path)))
        until_closed.callback(connection.engine.dispose)
        yield connection


def connect(path: Path) -> Connection:
    """Open the writing connection: WAL, synchronous=FULL, BEGIN IMMEDIATE.

    Raises `StorageUnavailable` if it is not a database, read-only, or on a network filesystem.
    """
    if (kind := filesystem_of(path)) in NETWORK_FILESYSTEMS:
        raise StorageUnavailable(f"{path} is on {kind}: SQLite needs a local disk")
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={
            "isolation_level": None,
            "timeout": BUSY_TIMEOUT_S,
            "check_same_thread": False,
        },
        # What is closed is closed, not kept until the engine is collected: the lock goes next.
        poolclass=NullPool,
        **_DISCREET,
    )
    _begin_with(engine, "BEGIN IMMEDIATE")
    try:
        connection = engine.connect()
        _set_pragmas(connection)
    except (DBAPIError, sqlite3.Error) as exc:
        engine.dispose()
        raise StorageUnavailable(f"cannot open {path}: {_unavailable(exc)}") from exc
    return connection


def _searchers(path: Path) -> AsyncEngine:
    engine = create_async_engine(
        "sqlite+aiosqlite://",
        async_creator=partial(aiosqlite.connect, **_how(path)),
        poolclass=AsyncAdaptedQueuePool,
        pool_size=SEARCHERS,
        max_overflow=0,
        **_DISCREET,
    )
    _begin_with(engine.sync_engine, "BEGIN")
    return engine


def _how(path: Path) -> dict[str, Any]:
    how = {"database": read_only_uri(path), "uri": True, "timeout": BUSY_TIMEOUT_S}
    return how | {"isolation_level": None}


def _reader(path: Path) -> sqlite3.Connection:
    """Open a connection for a reader thread, with all the files that it will ever need."""
    connection: sqlite3.Connection = sqlite3.connect(**_how(path), check_same_thread=False)
    # SQLite opens the log and its index with the first read: here, while descriptors are lent.
    connection.execute("PRAGMA schema_version").fetchone()
    return connection


def read_only_uri(path: Path) -> str:
    """SQLite's URI for reading a file, whatever characters are in its path."""
    return f"{path.absolute().as_uri()}?mode=ro"


def _begin_with(engine: Engine, statement: str) -> None:
    """Begin each transaction with this statement instead of with its first write."""
    # The dialect's own hook: a listener of "begin" has SQLAlchemy dispatch at each statement.
    engine.dialect.do_begin = lambda raw: raw.execute(statement)  # type: ignore[assignment]


def _set_pragmas(connection: Connection) -> None:
    raw = connection.connection
    cursor = raw.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    if cursor.fetchone() != ("wal",):
        raise StorageUnavailable("the database cannot use a write-ahead log here")
    # A commit is what platforms are told "received" for: it must survive a loss of power.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    # Room that erased rows leave is overwritten with zeros (decision 021).
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.execute("PRAGMA synchronous")
    if cursor.fetchone() != (2,):
        raise StorageUnavailable("SQLite does not run with synchronous=FULL")
    # A write that changes nothing: a read-only file or disk shows itself here, not in a turn.
    cursor.execute("PRAGMA user_version")
    (version,) = cursor.fetchone() or (0,)
    cursor.execute(f"PRAGMA user_version={version}")
    cursor.close()


def filesystem_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the type of the filesystem that holds `path`; None if the system does not say."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    target = path.resolve()
    kind, longest = None, 0
    for line in lines:
        _, escaped, fstype, *_ = line.split()
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), escaped)
        # The later of two mounts on one point covers the earlier.
        if target.is_relative_to(point) and len(point) >= longest:
            kind, longest = fstype, len(point)
    return kind


def _report(done: Iterable[_Result]) -> None:
    """Hand results to their callers; on the loop."""
    for job, value, error in done:
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(value)
        else:
            job.future.set_exception(error)
            retrieve(job.future)
