"""What statements share: they are built once, compiled once, planned once, and lists have pages.

Constructing an expression costs five times its execution, and so does having it planned. What is
built by `built_once`, or is a constant that was handed to `kept`, is compiled by SQLAlchemy once;
from then on its text and its values go to the driver directly (`PreparedConnection`; for PostgreSQL
gateway/storage/postgres.py). By way of SQLAlchemy each run takes 40 us more, three times what
SQLite takes: it looks up the compiled form, and makes a context, a cursor and a result.
"""

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Text,
    TextClause,
    bindparam,
    literal_column,
)
from sqlalchemy.exc import DBAPIError, MultipleResultsFound, NoResultFound
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import TypeEngine
from typing_extensions import override

from gateway.errors import NotFound

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


Forms = dict[int, dict[tuple[str, ...], Any]]
KEPT: dict[str, Forms] = {"sqlite": {}, "postgresql": {}}
"""What statements were compiled to, by dialect, their ids and the names of their values."""
_FOREVER: list[Any] = []


def kept(statement: S) -> S:
    """Have a statement be compiled once; for those that are constants of a module."""
    # As long as it is there nothing else gets its id.
    _FOREVER.append(statement)
    for forms in KEPT.values():
        forms[id(statement)] = {}
    return statement


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
        return kept(cast("Callable[..., S]", build)(**parameters))

    @wraps(build)
    def bound(*args: P.args, **kwargs: P.kwargs) -> tuple[S, dict[str, Any]]:
        values = dict(zip(in_order, args, strict=False))
        for name, value in kwargs.items():
            values[keys[name]] = value
        return statement(), values

    return bound


class PreparedConnection(Connection):
    """A connection to SQLite; the rows of what is kept are all read at once.

    All else, and everything as long as somebody listens to SQLAlchemy's events, goes its way.
    Another dialect has its own `kept_forms`, `form_of`, `run` and `execute_otherwise`.
    """

    kept_forms: Forms = KEPT["sqlite"]

    @override
    def execute(self, statement: Any, parameters: Any = None, **options: Any) -> Any:
        """Run a statement; for what is kept, with a mapping of values or a list of such."""
        forms = self.kept_forms.get(id(statement))
        # Nothing public tells whether anybody listens.
        if forms is None or self._has_events or self.engine._has_events:  # noqa: SLF001
            return self.execute_otherwise(statement, parameters, **options)
        rows = parameters if isinstance(parameters, list) else [parameters or {}]
        names = tuple(rows[0])
        if names not in forms:
            forms[names] = self.form_of(statement, names)
        if (form := forms[names]) is None:
            return self.execute_otherwise(statement, parameters, **options)
        return self.run(form, rows)

    def execute_last(self, statement: Any, parameters: Any) -> Any:
        """Run a statement that ends a transaction; see `last`."""
        return self.execute(statement, parameters)

    def execute_later(self, statement: Any, parameters: Any) -> Any:
        """Run a statement whose rows are read later; see `later`."""
        return self.execute(statement, parameters)

    def execute_otherwise(self, statement: Any, parameters: Any, **options: Any) -> Any:
        """Run a statement that is compiled for this time only."""
        return super().execute(statement, parameters, **options)

    def form_of(self, statement: Any, names: tuple[str, ...]) -> Any:
        """Compile a statement for values of these names; None where that has to be done anew."""
        compiled = compiled_once(statement, names, self.dialect)
        # Text that somebody has written knows no types, and needs none where it finds nothing.
        columns = () if isinstance(statement, TextClause) else statement.exported_columns
        return None if compiled is None else _Form(compiled, [each.type for each in columns])

    def run(self, form: Any, rows: list[Any]) -> Any:
        """Run what `form_of` has returned, with each of these values."""
        driver = cast("sqlite3.Connection", self.connection.driver_connection)
        run = driver.execute if len(rows) == 1 else driver.executemany
        try:
            return form.found(run(form.text, form.bound(rows)))
        except sqlite3.Error as exc:
            raise DBAPIError.instance(
                form.text, None, exc, sqlite3.Error, hide_parameters=True
            ) from exc

    @override
    def scalar(self, statement: Any, parameters: Any = None, **options: Any) -> Any:
        """Return the first column of the first row; None for none."""
        return self.execute(statement, parameters, **options).scalar()

    @override
    def scalars(self, statement: Any, parameters: Any = None, **options: Any) -> Any:
        """Return the first column of all rows."""
        return self.execute(statement, parameters, **options).scalars()


def last(conn: Connection, statement: Any, parameters: Any) -> Any:
    """Run a statement with which a transaction can end.

    On PostgreSQL the COMMIT goes with it, so that nobody waits twice while others wait for what is
    locked. What a function does behind it is a transaction of its own there.
    """
    return cast("PreparedConnection", conn).execute_last(statement, parameters)


def later(conn: Connection, statement: Any, parameters: Any) -> Any:
    """Run a statement; its rows (`all`, `one`) decide nothing before others have been run.

    On PostgreSQL nobody waits for it before its rows are read, or others'.
    """
    return cast("PreparedConnection", conn).execute_later(statement, parameters)


def compiled_once(statement: Any, names: tuple[str, ...], dialect: Dialect) -> Any:
    """Compile a statement for values of these names; None where its text depends on the values."""
    compiled = statement.compile(dialect=dialect, column_keys=list(names))
    # A list takes as many places as it has values; a default of Python's is asked for each time.
    depends = compiled.post_compile_params or compiled.literal_execute_params
    if depends or compiled.insert_prefetch or compiled.update_prefetch:
        return None
    return compiled


class _Form:
    """A statement as the driver takes it: its text, its values in order, its rows with names."""

    def __init__(self, compiled: Any, types: Sequence[TypeEngine[Any]]) -> None:
        dialect, binds = compiled.dialect, compiled.binds
        self.text: str = compiled.string
        self._fixed = {
            key: each.effective_value for key, each in binds.items() if not each.required
        }
        self._places: list[str] = compiled.positiontup
        written = [binds[key].type.dialect_impl(dialect) for key in self._places]
        self._writes = _changed(each.bind_processor(dialect) for each in written)
        read = [each.dialect_impl(dialect) for each in types]
        self._reads = _changed(each.result_processor(dialect, None) for each in read)
        self._row: Any = None

    def bound(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Return the values of a row, or of each of several, as the statement has places."""
        filled = [self._filled({**self._fixed, **row} if self._fixed else row) for row in rows]
        return filled if len(filled) > 1 else filled[0]

    def _filled(self, row: Mapping[str, Any]) -> list[Any]:
        return _converted([row[key] for key in self._places], self._writes)

    def found(self, cursor: sqlite3.Cursor) -> "Rows":
        """Return what a run has found, or how many rows it has changed."""
        if cursor.description is None:
            return Rows((), cursor.rowcount)
        if self._row is None:
            # Where two tables have a column of the same name the first one keeps it.
            names = [name for name, *_ in cursor.description]
            self._row = namedtuple("Row", names, rename=True)  # type: ignore[misc]
        found: Any = cursor.fetchall()
        if reads := self._reads:
            found = (_converted(list(row), reads) for row in found)
        return Rows(map(self._row._make, found), cursor.rowcount)


_Converters = list[tuple[int, Any]]
"""Functions for the values at some places of a row; for most there is nothing to do."""


def _changed(converters: Iterable[Any]) -> _Converters:
    return [(n, convert) for n, convert in enumerate(converters) if convert is not None]


def _converted(values: list[Any], converters: _Converters) -> list[Any]:
    for n, convert in converters:
        values[n] = convert(values[n])
    return values


class Rows(list[Any]):
    """The rows of a result, under the names that SQLAlchemy has for what is done with them."""

    def __init__(self, rows: Iterable[Any], rowcount: int = -1) -> None:
        super().__init__(rows)
        self.rowcount = rowcount

    def all(self) -> list[Any]:
        """Return all rows."""
        return self

    def first(self) -> Any:
        """Return the first row; None for none."""
        return self[0] if self else None

    def one_or_none(self) -> Any:
        """Return the only row; None for none."""
        if len(self) > 1:
            raise MultipleResultsFound("several rows where at most one was expected")
        return self.first()

    def one(self) -> Any:
        """Return the only row, which is there."""
        if not self:
            raise NoResultFound("no row where one was expected")
        return self.one_or_none()

    def scalar(self) -> Any:
        """Return the first column of the first row; None for none."""
        return self[0][0] if self else None

    def scalar_one(self) -> Any:
        """Return the first column of the only row."""
        return self.one()[0]

    def scalars(self) -> "Rows":
        """Return the first column of all rows."""
        return Rows(row[0] for row in self)


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


def asked(conn: Connection, statement: str, values: Sequence[Any]) -> Rows:
    """Run a text that was put together for this time, with `?` for each of its values."""
    if conn.dialect.name == "sqlite":
        return Rows(conn.exec_driver_sql(statement, tuple(values)))
    return cast("Rows", cast("Any", conn).ask(statement, values))


def known_place(found: T | None, after: str) -> T:
    """Return where the row is that a page of a list begins behind.

    Raises:
        NotFound: There is no such row.
    """
    if found is None:
        raise NotFound(f"there is no {after} to go on behind; begin without it")
    return found
