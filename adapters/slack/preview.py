"""Shows progress before an answer: the growing message, a status line, reactions.

In threads an answer grows as Slack's text stream, elsewhere by edits. A stream only grows, and
Slack closes it after about five minutes. When the text must change or the stream gets old, the same
message continues with edits; the final edit can be repeated. A half-written line may still become a
table, a list or bold text, so it is held back until its meaning is certain.
"""

import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import structlog
from typing_extensions import override

from adapters.base import Clock, PreviewIntent, Recent
from adapters.errors import AdapterError, SendRejected, SendUnknown
from adapters.messages import Address, MessageRef, Outgoing, Reaction
from adapters.previews import Previews, render_in_thread
from adapters.rendering.chunks import PREVIEW_END
from adapters.slack.client import (
    APPEND,
    POST,
    REACT,
    START,
    STATUS,
    STOP,
    UNREACT,
    UPDATE,
    Client,
    metadata_of,
)
from adapters.slack.errors import Coded, Refused, code_of, mapped
from adapters.slack.ingest import Ingest, position_of
from adapters.slack.render import preview_text

log = structlog.get_logger()

STREAM_FOR_S = 240.0
"""Age in seconds of a stream that continues as edits. Source: python-slack-sdk issue 1859."""
EDIT_EVERY_S = 2.0
"""Least seconds between two edits of a preview: the whole workspace may make 50 per minute."""
STREAMED = "stream:"
"""Prefix of the ref of a preview that is or was a text stream."""
STATUS_FOR_S = 100.0
"""Slack removes a status after two minutes. Source: its page of assistant.threads.setStatus."""
_WORKING = "is thinking..."
_REACTIONS: dict[Reaction, str] = {
    "received": "eyes",
    "answered": "white_check_mark",
    "failed": "warning",
}
# The reaction is already in the requested state.
_DONE = frozenset({"already_reacted", "no_reaction"})
# Slack will never allow this to the app.
_NEVER = frozenset({"missing_scope", "unknown_method"})
_REMEMBERED = 1024
_CLOSED = frozenset({"message_not_in_streaming_state", "stopped_by_user"})
_TOO_LONG = frozenset({"msg_too_long", "msg_blocks_too_long"})
_GONE = _TOO_LONG | frozenset({
    "message_not_found",
    "thread_not_found",
    "cant_update_message",
    "edit_window_closed",
    "message_not_owned_by_app",
    "block_mismatch",
})
_MARK_ONLY = re.compile(r"\s*([-+*#>]+|\d+[.)]?)?\s*")
_SIGN = re.compile(r"\*+|`+|~+|(?<!\w)_+|_+(?!\w)|[\[\](<)>]|\s")
_OPEN, _CLOSE = "[(<", "])>"


class PreviewGone(SendRejected):
    """The preview cannot become the answer: post a new message."""


@dataclass(slots=True)
class _Live:
    """A shown preview.

    Attributes:
        began: Start in monotonic seconds, like `changed`.
        is_open: Whether it is an open stream.
        in_doubt: Whether an appended piece may be missing.
    """

    address: Address
    ts: str
    began: float
    is_open: bool
    shown: str
    changed: float
    in_doubt: bool = False


class SlackPreviews(Previews):
    """The growing answers of one app."""

    def __init__(self, client: Client, ingest: Ingest, *, clock: Clock = time.monotonic) -> None:
        super().__init__()
        self._client = client
        self._ingest = ingest
        self._clock = clock
        self._live: Recent[str, _Live] = Recent(_REMEMBERED)
        self._unstreamed: Recent[Address, None] = Recent(_REMEMBERED)

    def is_live(self, address: Address) -> bool:
        """Whether an address shows a growing answer."""
        return any(live.address == address for live in self._live.values())

    @override
    async def step(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        intent: PreviewIntent,
        *,
        grows: bool,
    ) -> str | None:
        address = question.address
        # Without it the preview works, but not as a stream.
        with suppress(AdapterError):
            await self._ingest.know_bot(self._client)
        try:
            if ref is None:
                return await self._begin(question, text, intent, grows=grows)
            await self._grow(self._known(address, ref), text, grows=grows)
        except AdapterError as exc:
            log.debug("slack_preview_failed", channel=address.chat, reason=str(exc))
        return ref

    async def finish(self, message: Outgoing, content: dict[str, Any]) -> str:
        """Turn the preview into the answer; return its timestamp. Repeatable."""
        ref = message.preview_ref or ""
        live, ts = self._live.pop(ref, None), ts_of_preview(ref) or ""
        try:
            if ref.startswith(STREAMED) and await self._finish_stream(message, live, ts):
                return ts
            async with self._client.turn(UPDATE, message.address.chat):
                await self._client.web.chat_update(channel=message.address.chat, ts=ts, **content)
        except Refused as exc:
            if exc.code in _GONE:
                raise PreviewGone(str(exc)) from exc
            raise
        return ts

    async def delete(self, channel: str, ts: str | None) -> None:
        """Delete a replaced message; best effort."""
        try:
            with mapped():
                await self._client.web.chat_delete(channel=channel, ts=ts or "")
        except AdapterError as exc:
            log.debug("slack_message_not_deleted", channel=channel, reason=str(exc))

    async def _begin(
        self, question: MessageRef, text: str, intent: PreviewIntent, *, grows: bool
    ) -> str | None:
        address = question.address
        team = self._ingest.identity.team if self._ingest.identity else ""
        # A stream needs a thread and a user to address.
        can_stream = team and address.thread is not None and question.sender is not None
        if grows and can_stream and address not in self._unstreamed:
            beginning = await render_in_thread(_settled, text)
            if not beginning:
                return None
            ref = await self._start(question, beginning, team, intent)
            if ref is not None:
                return ref
        shown = await render_in_thread(preview_text, text)
        return None if shown is None else await self._post(address, shown, intent)

    async def _start(
        self, question: MessageRef, beginning: str, team: str, intent: PreviewIntent
    ) -> str | None:
        """Start a stream; return None if Slack has none now or for this place or user."""
        address = question.address
        if (chance := self._client.chance(START, address.chat)) is None:
            return None
        try:
            async with self.announced(address, intent):
                with chance:
                    answer = await self._client.web.chat_startStream(
                        channel=address.chat,
                        thread_ts=address.thread or "",
                        recipient_team_id=team,
                        recipient_user_id=question.sender,
                        markdown_text=beginning,
                    )
        except Coded as exc:
            log.debug("slack_stream_refused", channel=address.chat, reason=str(exc))
            # Do not retry there: each attempt costs a request.
            self._unstreamed[address] = None
            return None
        return self._remembered(address, str(answer["ts"]), beginning, is_open=True)

    async def _post(self, address: Address, shown: str, intent: PreviewIntent) -> str | None:
        if (chance := self._client.chance(POST, address.chat)) is None:
            return None
        async with self.announced(address, intent) as nonce:
            with chance:
                answer = await self._client.web.chat_postMessage(
                    channel=address.chat,
                    thread_ts=address.thread,
                    markdown_text=shown,
                    metadata=metadata_of(nonce),
                    link_names=False,
                    unfurl_links=False,
                    unfurl_media=False,
                )
        return self._remembered(address, str(answer["ts"]), shown, is_open=False)

    def _remembered(self, address: Address, ts: str, shown: str, *, is_open: bool) -> str:
        now = self._clock()
        ref = f"{STREAMED}{ts}" if is_open else ts
        self._live[ref] = _Live(address, ts, now, is_open, shown, now)
        return ref

    def _known(self, address: Address, ref: str) -> _Live:
        """Return a preview; one of an earlier process counts as an expired stream."""
        if (live := self._live.get(ref)) is None:
            is_open, ts = ref.startswith(STREAMED), ts_of_preview(ref) or ""
            live = _Live(address, ts, self._clock() - STREAM_FOR_S, is_open, "", float("-inf"))
            self._live[ref] = live
        return live

    async def _grow(self, live: _Live, text: str, *, grows: bool) -> None:
        if live.is_open and grows:
            await self._stream(live, await render_in_thread(_settled, text))
        elif live.is_open:
            await self._end_stream(live)
        if not live.is_open:
            await self._edit(live, await render_in_thread(preview_text, text))

    async def _stream(self, live: _Live, shown: str) -> None:
        """Append new text; end the stream if it cannot continue."""
        is_over = live.in_doubt or self._clock() - live.began >= STREAM_FOR_S
        # A stream only grows. Slack closes it after about 5 minutes.
        if is_over or not (shown.startswith(live.shown) or live.shown.startswith(shown)):
            await self._end_stream(live)
            return
        added = shown[len(live.shown) :]
        chance = self._client.chance(APPEND, live.address.chat) if added else None
        if chance is None:
            return
        try:
            with chance:
                await self._client.web.chat_appendStream(
                    channel=live.address.chat, ts=live.ts, markdown_text=added
                )
        except (Coded, SendUnknown):
            # Appending the piece again could show it twice.
            live.in_doubt = True
            await self._end_stream(live)
            raise
        live.shown, live.changed = shown, self._clock()

    async def _end_stream(self, live: _Live) -> None:
        if (chance := self._client.chance(STOP, live.address.chat)) is None:
            return
        with _closed_before(), chance:
            await self._client.web.chat_stopStream(channel=live.address.chat, ts=live.ts)
        live.is_open = False

    async def _edit(self, live: _Live, shown: str | None) -> None:
        now = self._clock()
        if shown is None or shown == live.shown or now - live.changed < EDIT_EVERY_S:
            return
        if (chance := self._client.chance(UPDATE, live.address.chat)) is None:
            return
        # Before the request, since a failed one counts, too.
        live.changed = now
        with chance:
            await self._client.web.chat_update(
                channel=live.address.chat, ts=live.ts, markdown_text=shown, link_names=False
            )
        live.shown = shown

    async def _finish_stream(self, message: Outgoing, live: _Live | None, ts: str) -> bool:
        """Close the stream; return whether it shows exactly the whole answer."""
        if live is not None and not live.is_open:
            return False
        try:
            return await self._close(message, ts, _rest(live, message))
        except Refused as exc:
            # The rest is too long for a stream's end; the following edit contains everything.
            if exc.code not in _TOO_LONG:
                raise
        return await self._close(message, ts, None)

    async def _close(self, message: Outgoing, ts: str, rest: str | None) -> bool:
        """Append the rest and close the stream; return whether Slack accepted the rest."""
        chat = message.address.chat
        with _closed_before():
            async with self._client.turn(STOP, chat):
                await self._client.web.chat_stopStream(
                    channel=chat,
                    ts=ts,
                    markdown_text=rest or None,
                    metadata=metadata_of(message.nonce),
                )
            return rest is not None
        return False


@contextmanager
def _closed_before() -> Iterator[None]:
    """Treat a stream already closed by Slack as success."""
    try:
        yield
    except Refused as exc:
        if exc.code not in _CLOSED:
            raise


def ts_of_preview(ref: str | None) -> str | None:
    """Return the timestamp of a preview's message."""
    return None if ref is None else ref.removeprefix(STREAMED)


def _rest(live: _Live | None, message: Outgoing) -> str | None:
    """Return the text missing at a stream's end; None if the message must be edited."""
    # An uncertain stream must be edited, and so must a message with buttons.
    if live is None or live.in_doubt or message.choices:
        return None
    if not message.payload.startswith(live.shown):
        return None
    rest = message.payload[len(live.shown) :]
    # Slack drops leading whitespace of an appended piece.
    return None if rest[:1].isspace() else rest


def _settled(text: str) -> str:
    """Render the part of an unfinished text that will no longer change.

    It ends after whitespace, since Slack drops leading whitespace of an appended piece.
    """
    whole, sure = _rendered(text), _rendered(_certain(text))
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole, sure, strict=False)))
    if end == len(sure):
        end += len(whole[end:]) - len(whole[end:].lstrip())
    if 0 < end < len(whole) and whole[end - 1].isspace():
        return whole[:end]
    words = whole[:end].rstrip()
    return words[: len(words) - len(words.rsplit(maxsplit=1)[-1])] if words else ""


def _rendered(text: str) -> str:
    return (preview_text(text) or "").removesuffix(PREVIEW_END)


def _certain(text: str) -> str:
    """Remove an end whose meaning may still change."""
    lines = text.split("\n")
    lines[-1] = _balanced(lines[-1])
    while lines and (lines[-1].lstrip().startswith("|") or _MARK_ONLY.fullmatch(lines[-1])):
        lines.pop()
    return "\n".join(lines)


def _balanced(line: str) -> str:
    """Return the longest start of a line, up to a space, without unclosed marks."""
    odd: set[str] = set()
    depth, end = 0, 0
    for found in _SIGN.finditer(line):
        sign = found.group()
        if sign.isspace():
            end = found.end() if not odd and depth <= 0 else end
        elif sign in _OPEN or sign in _CLOSE:
            depth += 1 if sign in _OPEN else -1
        else:
            odd ^= {sign}
    return line[:end]


Call = Callable[[], Awaitable[object]]


class Reactions:
    """The progress signs of one app.

    In threads an agent session, with Slack's stop button, if Slack treats the app as an agent;
    otherwise a status line. Outside threads Slack has neither.
    """

    def __init__(self, client: Client, *, reactions: bool, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._reactions = reactions
        self._clock = clock
        self._working: Recent[Address, float] = Recent(_REMEMBERED)
        self._has_sessions = True
        self._has_status = True

    async def show_working(self, question: MessageRef) -> None:
        """Show "working", once per display period of Slack."""
        address, now = question.address, self._clock()
        if address.thread is None or not self._has_status:
            return
        if now - self._working.get(address, float("-inf")) < STATUS_FOR_S:
            return
        self._working[address] = now
        if self._has_sessions:
            await self._session(address, "processing", question.sender)
        if not self._has_sessions:
            await self._status(address, _WORKING)

    async def show_done(self, address: Address, *, posted: bool) -> None:
        """Remove the progress sign; a new message ends a status line but not an agent session."""
        if self._working.pop(address, None) is None:
            return
        if self._has_sessions:
            await self._session(address, "active")
        elif not posted:
            await self._status(address, "")

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """React to a message, replacing an earlier reaction."""
        ts = question.message_ref
        if not self._reactions or ts is None or position_of(ts) is None:
            return
        channel = question.address.chat

        def react() -> Awaitable[object]:
            name = _REACTIONS[mark]
            return self._client.web.reactions_add(channel=channel, timestamp=ts, name=name)

        def unreact() -> Awaitable[object]:
            name = _REACTIONS["received"]
            return self._client.web.reactions_remove(channel=channel, timestamp=ts, name=name)

        if mark == "received":
            await self._try(REACT, channel, react)
            return
        # Slack allows several reactions per user.
        await self._see_to(UNREACT, channel, unreact)
        await self._see_to(REACT, channel, react)

    async def _session(self, address: Address, status: str, sender: str | None = None) -> None:
        failed = await self._try(
            STATUS,
            address.chat,
            lambda: self._client.web.agents_sessions_setStatus(
                channel_id=address.chat,
                thread_ts=address.thread,
                status=status,
                initiator_user_id=sender,
            ),
        )
        if isinstance(failed, Coded):
            self._has_sessions = False

    async def _status(self, address: Address, status: str) -> None:
        failed = await self._try(
            STATUS,
            address.chat,
            lambda: self._client.web.assistant_threads_setStatus(
                channel_id=address.chat, thread_ts=address.thread or "", status=status
            ),
        )
        if failed is not None and code_of(failed) in _NEVER:
            self._has_status = False

    async def _try(self, method: str, channel: str, call: Call) -> AdapterError | None:
        """Make a call if the budget allows; return its failure, if any."""
        if (chance := self._client.chance(method, channel)) is None:
            return None
        try:
            with chance:
                await call()
        except AdapterError as exc:
            return _noted(channel, exc)
        return None

    async def _see_to(self, method: str, channel: str, call: Call) -> None:
        """Make a call when its budget allows."""
        try:
            async with self._client.turn(method, channel):
                await call()
        except AdapterError as exc:
            _noted(channel, exc)


def _noted(channel: str, exc: AdapterError) -> AdapterError:
    if code_of(exc) not in _DONE:
        log.debug("slack_sign_failed", channel=channel, reason=str(exc))
    return exc
