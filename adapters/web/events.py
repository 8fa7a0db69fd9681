"""Event streams: a chat's history after a position, then new items, as server-sent events.

The position is two numbers: the last read user message (inbox) and answer (outbox). It is the id of
every event, so a reconnecting browser sends it. Both count separately, since an answer to an older
message may come after a newer message.

Nothing is queued for a listener: it is woken and reads missed items from the history, so a slow one
blocks no other.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

import orjson
import structlog
from aiohttp import web

from adapters.base import ALONE, ChatItem, ContextGauge, Elsewhere, History, Recent
from adapters.door import VisitLimits
from adapters.messages import Address
from adapters.rendering.chunks import PREVIEW_END
from adapters.rendering.markdown import to_html
from adapters.web.guard import VISIT, Guard, place_of, visitor_of
from adapters.web.requests import INLINE, Refusal, give_up

STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # nginx would delay events until its buffer is full.
    "X-Accel-Buffering": "no",
}
# Disconnect a client that reads nothing for this long; it returns with its position.
WRITE_TIMEOUT_S = 60.0
# Most characters shown of a growing answer, which is rendered again each time.
PREVIEW_CHARS = 30_000
# Number of cached renderings.
KEPT_RENDERINGS = 100

log = structlog.get_logger()

Shown = dict[str, str]
"""A text by its format: "html" or "markdown"."""

_EVENT_ID = re.compile(r"(\d{1,18})-(\d{1,18})")


class Listener:
    """One open event stream.

    Attributes:
        stale: Whether the history may have new items.
        working: Whether to show "working" once.
        replaced: Whether the stream ends because the user opened too many.
    """

    def __init__(self) -> None:
        self.stale = True
        self.working = False
        self.replaced = False
        self.woken = asyncio.Event()

    def replace(self) -> None:
        """End the stream; its page reconnects when used."""
        self.replaced = True
        self.woken.set()


@dataclass(slots=True)
class _OpenChat:
    preview: str = ""
    listeners: set[Listener] = field(default_factory=set)


class Hub:
    """The listeners of all chats in this process; every call returns at once."""

    def __init__(self, elsewhere: Elsewhere = ALONE) -> None:
        self._chats: dict[str, _OpenChat] = {}
        self._elsewhere = elsewhere
        self.closed = False
        elsewhere.join(self)

    @contextmanager
    def listen(self, chat: str) -> Iterator[Listener]:
        """Register a listener while the block runs; it starts stale."""
        listener = Listener()
        listeners = self._chats.setdefault(chat, _OpenChat()).listeners
        if not listeners:
            self._elsewhere.opened(chat)
        listeners.add(listener)
        try:
            yield listener
        finally:
            listeners.discard(listener)
            self._forget_if_unused(chat)
            if not listeners:
                self._elsewhere.closed(chat)

    def preview(self, chat: str) -> str:
        """Return the chat's growing answer; "" without one."""
        found = self._chats.get(chat)
        return found.preview if found else ""

    def show(self, chat: str, text: str) -> None:
        """Show a growing answer to current and later listeners; "" removes it."""
        self._chats.setdefault(chat, _OpenChat()).preview = text
        self._wake(chat)
        self._forget_if_unused(chat)

    def show_working(self, chat: str) -> None:
        """Show "working" to the listeners."""
        for listener in self._listeners(chat):
            listener.working = True
        self._wake(chat)

    def refresh(self, chat: str) -> None:
        """Make the listeners read the history again."""
        for listener in self._listeners(chat):
            listener.stale = True
        self._wake(chat)

    def close(self) -> None:
        """End every stream."""
        self.closed = True
        for chat in self._chats:
            self._wake(chat)

    def _wake(self, chat: str) -> None:
        for listener in self._listeners(chat):
            listener.woken.set()

    def _listeners(self, chat: str) -> set[Listener]:
        found = self._chats.get(chat)
        return found.listeners if found else set()

    def _forget_if_unused(self, chat: str) -> None:
        state = self._chats[chat]
        if not state.listeners and not state.preview:
            del self._chats[chat]


class Renderings:
    """Renders a text once for all readers and caches the newest; not thread-safe."""

    def __init__(self, render: Callable[[str], str], most: int) -> None:
        self._render = render
        self._kept: Recent[str, asyncio.Future[str]] = Recent(most)

    async def of(self, markdown: str) -> str:
        """Return the rendering of a text; concurrent readers share it."""
        if (rendering := self._kept.get(markdown)) is None:
            loop = asyncio.get_running_loop()
            rendering = loop.run_in_executor(None, self._render, markdown)
        self._kept[markdown] = rendering
        try:
            # A leaving reader must not cancel the rendering for others.
            return await asyncio.shield(rendering)
        except Exception:
            self._kept.pop(markdown, None)
            raise


class Position(NamedTuple):
    """The last read sequence numbers of inbox and outbox."""

    inbox: int = 0
    outbox: int = 0


class EventStreams:
    """Handler of GET /api/chats/{chat}/events.

    `ping_s` is the longest silence; each ping reads the history again, so answers committed by
    another process arrive as well.
    """

    def __init__(
        self, history: History, hub: Hub, ping_s: float, guard: Guard, limits: VisitLimits
    ) -> None:
        self._history = history
        self._hub = hub
        self._ping_s = ping_s
        self._guard = guard
        self._pages = Renderings(page_html, KEPT_RENDERINGS)
        self._limits = limits

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one stream until the client leaves, the hub closes, or a newer one replaces it."""
        address, start = place_of(request), requested_position(request)
        visitor, caller = visitor_of(request), request[VISIT].caller
        response = web.StreamResponse(headers=STREAM_HEADERS)
        with (
            self._hub.listen(address.chat) as listener,
            self._limits.stream(visitor, caller, listener.replace),
        ):
            await response.prepare(request)
            stream = _Stream(self._history, self._pages, address, response, start)
            stream.as_markdown = request.query.get("format") == "markdown"
            try:
                await self._follow(request, stream, listener)
            except (ConnectionError, TimeoutError) as exc:
                log.debug("web_stream_broken", chat=address.chat, reason=type(exc).__name__)
                give_up(request)
        return response

    async def _follow(self, request: web.Request, stream: "_Stream", listener: Listener) -> None:
        # Check each time, so that a revoked session sees nothing more.
        while not self._hub.closed and await self._guard.still(request):
            if listener.replaced:
                await stream.write(frame("closed", {}))
                return
            # Clear before reading, so that later items wake the stream again.
            listener.woken.clear()
            await stream.write_news(listener, self._hub.preview(stream.address.chat))
            try:
                async with asyncio.timeout(self._ping_s):
                    await listener.woken.wait()
            except TimeoutError:
                listener.stale = True
                await stream.write(b": ping\n\n")


class _Stream:
    """The state of a chat in one client."""

    as_markdown = False

    def __init__(
        self,
        history: History,
        pages: Renderings,
        address: Address,
        response: web.StreamResponse,
        start: Position,
    ) -> None:
        self.address = address
        self._history = history
        self._pages = pages
        self._response = response
        self._position = start
        self._synced = False
        self._gauge: ContextGauge | None = None
        self._preview = ""

    async def write_news(self, listener: Listener, preview: str) -> None:
        if listener.stale:
            # Reset before reading, so that later commits make it stale again.
            listener.stale = False
            answered = await self._write_items()
            if answered or not self._synced:
                await self._write_gauge()
        if not self._synced:
            self._synced = True
            await self.write(frame("synced", {}))
        if listener.working:
            listener.working = False
            await self.write(frame("working", {}))
        if preview != self._preview:
            self._preview = preview
            await self.write(await self._preview_frame(preview))

    async def write(self, data: bytes) -> None:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await self._response.write(data)

    async def _write_items(self) -> bool:
        """Write new items; return whether one is an answer, which changes the gauge."""
        items = await self._history.items(
            self.address, after_inbox=self._position.inbox, after_outbox=self._position.outbox
        )
        for item, position in zip(items, positions(self._position, items), strict=True):
            shown = await self._shown(item.markdown, is_answer=item.outbox_seq > 0)
            await self.write(frame("item", item_data(item, shown), position))
            self._position = position
        return any(item.outbox_seq for item in items)

    async def _write_gauge(self) -> None:
        gauge = await self._history.gauge(self.address)
        if gauge != self._gauge:
            self._gauge = gauge
            data = {"used": gauge.used_tokens, "window": gauge.window_tokens}
            await self.write(frame("gauge", data))

    async def _preview_frame(self, text: str) -> bytes:
        if not text:
            return frame("preview_end", {})
        if len(text) > PREVIEW_CHARS:
            # Cut the text, not the HTML, whose tags must close.
            text = text[:PREVIEW_CHARS] + PREVIEW_END
        return frame("preview", await self._shown(text))

    async def _shown(self, text: str, *, is_answer: bool = True) -> Shown:
        """Return a text in the client's format; answers are Markdown, user messages plain text."""
        if self.as_markdown:
            return {"markdown": text}
        return {"html": await self._pages.of(text) if is_answer else escape(text)}


def requested_position(request: web.Request) -> Position:
    """Return the client's position from `Last-Event-ID` (a reconnect) or else the query."""
    query = f"{request.query.get('inbox', '0')}-{request.query.get('outbox', '0')}"
    known = _EVENT_ID.fullmatch(request.headers.get("Last-Event-ID", ""))
    if not (found := known or _EVENT_ID.fullmatch(query)):
        raise Refusal(400, "bad_position", "inbox and outbox are whole numbers from 0.")
    return Position(int(found[1]), int(found[2]))


def positions(start: Position, items: Sequence[ChatItem]) -> list[Position]:
    """Return for each item the furthest position that misses no later item.

    Answers may come out of outbox order (a command is answered during an older message's turn), so
    the outbox part waits for the lower numbers.
    """
    found: list[Position] = []
    pending = sorted(item.outbox_seq for item in items if item.outbox_seq)
    done: set[int] = set()
    inbox, outbox = start.inbox, start.outbox
    for item in items:
        if item.outbox_seq:
            done.add(item.outbox_seq)
        else:
            inbox = max(inbox, item.inbox_seq)
        while pending and pending[0] in done:
            outbox = pending.pop(0)
        found.append(Position(inbox, outbox))
    return found


def item_data(item: ChatItem, shown: Shown) -> dict[str, object]:
    """Return an item as JSON data for the page, without empty fields."""
    who = "parley" if item.outbox_seq else "you"
    place = {"inbox_seq": item.inbox_seq, "outbox_seq": item.outbox_seq}
    rest = {
        "notice": item.notice,
        "ref": item.ref,
        "taken": item.taken,
        "over": item.over,
        "files": [
            {
                "id": each.id,
                "name": each.name,
                "size": each.size_bytes,
                "picture": each.mime in INLINE,
            }
            for each in item.files
        ],
        "choices": [{"label": each.label, "text": each.text} for each in item.choices],
    }
    known = {name: value for name, value in rest.items() if value}
    return {**place, **shown, "who": who, "at": item.at, **known}


def page_html(markdown: str) -> str:
    """Render an answer to HTML without style attributes, which the page's CSP forbids.

    Quotes in text and attributes are escaped, so only the renderer's own attributes match.
    """
    return to_html(markdown).replace(' style="text-align:', ' class="align-')


def frame(event: str, data: Mapping[str, object], position: Position | None = None) -> bytes:
    """Return one server-sent event."""
    lines: Iterable[bytes] = (b"event: " + event.encode(), b"data: " + orjson.dumps(data), b"\n")
    if position is not None:
        lines = (f"id: {position.inbox}-{position.outbox}".encode(), *lines)
    return b"\n".join(lines)
