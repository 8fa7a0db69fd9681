"""From a path to an open database: lock, connect, migrate, then start the writer.

Migrations run at start, under the database's file lock and inside one transaction. alembic costs
10 MB: it is imported where a database is new, or not of this version's revision.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection, inspect, select, table
from sqlalchemy import column as sql_column

import migrations
from gateway.errors import DatabaseTooNew, StorageUnavailable
from gateway.settings.tree import Settings
from gateway.storage import identity
from gateway.storage.engine import Database, connect, lock_database
from gateway.storage.schema import REVISION, SEARCH_INDEX, metadata
from gateway.storage.scrubbing import Scrubber

log = structlog.get_logger()


@asynccontextmanager
async def open_database(path: Path, home: Path | None = None) -> AsyncIterator[Database]:
    """Open the SQLite file at `path`, creating or migrating it, for this process alone.

    Args:
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
    """Open it as `open_database` does, in a process that holds the lock already."""
    mark = identity.mark_of(path, home)
    identity.require_file(path, mark)
    with (
        # Closed last: closing any handle of the file gives up the locks that SQLite holds on it.
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


def _watch(connection: Connection, path: Path, mark: Path) -> identity.FileWatch:
    """Require the database that was written last, migrate it, and return what watches its files."""
    # Before the migration: a database that is refused stays as it is.
    with connection.begin():
        identity.require_newest(connection, path, mark)
    prepare_schema(connection)
    with connection.begin():
        here = identity.settle(connection)
    try:
        return identity.FileWatch(path, mark, here)
    except OSError as exc:
        raise StorageUnavailable(f"cannot write {mark}: {exc.strerror}") from exc


def prepare_schema(connection: Connection) -> None:
    """Migrate in one transaction where the schema is not this code's; else do nothing."""
    with connection.begin():
        revision = schema_revision(connection)
        if revision is None and inspect(connection).get_table_names():
            raise StorageUnavailable("this SQLite file belongs to another program")
        if revision != REVISION:
            upgrade(connection)
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


def upgrade(conn: Connection) -> None:
    """Bring the schema to the newest revision; atomic with the caller's transaction.

    Raises:
        DatabaseTooNew: The database's revision is not one of this version's; nothing is changed.
    """
    refuse_newer(conn)
    import_module("alembic.command").upgrade(_config(conn), "head")


def refuse_newer(conn: Connection) -> None:
    """Raise DatabaseTooNew where the database's revision is unknown to this code."""
    revision = schema_revision(conn)
    if revision is not None and revision not in known_revisions():
        raise DatabaseTooNew(
            f"the database has schema revision {revision}, which this version of Parley does not"
            f" know (newest here: {head()}); install the version that wrote it, or restore a backup"
        )


def differences(conn: Connection) -> list[str]:
    """Return what differs between the tables in the database and in the code, in words."""
    contexts = import_module("alembic.runtime.migration").MigrationContext
    context = contexts.configure(conn, opts={"include_name": _is_compared})
    found = import_module("alembic.autogenerate").compare_metadata(context, metadata)
    return [str(difference) for difference in found]


def _is_compared(name: str | None, kind: str, _: object) -> bool:
    """Whether a table is the code's: not the search index, nor what SQLite keeps it in."""
    return kind != "table" or not (name or "").startswith(SEARCH_INDEX)


def head() -> str | None:
    """Return the newest revision that this code has."""
    newest: str | None = _scripts().get_current_head()
    return newest


def known_revisions() -> set[str]:
    """Return every revision that this code has."""
    return {script.revision for script in _scripts().walk_revisions()}


def _scripts() -> Any:
    scripts = import_module("alembic.script").ScriptDirectory
    return scripts(str(Path(migrations.__file__).parent))


def _config(conn: Connection) -> Any:
    config = import_module("alembic.config").Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = conn
    return config
