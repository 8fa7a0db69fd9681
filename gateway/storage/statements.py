"""What statements share: they are built once, compare with words, and lists have pages."""

from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar, cast

from sqlalchemy import ColumnElement, Text, bindparam, literal_column
from sqlalchemy.sql.operators import OperatorType
from typing_extensions import override

from gateway.errors import NotFound

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def built_once(build: Callable[P, S]) -> Callable[P, tuple[S, dict[str, Any]]]:
    """Return a function that gives `conn.execute` a statement and its values.

    `build` is called once, with bind parameters in place of its arguments; it must therefore not
    look at them, only put them into the statement.
    """
    keys = {name: f"p_{name}" for name in signature(build).parameters}
    in_order = tuple(keys.values())

    @cache
    def statement() -> S:
        parameters: dict[str, Any] = {name: bindparam(key) for name, key in keys.items()}
        return cast("Callable[..., S]", build)(**parameters)

    @wraps(build)
    def bound(*args: P.args, **kwargs: P.kwargs) -> tuple[S, dict[str, Any]]:
        values = dict(zip(in_order, args, strict=False))
        for name, value in kwargs.items():
            values[keys[name]] = value
        return statement(), values

    return bound


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
