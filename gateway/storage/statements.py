"""What statements share: they compare with words, and lists have pages."""

from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Text, literal_column
from sqlalchemy.sql.operators import OperatorType
from typing_extensions import override

from gateway.errors import NotFound

T = TypeVar("T")


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

    Raises:
        NotFound: There is no such row.
    """
    if found is None:
        raise NotFound(f"there is no {after} to go on behind; begin without it")
    return found
