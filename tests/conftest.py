"""Fixtures of all tests: real SQLite files, migrated once and copied for each test."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
from coverage import Coverage
from hypothesis import HealthCheck, is_hypothesis_test, settings
from sqlalchemy import Engine, create_engine

# First: no other module may have found the programs that this hides.
from tests import bare  # isort: skip
from agent.models.openai import mode
from agent.processes import confinement
from gateway.storage import engine as engine_module
from gateway.storage import maintenance, migrations, postgres, sqlite_file
from gateway.storage.database import Database, Location
from gateway.storage.migrations import open_database
from tests import asserted, flaky, rest, shake
from tests.support.browser import CHROMIUM, browser
from tests.support.engines import storage_of
from tests.support.nginx import NGINX
from tests.support.pgbouncer import PGBOUNCER, PgBouncer, pgbouncer
from tests.support.postgres import PostgresServer, postgres_server, server_at
from tests.support.shared import SHARED
from tests.support.storage import (
    PostgresStore,
    Store,
    connecting_to_copies,
    copy_database,
    migrated_file,
)
from tests.support.thorough import ALL, DEEP, DESK_EXAMPLES, try_fewer_examples

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes folders of its own there
ROOM_BYTES = 4 << 30
"""What all workers together may take there."""
OTHER_PROCESSES = ("tests/crash/", "tests/e2e/")
WAITING = pytest.StashKey[int]()
"""How many tests wait for `make test-all`."""

# How long an example takes, or is made, says more about the machine than about the code.
settings.register_profile(
    "untimed",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # The same examples in every run: a change that fails has broken it (decision 040).
    derandomize=not DEEP,
)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Have tests' processes heed SIGINT: a background job of a shell begins with it ignored.

    Their files lie in memory where there is room: on a disk each commit of SQLite waits for it.
    """
    asserted.watch(config)
    flaky.watch(config, everything=ALL)
    rest.watch(config, everything=ALL)
    shake.watch(config)
    # A traceback in the frames that structlog has rich draw takes 0.3 s of the processor.
    plain = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
    if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM_BYTES:
        tempfile.tempdir = str(IN_MEMORY)
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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Mark what is not traced for coverage; leave out what `make test-all` alone does.

    Tracing takes twice the time. Property tests, and those whose gateway is another process, run
    lines that others run as well; other long ones are marked where they stand. What is not traced
    can only lower the figure.
    """
    for item in items:
        is_property = isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)
        if is_property or item.nodeid.startswith(OTHER_PROCESSES):
            item.add_marker("untraced")
        if is_property:
            item.add_marker(flaky.PROPERTY)
        if is_property and not ALL:
            try_fewer_examples(getattr(item.obj, "__func__", item.obj))
    found = yield
    if not ALL:
        _leave_to_test_all(config, items)
    elif rest.REST:
        items[:] = rest.left(config, items)
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = spread(items, workers)
    return found


def spread(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the tests so that two workers begin with those that wait for other processes.

    The others need the processor meanwhile. `--dist worksteal` hands out the list in equal parts,
    and whoever has nothing left takes over the end of the longest one: there stand short tests.
    """
    if workers == 1:
        return items
    crash, e2e = ([it for it in items if it.nodeid.startswith(each)] for each in OTHER_PROCESSES)
    rest = [item for item in items if not item.nodeid.startswith(OTHER_PROCESSES)]
    beside = max(len(items) // workers - len(crash), 0)
    return [*crash, *rest[:beside], *e2e, *rest[beside:]]


def _leave_to_test_all(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is `thorough`."""
    waiting = [item for item in items if item.get_closest_marker("thorough")]
    config.stash[WAITING] = len(waiting)
    if waiting:
        config.hook.pytest_deselected(items=waiting)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that reports how many tests wait; only workers collect them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["waiting"] = session.config.stash.get(WAITING, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker has told; all collect the same."""
    if told := getattr(node, "workeroutput", None):
        node.config.stash[WAITING] = told["waiting"]


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
        first = known.setdefault("connect_args" in kwargs, engine)
        engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
        return engine

    with pytest.MonkeyPatch.context() as patch:
        for module in (engine_module, sqlite_file):
            patch.setattr(module, "create_engine", create)
        yield


@pytest.fixture(scope="session", autouse=True)
def _schema_is_made_once(database_template: Path) -> Iterator[None]:
    """What would be a new database is a copy of the migrated one: migrating takes 80 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "connected", connecting_to_copies(database_template))
        yield


@pytest.fixture(autouse=True)
def _logging_stays() -> Iterator[None]:
    """A test that leaves its log behind fails: its stderr is closed when the next one logs."""
    before = structlog.get_config()
    yield
    left = structlog.get_config()
    structlog.configure(**before)
    assert left == before


@pytest.fixture(autouse=True)
def _prefixes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request of every test begins with the bytes of the one before it."""
    monkeypatch.setattr("agent.models.base.report_unexpected_move", _fail_for_a_move)
    monkeypatch.setattr("agent.models.base.report_stale_thinking", _fail_for_thinking)


@pytest.fixture(autouse=True)
def _servers_are_new() -> None:
    """Nothing is known of a server that another test has asked."""
    mode._MODES.clear()


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
def location(tmp_path: Path, request: pytest.FixtureRequest) -> Location:
    """The test's database, empty and not open; of the engine that it runs on."""
    if url := storage_of(tmp_path).get("url"):
        return server_at(url)
    file: Path = request.getfixturevalue("database_file")
    return file


@pytest.fixture
def store(location: Location) -> Iterator[Store]:
    """The test's database with a writing connection, for transaction functions."""
    if isinstance(location, Path):
        opened = Store(location)
    else:
        opened = PostgresStore(postgres.connect(location))
    yield opened
    opened.close()


@pytest.fixture
async def database(location: Location) -> AsyncIterator[Database]:
    """The test's database, open as in the gateway."""
    async with open_database(location) as opened:
        yield opened


@pytest.fixture(scope="session")
def postgres_worker() -> Iterator[PostgresServer]:
    """The server of this worker; it starts with the first test that asks for it."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_worker: PostgresServer) -> str:
    """A database with the newest schema, to be copied."""
    name = postgres_worker.create()
    maintenance.upgrade(server_at(postgres_worker.url(name)))
    return name


@pytest.fixture
def postgres_url(postgres_worker: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A migrated database of the test's own."""
    name = postgres_worker.create(postgres_template)
    yield postgres_worker.url(name)
    postgres_worker.drop(name)


@pytest.fixture(scope="session")
def pooler(postgres_worker: PostgresServer) -> Iterator[PgBouncer]:
    """A pooler before the server of this worker."""
    with pgbouncer(postgres_worker) as started:
        yield started


@pytest.fixture
def sqlite_alone() -> None:
    """What the test is about: SQLite's plans, file, pragmas, or the order of its one writer."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def the_browser() -> AsyncIterator[None]:
    """The browser of all tests that open pages."""
    async with browser():
        yield


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which tests this run left out, which this machine could not run, and why."""
    if not ALL:
        waiting = config.stash.get(WAITING, 0)
        terminalreporter.write_line(
            f"left to `make test-all`: {waiting} tests, and examples of a property beyond"
            f" {DESK_EXAMPLES}"
        )
    if bare.BARE:
        terminalreporter.write_line("as on a bare machine: Debian's extras are hidden")
    if CHROMIUM is None:
        terminalreporter.write_line("browser tests: not run, Debian's Chromium is not installed")
    if NGINX is None:
        terminalreporter.write_line("tests behind a real proxy: not run, nginx is not installed")
    if PGBOUNCER is None:
        terminalreporter.write_line("tests behind a pooler: not run, pgbouncer is not installed")
    if SHARED is None:
        terminalreporter.write_line("real conversations: not replayed, ../shared is not there")
    if missing := confinement.why_not():
        terminalreporter.write_line(f"confined commands: not run, {missing}")
    if os.geteuid() != 0:
        terminalreporter.write_line("commands of another user: not run, that takes root")
