"""The live view of a running turn: its growing answer below the lines of its tools.

It is one message, which the answer replaces: best effort, coalesced, ended before the answer is
committed. An intent is stored before the message is posted, its id afterwards. If the process is
killed in between, the next one asks the platform for the message and adopts it; if the platform
cannot tell, the answer mentions the unfinished message. Until then no other message is started.

`TurnChat` shows everything about a turn: this message, its notices and its final text. The model
writes names and arguments of tools, so they are shown as short plain text without secrets.
"""

import asyncio
import re
import secrets
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import structlog
from typing_extensions import override

from adapters.base import Adapter, PreviewIntent
from adapters.errors import AdapterError, SendDelayed
from adapters.messages import MessageRef, Reaction
from adapters.previews import render_in_thread
from agent.errors import ModelError, RateLimited
from agent.messages import ChatMessage, ToolCall
from agent.models.wire import read_arguments
from agent.ports import ToolStatus
from agent.safety.redaction import masked_assignments
from agent.tools.builtin.notebook import memory
from gateway.agent_ports.tools import lines_of
from gateway.context.parts import TurnParts
from gateway.pipeline import notices
from gateway.signals import Wakeups
from gateway.storage.conversation import turn_journal
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.people import notebook
from gateway.storage.queue import outbox
from gateway.storage.queue.outbox import OutboxPart, parts_of

log = structlog.get_logger()

WORKING_EVERY_S = 4.0
"""Telegram's "typing" lasts 5 s. Source: its documentation of sendChatAction."""
SHOW_AGAIN_S = 3.0
"""Repeat interval of a preview: platforms skip early ones, and a tool may run for minutes."""
LAST_PREVIEW_S = 5.0
"""Seconds that the end of a turn waits for a preview in transit."""
LOOK_UP_S = 30.0
"""Seconds that the end of a turn waits for a platform to find a preview.

Longer than a request may take, so the answer cannot overtake it.
"""
RETRY_S = 1.0
"""Default pause between two queries to a platform."""
MAX_LINES = 5
HINT_CHARS = 60
_NAME_CHARS = 64
_MAX_ARGUMENTS_CHARS = 100_000
_READ_CHARS = 2_000
# The first of these arguments that a call has describes it best.
_TELLING = ("command", "path", "url", "query", "pattern", "task", "question", "expression", "name")
_MARKS = {"running": "🔧", "ok": "✓", "partial": "✓", "waiting": "⏸"}
_FAILED = "⚠️"
# Two trailing spaces make a line break in Markdown.
_LINE_BREAK = "  \n"
_NOT_NAME = re.compile(r"[^A-Za-z0-9_-]+")

TROUBLE_NOTICE_AFTER = 3
"""Waits for the model in one turn after which the user gets a notice."""
LONG_WAIT_S = 15
"""Length of a wait that causes a notice at once, in seconds."""

CallState = ToolStatus | Literal["running", "waiting"]


class ToolLines:
    """The lines that show a turn's tool calls; `redact` masks secrets."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        # Some servers reuse a call id in a later step.
        self._states: dict[tuple[str, str], CallState] = {}

    def set(self, call: ToolCall, state: CallState) -> None:
        """Set the state of a call."""
        self._states[call["id"], label(call, self._redact)] = state

    @property
    def text(self) -> str:
        """The newest lines in the order of the calls, as Markdown; "" without calls."""
        newest = [*self._states.items()][-MAX_LINES:]
        lines = [_line(text, state) for (_, text), state in newest]
        if (earlier := len(self._states) - len(lines)) > 0:
            lines.insert(0, f"+{earlier} earlier")
        return _LINE_BREAK.join(lines)


def _line(text: str, state: CallState) -> str:
    mark = _MARKS.get(state, _FAILED)
    if state != "waiting":
        return f"{mark} {text}"
    # A label starts with the tool's name.
    awaited = "an answer" if text.startswith("clarify") else "approval"
    return f"{mark} {text} (waiting for {awaited})"


def label(call: ToolCall, redact: Callable[[str], str]) -> str:
    """Return the tool of a call with a short hint of its arguments, as Markdown."""
    function = call["function"]
    name = _NOT_NAME.sub("", function["name"])[:_NAME_CHARS].replace("_", r"\_") or "?"
    hint = _hint(function["arguments"], redact)
    return f"{name}: `{hint}`" if hint else name


def _hint(raw: str, redact: Callable[[str], str]) -> str:
    values = read_arguments(raw) if len(raw) <= _MAX_ARGUMENTS_CHARS else None
    found: Any = next((values[key] for key in _TELLING if values and values.get(key)), "")
    if not isinstance(found, str):
        return ""
    text = masked_assignments(redact(found[:_READ_CHARS]))
    # One line, without invisible characters or the end of a code span.
    seen = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in text)
    text = " ".join(seen.replace("`", "'").split())
    return text if len(text) <= HINT_CHARS else text[: HINT_CHARS - 1].rstrip() + "…"


@dataclass(frozen=True, slots=True)
class PreviewRows:
    """The stored state of one turn's preview."""

    database: Database
    turn: Turn

    async def announce(self, nonce: str) -> None:
        """Store that a message with this nonce will be posted."""
        await self.database.write(turn_journal.announce_preview, self.turn, nonce)

    async def remember(self, ref: str) -> None:
        """Store the id of the message."""
        await self.database.write(turn_journal.set_preview, self.turn, ref)

    async def others(self) -> frozenset[str]:
        """Return the ids of messages that show other content."""
        return await self.database.read(outbox.newest_refs, self.turn.lease.conversation)

    async def all_sent(self) -> bool:
        """Whether all earlier rows of the chat were sent."""
        return await self.database.read(outbox.all_sent, self.turn.lease.conversation)


class PreviewMessage(PreviewIntent):
    """The preview message of one turn.

    Args:
        nonce: Nonce of a message announced by an earlier attempt, whose id is unknown.

    Attributes:
        ref: The platform's id of the message; None without a message.
        is_lost: Whether it may be in the chat, but the platform cannot tell.
    """

    def __init__(
        self,
        adapter: Adapter,
        question: MessageRef,
        rows: PreviewRows,
        *,
        ref: str | None = None,
        nonce: str | None = None,
    ) -> None:
        self.ref = ref
        self.is_lost = False
        self._adapter = adapter
        self.rows = rows
        self._question = question
        self._doubted = nonce

    @override
    async def begin(self) -> str:
        nonce = secrets.token_hex(12)
        await self.rows.announce(nonce)
        self._doubted = nonce
        return nonce

    @override
    def undo(self) -> None:
        self._doubted = None

    @property
    def stands(self) -> bool:
        """Whether the message is or may be in the chat."""
        return self.ref is not None or self.is_lost

    async def shown_as(self, ref: str | None) -> None:
        """Store a new id of the message."""
        if ref is not None and ref != self.ref:
            self.ref, self._doubted = ref, None
            await self.rows.remember(ref)

    async def is_known(self) -> bool:
        """Return whether the message can be posted or edited; ask the platform if in doubt."""
        if self._doubted is not None:
            await self._look_up()
        return self._doubted is None and not self.is_lost

    async def settle(self) -> None:
        """At the end of a turn, find the message's id, or that it does not exist or `is_lost`."""
        if self._doubted is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_UP_S):
                delayed = await self._look_up()
                while delayed is not None:
                    await asyncio.sleep(delayed.retry_after_s or RETRY_S)
                    delayed = await self._look_up()
        self._lose("the platform takes too long")

    async def _look_up(self) -> SendDelayed | None:
        """Ask the platform once; return the requested delay if it cannot answer now."""
        others = await self.rows.others()
        # A pending post may have been refused meanwhile.
        if (nonce := self._doubted) is None:
            return None
        try:
            ref = await self._adapter.find_preview(self._question, nonce, others)
        except SendDelayed as exc:
            return exc
        except AdapterError as exc:
            self._lose(str(exc))
        except Exception as exc:
            # A bug in the adapter must not fail the turn at every attempt.
            log.exception("preview_failed", platform=self._question.address.platform)
            self._lose(repr(exc))
        else:
            self._doubted = None
            log.info("preview_looked_up", found=ref is not None)
            await self.shown_as(ref)
        return None

    def _lose(self, reason: str) -> None:
        if self._doubted is None:
            return
        self._doubted, self.is_lost = None, True
        platform = self._question.address.platform
        log.warning("preview_lost", platform=platform, reason=reason)


class LiveAnswer:
    """Shows a growing answer; implements `agent.models.base.TextSink` and `agent.ports.Progress`.

    Args:
        question: The message to answer, with its address.
        lines: The tool lines above the text.
    """

    def __init__(
        self,
        adapter: Adapter,
        question: MessageRef,
        message: PreviewMessage,
        lines: ToolLines,
    ) -> None:
        self._adapter = adapter
        self._question = question
        self.lines = lines
        # With idempotent sends a preview is not a message and needs no place in their order.
        self._begun = message.ref is not None or adapter.idempotent_sends
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self.message = message
        self.text = ""

    def push(self, delta: str) -> None:
        """Append visible text."""
        self.text += delta
        self._changed.set()

    def restart(self) -> None:
        """Discard the pushed text; the shown text stays until new text comes."""
        self.text = ""

    def working(self, call: ToolCall) -> None:
        """Show a running call."""
        self.worked(call, "running")

    def worked(self, call: ToolCall, status: CallState) -> None:
        """Show the status of a finished call."""
        self.lines.set(call, status)
        self._changed.set()

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show "working" and previews while the body runs.

        At the end, wait for a preview in transit: its message id must be known, and it must not
        overtake the final answer. A preview that takes longer than `LAST_PREVIEW_S` continues in
        the adapter, whose next `send` follows it and replaces it.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(self._show_working(), name="working")
                previews = tasks.create_task(self._show_previews(), name="previews")
                try:
                    yield
                finally:
                    await self._end(working, previews)
        except BaseExceptionGroup as failures:
            # The caller distinguishes errors by class.
            raise failures.exceptions[0] from failures

    async def _end(self, working: asyncio.Task[None], previews: asyncio.Task[None]) -> None:
        """Stop waiting for the adapter; its requests continue (`adapters.outbound`)."""
        self._ended.set()
        # Let waiters for a change see the end.
        self._changed.set()
        working.cancel()
        await asyncio.wait([previews], timeout=LAST_PREVIEW_S)
        previews.cancel()

    async def _show_working(self) -> None:
        with self._best_effort():
            while True:
                await self._adapter.show_working(self._question)
                await asyncio.sleep(WORKING_EVERY_S)

    async def _show_previews(self) -> None:
        with self._best_effort():
            while await self._next_change():
                # Do not start a preview above an earlier answer that is not sent yet.
                self._begun = self._begun or await self.message.rows.all_sent()
                if not (self._begun and await self.message.is_known()):
                    continue
                status = self.lines.text
                text = "\n\n".join(part for part in (status, self.text) if part)
                # Tool lines change above the answer, so the text does not only grow.
                ref = await self._adapter.preview(
                    self._question, text, self.message.ref, grows=not status, intent=self.message
                )
                await self.message.shown_as(ref)

    async def _next_change(self) -> bool:
        """Wait for the minimum interval and a change, or until the tools are due again.

        Return False once the answer has ended.
        """
        while not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(SHOW_AGAIN_S if self.lines.text else None):
                    await self._changed.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._adapter.preview_interval_s):
                    await self._ended.wait()
                    break
            self._changed.clear()
            if self.text or self.lines.text:
                return True
        return False

    @contextmanager
    def _best_effort(self) -> Iterator[None]:
        """Keep a bug in the adapter or a full disk from ending the turn."""
        try:
            yield
        except Exception:
            log.exception("preview_failed", platform=self._question.address.platform)


@dataclass(slots=True)
class TurnChat:
    """The chat of one turn: shows its growing answer, notices, final text and reactions.

    Attributes:
        waits: How often the turn has waited for an unavailable model.
    """

    turn: Turn
    adapter: Adapter
    database: Database
    wakeups: Wakeups
    live: LiveAnswer
    waits: int = 0

    @classmethod
    def of(cls, parts: TurnParts, turn: Turn) -> "TurnChat":
        """Return the chat of a turn, with the preview of an earlier attempt."""
        shared, place = parts.shared, turn.lease.address
        adapter = shared.adapters[place.platform, place.account]
        message = PreviewMessage(
            adapter,
            turn.question,
            PreviewRows(shared.database, turn),
            ref=turn.preview_ref,
            nonce=turn.preview_nonce,
        )
        lines = ToolLines(parts.mind.agent.approval.redactor.text)
        live = LiveAnswer(adapter, turn.question, message, lines)
        return cls(turn, adapter, shared.database, shared.wakeups, live)

    async def parts(self, kind: str, text: str) -> list[OutboxPart]:
        """Return the rows that replace the preview; they mention a lost preview."""
        turn, preview, render = self.turn, self.live.message, self.adapter.render
        is_failure = kind in {"failed", "buried"}
        await preview.settle()
        if preview.is_lost:
            text = f"{notices.REPLACES}\n\n{text}"
        if is_failure:
            text = notices.referring(text, turn)
        return await render_in_thread(
            lambda markdown: parts_of(
                render,
                f"turn:{turn.id}:{kind}",
                markdown,
                preview_ref=preview.ref,
                reply_to=turn.reply_to,
                choices=(notices.TRY_AGAIN,) if is_failure else (),
            ),
            text,
        )

    async def new_notes(self, own: Iterable[ChatMessage]) -> list[OutboxPart]:
        """Return outbox rows for the turn's new notes, each with an *Undo* button.

        Args:
            own: The turn's messages; without a call of `memory` nothing is read.
        """
        calls = (call for message in own for call in message.get("tool_calls") or ())
        if all(call["function"]["name"] != memory.name for call in calls):
            return []
        return lines_of(
            self.adapter.render, await self.database.read(notebook.written_in, self.turn.id)
        )

    def ended(self, reaction: Reaction) -> None:
        """Hint that the end is committed."""
        conversation = self.turn.lease.conversation
        self.wakeups.outbox(conversation)
        self.wakeups.mark(self.turn, reaction)

    async def tell_of_hygiene(self) -> None:
        """Send the notice that the conversation is being condensed."""
        await self._say(f"turn:{self.turn.id}:hygiene", notices.HYGIENE)

    async def tell_of_context(self, what: str) -> None:
        """Send the notice about a compaction; about a full window only once until `/new`."""
        turn = self.turn
        key = f"turn:{turn.id}:{what}"
        if what == "floor":
            key = f"conversation:{turn.lease.conversation}:{turn.session.plan.first_seq}:floor"
        await self._say(key, notices.CONTEXT[what])

    async def tell_of_trouble(self, failure: ModelError | None) -> None:
        """Send one notice about a model's lasting trouble; None means a very slow answer."""
        self.waits += 1
        asked_s = failure.retry_after_s if isinstance(failure, RateLimited) else None
        has_lasted = failure is None or self.waits == TROUBLE_NOTICE_AFTER
        if has_lasted or (asked_s or 0) >= LONG_WAIT_S:
            await self._say(f"turn:{self.turn.id}:trouble", notices.TROUBLE)

    async def tell_of_fallback(self, text: str, since: int) -> None:
        """Report that the chosen model failed, once since its last answer in turn `since`."""
        await self._say(f"conversation:{self.turn.lease.conversation}:fallback:{since}", text)

    async def _say(self, key: str, text: str) -> None:
        """Send a notice during the turn, once per key."""
        parts = parts_of(self.adapter.render, key, text, reply_to=self.turn.reply_to)
        await self.database.write(turn_journal.notify, self.turn, parts)
        self.wakeups.outbox(self.turn.lease.conversation)
