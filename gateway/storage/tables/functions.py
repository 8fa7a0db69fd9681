"""SQL functions that the databases know by different words, and times."""

from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Double,
    func,
    literal_column,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

T = TypeVar("T")


class now_s(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """Seconds since the epoch by the database's clock."""

    type = Double()
    inherit_cache = True


@compiles(now_s, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    # 2440587.5 is the Julian day with which the Unix epoch begins.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now_s, "postgresql")
def _postgresql_now(*_: Any, **__: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class greatest(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """The largest of several whole numbers."""

    type = BigInteger()
    inherit_cache = True


@compiles(greatest, "sqlite")
def _sqlite_greatest(element: greatest, compiler: Any, **how: Any) -> str:
    return f"max({compiler.process(element.clauses, **how)})"


@compiles(greatest, "postgresql")
def _postgresql_greatest(element: greatest, compiler: Any, **how: Any) -> str:
    return f"greatest({compiler.process(element.clauses, **how)})"


class octets(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """The bytes of a text; its `length` are characters."""

    type = BigInteger()
    inherit_cache = True


@compiles(octets, "sqlite")
def _sqlite_octets(element: octets, compiler: Any, **how: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **how)} AS BLOB))"


@compiles(octets, "postgresql")
def _postgresql_octets(element: octets, compiler: Any, **how: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **how)})"


def of_key(column: ColumnElement[T], nothing: str) -> ColumnElement[T]:
    """Return what a column holds in a row that is found by its key, whatever index has the column.

    Before PostgreSQL has counted it takes a partial index for a small one, and reads all of it: all
    conversations that are worked on, all turns that run, and what is left of those that did.

    Args:
        column: It holds something, where the row is one that is looked for.
        nothing: A value that it never has, as SQL.
    """
    return func.nullif(column, literal_column(nothing), type_=column.type)


def now(conn: Connection) -> float:
    """Return the time by the database's clock, in seconds since the epoch."""
    at: float = conn.execute(select(now_s())).scalar_one()
    return at


def iso_time(at: float) -> str:
    """Return a stored time as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
