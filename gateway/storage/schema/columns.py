"""Parts of tables: common columns, conditions, and partial indexes."""

from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Text,
    func,
    literal_column,
    text,
)
from sqlalchemy.sql.operators import OperatorType
from typing_extensions import override

from gateway.errors import NotFound

T = TypeVar("T")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


Whole = BigInteger().with_variant(Integer(), "sqlite")
"""A 64-bit integer, like SQLite's INTEGER: ids of large installations outgrow 32 bits."""

# Ids of erasable rows are never reused (sqlite_autoincrement).


def id_column() -> Column[int]:
    """Return an autoincrementing primary key."""
    return Column("id", Whole, primary_key=True, autoincrement=True)


def conversation_column(*, primary_key: bool = False, cascades: bool = False) -> Column[int]:
    """Return the foreign key to a row's conversation.

    With `cascades` the row is deleted with its conversation, even by an older program without the
    table.
    """
    reference = ForeignKey("conversation.id", ondelete="CASCADE" if cascades else None)
    return Column("conversation", Whole, reference, primary_key=primary_key, nullable=False)


def session_column(name: str, *, primary_key: bool = False, unique: bool = False) -> Column[int]:
    """Return a foreign key to a segment."""
    return Column(
        name,
        Whole,
        ForeignKey("session.id"),
        primary_key=primary_key,
        unique=unique or None,
        nullable=False,
    )


def of_key(column: ColumnElement[T], nothing: str) -> ColumnElement[T]:
    """Return a column of a row found by its key, hidden from the column's own index.

    Without statistics PostgreSQL assumes that a partial index is small and reads all of it.
    `nothing` is an SQL value that the column never has.
    """
    return func.nullif(column, literal_column(nothing), type_=column.type)


def partial_index(name: str, *columns: Column[Any], where: str, unique: bool = False) -> None:
    """Add an index of the rows that satisfy `where`.

    SQLite compares conditions literally, so a condition must use literals, not parameters, to use
    the index.
    """
    Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


class Word(Text):
    """A word from a fixed set, such as a state; compared as a literal.

    A parameter would prevent SQLite from using a partial index, or make it plan the statement on
    each run (0.1 ms).
    """

    cache_ok = True

    class Comparator(Text.Comparator[str]):
        """Renders the compared words as literals."""

        @override
        def operate(self, op: OperatorType, *other: Any, **kwargs: Any) -> ColumnElement[Any]:
            return super().operate(op, *(_literally(value) for value in other), **kwargs)

    comparator_factory = Comparator


def _literally(value: Any) -> Any:
    if isinstance(value, str):
        if not value.isidentifier():
            raise ValueError(f"{value!r} is not a word that a column is compared with")
        return literal_column(f"'{value}'")
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_literally(each) for each in value]
    return value


def known_place(found: T | None, after: str) -> T:
    """Return the sort key of the row before a page; raise `NotFound` if it is None."""
    if found is None:
        raise NotFound(f"there is no {after} to go on behind; begin without it")
    return found
