"""`/healthz`: the process runs. `/readyz`: it can store messages, and all accounts work."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from aiohttp import web

from gateway.descriptors import is_scarce
from gateway.errors import StorageError
from gateway.storage import leases
from gateway.storage.engine import Database
from gateway.supervision import Supervised
from gateway.traffic import Watch

WRITE_TIMEOUT_S = 2.0


class Health:
    """The health routes of a running gateway."""

    def __init__(
        self, database: Database, replica: int, adapters: Sequence[Supervised], watch: Watch
    ) -> None:
        self._database = database
        self._replica = replica
        self._adapters = adapters
        self._watch = watch

    def routes(self) -> list[web.RouteDef]:
        """Return both routes; they tell nothing that is secret."""
        return [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, _: web.Request) -> web.Response:
        database = await self._database_state()
        adapters = {supervised.name: supervised.state for supervised in self._adapters}
        connected = all(state == "connected" for state in adapters.values())
        accounts: dict[str, dict[str, Any]] = {}
        if database == "writable":
            database, accounts = await self._account_states()
        silent = any(each["silent_s"] is not None for each in accounts.values())
        scarce = is_scarce()
        body: dict[str, Any] = {
            "ready": database == "writable" and connected and not silent and not scarce,
            "database": database,
            "descriptors": "scarce" if scarce else "free",
            "adapters": adapters,
            "accounts": accounts,
        }
        ready = body["ready"]
        return web.json_response(body, status=200 if ready else 503)

    async def _database_state(self) -> str:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._database.write(leases.heartbeat, self._replica)
        except TimeoutError:
            return f"no commit within {WRITE_TIMEOUT_S:g} s"
        except StorageError as exc:
            return f"not writable: {exc}"
        return "writable"

    async def _account_states(self) -> tuple[str, dict[str, dict[str, Any]]]:
        """Return the database's state again, and how each account stands; seconds, rounded."""
        try:
            found = await self._watch.look()
        except StorageError as exc:
            return f"not readable: {exc}", {}
        return "writable", {
            ":".join(account): _rounded(asdict(found[account])) for account in found
        }


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 1) if isinstance(value, float) else value
        for name, value in figures.items()
    }
