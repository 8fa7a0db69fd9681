"""Counts what a piece of work asks of SQLite, whatever library it goes through.

A count is the same on every machine, so a test can hold it where seconds would only be noise.
Statements are what SQLite itself reports for each connection that is opened meanwhile, so nothing
is hidden by going past SQLAlchemy.
"""

import asyncio
import sqlite3
import threading
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg

from gateway.storage.engine import SqliteDatabase

_CONTROL = ("COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "UPDATE identity SET commits", "PRAGMA")
"""What transactions, with the watch over the file, and connections bring along by themselves."""
_WRITES = ("INSERT", "UPDATE", "DELETE")
QUIET_ROUNDS = 50
"""Rounds of the event loop in which nothing was counted and no thread works for it: it is idle."""


class Counts(NamedTuple):
    """What was counted.

    Attributes:
        statements: Each with its label, in order; control of transactions left out.
        begun: The statements that began a transaction, of readers as well.
    """

    statements: list[tuple[str, str]]
    begun: list[str]


@dataclass(slots=True)
class PathCounter:
    """What has been counted since the last `take`.

    Attributes:
        label: Says of a statement who runs it; asked in its thread.
    """

    label: Callable[[], str]
    _statements: list[tuple[str, str]] = field(default_factory=list)
    _begun: list[str] = field(default_factory=list)
    _away: int = 0
    _seen: int = 0

    def take(self) -> Counts:
        """Return what was counted, and begin anew."""
        found = Counts(self._statements, self._begun)
        self._statements, self._begun = [], []
        return found

    async def idle(self) -> None:
        """Return when the event loop has nothing left to do but to wait for somebody.

        What waits for a timer is not waited for.
        """
        quiet = 0
        while quiet < QUIET_ROUNDS:
            seen = self._seen
            await asyncio.sleep(0)
            is_quiet = seen == self._seen and not self._away
            quiet = quiet + 1 if is_quiet else 0

    def _note(self, sql: str) -> None:
        self._seen += 1
        if sql.startswith(_CONTROL):
            return
        if sql.startswith("BEGIN"):
            self._begun.append(sql)
            return
        told = self.label(), " ".join(sql.split())
        # A trigger is told of as its statement once more.
        if not (sql.startswith(_WRITES) and self._statements[-1:] == [told]):
            self._statements.append(told)

    def _connecting(self, connect: Callable[..., sqlite3.Connection]) -> Callable[..., Any]:
        def connected(*args: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*args, **options)
            connection.set_trace_callback(self._note)
            return connection

        return connected

    def _handing_back(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def handed_back(loop: BaseEventLoop, back: Any, *args: Any, **options: Any) -> Any:
            self._seen += 1
            return call(loop, back, *args, **options)

        return handed_back

    def _awaiting(self, work: Callable[..., Any]) -> Callable[..., Any]:
        async def awaited(*args: Any, **options: Any) -> Any:
            self._away += 1
            try:
                return await work(*args, **options)
            finally:
                self._away -= 1

        return awaited

    def _executing(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def executed(loop: BaseEventLoop, *args: Any, **options: Any) -> Any:
            future = run(loop, *args, **options)
            self._away += 1
            future.add_done_callback(self._back)
            return future

        return executed

    def _back(self, _future: Any) -> None:
        self._away -= 1


def thread_name() -> str:
    """Return the name of the calling thread."""
    return threading.current_thread().name


@contextmanager
def counting(label: Callable[[], str] = thread_name) -> Iterator[PathCounter]:
    """Count in this process, for connections that are opened from now on."""
    counter = PathCounter(label)
    connected = counter._connecting(sqlite3.connect)
    with (
        patch.object(sqlite3, "connect", connected),
        patch.object(sqlite3.dbapi2, "connect", connected),
        patch.object(
            BaseEventLoop,
            "call_soon_threadsafe",
            counter._handing_back(BaseEventLoop.call_soon_threadsafe),
        ),
        patch.object(
            BaseEventLoop, "run_in_executor", counter._executing(BaseEventLoop.run_in_executor)
        ),
        patch.object(SqliteDatabase, "write", counter._awaiting(SqliteDatabase.write)),
    ):
        yield counter


@contextmanager
def counting_on_server() -> Iterator[list[str]]:
    """Collect what PostgreSQL is asked meanwhile, COMMIT included, in order.

    A list of values is one statement.
    """
    found: list[str] = []

    def noting(method: str) -> Any:
        run = getattr(psycopg.Cursor, method)

        def noted(cursor: Any, statement: Any, *args: Any, **options: Any) -> Any:
            found.append(str(statement))
            return run(cursor, statement, *args, **options)

        return patch.object(psycopg.Cursor, method, noted)

    commit = psycopg.Connection.commit

    def committed(driver: Any) -> None:
        found.append("COMMIT")
        commit(driver)

    with (
        noting("execute"),
        noting("executemany"),
        patch.object(psycopg.Connection, "commit", committed),
    ):
        yield found
