"""Fixtures of all tests: real SQLite files, migrated once and copied for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.storage.engine import Database
from gateway.storage.opening import open_database
from tests.support.browser import CHROMIUM
from tests.support.shared import SHARED
from tests.support.storage import Store, copy_database, migrated_file


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
