"""From a path to an open database: lock, connect, migrate, then start the writer."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from importlib import import_module
from pathlib import Path

import structlog
from sqlalchemy import Connection, inspect, select, table
from sqlalchemy import column as sql_column

from gateway.errors import StorageUnavailable
from gateway.settings import Settings
from gateway.storage import identity
from gateway.storage.engine import Database, connect, lock_database
from gateway.storage.models import REVISION
from gateway.storage.scrubbing import Scrubber

log = structlog.get_logger()


@asynccontextmanager
async def open_database(path: Path, home: Path | None = None) -> AsyncIterator[Database]:
    """Open the SQLite file at `path`, creating or migrating it, for this process alone.

    Args:
        path: The file.
        home: PARLEY_HOME, where the database's mark is (gateway/storage/identity.py); None: beside
            the file.

    Raises:
        DatabaseLocked: Another process has it open.
        DatabaseTooNew: Written by a newer version; nothing is changed.
        DatabaseReplaced: It lacks what Parley has stored; nothing is changed.
        StorageUnavailable: Not writable, or not a database.
    """
    with lock_database(path):
        async with open_locked(path, home) as database:
            yield database


@asynccontextmanager
async def open_locked(path: Path, home: Path | None = None) -> AsyncIterator[Database]:
    """Do the same in a process that holds the lock already."""
    mark = identity.mark_of(path, home)
    identity.require_file(path, mark)
    with (
        # Closed last: see there.
        closing(Scrubber(path)) as scrubber,
        _connected(path) as connection,
        closing(_watch(connection, path, mark)) as watch,
    ):
        database = Database(path, connection, watch, scrubber)
        try:
            yield database
        finally:
            await database.close()


@contextmanager
def _connected(path: Path) -> Iterator[Connection]:
    with closing(connect(path)) as connection:
        try:
            yield connection
        finally:
            connection.engine.dispose()


def _watch(connection: Connection, path: Path, mark: Path) -> identity.Watch:
    """Have the schema be this code's, in the database that was written to before."""
    with connection.begin():
        identity.require_newest(connection, path, mark)
    prepare_schema(connection)
    with connection.begin():
        here = identity.settle(connection)
    try:
        return identity.Watch(path, mark, here)
    except OSError as exc:
        raise StorageUnavailable(f"cannot write {mark}: {exc.strerror}") from exc


def prepare_schema(connection: Connection) -> None:
    """Migrate in one transaction where the schema is not this code's; else do nothing."""
    with connection.begin():
        revision = schema_revision(connection)
        if revision is None and inspect(connection).get_table_names():
            raise StorageUnavailable("this SQLite file belongs to another program")
        if revision != REVISION:
            import_module("gateway.storage.migrate").upgrade(connection)
    if revision not in {None, REVISION}:
        log.info("database_migrated", before=revision, revision=REVISION)


def schema_revision(connection: Connection) -> str | None:
    """Return the revision in the database, None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    version = table("alembic_version", sql_column("version_num"))
    return connection.scalar(select(version.c.version_num))


def require_database(path: Path) -> None:
    """Refuse to go on without a file to open.

    Raises:
        StorageUnavailable: It is not there, or nobody can look.
    """
    try:
        found = path.is_file()
    except OSError as exc:
        raise StorageUnavailable(f"cannot read {path}: {exc.strerror}") from exc
    if not found:
        raise StorageUnavailable(f"there is no database at {path}")


def database_path(settings: Settings) -> Path:
    """Return the SQLite file: `storage.url`, else parley.db; relative to PARLEY_HOME."""
    url = settings.storage.url
    return settings.home / (url.partition("///")[2] if url else "parley.db")
