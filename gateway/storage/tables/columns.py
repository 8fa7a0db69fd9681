"""What tables are made of: columns that many have, conditions, and indexes of some of the rows."""

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
"""A whole number of 64 bits, which SQLite's INTEGER has anyway: ids of a large house outgrow 32."""

# Ids of what may be erased are never given again (sqlite_autoincrement).


def id_column() -> Column[int]:
    """Return the primary key that the database counts."""
    return Column("id", Whole, primary_key=True, autoincrement=True)


def conversation_column(*, primary_key: bool = False, cascades: bool = False) -> Column[int]:
    """Return the column for the conversation to which a row belongs.

    `cascades`: the row goes with its conversation, also where a program of before the table erases
    that.
    """
    reference = ForeignKey("conversation.id", ondelete="CASCADE" if cascades else None)
    return Column("conversation", Whole, reference, primary_key=primary_key, nullable=False)


def session_column(name: str, *, primary_key: bool = False, unique: bool = False) -> Column[int]:
    """Return a column for a segment of a conversation."""
    return Column(
        name,
        Whole,
        ForeignKey("session.id"),
        primary_key=primary_key,
        unique=unique or None,
        nullable=False,
    )


def of_key(column: ColumnElement[T], nothing: str) -> ColumnElement[T]:
    """Return what a column holds in a row that is found by its key, whatever index has the column.

    Before PostgreSQL has counted it takes a partial index for a small one, and reads all of it: all
    conversations that are worked on, all turns that run, and what is left of those that did.

    Args:
        column: It holds something, where the row is one that is looked for.
        nothing: A value that it never has, as SQL.
    """
    return func.nullif(column, literal_column(nothing), type_=column.type)


def partial_index(name: str, *columns: Column[Any], where: str, unique: bool = False) -> None:
    """Index the rows of a table for which `where` holds.

    SQLite matches it by its words: a condition that is to find it has literals, no parameters.
    """
    Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


class Word(Text):
    """One word out of a few that the code knows, such as a state; compared as a literal.

    A comparison with a parameter hides a partial index from SQLite, or has it plan the statement
    anew each time that it runs, since the plan would depend on the value (0.1 ms).
    """

    cache_ok = True

    class Comparator(Text.Comparator[str]):
        """Writes the words of a comparison into the statement."""

        @override
        def operate(self, op: OperatorType, *other: Any, **kwargs: Any) -> ColumnElement[Any]:
            """Compare the column with a word, or with each of several."""
            return super().operate(op, *(_literally(value) for value in other), **kwargs)

    comparator_factory = Comparator


def _literally(value: Any) -> Any:
    """Return a literal of SQL for a word, a list of them for several; anything else as it is."""
    if isinstance(value, str):
        if not value.isidentifier():
            raise ValueError(f"{value!r} is not a word that a column is compared with")
        return literal_column(f"'{value}'")
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_literally(each) for each in value]
    return value


def known_place(found: T | None, after: str) -> T:
    """Return where the row is that a page of a list begins behind.

    Raises `NotFound` if there is no such row.
    """
    if found is None:
        raise NotFound(f"there is no {after} to go on behind; begin without it")
    return found
