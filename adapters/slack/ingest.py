"""Passes updates from the socket, the webhook and channel histories to the intake.

Slack redelivers an event only for some minutes, so after a restart or a lost connection the history
of each channel and each thread with a conversation is read from its cursor. Until then the cursor
is held: live messages must not move it past the gap.
"""

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import structlog

from adapters.base import Intake, Recent
from adapters.errors import AdapterDisconnected, SendDelayed
from adapters.messages import Address, Admission, Cursor, InboundMessage, Poison, poison
from adapters.slack.buttons import Press, read_command, read_press, read_stop
from adapters.slack.client import Client
from adapters.slack.errors import Coded, Limited, mapped
from adapters.slack.inbound import BotIdentity, Names, Reading, people_in, raw_of, read_message
from adapters.slack.platform import SlackSettings

log = structlog.get_logger()

MENTION_DELAY_S = 0.5
"""Seconds that a mention without files waits for its `message` event."""
UpdateKind = Literal["events_api", "interactive", "slash_commands"]
_REMEMBERED = 4096
_MESSAGES = ("message", "app_mention")
MOST_EMPTY_PAGES = 10
"""Number of empty pages after which a history waits for the next connection."""
THREADS_FOR_S = 7 * 24 * 3600.0
"""Age of the last message, in seconds, above which a thread is not read."""
_BATCH = 100
_TRIES = 5
_LIMITED_S = 30.0
_LONGEST_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class IncomingPayload:
    """The payload of a socket envelope or a webhook call."""

    kind: UpdateKind
    payload: Any


@dataclass(frozen=True, slots=True)
class Title:
    """The title of an assistant thread: the text of its first message."""

    channel: str
    thread: str
    text: str


class Ingest:
    """Passes an account's raw updates to its intake.

    Attributes:
        followups: Requests to make to Slack after a commit.
        held: Sources with cursors held until their gaps are stored.
        revoked: Set when the workspace removes the app.
        identity: The bot's identity; None until Slack returned it, and required to read updates.
    """

    def __init__(
        self,
        settings: SlackSettings,
        intake: Intake,
        commands: Sequence[tuple[str, str]],
        names: Names,
    ) -> None:
        self.account = settings.name
        self.held: set[str] = set()
        self.revoked = asyncio.Event()
        self.followups: asyncio.Queue[Press | Title] = asyncio.Queue()
        self._commands = frozenset(name.removeprefix("/") for name, _ in commands)
        self._settings = settings
        self._intake = intake
        self._names = names
        self.identity: BotIdentity | None = None
        self._ours: Recent[Address, None] = Recent(_REMEMBERED)
        self._untitled: Recent[Address, None] = Recent(_REMEMBERED)

    async def know_bot(self, client: Client) -> BotIdentity | None:
        """Return the identity; request it if another process has the socket.

        In HTTP mode the receiver requests it after holding the cursors.
        """
        if self._settings.mode == "socket" and self.identity is None:
            self.identity = await identified(client)
        return self.identity

    async def store(self, updates: Sequence[IncomingPayload]) -> None:
        """Commit a batch of updates, messages sorted by timestamp, since bursts arrive unordered.

        The updates are durable on return.
        """
        # Before the commit, since the stored text contains the names.
        await self._learn_names(map(_event_of, updates))
        read = [self._read(update) for update in updates]
        messages = [each.message if isinstance(each, Press) else each for each in read]
        stored = await self._commit(messages, self.held)
        admissions = {id(message): admission for message, admission in stored}
        for press in read:
            if isinstance(press, Press):
                admission = admissions[id(press.message)]
                self.followups.put_nowait(replace(press, admission=admission))
        for message, _ in stored:
            address = message.address
            if address in self._untitled and message.text and message.kind == "message":
                del self._untitled[address]
                self.followups.put_nowait(Title(address.chat, address.thread or "", message.text))

    async def store_missed(self, events: Sequence[Any], source: str) -> list[InboundMessage]:
        """Commit messages from a history in timestamp order."""
        await self._learn_names(events)
        read = [read_message(event, self._known(), event) for event in events]
        return [message for message, _ in await self._commit(read, self.held - {source})]

    async def store_poison(self, body: bytes, reason: str) -> None:
        """Commit a body that is not JSON."""
        text = body.decode("utf-8", "replace")
        await self._commit([poison(f"slack:{self.account}", text, reason)], self.held)

    async def _learn_names(self, events: Iterable[Any]) -> None:
        own = self._known().identity.user
        people = [user for event in events for user in people_in(event) if user != own]
        await self._names.learn(people)

    def _known(self) -> Reading:
        if self.identity is None:
            raise AdapterDisconnected("the bot's own name is not known yet")
        return Reading(self._settings, self.identity, self._commands, self._names.get)

    def _read(self, update: IncomingPayload) -> InboundMessage | Poison | Press | None:
        reading, payload = self._known(), update.payload
        if not isinstance(payload, dict):
            return poison(f"slack:{self.account}", raw_of(payload), "the payload is not an object")
        if update.kind == "slash_commands":
            return read_command(payload, reading)
        if update.kind == "interactive":
            return read_press(payload, reading)
        return self._read_event(payload, reading)

    def _read_event(
        self, payload: dict[str, Any], reading: Reading
    ) -> InboundMessage | Poison | None:
        event = payload.get("event")
        if not isinstance(event, dict):
            return None
        match event.get("type"):
            case "message" | "app_mention":
                return read_message(event, reading, payload)
            case "agent_session_stopped":
                return read_stop(event, reading)
            case "assistant_thread_started":
                self._note_assistant_thread(event)
            case "app_uninstalled":
                self.revoked.set()
            case "tokens_revoked":
                self._note_revoked(event, reading)
        return None

    def _note_revoked(self, event: dict[str, Any], reading: Reading) -> None:
        tokens = event.get("tokens")
        bots = tokens.get("bot") if isinstance(tokens, dict) else None
        if isinstance(bots, list) and reading.identity.user in bots:
            self.revoked.set()

    def _note_assistant_thread(self, event: dict[str, Any]) -> None:
        thread = event.get("assistant_thread")
        if isinstance(thread, dict):
            channel, ts = str(thread.get("channel_id")), str(thread.get("thread_ts"))
            self._untitled[Address("slack", self.account, channel, ts)] = None

    async def _commit(
        self, read: Sequence[InboundMessage | Poison | None], held: Collection[str]
    ) -> list[tuple[InboundMessage, Admission]]:
        said = _in_order([each for each in read if isinstance(each, InboundMessage)])
        bad = [each for each in read if isinstance(each, Poison)]
        if not (said or bad):
            return []
        # A live message must not move a cursor past an unread gap.
        cursors = [each for each in await self._cursors(said) if each.source not in held]
        admissions = await self._intake.accept([*said, *bad], cursors=cursors)
        return list(zip(said, admissions, strict=True))

    async def _cursors(self, said: Sequence[InboundMessage]) -> list[Cursor]:
        """Return the new cursors of channels and of threads with a conversation."""
        read: dict[str, int] = {}
        for message in said:
            position = position_of(message.message_ref)
            if message.kind == "edit" or position is None:
                continue
            for source in await self._sources(message):
                read[source] = max(position, read.get(source, 0))
        return [Cursor(source, position) for source, position in read.items()]

    async def _sources(self, message: InboundMessage) -> list[str]:
        """Return the sources whose cursors a message moves; includes threads with the bot."""
        address = message.address
        channel = f"slack:{self.account}:{address.chat}"
        thread = f"{channel}:{address.thread}"
        if address.thread is None:
            return [channel]
        if address.thread == message.message_ref:
            return [channel, thread]
        return [thread] if await self._is_ours(message) else []

    async def _is_ours(self, message: InboundMessage) -> bool:
        address = message.address
        in_doubt = address not in self._ours and message.addressed == "thread"
        if in_doubt and not await self._intake.is_conversation(address):
            return False
        self._ours[address] = None
        return True


async def identified(client: Client) -> BotIdentity:
    """Request the bot's identity; raises like `mapped`."""
    with mapped():
        me = await client.web.auth_test()
    words = [str(me.get(key) or "") for key in ("user_id", "bot_id", "team_id", "user")]
    return BotIdentity(*words)


def is_bare_mention(update: IncomingPayload) -> bool:
    """Whether an update is a mention without files, which only its `message` event surely has.

    Both arrive within moments in any order, and the first one counts.
    """
    event = _event_of(update)
    return event is not None and event.get("type") == "app_mention" and "files" not in event


def _event_of(update: IncomingPayload) -> dict[str, Any] | None:
    payload = update.payload
    event = payload.get("event") if isinstance(payload, dict) else None
    return event if isinstance(event, dict) else None


def _in_order(said: Sequence[InboundMessage]) -> list[InboundMessage]:
    """Sort messages by timestamp; those without one (commands, buttons) stay in place."""

    def at(message: InboundMessage) -> int:
        return position_of(message.message_ref) or 0

    timed = iter(sorted(filter(at, said), key=at))
    return [next(timed) if at(each) else each for each in said]


def position_of(ts: str | None) -> int | None:
    """Convert a timestamp to microseconds; None if malformed."""
    seconds, _, fraction = (ts or "").partition(".")
    if not (seconds.isdecimal() and fraction.isdecimal() and len(fraction) == 6):
        return None
    return int(seconds + fraction)


def ts_of(position: int) -> str:
    """Convert microseconds to a Slack timestamp."""
    return f"{position // 1_000_000}.{position % 1_000_000:06d}"


def newer_than(events: Iterable[Any], position: int) -> list[dict[str, Any]]:
    """Return the messages after a position, oldest first, without a parent of replies."""
    messages = (each for each in events if isinstance(each, dict) and each.get("type") in _MESSAGES)
    timed = [(position_of(str(each.get("ts"))) or 0, each) for each in messages]
    return [event for at, event in sorted(timed, key=lambda pair: pair[0]) if at > position]


@dataclass(frozen=True, slots=True)
class _Gap:
    """A source to read from a position."""

    source: str
    channel: str
    thread: str | None
    position: int


class Backfill:
    """Fills the gaps of one account."""

    def __init__(self, ingest: Ingest, intake: Intake) -> None:
        self._ingest = ingest
        self._intake = intake
        self._gaps: deque[_Gap] = deque()

    async def hold(self) -> None:
        """Hold the cursors of all sources; call before storing the first live update."""
        prefix = f"slack:{self._ingest.account}:"
        positions = await self._intake.positions(prefix)
        gaps = []
        for source, position in positions.items():
            channel, _, thread = source.removeprefix(prefix).partition(":")
            gaps.append(_Gap(source, channel, thread or None, position))
        unread = {each.source for each in self._gaps}
        self._gaps = deque(_most_urgent([each for each in gaps if each.channel], unread))
        self._ingest.held = {each.source for each in self._gaps}

    async def run(self, client: Client) -> None:
        """Fill the gaps one by one."""
        stored = 0
        while self._gaps:
            gap = self._gaps.popleft()
            try:
                stored += await self._close(client, gap)
            except Coded as exc:
                # The gap can never be read: let live messages move the cursor again.
                log.info("slack_backfill_refused", channel=gap.channel, reason=str(exc))
            except SendDelayed as exc:
                # The cursor stays held, so the next connection starts there again.
                log.warning("slack_backfill_failed", channel=gap.channel, reason=str(exc))
                continue
            self._ingest.held.discard(gap.source)
        if stored:
            log.info("slack_backfilled", account=self._ingest.account, messages=stored)

    async def _close(self, client: Client, gap: _Gap) -> int:
        """Fill a gap, oldest first: the cursor must not pass missing messages."""
        events = await self._read(client, gap)
        for event in events:
            event["channel"] = gap.channel
        for start in range(0, len(events), _BATCH):
            batch = events[start : start + _BATCH]
            said = await self._ingest.store_missed(batch, gap.source)
            if gap.thread is None:
                self._gaps.extend(_threads_of(gap, batch, said))
        return len(events)

    async def _read(self, client: Client, gap: _Gap) -> list[dict[str, Any]]:
        """Return all messages of a gap, oldest first; Slack pages from the newest."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        empty = 0
        while empty <= MOST_EMPTY_PAGES:
            page = await self._page(client, gap, cursor)
            events = newer_than(page.get("messages") or [], gap.position)
            found += events
            empty += not events
            cursor = (page.get("response_metadata") or {}).get("next_cursor")
            if not page.get("has_more") or not cursor:
                return newer_than(found, gap.position)
        # Fail, so that the cursor stays.
        raise SendDelayed("pages without messages")

    async def _page(self, client: Client, gap: _Gap, cursor: str | None) -> dict[str, Any]:
        """Return one page, after any pause requested by Slack."""
        read = partial(client.history, gap.channel, gap.thread, oldest=ts_of(gap.position))
        for _ in range(_TRIES - 1):
            try:
                return await read(cursor=cursor)
            except Limited as exc:
                wait_s = _LIMITED_S if exc.retry_after_s is None else exc.retry_after_s
                await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))
        return await read(cursor=cursor)


def _most_urgent(gaps: Sequence[_Gap], unread: Collection[str]) -> list[_Gap]:
    """Return channels, then recently active threads, newest first.

    Within both, sources unread by the last connection come first.
    """
    since = (time.time() - THREADS_FOR_S) * 1_000_000
    newest = sorted(gaps, key=lambda each: (each.source not in unread, -each.position))
    threads = [each for each in newest if each.thread is not None and each.position > since]
    return [*(each for each in newest if each.thread is None), *threads]


def _threads_of(
    gap: _Gap, events: Sequence[dict[str, Any]], said: Sequence[InboundMessage]
) -> list[_Gap]:
    """Return the threads with replies that a message to the bot started within the gap."""
    direct = {each.message_ref: each for each in said if each.addressed == "direct"}
    roots = [each["ts"] for each in events if each.get("reply_count") and each["ts"] in direct]
    return [
        _Gap(f"{gap.source}:{root}", gap.channel, root, position_of(root) or 0) for root in roots
    ]
