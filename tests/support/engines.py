"""Runs tests that run a gateway on both databases: on SQLite, and on a real PostgreSQL.

Such is every test that comes upon what runs a gateway (`STARTS`), or asks for an open database. On
PostgreSQL each PARLEY_HOME of a test has a database of its own, which is there again when a gateway
is restarted. What is about SQLite's file asks for `sqlite_alone`. At the desk one in `EVERY` runs
on PostgreSQL, none of those in a browser, which takes seconds; by `make test-all` one in
`EVERY_ALL`, by `make test-deep` all: CI has 90 minutes.
"""

import inspect
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from tests.support.thorough import amount

if TYPE_CHECKING:
    # That one stands on what this one is for.
    from tests.support.postgres import PostgresServer

SQLITE, POSTGRES = "sqlite", "postgres"
EVERY, EVERY_ALL = 20, 20
STARTS = {
    ("tests.support.gateway", "running"),
    ("tests.support.gateway", "serving"),
    ("tests.support.process", "ParleyProcess"),
    ("tests.e2e.platforms.scenario", "scene"),
}
"""What runs a gateway: module and name."""
FIXTURES = {"store", "database"}


class Homes:
    """The databases of one test on PostgreSQL, by the PARLEY_HOME whose they are."""

    def __init__(self, server: "PostgresServer", template: str) -> None:
        self._server = server
        self._template = template
        self._names: dict[Path, str] = {}

    def url(self, home: Path) -> str:
        """Return where the database of a home is; it is made with the first call."""
        if home not in self._names:
            self._names[home] = self._server.create(self._template)
        return self._server.url(self._names[home])

    def drop(self) -> None:
        """Take all of them away."""
        for name in self._names.values():
            self._server.drop(name)


class _Current:
    homes: Homes | None = None


def storage_of(home: Path) -> dict[str, Any]:
    """Return the settings of the storage for a home of the test that runs."""
    homes = _Current.homes
    return {} if homes is None else {"url": homes.url(home)}


def disk_is_full() -> OperationalError:
    """Return what the database of the test that runs raises where its disk is full."""
    cause = sqlite3.OperationalError if _Current.homes is None else psycopg.errors.DiskFull
    return OperationalError("x", {}, cause("database or disk is full"))


@pytest.fixture(autouse=True)
def database_engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The database of the test's gateways."""
    name: str = getattr(request, "param", SQLITE)
    if name == SQLITE:
        yield name
        return
    server, template = map(request.getfixturevalue, ("postgres_worker", "postgres_template"))
    _Current.homes = Homes(server, template)
    try:
        yield name
    finally:
        homes, _Current.homes = _Current.homes, None
        homes.drop()


def on_both(metafunc: pytest.Metafunc) -> None:
    """Have a test run on both databases if it runs a gateway; its name on SQLite stays as it is."""
    asked = set(metafunc.fixturenames)
    is_of_both = bool(asked & FIXTURES) or any(map(comes_upon_gateway, _functions(metafunc)))
    if is_of_both and "sqlite_alone" not in asked | _marked(metafunc):
        values = [pytest.param(SQLITE, id=pytest.HIDDEN_PARAM)]
        drawn = zlib.crc32(metafunc.definition.nodeid.encode())
        if drawn % amount(EVERY_ALL, EVERY_ALL, 1) == 0:
            at_desk = drawn % EVERY == 0 and "the_browser" not in asked | _marked(metafunc)
            marks = () if at_desk else (pytest.mark.thorough,)
            values.append(pytest.param(POSTGRES, id=POSTGRES, marks=marks))
        metafunc.parametrize("database_engine", values, indirect=True)


def _marked(metafunc: pytest.Metafunc) -> set[str]:
    marks = metafunc.definition.iter_markers("usefixtures")
    return {name for mark in marks for name in mark.args}


def _functions(metafunc: pytest.Metafunc) -> Iterator[Callable[..., Any]]:
    """Yield the test, and the fixtures that it asks for."""
    yield metafunc.function
    for definitions in metafunc._arg2fixturedefs.values():
        yield from (each.func for each in definitions)


_known: dict[Any, bool] = {}


def comes_upon_gateway(what: Any) -> bool:
    """Whether a function or class uses a gateway, by itself or through others of the tests."""
    # Of a property test what it does stands inside of what hypothesis makes of it.
    what = inspect.unwrap(getattr(getattr(what, "hypothesis", None), "inner_test", what))
    if what in _known:
        return _known[what]
    # Who comes back here while it is looked at finds nothing new.
    _known[what] = False
    if inspect.isclass(what):
        found = any(comes_upon_gateway(each) for each in vars(what).values() if _is_ours(each))
    else:
        within = what.__globals__
        named = (within[name] for name in _names(what.__code__) if name in within)
        ours = [each for each in named if _is_ours(each)]
        found = any(_starts_gateway(each) or comes_upon_gateway(each) for each in ours)
    _known[what] = found
    return found


def _starts_gateway(what: Any) -> bool:
    return (what.__module__, what.__name__) in STARTS


def _is_ours(what: Any) -> bool:
    is_code = inspect.isfunction(what) or inspect.isclass(what)
    return is_code and what.__module__.startswith("tests.")


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals that a function and those inside of it use."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)
