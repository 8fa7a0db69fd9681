"""Receives for a bot: keeps a connection to Discord's gateway, and a fresh one for each attempt.

A bot in many servers has several (`Shard` in client.py), each with a receiver of its own.

The SDK keeps the session (heartbeats, RESUME) and the directory of channels; a supervisor restarts
what it cannot resume. Its events are not used, so that every message keeps the form in which it
came. What comes in is worked through by `adapters.discord.ingest`.
"""

import asyncio
import time
from typing import Any, NoReturn

import discord
import structlog
from discord.http import Route
from typing_extensions import override

from adapters.base import Clock
from adapters.discord.client import Shard, connector, use_servers
from adapters.discord.errors import mapped_receiving
from adapters.discord.ingest import AccountParts, Ingest
from adapters.discord.platform import DiscordSettings
from adapters.errors import AdapterDisconnected
from agent.network import proxy_for

log = structlog.get_logger()

# Parley never speaks in voice channels: what the SDK lacks for that is not worth a warning.
discord.VoiceClient.warn_nacl = False
discord.VoiceClient.warn_dave = False

MOST_DROPS = 5
"""Times in a row that the socket may be lost within a minute; the SDK tries again at once."""
STEADY_S = 60.0
"""A session that has lived so long shows that the drops before it are over."""
IDENTIFY_EVERY_S = 5.0
"""Discord lets one connection of a bot identify in this time."""
HEARTBEAT_TIMEOUT_S = 60.0
"""A socket that is silent for so long is given up; Discord's heartbeats are 41 s apart."""
# An event that the SDK cannot parse ends its connection, and what it makes of these is not used.
_READ_HERE = ("MESSAGE_CREATE", "MESSAGE_UPDATE", "INTERACTION_CREATE")
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
        self._waits_s = shard.number * IDENTIFY_EVERY_S
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
        use_servers(self._settings)
        self._drops = 0
        socket = GatewaySocket(self._settings, self, self._shard)
        try:
            with mapped_receiving():
                await socket.login(self._parts.api.token)
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
        """Note that Discord lives, and have a frame worked through, which is JSON text.

        Frames come in order, before the SDK reads them.
        """
        self._reached_at = self._clock()
        if self._ingest is not None:
            self._ingest.take(frame)

    def dropped(self) -> None:
        """Note that the socket was lost, which the SDK will RESUME; end what is lost too often."""
        if self._is_live and self._clock() - self._ready_at >= STEADY_S:
            self._drops = 0
        self._is_live = False
        self._drops += 1
        if self._drops > MOST_DROPS:
            raise AdapterDisconnected(f"Discord closed the connection {self._drops} times")

    async def _connect(self, socket: "GatewaySocket", tasks: asyncio.TaskGroup) -> NoReturn:
        ingest = Ingest(socket, self._settings, self._parts, tasks, self._ready, shard=self._shard)
        self._ingest = ingest
        tasks.create_task(ingest.run(), name=f"discord {self._settings.name}")
        try:
            # Discord refuses who identifies too early, and each try counts against a daily limit.
            await asyncio.sleep(self._waits_s)
            self._waits_s = 0.0
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


class GatewaySocket(discord.Client):
    """One connection to the gateway, for one attempt.

    Args:
        receiver: Is told what comes and goes.
    """

    def __init__(self, settings: DiscordSettings, receiver: "Receiver", shard: Shard) -> None:
        super().__init__(
            connector=connector(),
            proxy=proxy_for(Route.BASE),
            shard_id=shard.number,
            shard_count=shard.of,
            intents=intents_of(settings),
            # No answer of a model may call a whole server.
            allowed_mentions=discord.AllowedMentions.none(),
            # Of the SDK's caches only the directory of channels and roles is used.
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            # The SDK's own wait for servers is for an event that is not used here.
            guild_ready_timeout=0.0,
            heartbeat_timeout=HEARTBEAT_TIMEOUT_S,
            # The only way to frames as they came.
            enable_debug_events=True,
        )
        for event in _READ_HERE:
            self._connection.parsers.pop(event, None)
        self._receiver = receiver

    @override
    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        if event == "socket_raw_receive":
            self._receiver.heard(args[0])
        elif event == "disconnect":
            self._receiver.dropped()


def intents_of(settings: DiscordSettings) -> discord.Intents:
    """Return the gateway intents."""
    intents = discord.Intents.none()
    intents.guilds = True
    intents.guild_messages = True
    intents.dm_messages = True
    # Privileged: where the portal does not grant it Discord closes the connection with 4014.
    intents.message_content = settings.message_content
    return intents


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
