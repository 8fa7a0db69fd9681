"""What is counted on the path of a message: whatever is added to it shows, by whatever library."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from gateway.pipeline import turn
from gateway.pipeline.next_turn import NextTurn
from gateway.storage.engine import SqliteDatabase
from tests.bench.path import profiled
from tests.bench.phases import PHASES
from tests.house.path import PATH, path
from tests.support.counting import Counts, counting, counting_on_server
from tests.support.gateway import running

STATEMENTS, TRANSACTIONS = PATH
MOST_STATEMENTS, MOST_COMMITS = 25, 7
"""Of a plain turn on PostgreSQL."""


async def counts_of_a_message(home: Path) -> dict[str, float]:
    """Return what the house measures of a plain message, by the name of the figure."""
    return {figure.name: figure.value for figure in await path(home)}


def _by_sqlalchemy(conn: Connection) -> None:
    conn.execute(text("SELECT 1"))


def _by_the_driver(conn: Connection) -> None:
    raw: Any = conn.connection.driver_connection
    raw.execute("SELECT 1")


@pytest.mark.parametrize("added", [_by_sqlalchemy, _by_the_driver])
async def test_a_statement_that_is_added_to_the_path_is_counted(
    added: Callable[[Connection], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past SQLAlchemy, too: it is SQLite that tells of it."""
    before = await counts_of_a_message(tmp_path / "before")
    begin = NextTurn.begin

    def beginning(self: NextTurn, conn: Connection, *args: Any, **given: Any) -> Any:
        added(conn)
        return begin(self, conn, *args, **given)

    monkeypatch.setattr(NextTurn, "begin", beginning)
    # It looks once: where nothing waits the conversation is given back with the answer.
    grown = {kind: value + (kind == STATEMENTS) for kind, value in before.items()}
    assert await counts_of_a_message(tmp_path / "after") == grown


async def test_a_transaction_that_is_added_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read is a transaction of its own."""
    before = await counts_of_a_message(tmp_path / "before")
    clean, opened = turn.hygiene, SqliteDatabase.__init__
    databases: list[SqliteDatabase] = []

    def opening(self: SqliteDatabase, *args: Any) -> None:
        opened(self, *args)
        databases.append(self)

    async def cleaning(*args: Any) -> None:
        await databases[-1].read(_by_sqlalchemy)
        await clean(*args)

    monkeypatch.setattr(SqliteDatabase, "__init__", opening)
    monkeypatch.setattr(turn, "hygiene", cleaning)
    grown = {kind: value + 1 for kind, value in before.items()}
    assert await counts_of_a_message(tmp_path / "after") == grown


async def test_a_message_on_postgresql_takes_few_statements_and_commits(
    tmp_path: Path, postgres_url: str
) -> None:
    """A conversation is locked in statements of its own there, and no more is asked than that."""
    async with running(tmp_path, storage={"url": postgres_url}) as chat:
        with counting_on_server() as counts:
            for n in range(3):
                await chat.ask(f"warm up {n}")
            found = []
            for n in range(5):
                counts.clear()
                await chat.ask(f"hello {n}")
                await chat.logged("message_sent", count=n + 4)
                found.append(list(counts))
    least = min(found, key=len)
    statements = [sql for sql in least if not sql.startswith(("BEGIN", "COMMIT"))]
    assert len(statements) <= MOST_STATEMENTS, statements
    assert least.count("COMMIT") <= MOST_COMMITS
    assert len([sql for sql in statements if sql.startswith("SELECT") and "FOR NO KEY" in sql]) >= 3


def test_what_a_trigger_does_is_part_of_its_statement(tmp_path: Path) -> None:
    """SQLite tells of the statement once more for each trigger; two equal ones in turn are one."""
    with counting() as counter:
        conn = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        conn.executescript("CREATE TABLE a (x); CREATE TABLE b (x);")
        conn.execute("CREATE TRIGGER t AFTER INSERT ON a BEGIN INSERT INTO b VALUES (1); END")
        counter.take()
        conn.execute("BEGIN")
        conn.execute("INSERT INTO a VALUES (7)")
        conn.execute("COMMIT")
        conn.close()
        found = counter.take()
    assert found == Counts([("MainThread", "INSERT INTO a VALUES (7)")], ["BEGIN"])


async def test_the_profile_meets_each_phase_and_misses_no_statement() -> None:
    """A function of the path that moves is named anew in `tests/bench/phases.py`."""
    rows = await profiled(messages=3, counted=2)
    # The index is fed half a second later, where anything is; no tool is called.
    assert set(PHASES) - set(rows) <= {"search index", "tools of the turn"}
    left = rows["event loop, queues, what runs beside"]
    assert (left.statements, rows["all of it"].statements > 0) == (0, True)
