"""Receives over one connection (`Shard`) to Discord's gateway, a fresh one for each attempt.

The SDK keeps the session (heartbeats, RESUME) and the directory of channels; a supervisor restarts
what it cannot resume. Its events are not used: raw frames go to `adapters.discord.ingest`.
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

# Parley does not use voice channels, so packages that the SDK lacks for them need no warning.
discord.VoiceClient.warn_nacl = False
discord.VoiceClient.warn_dave = False

MOST_DROPS = 5
"""Most losses of the socket in a row; the SDK reconnects at once after each."""
STEADY_S = 60.0
"""Age of a session after which losses are counted from 0 again."""
IDENTIFY_EVERY_S = 5.0
"""Least time between two connections of a bot that identify."""
HEARTBEAT_TIMEOUT_S = 60.0
"""A socket that is silent for so long is dead; Discord's heartbeats are 41 s apart."""
# An event that the SDK cannot parse ends its connection; its result is not used for these.
_READ_HERE = ("MESSAGE_CREATE", "MESSAGE_UPDATE", "INTERACTION_CREATE")
_FRESH_FOR_S = 90.0
_CLOSE_S = 5.0


class Receiver:
    """The incoming half of one bot, or of one of its shards, which share the `parts`."""

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
        """Receive until cancelled; raises what the intake raises, and the next run reads the gap.

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
            # The caller tells errors apart by their class.
            raise failures.exceptions[0] from failures
        finally:
            self._is_live = False
            await _close(socket)
        raise AdapterDisconnected("Discord closed the connection")

    def heard(self, frame: str) -> None:
        """Take a frame (JSON text); frames come in order, before the SDK reads them."""
        self._reached_at = self._clock()
        if self._ingest is not None:
            self._ingest.take(frame)

    def dropped(self) -> None:
        """Note that the socket was lost, which the SDK will RESUME, unless it happens too often."""
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
            # Discord refuses to identify too early, and each try counts against a daily limit.
            await asyncio.sleep(self._waits_s)
            self._waits_s = 0.0
            with mapped_receiving():
                # The SDK would try a dead address forever, and fails by an AttributeError (2.7.1)
                # if its first attempt failed.
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
    """One connection to the gateway, for one attempt; hands frames and losses to the receiver."""

    def __init__(self, settings: DiscordSettings, receiver: "Receiver", shard: Shard) -> None:
        super().__init__(
            connector=connector(),
            proxy=proxy_for(Route.BASE),
            shard_id=shard.number,
            shard_count=shard.of,
            # `message_content` is privileged: if the portal does not grant it Discord closes the
            # connection with code 4014.
            intents=discord.Intents(
                guilds=True,
                guild_messages=True,
                dm_messages=True,
                message_content=settings.message_content,
            ),
            # No answer of a model may ping a whole server.
            allowed_mentions=discord.AllowedMentions.none(),
            # Of the SDK's caches only the directory of channels and roles is used.
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            # The SDK's own wait for servers is for an event that is not used here.
            guild_ready_timeout=0.0,
            heartbeat_timeout=HEARTBEAT_TIMEOUT_S,
            # The only way to raw frames.
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
    """Close a connection, although the other side may be gone."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await socket.close()
    except TimeoutError:
        log.info("discord_closed_late")
    finally:
        # A close that was cancelled, by us or by the adapter's owner, has left this open.
        await socket.http.close()
