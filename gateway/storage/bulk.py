"""The two ends of `parley db copy`: a file that is read, and a server that is written.

Both read whole tables in the order of their keys.

What a row is does not depend on the engine: texts, whole numbers, fractions, booleans and bytes as
Python has them; a NUL in a text is U+FFFD, since PostgreSQL has no text with one.
Keys that are texts are ordered by their bytes everywhere.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic import SecretStr
from sqlalchemy import Boolean, Connection, Table, Text
from sqlalchemy.exc import DBAPIError

from gateway.errors import DatabaseLocked, SettingsError, StorageUnavailable
from gateway.storage import identity, maintenance
from gateway.storage.database import DatabaseServer
from gateway.storage.engine import lock_database
from gateway.storage.identity import Seen
from gateway.storage.migrations import require_database
from gateway.storage.schema import metadata

Key = tuple[Any, ...]
Row = tuple[Any, ...]

LEFT_OUT = frozenset({"identity", "spent_slot", "adapter_lease", "chat_watch", "chat_preview"})
"""Which file it is; sums that each engine spreads over rows in its own way (`slots_sql`); what
matters while replicas run. Nor the search index, which is made anew, too."""
FETCHED_BYTES = 1 << 20
"""What one answer of PostgreSQL should hold."""
FIRST_FETCH, MOST_FETCHED = 8, 2_000
"""Rows; a row may have a megabyte, so the first answer is small."""
VALUE_BYTES = 16
"""What a value costs beside its text."""
_NUL, _REPLACEMENT = "\0", "\ufffd"


def key_of(table: Table) -> list[int]:
    """Return the places of a table's key among its columns."""
    names = [column.name for column in table.columns]
    return [names.index(column.name) for column in table.primary_key.columns]


def weight(row: Row) -> int:
    """Return about how many bytes a row has."""
    sizes = (len(value) for value in row if isinstance(value, (str, bytes)))
    return sum(sizes) + VALUE_BYTES * len(row)


def gives_ids(table: Table) -> bool:
    """Whether the database itself numbers the rows of a table."""
    return "id" in table.c and table.c.id.autoincrement is True


def canonical(value: Any) -> Any:
    """Return a value as both engines can store it."""
    if isinstance(value, str) and _NUL in value:
        return value.replace(_NUL, _REPLACEMENT)
    return value


def _columns(table: Table) -> str:
    return ", ".join(f'"{column.name}"' for column in table.columns)


class SourceFile:
    """A SQLite file that is read; no gateway runs on it."""

    def __init__(self, path: Path, conn: Connection) -> None:
        self.name = str(path)
        self.conn = conn
        self._raw = cast("sqlite3.Connection", conn.connection.driver_connection)

    def rows(self, table: Table, after: Key | None = None) -> Iterator[Row]:
        """Yield the rows behind a key, in order."""
        keys = ", ".join(f'"{column.name}"' for column in table.primary_key.columns)
        behind = f"WHERE ({keys}) > ({', '.join('?' * len(after))})" if after else ""
        statement = f'SELECT {_columns(table)} FROM "{table.name}" {behind} ORDER BY {keys}'  # noqa: S608
        booleans = [n for n, each in enumerate(table.columns) if isinstance(each.type, Boolean)]
        with _told(table):
            for found in self._raw.execute(statement, after or ()):
                row = [canonical(value) for value in found]
                for n in booleans:
                    row[n] = None if row[n] is None else bool(row[n])
                yield tuple(row)

    def fingerprint(self) -> Seen:
        """Return which database it is."""
        return identity.seen_in(self.conn) or Seen(self.name, 0)

    def newest_id(self, table: Table) -> int:
        """Return the highest id that a table has ever given."""
        found = self._raw.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,))
        row = found.fetchone()
        return int(row[0]) if row else 0


class TargetServer:
    """A PostgreSQL database that is written; the lock that replicas share is held."""

    def __init__(self, name: str, conn: Any) -> None:
        self.name = name
        self.conn: Connection = conn
        self._driver: Any = conn.connection.driver_connection

    def transaction(self) -> AbstractContextManager[Any]:
        """Commit what is done meanwhile, or roll it back where an exception ends it."""
        # A statement of a reader has begun one by itself.
        return nullcontext() if self.conn.in_transaction() else self.conn.begin()

    def rows(self, table: Table) -> Iterator[Row]:
        """Yield all rows, in the order of the source."""
        keys = ", ".join(_by_bytes(column) for column in table.primary_key.columns)
        statement = f'SELECT {_columns(table)} FROM "{table.name}" ORDER BY {keys}'  # noqa: S608
        with (
            _told(table),
            self.transaction(),
            self._driver.cursor("copied", binary=True) as found,
        ):
            found.execute(statement)
            wanted = FIRST_FETCH
            while some := found.fetchmany(wanted):
                yield from some
                size = sum(map(weight, some)) / len(some)
                wanted = max(1, min(MOST_FETCHED, int(FETCHED_BYTES / size)))

    def enter(self, table: Table, rows: Sequence[Row]) -> None:
        """Enter rows, within a transaction; sums of the ledger are rows of their own."""
        into: Any = f'COPY "{table.name}" ({_columns(table)}) FROM STDIN'
        with _told(table):
            self._triggers(table, "DISABLE")
            with self._driver.cursor() as cursor, cursor.copy(into) as copy:
                for row in rows:
                    copy.write_row(row)
            self._triggers(table, "ENABLE")

    def _triggers(self, table: Table, what: str) -> None:
        """Keep the triggers of the ledger, those of no reference, from summing up once more."""
        if table.name == "ledger":
            statement: Any = f'ALTER TABLE "{table.name}" {what} TRIGGER USER'
            self._driver.execute(statement)

    def count_from(self, table: Table, newest: int) -> None:
        """Have a table give ids behind this one only."""
        self._driver.execute(
            "SELECT setval(%s, greatest(%s, 1), %s > 0)", (_ids(table), newest, newest)
        )

    def settle(self) -> None:
        """Have it know its tables."""
        # Until it knows its tables it plans as if they were empty.
        with self.transaction():
            self._driver.execute("ANALYZE")


def _ids(table: Table) -> str:
    """Return the name of the sequence that gives a table's ids."""
    return f"{table.name}_id_seq"


def _by_bytes(column: Any) -> str:
    name = f'"{column.name}"'
    return f'{name} COLLATE "C"' if isinstance(column.type, Text) else name


@contextmanager
def _told(table: Table) -> Iterator[None]:
    """Have errors of a driver name the table, and not what people wrote."""
    try:
        yield
    except sqlite3.Error as exc:
        raise StorageUnavailable(f"{table.name}: {exc}") from exc
    except DBAPIError as exc:
        raise StorageUnavailable(f"{table.name}: {exc.orig}") from None
    except Exception as exc:
        if diagnosis := getattr(exc, "diag", None):
            text = diagnosis.message_primary or str(exc).splitlines()[0]
            raise StorageUnavailable(f"{table.name}: {text}") from None
        raise


@contextmanager
def _unused(path: Path) -> Iterator[None]:
    with ExitStack() as held:
        try:
            held.enter_context(lock_database(path))
        except DatabaseLocked:
            raise DatabaseLocked(
                f"{path} is in use: stop the gateway that runs on it, and copy again"
            ) from None
        yield


@contextmanager
def target_of(url: str) -> Iterator[TargetServer]:
    """Open a database of PostgreSQL, with the lock that keeps replicas away from it.

    Raises:
        SettingsError: It is the URL of something else.
        DatabaseLocked: A replica, or another copy, runs on it.
        StorageUnavailable: It cannot be reached.
    """
    if urlsplit(url).scheme not in {"postgresql", "postgres"}:
        raise SettingsError(
            "the target is named as postgresql://USER@HOST/NAME: an empty database on PostgreSQL"
        )
    # The driver for PostgreSQL is loaded where one is copied.
    from gateway.storage import postgres, presence  # noqa: PLC0415

    name = shown(url)
    with closing(postgres.connect(DatabaseServer(SecretStr(url)))) as conn:
        with conn.begin():
            conn.exec_driver_sql("SET statement_timeout = 0")
            conn.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
            alone = conn.exec_driver_sql("SELECT pg_try_advisory_lock(%s)", (presence.USED_LOCK,))
            is_alone = alone.scalar_one()
        if not is_alone:
            raise DatabaseLocked(
                f"{name} is in use: stop its replicas, and what else copies it, and copy again"
            )
        yield TargetServer(name, conn)


def shown(url: str) -> str:
    """Return the URL of a PostgreSQL database as people may see it: without its password."""
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    parts = conninfo_to_dict(url)
    host, port = parts.get("host", ""), parts.get("port", "")
    where = f"{host}:{port}" if port else host
    return f"postgresql://{where}/{parts.get('dbname', '')}"


def tables() -> list[Table]:
    """Return what is copied, in an order in which what is referred to comes first."""
    return [table for table in metadata.sorted_tables if table.name not in LEFT_OUT]


@contextmanager
def source_of(url: str, home: Path) -> Iterator[SourceFile]:
    """Open a file of SQLite for reading, with the lock that keeps a gateway away from it.

    A relative path is one in PARLEY_HOME.

    Raises:
        SettingsError: It is the URL of something else.
        DatabaseLocked: A gateway runs on it.
        StorageUnavailable: There is none, or it cannot be read.
    """
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite" or not rest.startswith("/") or len(rest) == 1:
        raise SettingsError(
            "the source is named as sqlite:///FILE, with four slashes where the path begins with"
            " one; for a copy of a PostgreSQL there is pg_dump"
        )
    path = home / rest[1:]
    # Before the lock, which would make a file beside one that is not there.
    require_database(path)
    with _unused(path), maintenance.reading(path) as conn:
        yield SourceFile(path, conn)
