"""The schema: all tables, and SQL functions that both databases know.

Uniqueness rules are indexes; `message` rows are never updated. Times are seconds since the epoch by
the database's clock (`now_s`), unless a comment says otherwise.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Double, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

# A list would repeat all names of the schema.
from gateway.storage.schema.columns import *  # noqa: F403
from gateway.storage.schema.conversations import *  # noqa: F403
from gateway.storage.schema.people import *  # noqa: F403
from gateway.storage.schema.queue import *  # noqa: F403

AT_ONCE = 1_000
"""People looked up per statement. PostgreSQL nests one expression for each and allows about 10,000
levels at its default of 2 MB. Source: its documentation, `max_stack_depth`."""
REVISION = "0035"
"""The alembic revision that this code needs; a test compares it with the newest migration."""
FLOOR = "0035"
"""The oldest revision whose program runs on this schema: later migrations only add (see
docs/operations.md, *Rolling upgrades*). A migration that removes something sets it to its own
revision."""


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


class octets(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """The length of a text in bytes; `length` counts characters."""

    type = BigInteger()
    inherit_cache = True


@compiles(octets, "sqlite")
def _sqlite_octets(element: octets, compiler: Any, **how: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **how)} AS BLOB))"


@compiles(octets, "postgresql")
def _postgresql_octets(element: octets, compiler: Any, **how: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **how)})"


def now(conn: Connection) -> float:
    """Return the time by the database's clock, in seconds since the epoch."""
    return conn.execute(select(now_s())).scalar_one()


def batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split a sequence into batches for one statement each."""
    return (items[n : n + AT_ONCE] for n in range(0, len(items), AT_ONCE))


def id_in(text: str) -> int | None:
    """Parse an id; None unless it is a number that fits an id column."""
    # `isascii` excludes digits of other scripts.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def iso_time(at: float) -> str:
    """Format a stored time as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
