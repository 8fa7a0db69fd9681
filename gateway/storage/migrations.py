"""Opens a database: lock, connect, migrate, then start the threads.

Migrations run at start in one transaction, under the lock of the SQLite file or a PostgreSQL lock
shared by all replicas. If nothing needs migrating, alembic is not imported, to keep a gateway with
Telegram below 130 MB.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Connection, inspect, select, table
from sqlalchemy import column as sql_column

import migrations
from gateway.errors import DatabaseTooNew, StorageUnavailable
from gateway.storage import sqlite_file
from gateway.storage.database import Database, DatabaseServer, Location
from gateway.storage.engine import FileWatch, SqliteDatabase
from gateway.storage.schema import FLOOR, REVISION, SEARCH_INDEX, metadata
from gateway.storage.sqlite_file import Scrubber, connected, lock_database

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

log = structlog.get_logger()

MIGRATING = 0x7061726C6579
"""The advisory lock number for migrations: "parley" in ASCII."""
STARTS_WITHIN_S = 60.0
"""Longest wait for a starting PostgreSQL, in seconds: after a boot both start at once."""
AWAITED_EVERY_S = 1.0
"""Seconds between checks for another process's migration."""
_PATIENT = "SET LOCAL idle_in_transaction_session_timeout = 0"
"""A migration may spend time between two statements."""
_ALONE = (
    _PATIENT,
    # A migration may take long, here or in another replica.
    "SET LOCAL lock_timeout = 0",
    "SET LOCAL statement_timeout = 0",
    f"SELECT pg_advisory_xact_lock({MIGRATING})",
)


@asynccontextmanager
async def open_database(location: Location, home: Path | None = None) -> AsyncIterator[Database]:
    """Open a database, creating or migrating its schema; a SQLite file exclusively.

    `home` is PARLEY_HOME, which has the SQLite file's mark (`mark_of`); None puts it next to the
    file.

    Raises:
        DatabaseLocked: Another process has the file open.
        DatabaseTooNew: Written by a newer version; nothing is changed.
        DatabaseReplaced: The file lacks stored data; nothing is changed.
        StorageUnavailable: Not writable, not a database, or refused by the server.
    """
    if isinstance(location, DatabaseServer):
        async with _open_server(location) as database:
            yield database
        return
    with lock_database(location):
        async with _open_file(location, home) as database:
            yield database


@asynccontextmanager
async def open_locked(location: Location, home: Path | None = None) -> AsyncIterator[Database]:
    """Like `open_database`, in a process that already holds a file's lock.

    Waits up to `STARTS_WITHIN_S` for a starting server.
    """
    if isinstance(location, DatabaseServer):
        await _wait_until_started(location)
        opened = _open_server(location)
    else:
        opened = _open_file(location, home)
    async with opened as database:
        yield database


async def _wait_until_started(server: DatabaseServer) -> None:
    """Wait until the server accepts connections."""
    from gateway.storage import postgres  # noqa: PLC0415

    until, is_told = time.monotonic() + STARTS_WITHIN_S, False
    while time.monotonic() < until:
        if (reason := await asyncio.to_thread(postgres.why_not_started, server)) is None:
            return
        if not is_told:
            log.warning("database_awaited", reason=reason)
            is_told = True
        await asyncio.sleep(AWAITED_EVERY_S)


@asynccontextmanager
async def _open_server(server: DatabaseServer) -> AsyncIterator[Database]:
    from gateway.storage.postgres import PostgresDatabase  # noqa: PLC0415

    if server.migrates:
        await asyncio.to_thread(prepare_server, server)
    else:
        await _migrated_by_another(server)
    database = PostgresDatabase(server)
    try:
        yield database
    finally:
        await database.close()


async def _migrated_by_another(server: DatabaseServer) -> None:
    """Wait for another process to migrate the database (`parley db migrate`)."""
    if await asyncio.to_thread(_is_behind, server):
        log.info("migration_awaited", revision=REVISION)
    while await asyncio.to_thread(_is_behind, server):  # noqa: ASYNC110 - another process migrates
        await asyncio.sleep(AWAITED_EVERY_S)


def _is_behind(server: DatabaseServer) -> bool:
    from gateway.storage import postgres  # noqa: PLC0415

    with closing(postgres.connect(server)) as connection, connection.begin():
        connection.exec_driver_sql(_PATIENT)
        if (revision := schema_revision(connection)) != REVISION:
            refuse_newer(connection)
        return revision is None or revision < REVISION


def prepare_server(server: DatabaseServer) -> None:
    """Migrate in one transaction if the schema differs from the code; one replica at a time.

    Raises:
        DatabaseTooNew: Written by a newer version; nothing is changed.
        StorageUnavailable: It is unreachable, unchangeable, or belongs to another program.
    """
    from gateway.storage import postgres  # noqa: PLC0415

    with closing(postgres.connect(server, direct=True)) as connection:
        with postgres.told_as_unavailable("open the database"), connection.begin():
            connection.exec_driver_sql(_PATIENT)
            revision = schema_revision(connection)
        if revision == REVISION:
            return
        with postgres.told_as_unavailable("migrate the database"), connection.begin():
            for statement in _ALONE:
                connection.exec_driver_sql(statement)
            revision = _migrated(connection)
    _tell(revision)


@asynccontextmanager
async def _open_file(path: Path, home: Path | None) -> AsyncIterator[Database]:
    mark = sqlite_file.mark_of(path, home)
    sqlite_file.require_file(path, mark)
    with (
        # Closed last, since closing any handle of the file drops SQLite's locks on it.
        closing(Scrubber(path)) as scrubber,
        connected(path) as connection,
        closing(_watch(connection, path, mark)) as watch,
    ):
        database = SqliteDatabase(path, connection, watch, scrubber)
        try:
            yield database
        finally:
            await database.close()


def _watch(connection: Connection, path: Path, mark: Path) -> FileWatch:
    """Require the newest database, migrate it, and watch its files."""
    # Before the migration, so that a refused database stays unchanged.
    with connection.begin():
        sqlite_file.require_newest(connection, path, mark)
    prepare_schema(connection)
    with connection.begin():
        here = sqlite_file.settle(connection)
    try:
        return FileWatch(path, mark, here)
    except OSError as exc:
        raise StorageUnavailable(f"cannot write {mark}: {exc.strerror}") from exc


def prepare_schema(connection: Connection) -> None:
    """Migrate in one transaction if the schema differs from the code."""
    with connection.begin():
        revision = _migrated(connection)
    _tell(revision)


def _migrated(connection: Connection) -> str | None:
    revision = schema_revision(connection)
    if revision is None and inspect(connection).get_table_names():
        raise StorageUnavailable("this database belongs to another program")
    if revision != REVISION and not _is_served(connection, revision):
        upgrade(connection)
    return revision


def _tell(before: str | None) -> None:
    if before in {None, REVISION}:
        return
    if before in known_revisions():
        log.info("database_migrated", before=before, revision=REVISION)
    else:
        log.info("database_ahead", revision=before, known=REVISION)


def _is_served(conn: Connection, revision: str | None) -> bool:
    """Whether this version can run on a server migrated by a newer one.

    During a rolling upgrade older and newer replicas run together. A file has a single process, so
    an older version needs its own backup.
    """
    if conn.dialect.name != "postgresql" or revision is None or revision <= REVISION:
        return False
    floor = conn.exec_driver_sql("SELECT obj_description('alembic_version'::regclass)").scalar()
    return floor is not None and str(floor) <= REVISION


def schema_revision(connection: Connection) -> str | None:
    """Return the database's revision; None if empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    version = table("alembic_version", sql_column("version_num"))
    return connection.scalar(select(version.c.version_num))


def require_database(location: Location) -> None:
    """Raise `StorageUnavailable` if the file is missing or unreadable; ignore servers."""
    if isinstance(location, DatabaseServer):
        return
    try:
        found = location.is_file()
    except OSError as exc:
        raise StorageUnavailable(f"cannot read {location}: {exc.strerror}") from exc
    if not found:
        raise StorageUnavailable(f"there is no database at {location}")


def upgrade(conn: Connection) -> None:
    """Migrate to the newest revision within the caller's transaction.

    Raises `DatabaseTooNew` if this version does not know the database's revision.
    """
    from alembic import command  # noqa: PLC0415

    refuse_newer(conn)
    command.upgrade(_config(conn), "head")
    # For older versions, which do not know this revision (`_is_served`).
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql(f"COMMENT ON TABLE alembic_version IS '{FLOOR}'")


def refuse_newer(conn: Connection) -> None:
    """Refuse a database whose revision is unknown to this code.

    Raises `DatabaseTooNew`, or `StorageUnavailable` for one of the unreleased 0.6.
    """
    revision = schema_revision(conn)
    if revision is None or revision in known_revisions() or _is_served(conn, revision):
        return
    if revision < REVISION:
        raise StorageUnavailable(
            f"the database has schema revision {revision} of the unreleased 0.6: convert it with"
            " `parley db convert` of commit 3db639b9, or start with a backup of a released version"
            " (docs/upgrade.md)"
        )
    raise DatabaseTooNew(
        f"the database has schema revision {revision}, which this version of Parley does not"
        f" know (newest here: {REVISION}); install the version that wrote it, or restore a backup"
    )


def differences(conn: Connection) -> list[str]:
    """Describe the differences between the database's tables and the code's."""
    from alembic.autogenerate import compare_metadata  # noqa: PLC0415
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415

    def is_compared(name: str | None, kind: str, _: object) -> bool:
        # Skip the search index and its internal tables.
        return kind != "table" or not (name or "").startswith(SEARCH_INDEX)

    context = MigrationContext.configure(conn, opts={"include_name": is_compared})
    return [str(difference) for difference in compare_metadata(context, metadata)]


def behind(found: str | None) -> list[str]:
    """Return the migrations missing from a database of this revision, one line each, in order."""
    scripts = sorted(_scripts().walk_revisions(), key=lambda each: each.revision)
    return [
        f"{each.revision} {each.doc}" for each in scripts if found is None or each.revision > found
    ]


def known_revisions() -> frozenset[str]:
    """Return all revisions of this code, reading the migration files once."""
    return _revisions_in(Path(migrations.__file__).parent)


@cache
def _revisions_in(folder: Path) -> frozenset[str]:
    return frozenset(script.revision for script in _scripts(folder).walk_revisions())


def _scripts(folder: Path | None = None) -> "ScriptDirectory":
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    return ScriptDirectory(str(folder or Path(migrations.__file__).parent))


def _config(conn: Connection) -> "Config":
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = conn
    # For 0035, which distinguishes a new home from a used one.
    config.attributes["before"] = schema_revision(conn)
    return config
