"""Shows an answer as it grows: as Slack's own text stream in threads, else by edits.

A stream only grows, and Slack closes it about five minutes after its start. When the text must
change, or the stream gets old, the same message goes on as edits; so an answer is one message from
its first word on, and its end is one edit that can be repeated. A half-written line may still turn
out to be a table, a list or bold text: it is held back from the stream until it is sure. Where this
guess is wrong the preview goes on as edits.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import structlog
from typing_extensions import override

from adapters.base import Clock, PreviewIntent, Recent
from adapters.errors import AdapterError, SendRejected, SendUnknown
from adapters.messages import Address, MessageRef, Outgoing
from adapters.previews import Previews
from adapters.rendering import rendered
from adapters.rendering.chunks import PREVIEW_END
from adapters.slack.client import APPEND, POST, START, STOP, UPDATE, Client, metadata_of
from adapters.slack.errors import Coded, Refused, mapped
from adapters.slack.find_sent import STREAMED
from adapters.slack.ingest import Ingest
from adapters.slack.render import preview_text

log = structlog.get_logger()

STREAM_FOR_S = 240.0
"""Age at which a stream goes on as edits. Source: slackapi/python-slack-sdk issue 1859."""
EDIT_EVERY_S = 2.0
"""Least time between two edits of one preview: 50 a minute are for the whole workspace."""
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
    """The preview cannot become the answer: its text must be posted anew."""


@dataclass(slots=True)
class _Live:
    """A preview that is being shown.

    Attributes:
        began: When it began, in monotonic seconds.
        is_open: It is a stream that Slack has not closed.
        shown: What it shows now.
        changed: When that was last changed.
        in_doubt: An appended piece may be there or not.
    """

    address: Address
    ts: str
    began: float
    is_open: bool
    shown: str
    changed: float
    in_doubt: bool = False


class SlackPreviews(Previews):
    """The previews of one app.

    Args:
        ingest: Knows the workspace, once Slack has told it.
    """

    def __init__(self, client: Client, ingest: Ingest, *, clock: Clock = time.monotonic) -> None:
        super().__init__()
        self._client = client
        self._ingest = ingest
        self._clock = clock
        self._live: Recent[str, _Live] = Recent(_REMEMBERED)
        self._unstreamed: Recent[Address, None] = Recent(_REMEMBERED)

    def is_live(self, address: Address) -> bool:
        """Whether an answer is being shown there."""
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
        # Without it there is no stream, but a preview all the same.
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
        """Make the preview the answer; can be repeated. Returns its timestamp.

        Raises:
            PreviewGone: It cannot be edited any more.
        """
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
        """Delete a message that another one has taken the place of, if it is still there."""
        try:
            with mapped():
                await self._client.web.chat_delete(channel=channel, ts=ts or "")
        except AdapterError as exc:
            log.debug("slack_message_not_deleted", channel=channel, reason=str(exc))

    async def _begin(
        self, question: MessageRef, text: str, intent: PreviewIntent, *, grows: bool
    ) -> str | None:
        address = question.address
        # A stream needs a thread, and a person to be shown to.
        can_stream = address.thread is not None and question.sender is not None and self._team
        if grows and can_stream and address not in self._unstreamed:
            beginning = await rendered(_settled, text)
            if not beginning:
                return None
            ref = await self._start(question, beginning, intent)
            if ref is not None:
                return ref
        shown = await rendered(preview_text, text)
        return None if shown is None else await self._post(address, shown, intent)

    @property
    def _team(self) -> str | None:
        identity = self._ingest.identity
        return identity.team if identity else None

    async def _start(
        self, question: MessageRef, beginning: str, intent: PreviewIntent
    ) -> str | None:
        """Begin a stream; None where Slack has none now, or none for this place or reader."""
        address = question.address
        chance = self._client.chance(START, address.chat)
        if chance is None:
            return None
        try:
            async with self.announced(address, intent):
                with chance:
                    answer = await self._client.web.chat_startStream(
                        channel=address.chat,
                        thread_ts=address.thread or "",
                        recipient_team_id=self._team,
                        recipient_user_id=question.sender,
                        markdown_text=beginning,
                    )
        except Coded as exc:
            log.debug("slack_stream_refused", channel=address.chat, reason=str(exc))
            # Not asked for again there: it would be refused again, and each attempt costs a
            # request.
            self._unstreamed[address] = None
            return None
        return self._remembered(address, str(answer["ts"]), beginning, is_open=True)

    async def _post(self, address: Address, shown: str, intent: PreviewIntent) -> str | None:
        chance = self._client.chance(POST, address.chat)
        if chance is None:
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
        """Return a preview; one of an earlier process is taken for a stream that got too old."""
        live = self._live.get(ref)
        if live is None:
            is_open, ts = ref.startswith(STREAMED), ts_of_preview(ref) or ""
            live = _Live(address, ts, self._clock() - STREAM_FOR_S, is_open, "", float("-inf"))
            self._live[ref] = live
        return live

    async def _grow(self, live: _Live, text: str, *, grows: bool) -> None:
        if live.is_open and grows:
            await self._stream(live, await rendered(_settled, text))
        elif live.is_open:
            await self._end_stream(live)
        if not live.is_open:
            await self._edit(live, await rendered(preview_text, text))

    async def _stream(self, live: _Live, shown: str) -> None:
        """Append what is new; end the stream where it cannot go on."""
        is_over = live.in_doubt or self._clock() - live.began >= STREAM_FOR_S
        # A stream only grows. Slack closes it at about 5 minutes, whatever is still to come.
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
            # Appending the same piece again would show it twice.
            live.in_doubt = True
            await self._end_stream(live)
            raise
        live.shown, live.changed = shown, self._clock()

    async def _end_stream(self, live: _Live) -> None:
        chance = self._client.chance(STOP, live.address.chat)
        if chance is None:
            return
        with _closed_before(), chance:
            await self._client.web.chat_stopStream(channel=live.address.chat, ts=live.ts)
        live.is_open = False

    async def _edit(self, live: _Live, shown: str | None) -> None:
        now = self._clock()
        if shown is None or shown == live.shown or now - live.changed < EDIT_EVERY_S:
            return
        chance = self._client.chance(UPDATE, live.address.chat)
        if chance is None:
            return
        # Before the request: one that fails counts, too, for the time until the next.
        live.changed = now
        with chance:
            await self._client.web.chat_update(
                channel=live.address.chat, ts=live.ts, markdown_text=shown, link_names=False
            )
        live.shown = shown

    async def _finish_stream(self, message: Outgoing, live: _Live | None, ts: str) -> bool:
        """Close the stream; True if it now shows the whole answer and nothing else."""
        if live is not None and not live.is_open:
            return False
        rest = _rest(live, message)
        try:
            return await self._close(message, ts, rest)
        except Refused as exc:
            # The rest is more than a stream takes at its end. The edit that follows brings it all.
            if exc.code not in _TOO_LONG:
                raise
        return await self._close(message, ts, None)

    async def _close(self, message: Outgoing, ts: str, rest: str | None) -> bool:
        """Close a stream behind the rest of its text; True if Slack took that."""
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
    """Let a stream pass that Slack has closed already; the block ends there."""
    try:
        yield
    except Refused as exc:
        if exc.code not in _CLOSED:
            raise


def ts_of_preview(ref: str | None) -> str | None:
    """Return the timestamp of a preview's message."""
    return None if ref is None else ref.removeprefix(STREAMED)


def _rest(live: _Live | None, message: Outgoing) -> str | None:
    """Return what is missing behind a stream, None where it has to be replaced.

    Slack drops blanks at the beginning of what is appended.
    """
    # Where it is not known what stands there only an edit of the whole is sure; that also brings
    # the buttons.
    if live is None or live.in_doubt or message.choices:
        return None
    if not message.payload.startswith(live.shown):
        return None
    rest = message.payload[len(live.shown) :]
    return None if rest[:1].isspace() else rest


def _settled(text: str) -> str:
    """Return the rendered beginning of an unfinished text that will not change any more.

    It ends behind a blank in front of a word, since Slack drops blanks that an appended piece
    begins with.
    """
    whole, sure = _rendered(text), _rendered(_certain(text))
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole, sure, strict=False)))
    if end == len(sure):
        end += len(whole[end:]) - len(whole[end:].lstrip())
    # The blank itself may be sent: what comes after it begins with a word, and Slack keeps it.
    if 0 < end < len(whole) and whole[end - 1].isspace():
        return whole[:end]
    words = whole[:end].rstrip()
    return words[: len(words) - len(words.rsplit(maxsplit=1)[-1])] if words else ""


def _rendered(text: str) -> str:
    return (preview_text(text) or "").removesuffix(PREVIEW_END)


def _certain(text: str) -> str:
    """Return the text without the end that may still change its meaning."""
    lines = text.split("\n")
    lines[-1] = _balanced(lines[-1])
    while lines and (lines[-1].lstrip().startswith("|") or _MARK_ONLY.fullmatch(lines[-1])):
        lines.pop()
    return "\n".join(lines)


def _balanced(line: str) -> str:
    """Return the longest beginning of a line that leaves no mark open, up to a blank."""
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
