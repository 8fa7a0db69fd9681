"""What people see while a turn runs: the growing answer below the lines of its tools.

It is one message, which the answer replaces; best effort, coalesced, ended before the answer is
committed. An intent is stored before the message is posted, its id afterwards: if the process is
killed in between, the next one asks the platform for the message and adopts it. If the platform
cannot tell, the answer mentions it, so that no half answer stays unexplained. Until then no other
message is begun.

`TurnChat` shows everything of a turn: that message, its notices and its last word.
Names and arguments of tools are the model's words: shown as plain text, short, without secrets.
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
from adapters.previews import rendered
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
"""A platform passes over a preview that comes too early, and a tool may run for minutes."""
LAST_PREVIEW_S = 5.0
"""How long the end of a turn waits for a preview that is on its way."""
LOOK_UP_S = 30.0
"""How long the end of a turn waits for a platform to say what became of a preview.

Longer than a request may be on its way: its answer could not overtake it anyway.
"""
RETRY_S = 1.0
"""Pause between two questions to a platform that asks for none."""
MAX_LINES = 5
HINT_CHARS = 60
_NAME_CHARS = 64
_MAX_ARGUMENTS_CHARS = 100_000
_READ_CHARS = 2_000
# The first of these arguments describes a call best.
_TELLING = ("command", "path", "url", "query", "pattern", "task", "question", "expression", "name")
_MARKS = {"running": "🔧", "ok": "✓", "partial": "✓", "waiting": "⏸"}
_FAILED = "⚠️"
# Two blanks at the end of a line: a line break within a paragraph of markdown.
_LINE_BREAK = "  \n"
_NOT_NAME = re.compile(r"[^A-Za-z0-9_-]+")

TROUBLE_NOTICE_AFTER = 3
"""Waits for the model in a turn before the user is told that it takes longer."""
LONG_WAIT_S = 15
"""A wait of this length is reported at once."""

CallState = ToolStatus | Literal["running", "waiting"]


class ToolLines:
    """The shown lines of a turn's calls; `redact` masks secrets."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        # Some servers use the id of a call again in a later step, for another call.
        self._states: dict[tuple[str, str], CallState] = {}

    def set(self, call: ToolCall, state: CallState) -> None:
        """Note a call or its result."""
        self._states[call["id"], label(call, self._redact)] = state

    @property
    def text(self) -> str:
        """The newest lines, in the order in which the calls began; as markdown, "" for none."""
        newest = [*self._states.items()][-MAX_LINES:]
        lines = [_line(text, state) for (_, text), state in newest]
        if (earlier := len(self._states) - len(lines)) > 0:
            lines.insert(0, f"+{earlier} earlier")
        return _LINE_BREAK.join(lines)


def _line(text: str, state: CallState) -> str:
    mark = _MARKS.get(state, _FAILED)
    if state != "waiting":
        return f"{mark} {text}"
    # A label begins with the tool's name.
    awaited = "an answer" if text.startswith("clarify") else "approval"
    return f"{mark} {text} (waiting for {awaited})"


def label(call: ToolCall, redact: Callable[[str], str]) -> str:
    """Return a call's tool and a short hint of its arguments, as markdown."""
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
    # On one line, without invisible characters and the end of a code span.
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
        """Return the ids of messages that show something else."""
        return await self.database.read(outbox.newest_refs, self.turn.lease.conversation)

    async def all_sent(self) -> bool:
        """Whether the chat shows everything that was said before."""
        return await self.database.read(outbox.all_sent, self.turn.lease.conversation)


class PreviewMessage(PreviewIntent):
    """One turn's preview.

    Args:
        nonce: Of a message that an earlier attempt has announced, and whose id is not known.

    Attributes:
        ref: The platform's id of the message; None if there is none.
        is_lost: It may be in the chat, but the platform cannot tell.
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
        """Whether it is or may be in the chat."""
        return self.ref is not None or self.is_lost

    async def shown_as(self, ref: str | None) -> None:
        """Store the id under which it is shown, if that is new."""
        if ref is not None and ref != self.ref:
            self.ref, self._doubted = ref, None
            await self.rows.remember(ref)

    async def is_known(self) -> bool:
        """Whether it can be shown, or shown again; in doubt the platform is asked."""
        if self._doubted is not None:
            await self._look_up()
        return self._doubted is None and not self.is_lost

    async def settle(self) -> None:
        """Find out, at the end of a turn, its id, or that there is none, or that it `is_lost`."""
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
        """Ask the platform once; return the delay if it cannot tell now."""
        others = await self.rows.others()
        # A post under way may have been refused meanwhile.
        if (nonce := self._doubted) is None:
            return None
        try:
            ref = await self._adapter.find_preview(self._question, nonce, others)
        except SendDelayed as exc:
            return exc
        except AdapterError as exc:
            self._lose(str(exc))
        except Exception as exc:
            # A bug of the adapter must not fail the turn: it would at every attempt.
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
    """Shows one answer as it grows: `agent.models.base.TextSink` and `agent.ports.Progress`.

    Args:
        question: What is answered, and where the answer will appear.
        lines: Shown above the text.
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
        # With idempotent sends a preview is not a message, so it has no place in their order.
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
        """Forget what was pushed; what is shown stays until there is something new."""
        self.text = ""

    def working(self, call: ToolCall) -> None:
        """Show that a call runs."""
        self.worked(call, "running")

    def worked(self, call: ToolCall, status: CallState) -> None:
        """Show the result of a call."""
        self.lines.set(call, status)
        self._changed.set()

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show "working" and previews while the body runs.

        At the end a preview that is on its way is waited for: its message id must be known, and it
        must not overtake the final answer. One that takes longer than `LAST_PREVIEW_S` goes on at
        the adapter, whose next `send` comes behind it and takes its place.
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
            # The caller tells errors apart by their class.
            raise failures.exceptions[0] from failures

    async def _end(self, working: asyncio.Task[None], previews: asyncio.Task[None]) -> None:
        """Stop waiting for the adapter; no request is ended by that (`adapters.outbound`)."""
        self._ended.set()
        # So that what waits for a change sees the end.
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
                # No preview begins above an earlier answer that is still to be sent.
                self._begun = self._begun or await self.message.rows.all_sent()
                if not (self._begun and await self.message.is_known()):
                    continue
                status = self.lines.text
                text = "\n\n".join(part for part in (status, self.text) if part)
                # Lines of tools change above the answer: then it does not only grow.
                ref = await self._adapter.preview(
                    self._question, text, self.message.ref, grows=not status, intent=self.message
                )
                await self.message.shown_as(ref)

    async def _next_change(self) -> bool:
        """Wait for the least interval and for something new, or to show the tools again.

        Returns False once the answer has ended.
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
        """Keep an adapter's bug, or a full disk, from ending the turn."""
        try:
            yield
        except Exception:
            log.exception("preview_failed", platform=self._question.address.platform)


@dataclass(slots=True)
class TurnChat:
    """Where one turn is shown: its growing answer, its notices, its last word, its reactions.

    Attributes:
        waits: How often the turn has waited for a model in trouble.
    """

    turn: Turn
    adapter: Adapter
    database: Database
    wakeups: Wakeups
    live: LiveAnswer
    waits: int = 0

    @classmethod
    def of(cls, parts: TurnParts, turn: Turn) -> "TurnChat":
        """Return the chat of a turn, with the preview that an earlier attempt has left."""
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
        """Return the rows that replace the preview; they mention one that is lost."""
        turn, preview, render = self.turn, self.live.message, self.adapter.render
        is_failure = kind in {"failed", "buried"}
        await preview.settle()
        if preview.is_lost:
            text = f"{notices.REPLACES}\n\n{text}"
        if is_failure:
            text = notices.referring(text, turn)
        return await rendered(
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
        """Return the outbox rows that show the turn's new notes, each with *Undo*.

        Args:
            own: The turn's messages; if they do not call `memory`, nothing is read.
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
        """Say that the conversation is condensed first."""
        await self._say(f"turn:{self.turn.id}:hygiene", notices.HYGIENE)

    async def tell_of_context(self, what: str) -> None:
        """Report a consequence of a compaction; a full floor once, until `/new`."""
        turn = self.turn
        key = f"turn:{turn.id}:{what}"
        if what == "floor":
            key = f"conversation:{turn.lease.conversation}:{turn.session.plan.first_seq}:floor"
        await self._say(key, notices.CONTEXT[what])

    async def tell_of_trouble(self, failure: ModelError | None) -> None:
        """Report a model's lasting trouble, once; None: its answer trickles."""
        self.waits += 1
        asked_s = failure.retry_after_s if isinstance(failure, RateLimited) else None
        has_lasted = failure is None or self.waits == TROUBLE_NOTICE_AFTER
        if has_lasted or (asked_s or 0) >= LONG_WAIT_S:
            await self._say(f"turn:{self.turn.id}:trouble", notices.TROUBLE)

    async def tell_of_fallback(self, text: str, since: int) -> None:
        """Report that the chosen model failed, once since it last answered, in turn `since`."""
        await self._say(f"conversation:{self.turn.lease.conversation}:fallback:{since}", text)

    async def _say(self, key: str, text: str) -> None:
        """Send a notice during the turn, once for each key."""
        parts = parts_of(self.adapter.render, key, text, reply_to=self.turn.reply_to)
        await self.database.write(turn_journal.notify, self.turn, parts)
        self.wakeups.outbox(self.turn.lease.conversation)
