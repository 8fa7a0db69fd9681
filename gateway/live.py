"""The live preview of an answer: best effort, coalesced, ended before the answer is committed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog

from adapters.base import Adapter
from adapters.messages import Question

log = structlog.get_logger()

WORKING_EVERY_S = 4.0
"""Telegram's "typing" lasts 5 s. Source: PLATFORMS.md."""
LAST_PREVIEW_S = 5.0
"""How long the end of a turn waits for a preview that is on its way."""


class LiveAnswer:
    """Shows one answer as it grows; implements `agent.models.base.TextSink`.

    Args:
        adapter: The conversation's platform.
        question: What is answered, and where the answer will appear.
        ref: The preview message of an earlier attempt at this turn, if any.
        remember: Stores the platform's id of a new preview message, durably.
        all_sent: Whether the chat shows everything that was said before; no preview begins above
            an earlier answer.
    """

    def __init__(
        self,
        adapter: Adapter,
        question: Question,
        ref: str | None,
        remember: Callable[[str], Awaitable[None]],
        all_sent: Callable[[], Awaitable[bool]],
    ) -> None:
        self._adapter = adapter
        self._question = question
        self._remember = remember
        self._all_sent = all_sent
        # Where sends are idempotent a preview is no message, and its place follows no order.
        self._begun = ref is not None or adapter.idempotent_sends
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self.ref = ref
        self.text = ""

    def push(self, delta: str) -> None:
        """Append visible text."""
        self.text += delta
        self._changed.set()

    def restart(self) -> None:
        """Forget what was pushed; what is shown stays until there is something new."""
        self.text = ""

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show "working" and previews while the body runs.

        At the end a preview that is on its way is waited for: its message id must be known, and it
        must not overtake the final answer.
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
                if not self._begun:
                    continue
                ref = await self._adapter.preview(self._question, self.text, self.ref)
                if ref is not None and ref != self.ref:
                    self.ref = ref
                    await self._remember(ref)

    async def _next_change(self) -> bool:
        """Wait for new text and for the least interval; False once the answer has ended."""
        while not self._ended.is_set():
            await self._changed.wait()
            if await self._ends_within(self._adapter.preview_interval_s):
                break
            self._changed.clear()
            if self.text:
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
