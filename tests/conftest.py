"""Fixtures of all tests: real SQLite files, migrated once and copied for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.storage.engine import Database
from gateway.storage.opening import open_database
from tests.support.storage import Store, copy_database, migrated_file


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
