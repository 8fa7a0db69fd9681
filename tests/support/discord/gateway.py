"""The gateway of the Discord double: sessions, sequence numbers, heartbeats, RESUME, zlib.

Source: https://docs.discord.com/developers/events/gateway
"""

import asyncio
import json
import time
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from tests.support.discord.world import (
    SHARD_SHIFT,
    Bot,
    Message,
    World,
    may_read,
    without_content,
)

Json = dict[str, Any]

DISPATCH, HEARTBEAT, IDENTIFY, RESUME, RECONNECT = 0, 1, 2, 6, 7
INVALID_SESSION, HELLO, HEARTBEAT_ACK = 9, 10, 11
GUILDS, MEMBERS, PRESENCES, GUILD_MESSAGES, GUILD_REACTIONS = (
    1 << 0,
    1 << 1,
    1 << 8,
    1 << 9,
    1 << 10,
)
DIRECT_MESSAGES, DIRECT_REACTIONS, MESSAGE_CONTENT = 1 << 12, 1 << 13, 1 << 15
_CLEAN = frozenset({1000, 1001})


@dataclass(eq=False)
class Session:
    """What a bot identified; outlives its connections until it is closed cleanly.

    Attributes:
        shard: Its number, and how many there are.
    """

    id: str
    bot: Bot
    intents: int
    shard: tuple[int, int] = (0, 1)
    log: list[tuple[int, Json]] = field(default_factory=list, repr=False)
    seq: int = 0
    connection: "Connection | None" = None

    def tells_of(self, guild: int | None) -> bool:
        """Whether events of a guild come over it; of direct chats (None) shard 0 tells."""
        number, of = self.shard
        return number == (0 if guild is None else (guild >> SHARD_SHIFT) % of)

    def dispatch(self, name: str, data: Json) -> None:
        """Number an event, keep it for RESUME and send it if there is a connection."""
        self.seq += 1
        payload = {"op": DISPATCH, "t": name, "s": self.seq, "d": data}
        self.log.append((self.seq, payload))
        if self.connection is not None:
            self.connection.push(payload)


class Connection:
    """One websocket; frames leave in the order they were pushed."""

    def __init__(
        self, socket: web.WebSocketResponse, transport: asyncio.Transport, *, compressed: bool
    ) -> None:
        self.socket = socket
        self._transport = transport
        self.session: Session | None = None
        self.frozen = False
        self._frames: asyncio.Queue[Json | int] = asyncio.Queue()
        self._zlib = zlib.compressobj() if compressed else None

    def push(self, payload: Json) -> None:
        """Queue a frame; nothing leaves a frozen connection."""
        if not self.frozen:
            self._frames.put_nowait(payload)

    def close(self, code: int) -> None:
        """Close after what is queued."""
        self._frames.put_nowait(code)

    def abort(self) -> None:
        """Cut the connection without a close frame."""
        self._transport.abort()

    async def write(self) -> None:
        """Send what is queued until closed."""
        while isinstance(frame := await self._frames.get(), dict):
            await self._send(json.dumps(frame))
        await self.socket.close(code=frame)

    async def _send(self, text: str) -> None:
        if self.frozen or self.socket.closed:
            return
        if self._zlib is None:
            await self.socket.send_str(text)
            return
        data = self._zlib.compress(text.encode()) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
        await self.socket.send_bytes(data)


class Gateway:
    """All sessions of all bots.

    Attributes:
        refuse_identify: Close codes for the next IDENTIFYs (4004 wrong token, 4014 intents, …).
        refuse_resumes: How many of the next RESUMEs are answered with an invalid session.
        refuse_identifies: How many of the next IDENTIFYs are answered so.
        identify_every_s: How long after an IDENTIFY of a bot the next one is refused.
        most_guilds: Of one connection; who would get more is refused.
        holding: While it is a list, events are kept in it instead of being dispatched.
        twice: How many of the next events are dispatched two times.
    """

    def __init__(
        self, world: World, bots: dict[str, Bot], notify: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        self._world = world
        self._bots = bots
        self._notify = notify
        self.url = ""
        self.heartbeat_s = 41.25
        self.acks = True
        self.refuse_identify: list[int] = []
        self.refuse_resumes = 0
        self.refuse_identifies = 0
        self.identify_every_s = 0.0
        self.most_guilds = 2500
        self._identified_at: dict[Bot, float] = {}
        self.sessions: dict[str, Session] = {}
        self.connections: list[Connection] = []
        self.connects = 0
        self.identified = 0
        self.resumed = 0
        self.heartbeats = 0
        self.violations: list[str] = []
        self.holding: list[tuple[Session, str, Json]] | None = None
        self.twice = 0
        self._telling: asyncio.Task[None] | None = None

    def online(self, bot: Bot | None = None) -> bool:
        """Whether a bot (any, if not given) has a live session with a connection."""
        wanted = [s for s in self.sessions.values() if bot in {None, s.bot}]
        return any(s.connection is not None and not s.connection.frozen for s in wanted)

    def emit(self, name: str, data: Json, intents: int = 0, only: Bot | None = None) -> None:
        """Dispatch an event to every session that asked for it."""
        guild = int(data["guild_id"]) if data.get("guild_id") else None
        for session in list(self.sessions.values()):
            wanted = only in {None, session.bot} and session.intents & intents == intents
            if wanted and session.tells_of(guild):
                self._deliver(session, name, data)

    def emit_guild(self, guild: int) -> None:
        """Tell the sessions that hear of a guild that their bots have joined it."""
        for session in list(self.sessions.values()):
            if session.intents & GUILDS and session.tells_of(guild):
                session.dispatch("GUILD_CREATE", self._world.guild_json(guild, [session.bot]))

    def shards(self) -> list[tuple[int, int]]:
        """Return which shards are connected, each as (number, of), in order."""
        live = [each.connection for each in self.sessions.values()]
        return sorted(each.session.shard for each in live if each is not None and each.session)

    def emit_message(self, name: str, message: Message) -> None:
        """Dispatch a message; its content only to those that may read it."""
        direct = message.channel.guild is None
        wanted = DIRECT_MESSAGES if direct else GUILD_MESSAGES
        for session in list(self.sessions.values()):
            told = session.intents & wanted and session.tells_of(message.channel.guild)
            if told and _sees(session.bot, message):
                new = name == "MESSAGE_CREATE"
                self._deliver(session, name, self.message_data(session, message, new=new))

    def message_data(self, session: Session, message: Message, *, new: bool) -> Json:
        """Return a message as this session gets it."""
        data = self._world.message_json(message, new=new and message.author is session.bot)
        if message.channel.guild is not None:
            data["guild_id"] = str(message.channel.guild)
            if message.webhook is None:
                data["member"] = message.author.member()
        data["channel_type"] = message.channel.kind
        readable = session.intents & MESSAGE_CONTENT and session.bot.privileged
        if readable or may_read(session.bot, message, self._world.mentioned(message)):
            return data
        return without_content(data)

    def _deliver(self, session: Session, name: str, data: Json) -> None:
        if self.holding is not None:
            self.holding.append((session, name, data))
            return
        times = 2 if self.twice else 1
        self.twice = max(0, self.twice - 1)
        for _ in range(times):
            session.dispatch(name, data)

    def release(self, *, backwards: bool = False) -> None:
        """Dispatch what was held."""
        held, self.holding = self.holding or [], None
        for session, name, data in reversed(held) if backwards else held:
            session.dispatch(name, data)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one websocket."""
        if request.query.get("v") != "10" or request.query.get("encoding") != "json":
            self.violations.append(f"gateway asked with {dict(request.query)}")
        compress = request.query.get("compress")
        if compress not in {None, "zlib-stream"}:
            self.violations.append(f"compression {compress} is not served here")
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        assert request.transport is not None
        connection = Connection(socket, request.transport, compressed=compress == "zlib-stream")
        self.connections.append(connection)
        self.connects += 1
        connection.push({"op": HELLO, "d": {"heartbeat_interval": int(self.heartbeat_s * 1000)}})
        loop = asyncio.get_running_loop()
        writer = loop.create_task(connection.write())
        try:
            await self._read(connection)
        finally:
            writer.cancel()
            self._disconnected(connection)
            # This handler may be cancelled already.
            self._telling = loop.create_task(self._notify())
        return socket

    async def _read(self, connection: Connection) -> None:
        async for frame in connection.socket:
            if frame.type is not WSMsgType.TEXT:
                connection.close(4002)
                continue
            if not connection.frozen:
                self._receive(connection, json.loads(frame.data))
            await self._notify()

    def _receive(self, connection: Connection, payload: Json) -> None:
        op = payload.get("op")
        if op == HEARTBEAT:
            self.heartbeats += 1
            if self.acks:
                connection.push({"op": HEARTBEAT_ACK})
        elif op == IDENTIFY:
            self._identify(connection, payload["d"])
        elif op == RESUME:
            self._resume(connection, payload["d"])
        elif connection.session is None:
            connection.close(4003)

    def _identify(self, connection: Connection, data: Json) -> None:
        bot = self._bots.get(data["token"])
        code = self._identify_refusal(connection, bot, data)
        if bot is None or code:
            connection.close(code)
            return
        if self.refuse_identifies or self._comes_early(bot):
            self.refuse_identifies = max(0, self.refuse_identifies - 1)
            connection.push({"op": INVALID_SESSION, "d": False})
            return
        shard = tuple(data.get("shard", (0, 1)))
        name = f"session{self.identified}"
        session = Session(name, bot, data["intents"], shard, connection=connection)
        self.identified += 1
        self.sessions[session.id] = session
        connection.session = session
        self._greet(session)

    def _comes_early(self, bot: Bot) -> bool:
        """Whether another IDENTIFY of the bot was taken too short a time ago."""
        now = time.monotonic()
        early = now - self._identified_at.get(bot, float("-inf")) < self.identify_every_s
        if not early:
            self._identified_at[bot] = now
        return early

    def _identify_refusal(self, connection: Connection, bot: Bot | None, data: Json) -> int:
        """Return the close code that this IDENTIFY gets; 0 for none."""
        if self.refuse_identify:
            return self.refuse_identify.pop(0)
        if connection.session is not None:
            return 4005
        if bot is None or bot.revoked:
            return 4004
        if not {"os", "browser", "device"} <= data.get("properties", {}).keys():
            self.violations.append("IDENTIFY without properties")
        number, of = data.get("shard", (0, 1))
        if not 0 <= number < of:
            return 4010
        if len(self._world.guilds) > self.most_guilds * of:
            return 4011
        unauthorised = data["intents"] & (MEMBERS | PRESENCES)
        if data["intents"] & MESSAGE_CONTENT and not bot.privileged:
            unauthorised |= MESSAGE_CONTENT
        return 4014 if unauthorised else 0

    def _greet(self, session: Session) -> None:
        guilds = [each for each in self._world.guilds if session.tells_of(each)]
        ready = {
            "v": 10,
            "user": session.bot.json() | {"verified": True, "mfa_enabled": False, "email": None},
            "guilds": [{"id": str(each), "unavailable": True} for each in guilds],
            "shard": list(session.shard),
            "session_id": session.id,
            "session_type": "normal",
            "resume_gateway_url": self.url,
            "private_channels": [],
            "relationships": [],
            "user_settings": {},
            "application": {"id": str(session.bot.id), "flags": 1 << 18 | 1 << 23},
        }
        session.dispatch("READY", ready)
        for guild in guilds if session.intents & GUILDS else ():
            session.dispatch("GUILD_CREATE", self._world.guild_json(guild, [session.bot]))

    def _resume(self, connection: Connection, data: Json) -> None:
        session = self.sessions.get(data["session_id"] or "")
        if session is not None and session.bot.token != data["token"]:
            connection.close(4004)
            return
        if session is None or self.refuse_resumes:
            self.refuse_resumes = max(0, self.refuse_resumes - 1)
            self.sessions.pop(data["session_id"] or "", None)
            connection.push({"op": INVALID_SESSION, "d": False})
            return
        if data["seq"] > session.seq:
            connection.close(4007)
            return
        connection.session, session.connection = session, connection
        self.resumed += 1
        for seq, payload in session.log:
            if seq > data["seq"]:
                connection.push(payload)
        session.dispatch("RESUMED", {})

    def _disconnected(self, connection: Connection) -> None:
        self.connections.remove(connection)
        session = connection.session
        if session is None or session.connection is not connection:
            return
        session.connection = None
        # A client that closes with 1000 or 1001 gives its session up.
        if connection.socket.close_code in _CLEAN:
            self.sessions.pop(session.id, None)

    def drop(self) -> None:
        """Cut every connection without a close frame; sessions can be resumed."""
        for connection in self.connections:
            connection.abort()

    def freeze(self) -> None:
        """Make every connection half-open: it stays, and nothing comes through any more."""
        for connection in self.connections:
            connection.frozen = True

    def reconnect(self) -> None:
        """Ask every client to reconnect and resume (op 7)."""
        for connection in self.connections:
            connection.push({"op": RECONNECT, "d": None})

    def invalidate(self, *, resumable: bool = False) -> None:
        """Tell every client that its session is invalid (op 9)."""
        for connection in self.connections:
            if not resumable and connection.session is not None:
                self.sessions.pop(connection.session.id, None)
            connection.push({"op": INVALID_SESSION, "d": resumable})

    def close_all(self, code: int = WSCloseCode.SERVICE_RESTART, bot: Bot | None = None) -> None:
        """Close every connection (of one bot) with a code."""
        for connection in self.connections:
            mine = connection.session is not None and connection.session.bot is bot
            if bot is None or mine:
                connection.close(code)


def _sees(bot: Bot, message: Message) -> bool:
    """Direct chats belong to one bot; in guilds bots see what they may view."""
    channel = message.channel
    if channel.guild is None:
        return bot in channel.people
    return not any("view" in place.forbidden for place in (channel, channel.parent) if place)
