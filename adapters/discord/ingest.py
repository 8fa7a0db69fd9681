"""Passes a connection's events to the intake, in order within each channel.

Each channel has its own queue, so none waits for another. Discord has no acknowledgements: the
backfill reads events lost before their commit, since a channel's cursor is committed together with
its messages.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import discord
import structlog

from adapters.base import Intake
from adapters.discord.buttons import Buttons, sync_menu, to_interaction
from adapters.discord.client import PAGE, Api, Shard, answer_to
from adapters.discord.errors import CodedRefusal
from adapters.discord.inbound import (
    DM,
    ChannelKind,
    Reading,
    as_id,
    snowflake_of,
    source_name,
    to_inbound,
)
from adapters.discord.platform import DiscordSettings
from adapters.discord.threads import ChannelKinds, Threads
from adapters.errors import AdapterDisconnected
from adapters.messages import Cursor, InboundMessage, Poison

log = structlog.get_logger()

# Seconds that a connection's end waits for the commit of its events.
_SETTLE_S = 2.0
# Seconds that its start waits for the servers named by READY.
_GUILDS_S = 2.0
_WANTED = {
    "READY",
    "RESUMED",
    "MESSAGE_CREATE",
    "MESSAGE_UPDATE",
    "INTERACTION_CREATE",
    "THREAD_DELETE",
}
# Outcomes with an answer, which needs its thread.
_ANSWERED = {"queued", "command", "refused"}
MOST_WAITING = 10_000
"""Most waiting jobs per lane."""

RECENT = 200
"""Channels to check after a RESUME, in which Discord itself sends missed events."""
_CURSORS_AT_ONCE = 200

Job = Callable[[], Awaitable[None]]
Store = Callable[[str, list[Any], int], Awaitable[None]]
"""Commits a channel's messages, oldest first, with its cursor."""


class Lanes:
    """Runs jobs sequentially within each lane, and lanes concurrently.

    A lane has a task only while it has jobs. Exceptions of jobs reach the task group.
    """

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._lanes: dict[str, deque[Job]] = {}

    def put(self, lane: str, job: Job) -> None:
        """Run a job after the earlier jobs of its lane."""
        waiting = self._lanes.get(lane)
        if waiting is not None:
            if len(waiting) >= MOST_WAITING:
                # A new connection will read the rest again.
                raise AdapterDisconnected(f"more than {MOST_WAITING} events wait in one channel")
            waiting.append(job)
            return
        self._lanes[lane] = deque([job])
        self._tasks.create_task(self._run(lane), name=f"discord {lane}")

    async def _run(self, lane: str) -> None:
        jobs = self._lanes[lane]
        while jobs:
            await jobs.popleft()()
        del self._lanes[lane]


@dataclass(frozen=True, slots=True)
class AccountParts:
    """The parts of an account that outlive a connection."""

    api: Api
    intake: Intake
    channel_kinds: ChannelKinds
    threads: Threads
    buttons: Buttons
    menu: Sequence[tuple[str, str]]


class Ingest:
    """Processes the events of one connection.

    `on_ready` is called when Discord accepts the session, new or resumed.
    """

    def __init__(
        self,
        client: discord.Client,
        settings: DiscordSettings,
        parts: AccountParts,
        tasks: asyncio.TaskGroup,
        on_ready: Callable[[], None],
        *,
        shard: Shard,
    ) -> None:
        self._client = client
        self._settings = settings
        # Known from READY on.
        self._bot = ""
        self._parts = parts
        self._tasks = tasks
        self._on_ready = on_ready
        self._shard = shard
        self._events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._guild_came = asyncio.Event()
        self._is_broken = False
        self._lanes = Lanes(tasks)
        self._backfill = Backfill(settings.name, parts, shard, self._store_page)

    def take(self, frame: str) -> None:
        """Queue an event of a used kind."""
        try:
            event = json.loads(frame)
            name, data = str(event["t"]), event["d"]
        # The SDK closes the connection if a frame is not JSON.
        except (ValueError, LookupError, TypeError):
            return
        if name == "GUILD_CREATE":
            self._guild_came.set()
        elif name in _WANTED:
            self._events.put_nowait((name, data))

    async def run(self) -> None:
        """Process events until cancelled."""
        while True:
            name, data = await self._events.get()
            if name == "READY":
                await self._guilds_known()
                await self._begin(resumed=False)
            elif name == "RESUMED":
                await self._begin(resumed=True)
            elif name in {"MESSAGE_CREATE", "MESSAGE_UPDATE"}:
                # Never wait for an event here, which would block the socket's reader.
                job = partial(self._message, data, edited=name == "MESSAGE_UPDATE")
                self._lanes.put(_channel_of(data), partial(self._counted, job))
                # The lane marks the frame as done after its job.
                continue
            elif name == "INTERACTION_CREATE":
                # A separate lane: it has 3 s, but the channel may be reading its history.
                job = partial(self._interaction, data)
                self._lanes.put(f"! {_channel_of(data)}", partial(self._counted, job))
                continue
            elif name == "THREAD_DELETE":
                self._parts.threads.note(str(snowflake_of(data) or ""))
            self._events.task_done()

    async def settle(self) -> None:
        """Wait up to 2 s for the commit of received events."""
        if self._is_broken:
            return
        try:
            async with asyncio.timeout(_SETTLE_S):
                await self._events.join()
        except TimeoutError:
            log.info("discord_session_unsettled", frames=self._events.qsize())

    async def _counted(self, job: Job) -> None:
        try:
            await job()
        except Exception:
            self._is_broken = True
            raise
        self._events.task_done()

    async def _guilds_known(self) -> None:
        """Wait up to 2 s for the servers announced by READY."""
        try:
            async with asyncio.timeout(_GUILDS_S):
                while any(guild.unavailable for guild in self._client.guilds):
                    self._guild_came.clear()
                    await self._guild_came.wait()
        except TimeoutError:
            missing = sum(guild.unavailable for guild in self._client.guilds)
            log.info("discord_servers_unavailable", servers=missing)

    async def _begin(self, *, resumed: bool) -> None:
        """Find the gaps of all channels, to fill each before the channel's new messages."""
        if self._client.user is not None:
            self._bot = str(self._client.user.id)
        self._parts.channel_kinds.use(self._shard.number, self._client)
        gaps = await self._backfill.look(_newest(self._client), resumed=resumed)
        for channel in gaps:
            self._lanes.put(channel, partial(self._fill, channel))
        self._on_ready()
        application = self._client.application_id
        # Discord limits menu changes per day, and RESUMEs are frequent.
        if application and self._shard.number == 0 and not resumed:
            menu = sync_menu(self._parts.api, str(application), self._parts.menu)
            self._tasks.create_task(menu, name="discord commands")

    async def _fill(self, channel: str) -> None:
        if await self._backfill.is_own(channel):
            await self._backfill.fill(channel)

    async def _message(self, data: Any, *, edited: bool) -> None:
        channel = _channel_of(data)
        await self._backfill.fill(channel)
        if isinstance(data, dict) and not data.get("guild_id"):
            self._parts.channel_kinds.learn(channel, DM)
        read = to_inbound(data, await self._reading(channel), edited=edited)
        if read is None:
            return
        number = snowflake_of(data)
        moves = number is not None and not edited
        await self._store(channel, [read], number if moves else None)

    async def _store_page(self, channel: str, page: list[Any], last: int) -> None:
        reading = await self._reading(channel)
        read = [to_inbound(data, reading) for data in page]
        await self._store(channel, [item for item in read if item is not None], last)

    async def _reading(self, channel: str) -> Reading:
        channel_kind = await self._parts.channel_kinds.of(channel) if channel else ChannelKind()
        guild = self._client.get_guild(int(channel_kind.guild)) if channel_kind.guild else None
        if guild is None:
            return Reading(self._settings, self._bot, channel_kind)
        mine = guild.me.roles if guild.me else []
        roles = frozenset(str(role.id) for role in mine if not role.is_default())
        name_of = partial(_name_in, guild)
        return Reading(self._settings, self._bot, channel_kind, roles, name_of)

    async def _store(
        self, channel: str, items: Sequence[InboundMessage | Poison], last: int | None
    ) -> None:
        """Commit a channel's messages with its cursor, and open their threads."""
        messages = [item for item in items if isinstance(item, InboundMessage)]
        # Threads by message. The first message of a forum post also has the thread's id, but
        # belongs to the thread.
        opening = {
            each.dedupe_key: each.address.thread or ""
            for each in messages
            if each.kind == "message"
            and each.address.thread == each.message_ref
            and each.address.chat == channel
        }
        # The message that opens a thread is repeated as its first; do not read it again.
        cursors = [self._cursor(thread, int(thread)) for thread in opening.values()]
        if last is not None:
            cursors.append(self._cursor(channel, last))
        threads, unanswered = self._parts.threads, set(opening.values())
        for thread in unanswered:
            # Before the commit, since an answer may come before the thread exists.
            threads.pending.begin(thread)
        try:
            admissions = await self._parts.intake.accept(items, cursors=cursors)
            for message, admission in zip(messages, admissions, strict=True):
                thread = opening.get(message.dedupe_key, "")
                if thread in unanswered and admission.outcome in _ANSWERED:
                    unanswered.remove(thread)
                    opened = threads.open_for(message.address, message.text)
                    self._tasks.create_task(opened, name=f"discord thread {thread}")
        finally:
            for thread in unanswered:
                threads.pending.end(thread)

    async def _interaction(self, data: Any) -> None:
        buttons = self._parts.buttons
        read = to_interaction(data, self._settings.name, await self._channel_kind_of(data))
        if isinstance(read, Poison):
            await self._store("", [read], None)
        elif read is not None:
            admission = await buttons.take(read)
            told = buttons.acknowledge(read, admission)
            self._tasks.create_task(told, name=f"discord interaction {read.callback.id}")

    async def _channel_kind_of(self, data: Any) -> ChannelKind | None:
        """Return the kind of an interaction's channel; None if included or absent."""
        if isinstance(data, dict) and not data.get("guild_id"):
            return DM
        channel = _channel_of(data)
        if not channel:
            return None
        known = self._parts.channel_kinds.known(channel)
        # Asking may take longer than an interaction's 3 s.
        is_in_it = known is None and "type" in (data.get("channel") or ())
        return None if is_in_it else await self._parts.channel_kinds.of(channel)

    def _cursor(self, channel: str, position: int) -> Cursor:
        return Cursor(source_name(self._settings.name, channel), position)


def _channel_of(data: Any) -> str:
    """Return an event's channel, or ""."""
    channel = as_id(data.get("channel_id")) if isinstance(data, dict) else None
    return channel if isinstance(channel, str) and channel.isdecimal() else ""


def _newest(client: discord.Client) -> dict[str, int | None]:
    """Return the newest message of each readable channel and thread."""
    return {
        str(channel.id): channel.last_message_id
        for guild in client.guilds
        for channels in (guild.text_channels, guild.voice_channels, guild.threads)
        for channel in channels
        if guild.me and channel.permissions_for(guild.me).read_messages
    }


def _name_in(guild: discord.Guild, mark: str) -> str | None:
    if mark.startswith("@&"):
        found: Any = guild.get_role(int(mark[2:]))
    else:
        found = guild.get_channel_or_thread(int(mark[1:]))
    return None if found is None else str(found.name)


class Backfill:
    """Fills the gaps of the channels of one connection."""

    def __init__(self, account: str, parts: AccountParts, shard: Shard, store: Store) -> None:
        self._account = account
        self._parts = parts
        self._shard = shard
        self._store = store
        self._gone: set[str] = set()
        self._gaps: dict[str, int] = {}

    async def look(self, newest: Mapping[str, int | None], *, resumed: bool) -> list[str]:
        """Return the channels with gaps, latest messages first.

        A channel without a cursor gets one and is read from now on. If it is newer than everything
        read, it was opened while the bot was away and is read from its start.

        Args:
            newest: The newest message, if known, of each visible channel.
            resumed: Whether Discord sent the missed events; then return only the first 200.
        """
        prefix = source_name(self._account, "")
        positions = await self._parts.intake.positions(prefix)
        known = {name.removeprefix(prefix): at for name, at in positions.items()}
        # Each connection has read to a different point in time.
        mine = known if self._shard.of == 1 else known.keys() & newest.keys()
        last = max((known[name] for name in mine), default=None)
        fresh = [name for name in newest if name not in known]
        # Minus one, since a forum post's first message has the post's id.
        opened = {name: int(name) - 1 for name in fresh if last is not None and int(name) > last}
        await self._begin({name: newest[name] for name in fresh if name not in opened})
        # Channels missing in the directory (direct chats, archived threads) may have new messages.
        stale = {name: at for name, at in known.items() if (newest.get(name) or at + 1) > at}
        left = [gap for gap in (stale | opened).items() if gap[0] not in self._gone]
        # A user is most likely to wait in a recently used channel.
        left.sort(key=lambda gap: gap[1], reverse=True)
        for channel, after in left[: RECENT if resumed else None]:
            self._gaps.setdefault(channel, after)
        return list(self._gaps)

    async def is_own(self, channel: str) -> bool:
        """Whether a channel belongs to this connection; forget its gap if not.

        Direct chats and archived threads are in no directory, so ask Discord for their server.
        """
        if self._shard.of == 1 or channel not in self._gaps:
            return True
        kind = await self._parts.channel_kinds.of(channel)
        is_own = self._shard.receives(kind.guild)
        if not is_own:
            del self._gaps[channel]
        return is_own

    async def fill(self, channel: str) -> None:
        """Commit the messages of a channel's gap, without a time limit."""
        after = self._gaps.pop(channel, None)
        found = 0
        while after is not None:
            page = await self._page(channel, after)
            if page:
                after = max(after, *(snowflake_of(message) or 0 for message in page))
                await self._store(channel, page, after)
                found += len(page)
            if len(page) < PAGE:
                break
        if found:
            log.info("discord_backfilled", channel=channel, messages=found)

    async def _begin(self, channels: Mapping[str, int | None]) -> None:
        """Set the cursors of channels seen for the first time.

        Newest first: if the rest is lost, it is not mistaken for newly opened channels.
        """
        cursors = [
            Cursor(source_name(self._account, name), at or int(name))
            for name, at in channels.items()
        ]
        cursors.sort(key=lambda cursor: cursor.position, reverse=True)
        for start in range(0, len(cursors), _CURSORS_AT_ONCE):
            await self._parts.intake.accept([], cursors=cursors[start : start + _CURSORS_AT_ONCE])

    async def _page(self, channel: str, after: int) -> list[Any]:
        """Return the next messages, oldest first; empty if the channel is gone."""

        async def read() -> list[Any]:
            with await self._parts.api.pacer.wait_signal(channel):
                return await self._parts.api.history(channel, after)

        try:
            return await answer_to(read, channel=channel, action="history")
        except CodedRefusal as exc:
            self._gone.add(channel)
            log.info("discord_channel_forgotten", channel=channel, reason=str(exc))
            return []
