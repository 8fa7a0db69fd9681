"""Several whole gateways in the test's process on one PostgreSQL, with the real client of a bot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.models.base import ChatModel
from gateway.app import Gateway, assembled
from gateway.replicas.shared_replica import SharedReplica
from gateway.storage.database import location_of
from gateway.storage.migrations import open_database
from gateway.storage.queue.leases import Receiving
from gateway.wiring import Accounts
from tests.support.gateway import RecordingModel, agent_of, echo, serve, settings_of

FEW_TURNS = {"debounce_ms": 0, "grace_s": 10, "max_concurrent_turns": 4}
WITHIN_S = 60.0


@dataclass
class BotReplica:
    """A replica; `kill` ends it where it stands, as far as the database can tell."""

    gateway: Gateway
    serving: asyncio.Task[None]

    @property
    def replica(self) -> SharedReplica:
        assert isinstance(self.gateway.replica, SharedReplica)
        return self.gateway.replica

    def receives(self, of: Receiving) -> bool:
        """Whether it has the lease of this connection."""
        return self.replica.accounts.want(of).epoch is not None

    async def kill(self) -> None:
        self.serving.cancel()
        with suppress(asyncio.CancelledError):
            await self.serving
        await self.replica.close()


@asynccontextmanager
async def bot_replica(
    home: Path, url: str, accounts: Accounts, model: ChatModel | None = None
) -> AsyncIterator[BotReplica]:
    """Run a replica with a home of its own; without a model, it says again what it hears."""
    await asyncio.to_thread(home.mkdir)
    settings = settings_of(home, storage={"url": url}, queue=FEW_TURNS)
    stop, force, ready = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with (
        open_database(location_of(settings), home) as database,
        assembled(settings, database, agent_of(model or RecordingModel(echo)), accounts) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        task = tasks.create_task(serve(gateway, stop, force, lambda _: ready.set()))
        await asyncio.wait_for(ready.wait(), WITHIN_S)
        yield BotReplica(gateway, task)
        stop.set()


async def until(condition: Callable[[], Any], within_s: float = WITHIN_S) -> None:
    """Wait for what replicas do by themselves."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - several gateways tell nobody
            await asyncio.sleep(0.01)
