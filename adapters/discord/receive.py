"""Receives over one connection (`Shard`) to Discord's gateway, a fresh one for each attempt.

The SDK maintains the session (heartbeats, RESUME) and the channel directory; a supervisor restarts
sessions that cannot resume. Its events are unused: raw frames go to `adapters.discord.ingest`.
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

# Parley does not use voice channels: no warning about missing packages for them.
discord.VoiceClient.warn_nacl = False
discord.VoiceClient.warn_dave = False

MOST_DROPS = 5
"""Most consecutive losses of the socket; the SDK reconnects at once after each."""
STEADY_S = 60.0
"""Age of a session, in seconds, after which the count of losses restarts."""
IDENTIFY_EVERY_S = 5.0
"""Least time between two IDENTIFYs of a bot, in seconds."""
HEARTBEAT_TIMEOUT_S = 60.0
"""Silence after which a socket is dead; Discord's heartbeats are 41 s apart."""
# The SDK's parsers are unused for these; one it cannot parse would end the connection.
_READ_HERE = ("MESSAGE_CREATE", "MESSAGE_UPDATE", "INTERACTION_CREATE")
_FRESH_FOR_S = 90.0
_CLOSE_S = 5.0


class Receiver:
    """The receiving half of a bot or of one of its shards, which share `parts`."""

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
        """Whether a session exists and Discord sent something within the last 90 s."""
        return self._is_live and self._clock() - self._reached_at < _FRESH_FOR_S

    async def run(self) -> NoReturn:
        """Receive until cancelled; raises the intake's exceptions, and the next run fills the gap.

        See `Receives.run`.
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
            # The caller distinguishes errors by class.
            raise failures.exceptions[0] from failures
        finally:
            self._is_live = False
            await _close(socket)
        raise AdapterDisconnected("Discord closed the connection")

    def heard(self, frame: str) -> None:
        """Handle a frame (JSON text); frames come in order, before the SDK reads them."""
        self._reached_at = self._clock()
        if self._ingest is not None:
            self._ingest.take(frame)

    def dropped(self) -> None:
        """Count a lost socket, which the SDK will RESUME; raise if there were too many."""
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
            # Discord refuses an early IDENTIFY, and each attempt counts against a daily limit.
            await asyncio.sleep(self._waits_s)
            self._waits_s = 0.0
            with mapped_receiving():
                # The SDK would retry a dead address forever, and raises an AttributeError (2.7.1)
                # if its first attempt fails.
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
    """One gateway connection for one attempt; passes frames and losses to the receiver."""

    def __init__(self, settings: DiscordSettings, receiver: "Receiver", shard: Shard) -> None:
        super().__init__(
            connector=connector(),
            proxy=proxy_for(Route.BASE),
            shard_id=shard.number,
            shard_count=shard.of,
            # `message_content` is privileged: unless the portal grants it, Discord closes the
            # connection with code 4014.
            intents=discord.Intents(
                guilds=True,
                guild_messages=True,
                dm_messages=True,
                message_content=settings.message_content,
            ),
            # A model's answer must not ping a whole server.
            allowed_mentions=discord.AllowedMentions.none(),
            # Only the SDK's directory of channels and roles is used.
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            # The SDK waits for servers only for an event that is unused here.
            guild_ready_timeout=0.0,
            heartbeat_timeout=HEARTBEAT_TIMEOUT_S,
            # The only access to raw frames.
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


async def _close(socket: GatewaySocket) -> None:
    """Close a connection whose other side may be gone."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await socket.close()
    except TimeoutError:
        log.info("discord_closed_late")
    finally:
        # A cancelled close leaves this open.
        await socket.http.close()
