"""The live preview of an answer: best effort, coalesced, ended before the answer is committed.

It is one message: what the tools do stands above what is written, and the answer replaces both.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Literal

import structlog

from adapters.base import Adapter
from adapters.messages import Question
from agent.messages import ToolCall
from agent.ports import ToolStatus
from gateway.preview import PreviewMessage
from gateway.progress import CallState, ToolLines

log = structlog.get_logger()

WORKING_EVERY_S = 4.0
"""Telegram's "typing" lasts 5 s. Source: its documentation of sendChatAction."""
SHOW_AGAIN_S = 3.0
"""A platform passes over a preview that comes too early, and a tool may run for minutes."""
LAST_PREVIEW_S = 5.0
"""How long the end of a turn waits for a preview that is on its way."""


class LiveAnswer:
    """Shows one answer as it grows.

    Implements `agent.models.base.TextSink` and `agent.tools.services.Progress`.

    Args:
        adapter: The conversation's platform.
        question: What is answered, and where the answer will appear.
        message: In which it is shown.
        all_sent: Whether the chat shows everything that was said before; no preview begins above
            an earlier answer.
        lines: What is shown of the tools; None for nothing.
    """

    def __init__(
        self,
        adapter: Adapter,
        question: Question,
        message: PreviewMessage,
        all_sent: Callable[[], Awaitable[bool]],
        *,
        lines: ToolLines | None = None,
    ) -> None:
        self._adapter = adapter
        self._question = question
        self._all_sent = all_sent
        self._lines = lines
        # Where sends are idempotent a preview is no message, and its place follows no order.
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
        self._set(call, "running")

    def worked(self, call: ToolCall, status: ToolStatus | Literal["waiting"]) -> None:
        """Show what became of a call."""
        self._set(call, status)

    def _set(self, call: ToolCall, state: CallState) -> None:
        if self._lines is not None:
            self._lines.set(call, state)
            self._changed.set()

    @property
    def status(self) -> str:
        """What is shown of the tools, as markdown; "" for nothing."""
        return self._lines.text if self._lines is not None else ""

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
                self._begun = self._begun or await self._all_sent()
                if not (self._begun and await self.message.is_known()):
                    continue
                status = self.status
                text = "\n\n".join(part for part in (status, self.text) if part)
                ref = await self._adapter.preview(
                    self._question,
                    text,
                    self.message.ref,
                    grows=not status,
                    intent=self.message,
                )
                await self.message.shown_as(ref)

    async def _next_change(self) -> bool:
        """Wait for something new and for the least interval; False once the answer has ended.

        What is shown of the tools comes again when nothing changes.
        """
        while not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(SHOW_AGAIN_S if self.status else None):
                    await self._changed.wait()
            if await self._ends_within(self._adapter.preview_interval_s):
                break
            self._changed.clear()
            if self.text or self.status:
                return True
        return False

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._ended.wait()
        except TimeoutError:
            return False

    @contextmanager
    def _best_effort(self) -> Iterator[None]:
        """Keep an adapter's bug, or a full disk, from costing the answer."""
        try:
            yield
        except Exception:
            log.exception("preview_failed", platform=self._question.address.platform)
