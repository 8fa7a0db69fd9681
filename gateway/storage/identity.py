"""Detects that the database file was replaced, removed or cut.

SQLite goes on writing into a file that was unlinked or replaced, and into a log that was cut: a
message would be acknowledged into nowhere. So the writer checks both files around each commit. The
database also counts its commits, and a file outside of it, the mark, has the newest count: at the
next start only an older copy, or a cut log, is behind it.
"""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, insert, inspect, select

from gateway.errors import DatabaseReplaced
from gateway.storage.schema import identity

log = structlog.get_logger()


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
    # An empty one has lost the row in which its name was.
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
    """Return the identity of this database; one without a name gets one."""
    if (here := _seen_in(conn)) is None:
        here = Seen(os.urandom(16).hex(), 0)
        conn.execute(insert(identity).values(here._asdict()))
    return here


class FileWatch:
    """Checks the files of an open database; for the writer's thread only."""

    def __init__(self, database: Path, mark: Path, here: Seen) -> None:
        """Take the present files for the right ones and write the mark; may raise OSError."""
        self._files = (database, database.with_name(f"{database.name}-wal"))
        self._known = [_found(each)[:2] for each in self._files]
        self._log_bytes = 0
        self._here = self._counted = here
        self._lost: str | None = None
        self._mark = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.after()

    def before(self, raw: sqlite3.Connection) -> None:
        """Raise DatabaseReplaced before a commit into nowhere; drop the count of a failed one."""
        self._look()
        self._counted, self._changes = self._here, raw.total_changes

    def count(self, raw: sqlite3.Connection) -> None:
        """Count a commit that changes anything, as the last statement of its transaction."""
        if raw.total_changes != self._changes:
            self._counted = self._here._replace(commits=self._here.commits + 1)
            raw.execute("UPDATE identity SET commits = ?", (self._counted.commits,))

    def after(self) -> None:
        """Raise DatabaseReplaced after a commit into nowhere, before any caller gets its result."""
        self._look()
        self._here = self._counted
        os.pwrite(self._mark, f"{self._here.name} {self._here.commits:020d}\n".encode(), 0)

    def close(self) -> None:
        """Write the mark to the disk."""
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
        # Another program may have emptied the log: then the file has all commits.
        uri = f"{self._files[0].absolute().as_uri()}?mode=ro"
        with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as reader:
            (newest,) = reader.execute("SELECT commits FROM identity").fetchone()
            if newest >= self._here.commits:
                return None
        return f"{self._files[1]} was cut"


def _found(path: Path) -> tuple[int, int, int]:
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino, found.st_size
    return 0, 0, 0
