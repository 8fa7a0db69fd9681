"""The common interface of both databases, and the location from the settings.

A SQLite file belongs to one process; a PostgreSQL server is shared by several replicas. Both run
the same transaction functions in their own threads. `open_database` (migrations.py) opens either.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from pydantic import SecretStr
from sqlalchemy import Connection

from gateway.errors import StorageUnavailable
from gateway.settings.tree import Settings, is_server

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """A PostgreSQL server's address and connection settings.

    Attributes:
        direct_url: URL that bypasses the pooler; None if `url` already does.
        pooled: Whether `url` is a pooler in transaction mode.
        migrates: Whether a start migrates the database or waits for another process to do so.
    """

    url: SecretStr
    direct_url: SecretStr | None = None
    pooled: bool = False
    connections: int = 6
    migrates: bool = True

    @property
    def direct(self) -> SecretStr:
        """The URL of a dedicated session, which session locks need."""
        return self.direct_url or self.url


Location = Path | DatabaseServer
"""A SQLite file or a PostgreSQL server."""
Transaction = Callable[[Connection], T]
INTERRUPT_EVERY_S = 0.05


class Database(ABC):
    """An open database; each function `fn(conn, …)` runs in one transaction."""

    server: DatabaseServer | None
    """The server, which other replicas may share; None for a file, which is exclusive."""
    _closed = False

    def write(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run `fn(conn, …)` in a transaction and return its value after the commit.

        Cancelling the caller does not undo the transaction. Exceptions of `fn` roll it back and
        propagate.

        Raises:
            CommitUnknown: It is unknown whether the commit succeeded; only on PostgreSQL.
            StorageUnavailable: A database failure rolled it back.
        """
        return self._write(lambda conn: fn(conn, *args, **kwargs))

    def read(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a read-only `fn(conn, …)` on a snapshot of everything committed before.

        Raises `StorageUnavailable` if the database is unreadable or closed.
        """
        return self._read(lambda conn: fn(conn, *args, **kwargs))

    def search(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a read-only `fn(conn, …)` that may take long; it ends when the caller is cancelled.

        Raises `StorageUnavailable` if the database is unreadable or closed.
        """
        return self._search(lambda conn: fn(conn, *args, **kwargs))

    def _require_open(self) -> None:
        if self._closed:
            raise StorageUnavailable("the database is closed")

    @abstractmethod
    async def _write(self, fn: Transaction[T]) -> T: ...

    @abstractmethod
    async def _read(self, fn: Transaction[T]) -> T: ...

    @abstractmethod
    async def _search(self, fn: Transaction[T]) -> T: ...

    @abstractmethod
    async def scrub(self) -> None:
        """Overwrite erased data in the files; raise `StorageUnavailable` if impossible now."""

    @abstractmethod
    async def close(self) -> None:
        """Finish running functions and close all connections; idempotent."""


def location_of(settings: Settings) -> Location:
    """Return the database's location: `storage.url`, else parley.db in PARLEY_HOME."""
    storage = settings.storage
    if storage.url is None:
        return settings.home / "parley.db"
    url = storage.url.get_secret_value()
    if not is_server(url):
        return settings.home / url.partition("///")[2]
    # Copied, so that reloading the secret cannot redirect some of the connections.
    direct = storage.direct_url and SecretStr(storage.direct_url.get_secret_value())
    return DatabaseServer(
        SecretStr(url), direct, direct is not None, storage.connections, storage.migrate == "run"
    )


class Search:
    """An interruptible search; `interrupt` stops the driver's running statement."""

    def __init__(self, fn: Transaction[Any], interrupt: Callable[[Any], Awaitable[None]]) -> None:
        self._fn, self._interrupt = fn, interrupt
        self._driver: Any = None
        self._is_cancelled = False

    def run(self, conn: Connection) -> Any:
        """Run the search unless it was already ended."""
        self._driver = conn.connection.driver_connection
        try:
            return None if self._is_cancelled else self._fn(conn)
        finally:
            self._driver = None

    async def end(self, running: asyncio.Future[Any]) -> None:
        """End the search, repeatedly, since an interrupt between two statements has no effect."""
        self._is_cancelled = True
        while not running.done():
            if (driver := self._driver) is not None:
                await self._interrupt(driver)
            await asyncio.wait([running], timeout=INTERRUPT_EVERY_S)


def retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a cancelled caller's future, so that asyncio does not warn."""
    if not future.cancelled():
        future.exception()
