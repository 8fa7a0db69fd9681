"""What the command line does with the database's file, with or without a running gateway."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from gateway.errors import StorageUnavailable
from gateway.storage import migrate
from gateway.storage.engine import connect, lock_database, read_only_uri
from gateway.storage.opening import prepare_schema, require_database, schema_revision


def upgrade(path: Path) -> str | None:
    """Migrate the database; returns its revision. No gateway may be running on it."""
    with lock_database(path), closing(connect(path)) as connection:
        try:
            prepare_schema(connection)
            return schema_revision(connection)
        finally:
            connection.engine.dispose()


def compact(path: Path) -> tuple[int, int]:
    """Write the file anew without its free pages; returns its bytes before and after it.

    Takes seconds per gigabyte, and as much room again meanwhile. No gateway may be running on it.
    Switches `auto_vacuum` off, with which leftovers cannot be overwritten (scrubbing.py).

    Raises:
        StorageUnavailable: There is no database, or not enough room.
    """
    require_database(path)
    before = path.stat().st_size
    with lock_database(path), closing(connect(path)) as connection:
        raw = connection.connection
        try:
            raw.cursor().execute("PRAGMA auto_vacuum=NONE")
            raw.cursor().execute("VACUUM")
            raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as exc:
            raise StorageUnavailable(f"cannot write {path} anew: {exc}") from exc
        finally:
            connection.engine.dispose()
    return before, path.stat().st_size


def current(path: Path) -> str | None:
    """Return the database's revision; None for an empty one."""
    with reading(path) as conn:
        return migrate.current(conn)


def check(path: Path) -> list[str]:
    """Return what is wrong with the database, one line each; empty when nothing is."""
    with reading(path) as conn:
        migrate.refuse_newer(conn)
        tables = tables_of(conn)
        broken = [line for table in tables for line in damage_of(conn, table)]
        orphans = [line for table in tables for line in _orphans(conn, table)]
        revision = migrate.current(conn)
        if revision != migrate.head():
            return [f"schema revision {revision}; this version needs {migrate.head()}", *broken]
        return [*migrate.differences(conn), *broken, *orphans]


def damage_of(conn: Connection, table: str) -> list[str]:
    """Return what is damaged in a table and its indexes.

    Each is read by itself: a reader of the whole file would keep the log of a gateway that writes
    meanwhile from being emptied for minutes.
    """
    found = conn.exec_driver_sql(f'PRAGMA integrity_check("{table}")').scalars()
    return [line for line in found if line != "ok"]


def _orphans(conn: Connection, table: str) -> list[str]:
    found = conn.exec_driver_sql(f'PRAGMA foreign_key_check("{table}")').all()
    return [f"foreign key: {row}" for row in found]


def tables_of(conn: Connection) -> list[str]:
    """Return the names of all tables that are stored, the schema's own among them."""
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 ORDER BY name"
    return ["sqlite_schema", *conn.exec_driver_sql(tables).scalars()]


@contextmanager
def reading(path: Path) -> Iterator[Connection]:
    """Open the database read-only; a running gateway is not disturbed.

    Raises:
        StorageUnavailable: It is not there, or no database of Parley's.
    """
    require_database(path)

    def connect_read_only() -> Any:
        return sqlite3.connect(read_only_uri(path), uri=True)

    engine = create_engine("sqlite://", creator=connect_read_only, poolclass=NullPool)
    try:
        with engine.connect() as conn:
            yield conn
    except DBAPIError as exc:
        raise StorageUnavailable(f"cannot read {path}: {exc.orig}") from exc
    finally:
        engine.dispose()
