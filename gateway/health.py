"""`/healthz`: the process runs. `/readyz`: it can store messages and its adapters are up."""

import asyncio
from collections.abc import Sequence

from aiohttp import web

from gateway.errors import StorageError
from gateway.storage import leases
from gateway.storage.engine import Database
from gateway.supervision import Supervised

WRITE_TIMEOUT_S = 2.0


class Health:
    """The health routes of a running gateway."""

    def __init__(self, database: Database, replica: int, adapters: Sequence[Supervised]) -> None:
        self._database = database
        self._replica = replica
        self._adapters = adapters

    def routes(self) -> list[web.RouteDef]:
        """Return both routes; they tell nothing that is secret."""
        return [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, _: web.Request) -> web.Response:
        database = await self._database_state()
        adapters = {supervised.name: supervised.state for supervised in self._adapters}
        ready = database == "writable" and all(state == "connected" for state in adapters.values())
        body = {"ready": ready, "database": database, "adapters": adapters}
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
