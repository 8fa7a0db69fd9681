"""A database file of SQLite: opened by one process, recognised by its mark, and scrubbed.

**Mark.** The database counts its commits, and a file outside of it, the mark, has the newest count:
at the next start only an older copy, or one whose log was cut, is behind it.

**Scrubbing** overwrites what erased rows left, in short steps between other writes. `secure_delete`
overwrites a deleted row and a freed page, but not the copies that SQLite makes when it splits a
page: they lie in the unused middle of pages in use, between the list of cells and the first cell.
VACUUM would rewrite the whole file and stop all writes for minutes.

This is safe while nothing else can write the same page, which `clean` ensures: the log is empty and
the database locked for writing. Readers never read the unused bytes. Source of the layout:
sqlite.org/fileformat2.html, "B-tree Pages".

The first byte of a tree's page is 2, 5, 10 or 13. That of any other page in use is the highest one
of a page number, which is 0 or 1 (`MOST_PAGES`), except for the maps of `auto_vacuum`: such a file
is refused. Free pages, and the one at 1 GiB with the locks, are never read. Reserved bytes at the
end of a page are behind the last cell, and so are never touched.
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
# /proc/self/mounts writes a blank in a path as \040. Source: getmntent(3).
_OCTAL = re.compile(r"\\([0-7]{3})")
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs"})
"""SQLite's locks and WAL do not work there. Source: sqlite.org/useovernet.html."""
DISCREET: dict[str, Any] = {"hide_parameters": True}
"""Errors and logs do not quote people's words."""
STEP_S = 0.05
"""How long one step overwrites; syncing it to the disk takes about as long again."""
STEP_PAGES = 128
"""Most pages of one step, which are synced together."""
READ_PAGES = 256
"""Pages that `find` reads at once."""
READER_MS = 50
"""How long a step waits for readers of the log before it is put off."""
MOST_PAGES = 1 << 25
"""Beyond that a page's first byte does not show its kind: 137 GB with pages of 4 KiB."""
_TREE_PAGES = frozenset({2, 5, 10, 13})
_INTERIOR = frozenset({2, 5})
_HEADER_BYTES = 100
_LARGEST_ROOT = slice(52, 56)
"""In the file's header: 0 without `auto_vacuum`, else the largest page that a tree begins with."""


@contextmanager
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


@contextmanager
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


@contextmanager
def connected(path: Path) -> Iterator[Connection]:
    """Open the writing connection within `lock_database`; a new file is locked from here on.

    Raises `DatabaseLocked` if another process has just created the file; else as `connect`.
    """
    with ExitStack() as until_closed:
        if not path.exists():
            with suppress(OSError):
                # A failure here occurs again below, with its own error.
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
        # Closing really closes: the lock goes next.
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
    """SQLite's URI for reading a file, whatever characters are in its path."""
    return f"{path.absolute().as_uri()}?mode=ro"


def begin_with(engine: Engine, statement: str) -> None:
    """Begin each transaction with this statement instead of with its first write."""
    # The dialect's own hook: a listener of "begin" has SQLAlchemy dispatch at each statement.
    engine.dialect.do_begin = lambda raw: raw.execute(statement)  # type: ignore[assignment]


def _set_pragmas(connection: Connection) -> None:
    raw = connection.connection
    cursor = raw.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    if cursor.fetchone() != ("wal",):
        raise StorageUnavailable("the database cannot use a write-ahead log here")
    # After a commit platforms get "received": it must survive a loss of power.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    # Erased rows are overwritten with zeros (decision 017).
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.execute("PRAGMA synchronous")
    if cursor.fetchone() != (2,):
        raise StorageUnavailable("SQLite does not run with synchronous=FULL")
    # A write that changes nothing: a read-only file or disk fails here, not in a turn.
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


class Seen(NamedTuple):
    """The name of a database, and the number of its commits."""

    name: str
    commits: int


def mark_of(database: Path, home: Path | None = None) -> Path:
    """The path of a database's mark: in PARLEY_HOME, perhaps on another disk, or next to it."""
    return (home or database.parent) / f"{database.name}.mark"


def read_mark(mark: Path) -> Seen | None:
    """Return the content of a mark, or None if it cannot be read."""
    with suppress(OSError, ValueError):
        name, commits = mark.read_text(encoding="ascii").split()
        return Seen(name, int(commits))
    return None


def require_file(database: Path, mark: Path) -> None:
    """Raise DatabaseReplaced if the database existed and is missing."""
    if read_mark(mark) is not None and not database.exists():
        raise DatabaseReplaced(
            f"there is no database at {database}, though Parley has stored messages there. Is its"
            f" disk mounted? Put the file back, or remove {mark} to begin with an empty database."
        )


def require_newest(conn: Connection, database: Path, mark: Path) -> None:
    """Raise DatabaseReplaced if it is another database than the mark's, or behind it."""
    if (seen := read_mark(mark)) is None:
        return
    # An empty one has lost its name.
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
    """Return the identity of this database; gives it a name if it has none."""
    if (here := _seen_in(conn)) is None:
        here = Seen(os.urandom(16).hex(), 0)
        conn.execute(insert(identity).values(here._asdict()))
    return here


def empty_log(raw: sqlite3.Connection) -> bool:
    """Empty the write-ahead log into the file; returns False if a reader was in the way."""
    (usual_ms,) = raw.execute("PRAGMA busy_timeout").fetchone()
    raw.execute(f"PRAGMA busy_timeout={READER_MS}")
    try:
        busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        raw.execute(f"PRAGMA busy_timeout={usual_ms}")
    return not busy


class Scrubber:
    """Finds unused bytes that are not zero and overwrites them.

    Close it after all connections of this process: closing any handle of a file gives up the locks
    that SQLite holds on it (sqlite.org/howtocorrupt.html, 2.2).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._handle: int | None = None

    def find(self) -> list[int]:
        """Return the pages with data in their unused bytes; reads the whole file, 3 s for 2 GB.

        It finds what was erased and moved out of the log before; a page that changes meanwhile may
        be listed in vain. Raises `StorageUnavailable` if the file cannot be scrubbed.
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
        """Overwrite the unused bytes of some pages, and take these off the list.

        Returns False, with nothing done, if a reader was in the way; raises as `find` does.
        """
        if not empty_log(raw):
            return False
        raw.execute("BEGIN IMMEDIATE")
        try:
            # There was a write between the checkpoint and the lock.
            if self._log.stat().st_size:
                return False
            for page in _some(pages):
                self._clean(page)
            os.fsync(self._file)
        finally:
            raw.execute("ROLLBACK")
        # The copies of these pages that the connection keeps would bring the bytes back.
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
        """Bytes of a page, and the number of pages."""
        header = os.pread(self._file, _HEADER_BYTES, 0)
        page_bytes = int.from_bytes(header[16:18], "big")
        # Two bytes cannot hold 65,536: here a 1 means that, in the header of a page a 0.
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
        """Close the file. Idempotent."""
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
    """Start and end of the unused bytes of the page at `offset`; equal for a page without cells."""
    head = offset + (_HEADER_BYTES if is_first else 0)
    kind = content[head]
    if kind not in _TREE_PAGES:
        return offset, offset
    cells = content[head + 3] << 8 | content[head + 4]
    first_cell = (content[head + 5] << 8 | content[head + 6]) or 65_536
    # The header of an inner page has 12 bytes, of a leaf 8; two bytes for each cell follow.
    start = head + (12 if kind in _INTERIOR else 8) + 2 * cells
    end = offset + first_cell
    return (start, end) if start <= end <= len(content) else (offset, offset)
