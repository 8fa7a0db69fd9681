"""A SQLite database file: opened by one process, identified by its mark, and scrubbed.

**Mark.** The database counts its commits, and a separate file, the mark, stores the newest count:
at the next start only an older copy, or one with a truncated log, is behind it.

**Scrubbing** overwrites leftovers of erased rows, in short steps between other writes.
`secure_delete` overwrites deleted rows and freed pages, but not the copies made when SQLite splits
a page, which stay in the unused middle of pages, between the cell list and the first cell. VACUUM
would rewrite the whole file and block writes for minutes.

This is safe while nothing else can write the page, which `clean` ensures: the log is empty and the
database locked for writing. Readers never read unused bytes. Source of the layout:
sqlite.org/fileformat2.html, "B-tree Pages".

A b-tree page starts with 2, 5, 10 or 13. Any other page in use starts with the highest byte of a
page number, 0 or 1 (`MOST_PAGES`), except for `auto_vacuum` maps: such a file is refused. Free
pages and the lock page at 1 GiB are never read. Reserved bytes at a page's end follow the last cell
and are never touched.
"""

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, insert, inspect, select
from sqlalchemy.exc import DBAPIError

from gateway.errors import DatabaseLocked, DatabaseReplaced, StorageUnavailable
from gateway.storage.schema import identity

BUSY_TIMEOUT_S = 10.0
# /proc/self/mounts writes a space in a path as \040. Source: getmntent(3).
_OCTAL = re.compile(r"\\([0-7]{3})")
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs"})
"""SQLite's locks and WAL do not work there. Source: sqlite.org/useovernet.html."""
DISCREET: dict[str, Any] = {"hide_parameters": True}
"""Keep users' text out of errors and logs."""
STEP_S = 0.05
"""Seconds per step of overwriting; syncing takes about as long again."""
STEP_PAGES = 128
"""Most pages per step, synced together."""
READ_PAGES = 256
"""Pages per read of `find`."""
READER_MS = 50
"""Milliseconds that a step waits for readers of the log before it is postponed."""
MOST_PAGES = 1 << 25
"""Largest file in pages whose first bytes reveal their kind: 137 GB with 4 KiB pages."""
_TREE_PAGES = frozenset({2, 5, 10, 13})
_INTERIOR = frozenset({2, 5})
_HEADER_BYTES = 100
_LARGEST_ROOT = slice(52, 56)
"""Header field: 0 without `auto_vacuum`, else the largest root page."""


@contextmanager
def lock_database(path: Path) -> Iterator[None]:
    """Ensure that only this process writes to or creates a database within this context.

    Two locks: a lock file next to the database covers a database that does not exist yet; the lock
    on the database itself works if that file was removed, and through links.

    Raises:
        DatabaseLocked: Another process holds it.
        StorageUnavailable: The folder is not writable or the file cannot be opened.
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


@contextmanager
def hold_file(path: Path) -> Iterator[None]:
    """Hold the lock on an existing database file; the kernel releases it on a kill.

    SQLite locks with `fcntl`, independent of `flock` on a local disk (network filesystems are
    refused). Closing any handle of a file drops the process's `fcntl` locks on it
    (sqlite.org/howtocorrupt.html, 2.2), so leave this context after closing all connections.
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


@contextmanager
def connected(path: Path) -> Iterator[Connection]:
    """Open the writing connection within `lock_database`; lock a new file.

    Raises `DatabaseLocked` if another process just created the file; otherwise like `connect`.
    """
    with ExitStack() as until_closed:
        if not path.exists():
            with suppress(OSError):
                # A failure here recurs below with a proper error.
                path.touch(mode=0o644)
            until_closed.enter_context(hold_file(path))
        connection = until_closed.enter_context(closing(connect(path)))
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
        # Really close connections, since the lock is released next.
        poolclass=NullPool,
        **DISCREET,
    )
    begin_with(engine, "BEGIN IMMEDIATE")
    try:
        connection = engine.connect()
        _set_pragmas(connection)
    except (DBAPIError, sqlite3.Error) as exc:
        engine.dispose()
        raise StorageUnavailable(
            f"cannot open {path}: {exc.orig if isinstance(exc, DBAPIError) else exc}"
        ) from exc
    return connection


def read_only_uri(path: Path) -> str:
    """Return SQLite's read-only URI of a file with any characters in its path."""
    return f"{path.absolute().as_uri()}?mode=ro"


def begin_with(engine: Engine, statement: str) -> None:
    """Start each transaction with this statement instead of at its first write."""
    # The dialect's hook, since a "begin" listener makes SQLAlchemy dispatch on each statement.
    engine.dialect.do_begin = lambda raw: raw.execute(statement)  # type: ignore[assignment]


def _set_pragmas(connection: Connection) -> None:
    raw = connection.connection
    cursor = raw.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    if cursor.fetchone() != ("wal",):
        raise StorageUnavailable("the database cannot use a write-ahead log here")
    # Platforms get an acknowledgement after a commit, which must survive a power loss.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    # Erased rows are overwritten with zeros (decision 017).
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.execute("PRAGMA synchronous")
    if cursor.fetchone() != (2,):
        raise StorageUnavailable("SQLite does not run with synchronous=FULL")
    # A write without effect, so that a read-only file or disk fails here and not in a turn.
    cursor.execute("PRAGMA user_version")
    (version,) = cursor.fetchone() or (0,)
    cursor.execute(f"PRAGMA user_version={version}")
    cursor.close()


def filesystem_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the filesystem type of `path`; None if unknown."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    target = path.resolve()
    kind, longest = None, 0
    for line in lines:
        _, escaped, fstype, *_ = line.split()
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), escaped)
        # A later mount on the same point covers an earlier one.
        if target.is_relative_to(point) and len(point) >= longest:
            kind, longest = fstype, len(point)
    return kind


class Seen(NamedTuple):
    """A database's name and number of commits."""

    name: str
    commits: int


def mark_of(database: Path, home: Path | None = None) -> Path:
    """Return the path of a database's mark: in PARLEY_HOME, or next to the database."""
    return (home or database.parent) / f"{database.name}.mark"


def read_mark(mark: Path) -> Seen | None:
    """Return a mark's content, or None if unreadable."""
    with suppress(OSError, ValueError):
        name, commits = mark.read_text(encoding="ascii").split()
        return Seen(name, int(commits))
    return None


def require_file(database: Path, mark: Path) -> None:
    """Raise DatabaseReplaced if an earlier database is missing."""
    if read_mark(mark) is not None and not database.exists():
        raise DatabaseReplaced(
            f"there is no database at {database}, though Parley has stored messages there. Is its"
            f" disk mounted? Put the file back, or remove {mark} to begin with an empty database."
        )


def require_newest(conn: Connection, database: Path, mark: Path) -> None:
    """Raise DatabaseReplaced if the database differs from the mark or is behind it."""
    if (seen := read_mark(mark)) is None:
        return
    # An empty database has lost its name.
    here = _seen_in(conn) or Seen(seen.name, 0)
    if here.name == seen.name and here.commits >= seen.commits:
        return
    missing = f"its newest {seen.commits - here.commits:,} commits are missing"
    what = missing if here.name == seen.name else "it is another database"
    raise DatabaseReplaced(
        f"{database} is not what Parley has stored: {what}. Put the right {database.name} and"
        f" {database.name}-wal back, or remove {mark} to go on with what is there."
    )


def _seen_in(conn: Connection) -> Seen | None:
    is_named = inspect(conn).has_table(identity.name)
    row = conn.execute(select(identity)).one_or_none() if is_named else None
    return None if row is None else Seen(row.name, row.commits)


def settle(conn: Connection) -> Seen:
    """Return a database's identity, naming it if needed."""
    if (here := _seen_in(conn)) is None:
        here = Seen(os.urandom(16).hex(), 0)
        conn.execute(insert(identity).values(here._asdict()))
    return here


def empty_log(raw: sqlite3.Connection) -> bool:
    """Checkpoint and empty the write-ahead log; return False if a reader blocked it."""
    (usual_ms,) = raw.execute("PRAGMA busy_timeout").fetchone()
    raw.execute(f"PRAGMA busy_timeout={READER_MS}")
    try:
        busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        raw.execute(f"PRAGMA busy_timeout={usual_ms}")
    return not busy


class Scrubber:
    """Finds and overwrites unused bytes that are not zero.

    Close it after all connections of this process: closing any handle of a file drops SQLite's
    locks on it (sqlite.org/howtocorrupt.html, 2.2).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._handle: int | None = None

    def find(self) -> list[int]:
        """Return the pages with data in unused bytes; reads the whole file, 3 s for 2 GB.

        Finds data erased and checkpointed before; a page that changes meanwhile may be listed
        needlessly. Raises `StorageUnavailable` if the file cannot be scrubbed.
        """
        page_bytes, count = self._size()
        found: list[int] = []
        for first in range(0, count, READ_PAGES):
            chunk = os.pread(self._file, page_bytes * READ_PAGES, first * page_bytes)
            for n in range(len(chunk) // page_bytes):
                start, end = _unused(chunk, n * page_bytes, is_first=first + n == 0)
                if chunk.count(0, start, end) != end - start:
                    found.append(first + n)
        return found

    def clean(self, raw: sqlite3.Connection, pages: list[int]) -> bool:
        """Overwrite the unused bytes of some pages and remove them from the list.

        Return False, changing nothing, if a reader blocked it; raises like `find`.
        """
        if not empty_log(raw):
            return False
        raw.execute("BEGIN IMMEDIATE")
        try:
            # A write came between the checkpoint and the lock.
            if self._log.stat().st_size:
                return False
            for page in _some(pages):
                self._clean(page)
            os.fsync(self._file)
        finally:
            raw.execute("ROLLBACK")
        # The connection's cached pages would restore the bytes.
        raw.execute("PRAGMA shrink_memory")
        return True

    def _clean(self, page: int) -> None:
        page_bytes, _ = self._size()
        content = os.pread(self._file, page_bytes, page * page_bytes)
        if len(content) < page_bytes:  # the file has become smaller
            return
        start, end = _unused(content, 0, is_first=page == 0)
        if start < end:
            os.pwrite(self._file, bytes(end - start), page * page_bytes + start)

    def _size(self) -> tuple[int, int]:
        """Return the page size in bytes and the number of pages."""
        header = os.pread(self._file, _HEADER_BYTES, 0)
        page_bytes = int.from_bytes(header[16:18], "big")
        # 65,536 does not fit into two bytes: it is 1 here and 0 in a page header.
        page_bytes = 65_536 if page_bytes == 1 else page_bytes
        count = os.fstat(self._file).st_size // page_bytes
        if count >= MOST_PAGES:
            raise StorageUnavailable(f"{self._path} is too large to be searched for leftovers")
        if any(header[_LARGEST_ROOT]):
            raise StorageUnavailable(
                f"{self._path} was made with auto_vacuum: what erased rows have left in it cannot"
                " be overwritten. Stop Parley and run `parley db compact`: it removes this, and"
                " switches auto_vacuum off."
            )
        return page_bytes, count

    @property
    def _file(self) -> int:
        if self._handle is None:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        return self._handle

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _some(pages: list[int]) -> Iterator[int]:
    until = time.monotonic() + STEP_S
    for _ in range(STEP_PAGES):
        if not pages or time.monotonic() > until:
            return
        yield pages.pop()


def _unused(content: bytes, offset: int, *, is_first: bool) -> tuple[int, int]:
    """Return start and end of a page's unused bytes; equal for a page without cells."""
    head = offset + (_HEADER_BYTES if is_first else 0)
    kind = content[head]
    if kind not in _TREE_PAGES:
        return offset, offset
    cells = content[head + 3] << 8 | content[head + 4]
    first_cell = (content[head + 5] << 8 | content[head + 6]) or 65_536
    # An interior page's header has 12 bytes, a leaf's 8, followed by two bytes per cell.
    start = head + (12 if kind in _INTERIOR else 8) + 2 * cells
    end = offset + first_cell
    return (start, end) if start <= end <= len(content) else (offset, offset)
