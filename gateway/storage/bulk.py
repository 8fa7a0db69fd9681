"""Reads and enters whole tables, in the order of their keys, on either engine.

What a row is does not depend on the engine: texts, whole numbers, fractions, booleans and bytes as
Python has them; a NUL in a text is U+FFFD, since PostgreSQL has no text with one.
Keys that are texts are ordered by their bytes everywhere.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from pydantic import SecretStr
from sqlalchemy import Boolean, Connection, Integer, Table, Text
from sqlalchemy.exc import DBAPIError

from gateway.errors import DatabaseLocked, SettingsError, StorageUnavailable
from gateway.storage import identity, maintenance
from gateway.storage.database import DatabaseServer
from gateway.storage.engine import connected, lock_database
from gateway.storage.migrations import require_database
from gateway.storage.schema import metadata, rollup_triggers

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


class Fingerprint(NamedTuple):
    """Which database it is, and what it has stored as far as that is counted."""

    name: str
    commits: int


class Side(Protocol):
    """One of the two databases of a copy.

    Attributes:
        name: For people; without a password.
        conn: For the functions of the store.
    """

    name: str
    conn: Connection

    def transaction(self) -> AbstractContextManager[None]:
        """Commit what is done meanwhile, or roll it back where an exception ends it."""
        ...

    def rows(self, table: Table, after: Key | None = None) -> Iterator[Row]:
        """Yield the rows behind a key, in order; for the source, or where nothing is entered."""
        ...

    def enter(self, table: Table, rows: Sequence[Row]) -> None:
        """Enter rows, within a transaction; sums of the ledger are rows of their own."""
        ...

    def fingerprint(self) -> Fingerprint:
        """Return which database it is."""
        ...

    def newest_id(self, table: Table) -> int:
        """Return the highest id that a table has ever given, as far as that is known."""
        ...

    def count_from(self, table: Table, newest: int) -> None:
        """Have a table give ids behind this one only."""
        ...

    def settle(self) -> None:
        """Look at what was entered, outside of transactions.

        Raises:
            StorageUnavailable: A row refers to one that is not there.
        """
        ...


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


class _Sqlite:
    """A SQLite file; nobody else may have it open for writing."""

    def __init__(self, path: Path, conn: Connection) -> None:
        self.name = str(path)
        self.conn = conn
        self._raw = cast("sqlite3.Connection", conn.connection.driver_connection)

    def transaction(self) -> AbstractContextManager[Any]:
        # A statement of a reader has begun one by itself.
        return nullcontext() if self.conn.in_transaction() else self.conn.begin()

    def rows(self, table: Table, after: Key | None = None) -> Iterator[Row]:
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

    def enter(self, table: Table, rows: Sequence[Row]) -> None:
        places = ", ".join("?" * len(table.columns))
        triggers = rollup_triggers() if table.name == "ledger" else {}
        with _told(table):
            for name in triggers:
                self._raw.execute(f"DROP TRIGGER {name}")
            self._raw.executemany(
                f'INSERT INTO "{table.name}" ({_columns(table)}) VALUES ({places})',  # noqa: S608
                rows,
            )
            for trigger in triggers.values():
                self._raw.execute(trigger)

    def fingerprint(self) -> Fingerprint:
        here = identity.seen_in(self.conn)
        return Fingerprint(self.name, 0) if here is None else Fingerprint(here.name, here.commits)

    def newest_id(self, table: Table) -> int:
        found = self._raw.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,))
        row = found.fetchone()
        return int(row[0]) if row else 0

    def count_from(self, table: Table, newest: int) -> None:
        if not table.dialect_options["sqlite"]["autoincrement"]:
            return
        self._raw.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table.name,))
        self._raw.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table.name, newest))

    def settle(self) -> None:
        lost = self._raw.execute("PRAGMA foreign_key_check").fetchone()
        if lost is not None:
            raise StorageUnavailable(f"{lost[0]}: row {lost[1]} refers to a row that is not there")
        self._raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")


class _Postgres:
    """A PostgreSQL database; the lock that replicas share is held."""

    def __init__(self, name: str, conn: Any) -> None:
        self.name = name
        self.conn: Connection = conn
        self._driver: Any = conn.connection.driver_connection

    def transaction(self) -> AbstractContextManager[Any]:
        # A statement of a reader has begun one by itself.
        return nullcontext() if self.conn.in_transaction() else self.conn.begin()

    def rows(self, table: Table, after: Key | None = None) -> Iterator[Row]:
        with (
            _told(table),
            self.transaction(),
            self._driver.cursor("copied", binary=True) as found,
        ):
            found.execute(self._ordered(table, after), after or ())
            wanted = FIRST_FETCH
            while some := found.fetchmany(wanted):
                yield from some
                size = sum(map(weight, some)) / len(some)
                wanted = max(1, min(MOST_FETCHED, int(FETCHED_BYTES / size)))

    def _ordered(self, table: Table, after: Key | None) -> Any:
        columns = list(table.primary_key.columns)
        keys = ", ".join(_by_bytes(column) for column in columns)
        places = ", ".join(f"%s::{_type_of(column)}" for column in columns)
        behind = f"WHERE ({keys}) > ({places})" if after else ""
        return f'SELECT {_columns(table)} FROM "{table.name}" {behind} ORDER BY {keys}'  # noqa: S608

    def enter(self, table: Table, rows: Sequence[Row]) -> None:
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

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self.name, 0)

    def newest_id(self, table: Table) -> int:
        statement: Any = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {_ids(table)}"  # noqa: S608
        found = self._driver.execute(statement).fetchone()
        return int(found[0]) if found else 0

    def count_from(self, table: Table, newest: int) -> None:
        self._driver.execute(
            "SELECT setval(%s, greatest(%s, 1), %s > 0)", (_ids(table), newest, newest)
        )

    def settle(self) -> None:
        # Until it knows its tables it plans as if they were empty.
        with self.transaction():
            self._driver.execute("ANALYZE")


def _ids(table: Table) -> str:
    """Return the name of the sequence that gives a table's ids."""
    return f"{table.name}_id_seq"


def _by_bytes(column: Any) -> str:
    name = f'"{column.name}"'
    return f'{name} COLLATE "C"' if isinstance(column.type, Text) else name


def _type_of(column: Any) -> str:
    return "bigint" if isinstance(column.type, Integer) else "text"


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
def sqlite_source(path: Path) -> Iterator[Side]:
    """Open a file for reading, with the lock that keeps a gateway away from it.

    Raises:
        DatabaseLocked: A gateway runs on it.
        StorageUnavailable: There is none, or it cannot be read.
    """
    # Before the lock, which would make a file beside one that is not there.
    require_database(path)
    with _unused(path), maintenance.reading(path) as conn:
        yield _Sqlite(path, conn)


@contextmanager
def sqlite_target(path: Path) -> Iterator[Side]:
    """Open a file for writing, or make it, with its lock.

    Raises:
        DatabaseLocked: A gateway, or another copy, runs on it.
        StorageUnavailable: It cannot be written.
    """
    with _unused(path), connected(path) as conn:
        # Rows arrive in an order that satisfies most references; all are checked at the end.
        cast("Any", conn.connection.driver_connection).execute("PRAGMA foreign_keys=OFF")
        yield _Sqlite(path, conn)


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
def postgres_side(url: str, *, write: bool) -> Iterator[Side]:
    """Open a database, with the lock that keeps replicas away from it.

    Raises:
        DatabaseLocked: A replica, or another copy, runs on it.
        StorageUnavailable: It cannot be reached.
    """
    # The driver for PostgreSQL is loaded where one is copied.
    from gateway.storage import postgres, presence  # noqa: PLC0415

    conn = postgres.connect(DatabaseServer(SecretStr(url)))
    name = shown(url)
    try:
        with conn.begin():
            conn.exec_driver_sql("SET statement_timeout = 0")
            conn.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
            if not write:
                conn.exec_driver_sql("SET default_transaction_read_only = on")
            alone = conn.exec_driver_sql("SELECT pg_try_advisory_lock(%s)", (presence.USED_LOCK,))
            is_alone = alone.scalar_one()
        if not is_alone:
            raise DatabaseLocked(
                f"{name} is in use: stop its replicas, and what else copies it, and copy again"
            )
        yield _Postgres(name, conn)
    finally:
        conn.close()


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


def side(url: str, home: Path, *, write: bool) -> AbstractContextManager[Side]:
    """Open one side of a copy by its URL; a relative path is one in PARLEY_HOME.

    Raises:
        SettingsError: It is the URL of no database that Parley knows.
        StorageError: As `sqlite_source`, `sqlite_target` and `postgres_side` do.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and len(rest) > 1 and rest.startswith("/"):
        path = home / rest[1:]
        return sqlite_target(path) if write else sqlite_source(path)
    if scheme in {"postgresql", "postgres"}:
        return postgres_side(url, write=write)
    raise SettingsError(
        "a database is named as sqlite:///FILE (with four slashes where the path begins with one)"
        " or postgresql://USER@HOST/NAME"
    )
