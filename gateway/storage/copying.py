"""Copies a SQLite file into an empty PostgreSQL database: `parley db copy`.

The copy is one transaction of the target: an interrupted one, even by a kill, leaves nothing.
Tables are copied in the order of their references; then all tables of both sides are read in key
order and their digests compared. The indexer fills the search index later. Ids continue from the
source's.

Digests do not depend on the engine: they use Python values; a NUL in a text becomes U+FFFD, since
PostgreSQL cannot store it. Text keys are ordered by bytes.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr
from sqlalchemy import Connection, Table, Text, collate, delete, func, inspect, select, text

from gateway.errors import DatabaseLocked, SettingsError, StorageUnavailable
from gateway.storage import maintenance, migrations, postgres, presence
from gateway.storage.database import DatabaseServer
from gateway.storage.migrations import schema_revision
from gateway.storage.postgres import driver_of, text_of
from gateway.storage.schema import REVISION, metadata, replica
from gateway.storage.search import index
from gateway.storage.sqlite_file import lock_database

LEFT_OUT = frozenset({"identity", "adapter_lease", "chat_watch", "chat_preview", "search_row"})
"""Tables that are not copied: the file's identity, rows of running replicas, the search index."""
FETCHED_ROWS = 64
"""Rows per fetch; a row may have a megabyte."""
TOLD_EVERY = 500
"""Rows between two progress reports."""


class TableDigest(NamedTuple):
    """A table's number of rows, and their SHA-256 in key order."""

    table: str
    rows: int
    sha256: str


Tell = Callable[..., object]
"""Receives the progress: table, rows copied so far, total rows."""


def file_of(url: str, home: Path) -> Path:
    """Return the file of a SQLite URL, relative to PARLEY_HOME; else raise `SettingsError`."""
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite" or not rest.startswith("/") or len(rest) == 1:
        raise SettingsError(
            "the source is named as sqlite:///FILE, with four slashes where the path begins with"
            " one; for a copy of a PostgreSQL there is pg_dump"
        )
    return home / rest[1:]


def server_of(url: str) -> DatabaseServer:
    """Return the server of a PostgreSQL URL; raise `SettingsError` for others."""
    if urlsplit(url).scheme not in {"postgresql", "postgres"}:
        raise SettingsError(
            "the target is named as postgresql://USER@HOST/NAME: an empty database on PostgreSQL"
        )
    return DatabaseServer(SecretStr(url))


def shown(server: DatabaseServer) -> str:
    """Return a server's URL without its password."""
    parts = conninfo_to_dict(server.url.get_secret_value())
    host, port = parts.get("host", ""), parts.get("port", "")
    where = f"{host}:{port}" if port else host
    return f"postgresql://{where}/{parts.get('dbname', '')}"


def tables() -> list[Table]:
    """Return the tables to copy, each after those it references."""
    return [table for table in metadata.sorted_tables if table.name not in LEFT_OUT]


def copy(file: Path, server: DatabaseServer, tell: Tell) -> list[TableDigest]:
    """Copy everything; return the digests, equal on both sides.

    Raises:
        DatabaseLocked: A gateway, replica or another copy uses either database.
        StorageUnavailable: The schemas differ, the target is not empty, or the copy differs from
            the source; nothing is changed.
        DatabaseTooNew: The target was written by a newer version.
    """
    # Before locking, which would create a file.
    migrations.require_database(file)
    with (
        lock_database(file),
        maintenance.reading(file) as source,
        postgres.told_as_unavailable("copy the database"),
        closing(_alone(server)) as target,
        target.begin(),
    ):
        _require_revision(source, str(file))
        _require_empty(target, shown(server))
        digests = [_copied(source, target, table, tell) for table in tables()]
        index.clear(target)
        _count_on(source, target)
        # Otherwise the server plans queries as if the tables were empty.
        target.exec_driver_sql("ANALYZE")
    return digests


def _alone(server: DatabaseServer) -> Connection:
    """Open a session that excludes replicas and other copies from a database."""
    conn = postgres.connect(server)
    # A large table takes longer than any of a gateway's statements.
    driver_of(conn).answers_in_s = None
    with conn.begin():
        conn.exec_driver_sql("SET statement_timeout = 0")
        conn.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
        alone = "SELECT pg_try_advisory_lock(%s)"
        is_alone = conn.exec_driver_sql(alone, (presence.USED_LOCK,)).scalar_one()
    if not is_alone:
        conn.close()
        raise DatabaseLocked(
            f"{shown(server)} is in use: stop its replicas, and what else copies it, and copy again"
        )
    return conn


def _require_revision(conn: Connection, name: str) -> None:
    migrations.refuse_newer(conn)
    if (found := schema_revision(conn)) != REVISION:
        raise StorageUnavailable(
            f"{name} has schema revision {found}, this version of Parley has {REVISION}: migrate it"
            " first (`parley db migrate`)"
        )


def _require_empty(target: Connection, name: str) -> None:
    if schema_revision(target) is None:
        if inspect(target).get_table_names():
            raise StorageUnavailable(f"{name} belongs to another program")
        migrations.upgrade(target)
    _require_revision(target, name)
    for table in tables():
        one = target.execute(select(*table.primary_key.columns).limit(1)).first()
        # A replica may have registered in an otherwise empty database.
        if one is not None and table is not replica:
            raise StorageUnavailable(
                f"{name} is not empty (table {table.name}): a copy goes into an empty database"
            )
    target.execute(delete(replica))


def _copied(source: Connection, target: Connection, table: Table, tell: Tell) -> TableDigest:
    with postgres.told_as_unavailable(f"copy {table.name}"):
        _enter(source, target, table, tell)
        here, there = _digest(source, table), _digest(target, table)
    if here != there:
        raise StorageUnavailable(
            f"the copy differs from its source in {table.name}: nothing was copied"
        )
    return here


def _enter(source: Connection, target: Connection, table: Table, tell: Tell) -> None:
    total = int(source.scalar(select(func.count()).select_from(table)) or 0)
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    into: Any = f'COPY "{table.name}" ({columns}) FROM STDIN'
    with driver_of(target).cursor() as cursor, cursor.copy(into) as copied:
        for n, row in enumerate(_rows(source, table), start=1):
            copied.write_row(row)
            if n % TOLD_EVERY == 0:
                tell(table.name, n, total)


def _rows(conn: Connection, table: Table) -> Iterator[list[Any]]:
    keys: list[Any] = list(table.primary_key.columns)
    if conn.dialect.name == "postgresql":
        keys = [collate(key, "C") if isinstance(key.type, Text) else key for key in keys]
    in_order = select(table).order_by(*keys).execution_options(yield_per=FETCHED_ROWS)
    for row in conn.execute(in_order):
        yield [text_of(value) if isinstance(value, str) else value for value in row]


def _digest(conn: Connection, table: Table) -> TableDigest:
    digest, count = hashlib.sha256(), 0
    for row in _rows(conn, table):
        digest.update(orjson.dumps(row, default=bytes.hex, option=orjson.OPT_APPEND_NEWLINE))
        count += 1
    return TableDigest(table.name, count, digest.hexdigest())


def _count_on(source: Connection, target: Connection) -> None:
    """Continue each table's ids after the highest ever used by the source."""
    rows = source.execute(text("SELECT name, seq FROM sqlite_sequence"))
    given: dict[str, int] = {row.name: row.seq for row in rows}
    for table in tables():
        if "id" in table.c and table.c.id.autoincrement is True:
            last = target.scalar(select(func.max(table.c.id))) or 0
            newest = max(last, given.get(table.name, 0))
            target.exec_driver_sql(
                "SELECT setval(%s, greatest(%s, 1), %s > 0)",
                (f"{table.name}_id_seq", newest, newest),
            )
