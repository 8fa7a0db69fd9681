"""Watches that the database is the one that was written to, and that nothing of it is missing.

SQLite goes on writing into a file that was unlinked or replaced, and into a log that was cut: a
message would be acknowledged into nowhere. So the writer looks at both files around each commit
(`stat`, 2 us each). What happens while nobody runs shows itself at the next start: the database
counts its commits, and a small file outside of it, the mark, holds the newest count that anybody
was told of. A database is never behind its mark, unless it is an older copy or its log is gone.
"""

import contextlib
import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, func, insert, inspect, select

from gateway.errors import DatabaseReplaced, StorageUnavailable
from gateway.storage.schema import identity

log = structlog.get_logger()

SYNC_EVERY_S = 60.0
"""A kill loses nothing of the mark; after a power cut it may be so much behind, never ahead."""
ACCEPT = "`parley db accept`"
_LINE = re.compile(r"([0-9a-f]{32}) ([0-9]{20})\n")
_NAME_BYTES = 16
_COUNT = "UPDATE identity SET commits = ?"
_LOOK = "SELECT commits FROM identity"


class Seen(NamedTuple):
    """Which database it is, and how many commits it has had."""

    name: str
    commits: int


Inode = tuple[int, int]
"""Device and number of a file."""


class OnDisk(NamedTuple):
    """A file as it is now; without an inode there is none."""

    inode: Inode | None
    size: int


def mark_of(database: Path, home: Path | None = None) -> Path:
    """Return where the mark of a database is: in PARLEY_HOME, else beside the database.

    In PARLEY_HOME it also tells of a database whose own disk is not mounted.
    """
    return (home or database.parent) / f"{database.name}.mark"


def read_mark(mark: Path) -> Seen | None:
    """Return what a mark holds; None where there is none, or none that can be read as one."""
    try:
        found = _LINE.fullmatch(mark.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return None if found is None else Seen(found[1], int(found[2]))


def require_file(database: Path, mark: Path) -> None:
    """Refuse to begin an empty database in place of one that was there.

    Raises:
        DatabaseReplaced: The mark tells of a database, and there is none.
    """
    if read_mark(mark) is not None and not database.exists():
        raise DatabaseReplaced(
            f"there is no database at {database}, though Parley has stored messages there ({mark}"
            " says so). Is its disk mounted? Put the file back, or restore a backup and run"
            f" {ACCEPT}; {ACCEPT} alone begins anew with an empty database."
        )


def require_newest(conn: Connection, database: Path, mark: Path) -> None:
    """Refuse a database that lacks what was acknowledged; nothing is changed.

    Raises:
        DatabaseReplaced: It is another database than the mark's, or behind it.
    """
    seen = read_mark(mark)
    if seen is None:
        return
    # An empty one has lost the row in which its name was.
    here = seen_in(conn) or Seen(seen.name, 0)
    if here.name != seen.name:
        raise DatabaseReplaced(
            f"{database} is not the database that Parley has written to ({mark} tells of another"
            f" one). Put the right file back, or run {ACCEPT} to go on with this one."
        )
    if here.commits < seen.commits:
        raise DatabaseReplaced(
            f"{database} is older than what Parley has stored: its newest"
            f" {seen.commits - here.commits:,} commits are missing. An older copy was put in its"
            f" place, or {database.name}-wal was removed or cut. Put the newer files back, or run"
            f" {ACCEPT} to go on with what is there; what came after it is lost."
        )


def seen_in(conn: Connection) -> Seen | None:
    """Return what a database says of itself; None for one without a name."""
    if not inspect(conn).has_table(identity.name):
        return None
    row = conn.execute(select(identity.c.name, identity.c.commits)).one_or_none()
    return None if row is None else Seen(row.name, row.commits)


def settle(conn: Connection) -> Seen:
    """Return which database this is; one that has no name yet is given one."""
    here = seen_in(conn)
    if here is not None:
        return here
    name = func.lower(func.hex(func.randomblob(_NAME_BYTES)))
    conn.execute(insert(identity).values(name=name, commits=0))
    return settle(conn)


def accept(mark: Path) -> bool:
    """Have the next start take the database as it finds it; whether there was anything to accept.

    Raises:
        StorageUnavailable: The mark cannot be removed.
    """
    try:
        mark.unlink()
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise StorageUnavailable(f"cannot remove {mark}: {exc.strerror}") from exc
    return True


class FileWatch:
    """Looks at the files of an open database; for the writer's thread alone."""

    def __init__(self, database: Path, mark: Path, here: Seen) -> None:
        """Take the files as they are now for the right ones, and write the mark.

        Raises:
            OSError: The mark cannot be written.
        """
        self._database, self._log = str(database), f"{database}-wal"
        self._name = here.name
        self._commits = self._counted = here.commits
        self._file = _on_disk(self._database).inode
        self._log_file, self._log_bytes = _on_disk(self._log)
        self._changes = 0
        self._lost: str | None = None
        self._mark = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._synced_at = 0.0
        self._write_mark()
        # A mark that is longer than its line cannot be read (`read_mark`).
        os.ftruncate(self._mark, len(self._line()))

    def before(self, raw: sqlite3.Connection) -> None:
        """Look before a commit.

        Raises:
            DatabaseReplaced: Nothing may be written.
        """
        self._look(may_be_cut=True)
        # What was counted in a transaction that failed is not in the database.
        self._counted = self._commits
        self._changes = raw.total_changes

    def count(self, raw: sqlite3.Connection) -> None:
        """Count a commit that changes anything, as the last statement of its transaction."""
        if raw.total_changes != self._changes:
            self._counted = self._commits + 1
            raw.execute(_COUNT, (self._counted,))

    def after(self) -> None:
        """Look after a commit, before anybody is told of it.

        Raises:
            DatabaseReplaced: It went into nowhere.
        """
        self._look(may_be_cut=False)
        if self._counted != self._commits:
            self._commits = self._counted
            self._write_mark()

    def emptied(self) -> None:
        """Take note that this process has emptied the log itself."""
        self._log_bytes = _on_disk(self._log).size

    def close(self) -> None:
        """Leave the mark on the disk."""
        os.fsync(self._mark)
        os.close(self._mark)

    def _look(self, *, may_be_cut: bool) -> None:
        file, log_file = _on_disk(self._database), _on_disk(self._log)
        found = self._gone(file.inode, log_file.inode)
        if found is None and may_be_cut and log_file.size < self._log_bytes:
            found = self._cut()
        if found != self._lost:
            if found is None:
                log.info("database_found_again", path=self._database)
            else:
                log.error("database_lost", path=self._database, reason=found)
            self._lost = found
        if found is not None:
            raise DatabaseReplaced(found)
        self._log_bytes = log_file.size

    def _gone(self, file: Inode | None, log_file: Inode | None) -> str | None:
        """Return what became of the files; None while they are those that were opened."""
        if (file, log_file) == (self._file, self._log_file) and log_file is not None:
            return None
        pairs = ((self._database, file, self._file), (self._log, log_file, self._log_file))
        for path, now, known in pairs:
            if now is None:
                return f"{path} was removed while Parley runs: nothing is stored until it is back"
            if now != known:
                return (
                    f"{path} was replaced while Parley runs: nothing is stored until the right"
                    " file is back, or Parley is started again"
                )
        return None

    def _cut(self) -> str | None:
        """Return whether the log has lost what was committed; another program may empty it."""
        if self._newest_on_disk() >= self._commits:
            return None
        return (
            f"{self._log} is shorter than what was stored in it: nothing is stored until Parley"
            " is started again"
        )

    def _newest_on_disk(self) -> int:
        """Return the count of commits as a reader of the files finds it; -1 for unreadable."""
        uri = f"{Path(self._database).absolute().as_uri()}?mode=ro"
        with (
            contextlib.suppress(sqlite3.Error),
            closing(sqlite3.connect(uri, uri=True)) as reader,
        ):
            return int(reader.execute(_LOOK).fetchone()[0])
        return -1

    def _write_mark(self) -> None:
        os.pwrite(self._mark, self._line(), 0)
        if time.monotonic() - self._synced_at > SYNC_EVERY_S:
            os.fsync(self._mark)
            self._synced_at = time.monotonic()

    def _line(self) -> bytes:
        return f"{self._name} {self._commits:020d}\n".encode()


def _on_disk(path: str) -> OnDisk:
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path takes three times as long
    except OSError:
        return OnDisk(None, 0)
    return OnDisk((found.st_dev, found.st_ino), found.st_size)
