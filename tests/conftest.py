"""Fixtures of all tests: real SQLite files, migrated once and copied for each test."""

import gc
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage
from hypothesis import is_hypothesis_test, settings
from sqlalchemy import Connection, Engine, create_engine

from agent.tools.world import confinement
from gateway.storage import engine as engine_module
from gateway.storage import opening
from gateway.storage.engine import Database, connect
from gateway.storage.opening import open_database
from tests.support.browser import CHROMIUM
from tests.support.shared import SHARED
from tests.support.storage import Store, copy_database, migrated_file

OTHER_PROCESSES = ("tests/crash/", "tests/e2e/")

# How long an example takes says more about the machine than about the code.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Have tests' processes heed SIGINT: a background job of a shell begins with it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector away from what all tests consist of: each full pass takes half a second.

    Nothing else goes on meanwhile, so it would also make the tests with short limits fail.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is not traced for coverage, which takes twice the time: others run those lines.

    These are property tests and those whose gateway is another process; other long ones are marked
    where they stand. What is not traced can only lower the figure.
    """
    for item in items:
        is_property = isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)
        if is_property or item.nodeid.startswith(OTHER_PROCESSES):
            item.add_marker("untraced")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run what is marked so without tracing; `no_cover` of pytest-cov does nothing in a worker."""
    coverage = Coverage.current() if item.get_closest_marker("untraced") else None
    if coverage is None:
        return (yield)
    coverage.stop()
    try:
        return (yield)
    finally:
        coverage.start()


@pytest.fixture(scope="session", autouse=True)
def _statements_are_compiled_once() -> Iterator[None]:
    """All writers share one cache of compiled statements, all readers another.

    Compiling is half their time. A cache goes by the dialect's object, so that is shared too.
    """
    known: dict[bool, Engine] = {}

    def create(*args: Any, **kwargs: Any) -> Engine:
        engine = create_engine(*args, **kwargs)
        first = known.setdefault("isolation_level" in kwargs, engine)
        engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "create_engine", create)
        yield


@pytest.fixture(scope="session", autouse=True)
def _schema_is_made_once(database_template: Path) -> Iterator[None]:
    """What would be a new database is a copy of the migrated one: migrating takes 80 ms."""
    template = database_template.read_bytes()

    def connect_to_copy(path: Path) -> Connection:
        # Where no file can be made, the real function has to say so.
        with suppress(OSError), path.open("xb") as file:
            file.write(template)
        return connect(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "connect", connect_to_copy)
        yield


@pytest.fixture(autouse=True)
def _prefixes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request of every test begins with the bytes of the one before it."""
    monkeypatch.setattr("agent.prefix.report_unexpected_move", _fail_for_a_move)
    monkeypatch.setattr("agent.prefix.report_stale_thinking", _fail_for_thinking)


def _fail_for_a_move(messages: int | None, tokens: int) -> None:
    raise AssertionError(f"the prefix moved behind {messages} messages; {tokens} tokens were kept")


def _fail_for_thinking() -> None:
    raise AssertionError("signed thinking is sent although what stood before it has changed")


@pytest.fixture(scope="session")
def database_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with the newest schema; to be copied, not opened."""
    return migrated_file(tmp_path_factory.mktemp("template") / "parley.db")


@pytest.fixture
def database_file(tmp_path: Path, database_template: Path) -> Path:
    """An empty database of the test's own, not open."""
    return copy_database(database_template, tmp_path / "parley.db")


@pytest.fixture
def store(database_file: Path) -> Iterator[Store]:
    """The test's database with a writing connection, for transaction functions."""
    opened = Store(database_file)
    yield opened
    opened.close()


@pytest.fixture
async def database(database_file: Path) -> AsyncIterator[Database]:
    """The test's database, open as in the gateway."""
    async with open_database(database_file) as opened:
        yield opened


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests this machine could not run, and why."""
    if CHROMIUM is None:
        terminalreporter.write_line("browser tests: not run, Debian's Chromium is not installed")
    if SHARED is None:
        terminalreporter.write_line("real conversations: not replayed, ../shared is not there")
    if missing := confinement.why_not():
        terminalreporter.write_line(f"confined commands: not run, {missing}")
    if os.geteuid() != 0:
        terminalreporter.write_line("commands of another user: not run, that takes root")
