"""What both databases have in common, and where the settings say the database is.

A file of SQLite belongs to one process; a server of PostgreSQL is shared by several replicas. Both
run the same transaction functions on threads of their own. `open_database` (migrations.py) opens
either.
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
    """The address of PostgreSQL and the connections it gives us.

    Attributes:
        direct_url: Past the pooler; None if `url` is that already.
        pooled: Whether `url` is a pooler that lends a session for one transaction.
        migrates: Whether a start migrates the database; else it waits until another process has.
    """

    url: SecretStr
    direct_url: SecretStr | None = None
    pooled: bool = False
    connections: int = 6
    migrates: bool = True

    @property
    def direct(self) -> SecretStr:
        """The way to a session of its own, which locks of a session need."""
        return self.direct_url or self.url


Location = Path | DatabaseServer
"""A SQLite file, or a server of PostgreSQL."""
Transaction = Callable[[Connection], T]
INTERRUPT_EVERY_S = 0.05


class Database(ABC):
    """An open database; every function `fn(conn, …)` is one transaction."""

    server: DatabaseServer | None
    """The server that other replicas may share; None for a file, which is ours alone."""
    _closed = False

    def write(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run `fn(conn, …)` in a transaction and return its value after the commit.

        Cancelling the caller does not undo the transaction. Whatever `fn` raises is raised here,
        and its writes are rolled back.

        Raises:
            CommitUnknown: Whether it was committed is unknown; PostgreSQL only.
            StorageUnavailable: Rolled back because of trouble with the database.
        """
        return self._write(lambda conn: fn(conn, *args, **kwargs))

    def read(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a reading `fn(conn, …)` on a snapshot with everything committed before.

        Raises `StorageUnavailable` if the database cannot be read, or is closed.
        """
        return self._read(lambda conn: fn(conn, *args, **kwargs))

    def search(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a reading `fn(conn, …)` that may take long; it ends when its caller is cancelled.

        Raises `StorageUnavailable` if the database cannot be read, or is closed.
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
        """Overwrite erased data in the files; raises `StorageUnavailable` if it cannot now."""

    @abstractmethod
    async def close(self) -> None:
        """Finish running functions, then close all connections. Idempotent."""


def location_of(settings: Settings) -> Location:
    """Return the location of the database: `storage.url`, else parley.db in PARLEY_HOME."""
    storage = settings.storage
    if storage.url is None:
        return settings.home / "parley.db"
    url = storage.url.get_secret_value()
    if not is_server(url):
        return settings.home / url.partition("///")[2]
    # Copied: if the secret were read again, half of the connections would go elsewhere.
    direct = storage.direct_url and SecretStr(storage.direct_url.get_secret_value())
    return DatabaseServer(
        SecretStr(url), direct, direct is not None, storage.connections, storage.migrate == "run"
    )


class Search:
    """A search that can be ended: `interrupt` stops the statement that a driver runs."""

    def __init__(self, fn: Transaction[Any], interrupt: Callable[[Any], Awaitable[None]]) -> None:
        self._fn, self._interrupt = fn, interrupt
        self._driver: Any = None
        self._is_cancelled = False

    def run(self, conn: Connection) -> Any:
        """Run the search, unless it was ended before."""
        self._driver = conn.connection.driver_connection
        try:
            return None if self._is_cancelled else self._fn(conn)
        finally:
            self._driver = None

    async def end(self, running: asyncio.Future[Any]) -> None:
        """End the search; repeated, since an interrupt between two statements has no effect."""
        self._is_cancelled = True
        while not running.done():
            if (driver := self._driver) is not None:
                await self._interrupt(driver)
            await asyncio.wait([running], timeout=INTERRUPT_EVERY_S)


def retrieve(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from complaining about an exception whose caller was cancelled."""
    if not future.cancelled():
        future.exception()
