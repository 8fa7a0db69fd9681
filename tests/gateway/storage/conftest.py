"""Fixtures of the tests of the store, which run on SQLite and on PostgreSQL."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command

from gateway.storage import maintenance, migrations, postgres
from gateway.storage.conversation.turns import Turn
from gateway.storage.people import mcp
from gateway.storage.schema import REVISION
from tests.support.postgres import PostgresServer, server_at
from tests.support.storage import PostgresStore, Store, admit, inbound, outdated_file, turn_of

ENGINES = ("sqlite", "postgres")
EVERY = 10
"""At the desk one in so many tests runs on PostgreSQL, too."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have what uses `store` run on both engines; with `sqlite_alone`, on SQLite alone."""
    if "store" in metafunc.fixturenames:
        engines = ENGINES[:1] if "sqlite_alone" in metafunc.fixturenames else ENGINES
        metafunc.parametrize("store", engines, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of what runs on PostgreSQL to `make test-all`."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        on_postgres = callspec is not None and "postgres" in map(str, callspec.params.values())
        if on_postgres and zlib.crc32(item.nodeid.encode()) % EVERY:
            item.add_marker("thorough")


@pytest.fixture(scope="session")
def postgres_connection(postgres_worker: PostgresServer, postgres_template: str) -> Iterator[Any]:
    """The connection of all tests of this worker that enter rows and nothing else."""
    connection = postgres.connect(
        server_at(postgres_worker.url(postgres_worker.create(postgres_template)))
    )
    yield connection
    connection.close()


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The test's database with a writing connection, on either engine."""
    if request.param == "sqlite":
        opened = Store(request.getfixturevalue("database_file"))
        yield opened
        opened.close()
    else:
        connection = request.getfixturevalue("postgres_connection")
        yield PostgresStore(connection)
        # A statement outside of a transaction has begun one.
        connection.rollback()


@pytest.fixture(params=ENGINES)
def outdated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty database as version 0.5 had it, on either engine."""
    if request.param == "sqlite":
        opened = Store(outdated_file(tmp_path / "old.db", "0005"))
        yield opened
        opened.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_worker")
    name = server.create()
    connection = postgres.connect(server_at(server.url(name)))
    opened = PostgresStore(connection, is_emptied=False)
    with connection.begin():
        command.upgrade(migrations._config(connection), "0005")
    yield opened
    connection.close()
    server.drop(name)


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that answers "hello"."""
    return store.run(turn_of, "hello")


@pytest.fixture
def chat(store: Store) -> int:
    """A conversation."""
    return store.run(admit, inbound(chat="7", thread="3"))[0]


@pytest.fixture
def upgraded(old_file: Path) -> Iterator[Store]:
    """The `old_file` of the test after its migration."""
    assert maintenance.upgrade(old_file) == REVISION
    store = Store(old_file)
    yield store
    store.close()


@pytest.fixture
def migrated(upgraded: Store) -> Store:
    """The same after the first start, which has no MCP server."""
    upgraded.run(mcp.at_start, ())
    return upgraded
