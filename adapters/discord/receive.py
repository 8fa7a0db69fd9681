"""Receives for a bot: keeps a connection to Discord's gateway, and a fresh one for each attempt.

A bot in many servers has several (`Shard` in client.py), each with a receiver of its own.

The SDK resumes by itself; a supervisor restarts what it cannot. What comes in is worked through by
`adapters.discord.ingest`.
"""

import asyncio
import time
from typing import NoReturn

import structlog

from adapters.base import Clock
from adapters.discord.client import GatewaySocket, Shard, token_of, use_servers
from adapters.discord.errors import mapped_receiving
from adapters.discord.inbound import Bot
from adapters.discord.ingest import AccountParts, Ingest
from adapters.discord.platform import DiscordSettings
from adapters.errors import AdapterDisconnected

log = structlog.get_logger()

MOST_DROPS = 5
"""Times in a row that the socket may be lost within a minute; the SDK tries again at once."""
STEADY_S = 60.0
"""A session that has lived so long shows that the drops before it are over."""
_FRESH_FOR_S = 90.0
_CLOSE_S = 5.0


class Receiver:
    """The incoming half of one bot, or one of its shards.

    Args:
        parts: What outlives a connection; all shards share it.
        shard: Over which connection it receives.
    """

    def __init__(
        self,
        settings: DiscordSettings,
        parts: AccountParts,
        shard: Shard,
        *,
        clock: Clock = time.monotonic,
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._shard = shard
        self._clock = clock
        self._ingest: Ingest | None = None
        self._is_live = False
        self._drops = 0
        self._ready_at = float("-inf")
        self._reached_at = float("-inf")

    @property
    def connected(self) -> bool:
        """Whether there is a session, and Discord was heard within the last 90 s."""
        return self._is_live and self._clock() - self._reached_at < _FRESH_FOR_S

    async def run(self) -> NoReturn:
        """Receive until cancelled, on a connection of its own.

        Whatever the intake raises goes on to the caller; the next run reads the gap.
        """
        token = token_of(self._settings)
        use_servers(self._settings)
        self._drops = 0
        socket = GatewaySocket(self._settings, self, self._shard, self._parts.turns)
        try:
            with mapped_receiving():
                await socket.login(token)
            async with asyncio.TaskGroup() as tasks:
                await self._connect(socket, tasks)
        except BaseExceptionGroup as failures:
            # The caller tells errors apart by their class.
            raise failures.exceptions[0] from failures
        finally:
            self._is_live = False
            await _close(socket)
        raise AdapterDisconnected("Discord closed the connection")

    def heard(self, frame: str) -> None:
        """Note that Discord lives, and have the frame worked through; see `SocketEvents`."""
        self._reached_at = self._clock()
        if self._ingest is not None:
            self._ingest.take(frame)

    def dropped(self) -> None:
        """End the connection that is lost too often; see `SocketEvents`."""
        if self._is_live and self._clock() - self._ready_at >= STEADY_S:
            self._drops = 0
        self._is_live = False
        self._drops += 1
        if self._drops > MOST_DROPS:
            raise AdapterDisconnected(f"Discord closed the connection {self._drops} times")

    async def _connect(self, socket: GatewaySocket, tasks: asyncio.TaskGroup) -> NoReturn:
        bot = Bot(
            account=self._settings.name,
            id="",
            threads=self._settings.threads,
            message_content=self._settings.message_content,
            listens_to=frozenset(self._settings.allow_bots),
        )
        ingest = Ingest(socket, bot, self._parts, tasks, self._ready, shard=self._shard)
        self._ingest = ingest
        tasks.create_task(ingest.run(), name=f"discord {bot.account}")
        try:
            await self._parts.turns.wait(self._shard)
            with mapped_receiving():
                # The SDK would try a dead address for ever, and fails by an AttributeError (2.7.1)
                # where its first attempt failed.
                await socket.connect(reconnect=False)
            raise AdapterDisconnected("Discord closed the connection")
        finally:
            self._ingest = None
            await ingest.settle()

    def _ready(self) -> None:
        self._is_live = True
        self._ready_at = self._clock()
        log.info("discord_connected", account=self._settings.name, shard=self._shard.number)


async def _close(socket: GatewaySocket) -> None:
    """Close a connection, although the other side may be gone."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await socket.close()
    except TimeoutError:
        log.info("discord_closed_late")
    finally:
        # A close that was cancelled, by us or by who stops the adapter, has left this open.
        await socket.http.close()
