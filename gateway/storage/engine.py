"""Runs transaction functions on SQLite: one writer thread, some reader threads, async searches.

The writer owns the only writing connection. It runs queued functions one after another, each in a
savepoint, and commits them together: one fsync for many callers. A read-only function runs entirely
in a reader thread, since switching threads costs more than a statement. Searches, which may take
long, use aiosqlite and are interrupted if their callers are cancelled.

SQLite keeps writing to a file that was unlinked or replaced, or to a truncated log, so an
acknowledged message could be lost. So the writer checks both files around each commit.
"""

import asyncio
import math
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import aiosqlite
import structlog
from sqlalchemy import (
    AsyncAdaptedQueuePool,
    Connection,
    QueuePool,
    create_engine,
)
from sqlalchemy.exc import DBAPIError

# Imported at the top: statements built by other threads during the ORM's import fail.
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from typing_extensions import override

from agent.processes.descriptors import RESERVE
from gateway.errors import DatabaseReplaced, StorageUnavailable
from gateway.storage.database import Database, Search, Transaction, retrieve
from gateway.storage.sqlite_file import (
    BUSY_TIMEOUT_S,
    DISCREET,
    Scrubber,
    Seen,
    begin_with,
    empty_log,
    read_only_uri,
)

log = structlog.get_logger()

T = TypeVar("T")

BATCH = 256
"""Most functions per commit; the first caller waits for all of them."""
_FILE_TROUBLE = (sqlite3.OperationalError, sqlite3.DatabaseError)
"""Full, read-only, locked or malformed. Other database errors are bugs in functions."""
READERS = 4
SEARCHERS = 2
READER_WAIT_S = 10.0
"""Longest wait of a step outside transactions for readers of the log, in seconds."""
READER_PAUSE_S = 0.1


class _Job(NamedTuple):
    """A function for the writer; `apart` runs it on the raw connection outside transactions."""

    fn: Callable[[Any], Any]
    future: asyncio.Future[Any]
    apart: bool = False


_Result = tuple[_Job, Any, BaseException | None]
"""A job with its value or its caller's exception."""


class SqliteDatabase(Database):
    """An open SQLite file: `write` uses the writer thread, `read` read-only connections."""

    server: None = None

    def __init__(
        self, path: Path, connection: Connection, watch: "FileWatch", scrubber: Scrubber
    ) -> None:
        self._connection = connection
        self._watch = watch
        self._scrubber = scrubber
        self._raw = cast("sqlite3.Connection", connection.connection.driver_connection)
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_loop, name="sqlite-writer", daemon=True)
        self._writer.start()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-reader")
        self._read_only = create_engine(
            "sqlite://",
            creator=RESERVE.lending(partial(_reader, path)),
            poolclass=QueuePool,
            pool_size=READERS,
            max_overflow=0,
            **DISCREET,
        )
        begin_with(self._read_only, "BEGIN")
        self._path = path
        self._searchers: AsyncEngine | None = None
        self._searches: dict[asyncio.Future[Any], Search] = {}

    @override
    async def _write(self, fn: Transaction[T]) -> T:
        self._require_open()
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(fn, future))
        return await future

    @override
    async def _read(self, fn: Transaction[T]) -> T:
        self._require_open()
        return await self._loop.run_in_executor(self._readers, self._read_whole, fn)

    def _read_whole(self, fn: Transaction[T]) -> T:
        try:
            with self._read_only.begin() as conn:
                try:
                    return fn(conn)
                except BaseException:
                    # Unfetched rows would hold later reads on this old snapshot.
                    conn.invalidate()
                    raise
        except DBAPIError as exc:
            raise StorageUnavailable(str(exc.orig)) from exc

    @override
    async def _search(self, fn: Transaction[T]) -> T:
        # Runs on the event loop between its statements.
        self._require_open()
        search = Search(fn, lambda raw: raw.interrupt())
        running = asyncio.ensure_future(self._run_search(search))
        self._searches[running] = search
        running.add_done_callback(self._forget_search)
        try:
            return cast("T", await asyncio.shield(running))
        except asyncio.CancelledError:
            await search.end(running)
            raise

    async def _run_search(self, search: Search) -> Any:
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
        # Takes seconds per gigabyte, in steps that delay other writes by milliseconds.
        await self._between_readers(empty_log)
        pages = await asyncio.to_thread(self._scrubber.find)
        while pages:
            await self._between_readers(partial(self._scrubber.clean, pages=pages))

    async def _between_readers(self, step: Callable[[sqlite3.Connection], bool]) -> None:
        """Run a writer step outside transactions when no reader blocks it."""
        for _ in range(math.ceil(READER_WAIT_S / READER_PAUSE_S)):
            self._require_open()
            future: asyncio.Future[bool] = self._loop.create_future()
            self._jobs.put(_Job(step, future, apart=True))
            if await future:
                return
            await asyncio.sleep(READER_PAUSE_S)
        raise StorageUnavailable("a reader holds on to the write-ahead log")

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
        # Put the end mark back for the next call.
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
            # Before any caller gets its value, so that a lost file acknowledges nothing (decision
            # 016).
            self._watch.after()
        except (DBAPIError, sqlite3.Error, StorageUnavailable) as exc:
            lost = _unavailable(exc)
        else:
            return done
        # A failed COMMIT leaves the transaction open.
        with suppress(sqlite3.Error):
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
        # A failed function is rolled back alone; the others still commit together.
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
        """Roll back one function; on a full disk SQLite may have rolled back the whole batch."""
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


def _searchers(path: Path) -> AsyncEngine:
    engine = create_async_engine(
        "sqlite+aiosqlite://",
        async_creator=partial(aiosqlite.connect, **_how(path)),
        poolclass=AsyncAdaptedQueuePool,
        pool_size=SEARCHERS,
        max_overflow=0,
        **DISCREET,
    )
    begin_with(engine.sync_engine, "BEGIN")
    return engine


def _how(path: Path) -> dict[str, Any]:
    how = {"database": read_only_uri(path), "uri": True, "timeout": BUSY_TIMEOUT_S}
    return how | {"isolation_level": None}


def _reader(path: Path) -> sqlite3.Connection:
    """Open a reader thread's connection with all its files."""
    connection: sqlite3.Connection = sqlite3.connect(**_how(path), check_same_thread=False)
    # The first read opens the log and its index: do it here, while descriptors are lent.
    connection.execute("PRAGMA schema_version").fetchone()
    return connection


def _report(done: Iterable[_Result]) -> None:
    """Pass results to their callers, on the event loop."""
    for job, value, error in done:
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(value)
        else:
            job.future.set_exception(error)
            retrieve(job.future)


class FileWatch:
    """Checks the files of an open database; only for the writer thread."""

    def __init__(self, database: Path, mark: Path, here: Seen) -> None:
        """Remember the files' current state and write the mark; may raise OSError."""
        self._files = (database, database.with_name(f"{database.name}-wal"))
        self._known = [_found(each)[:2] for each in self._files]
        self._log_bytes = 0
        self._here = self._counted = here
        self._lost: str | None = None
        self._mark = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.after()

    def before(self, raw: sqlite3.Connection) -> None:
        """Raise DatabaseReplaced before a commit to a lost file; undo a failed commit's count."""
        self._look()
        self._counted, self._changes = self._here, raw.total_changes

    def count(self, raw: sqlite3.Connection) -> None:
        """Count a changing commit, as the last statement of its transaction."""
        if raw.total_changes != self._changes:
            self._counted = self._here._replace(commits=self._here.commits + 1)
            raw.execute("UPDATE identity SET commits = ?", (self._counted.commits,))

    def after(self) -> None:
        """Raise DatabaseReplaced after a commit to a lost file, before callers get results."""
        self._look()
        self._here = self._counted
        os.pwrite(self._mark, f"{self._here.name} {self._here.commits:020d}\n".encode(), 0)

    def close(self) -> None:
        """Flush the mark to the disk."""
        os.fsync(self._mark)
        os.close(self._mark)

    def _look(self) -> None:
        found = self._harm(now := [_found(each) for each in self._files])
        if found is None and self._lost is not None:
            log.info("database_found_again", path=str(self._files[0]))
        elif found is not None and found != self._lost:
            log.error("database_lost", path=str(self._files[0]), reason=found)
        self._lost = found
        if found is not None:
            raise DatabaseReplaced(f"{found} while Parley runs: nothing is stored until it is back")
        self._log_bytes = now[1][2]

    def _harm(self, now: list[tuple[int, int, int]]) -> str | None:
        for path, known, (device, number, _) in zip(self._files, self._known, now, strict=True):
            if (device, number) != known or not number:
                return f"{path} was {'replaced' if number else 'removed'}"
        if now[1][2] >= self._log_bytes:
            return None
        # Another program may have emptied the log; then the file has all commits.
        uri = read_only_uri(self._files[0])
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(uri, uri=True)) as reader,
        ):
            (newest,) = reader.execute("SELECT commits FROM identity").fetchone()
            if newest >= self._here.commits:
                return None
        return f"{self._files[1]} was cut"


def _found(path: Path) -> tuple[int, int, int]:
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino, found.st_size
    return 0, 0, 0
