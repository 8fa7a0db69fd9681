"""Previews: a message shows an answer as it grows and becomes the answer; for all platforms.

Best effort: a step that fails is skipped and never causes a second message.
"""

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from typing_extensions import override

from adapters.base import UNANNOUNCED, PreviewIntent, Recent
from adapters.errors import AdapterError, SendUnknown
from adapters.messages import Address, MessageRef, Outgoing
from adapters.pacing import Pacer

MOST_LATE = 1_000
"""Most late previews kept until the answer replaces them."""
_REMEMBERED = 1024
T = TypeVar("T")
BestEffort = Callable[[str, str], AbstractContextManager[None]]
"""Logs the failure of an optional request, given its action and the pacer's chat."""


async def render_in_thread(render: Callable[[str], T], markdown: str) -> T:
    """Render a text in a thread, so as not to block the event loop.

    If the caller is cancelled, the thread continues and ends by itself: rendering is bounded.
    """
    return await asyncio.to_thread(render, markdown)


class Previews(ABC):
    """The growing answers of one account; an answer is sent after the last step of its preview."""

    def __init__(self) -> None:
        self._steps: dict[Address, asyncio.Task[str | None]] = {}
        self._late: Recent[tuple[Address, str | None], str] = Recent(MOST_LATE)
        self._lost: set[Address] = set()

    @abstractmethod
    async def step(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        intent: PreviewIntent,
        *,
        grows: bool,
    ) -> str | None:
        """Post or edit the message if its budget allows it now; return its id.

        It ends in bounded time.
        """

    async def show(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        *,
        grows: bool = True,
        intent: PreviewIntent = UNANNOUNCED,
    ) -> str | None:
        """Show an answer as it grows; see `Adapter.preview`.

        Nothing is shown while an earlier step runs for the same address. A step continues if the
        caller is cancelled: otherwise the id of a posted message could be lost.
        """
        address = question.address
        if address in self._steps or address in self._lost:
            return ref
        step = self.step(question, text, ref, intent, grows=grows)
        task = asyncio.get_running_loop().create_task(step, name="preview")
        self._steps[address] = task
        task.add_done_callback(lambda _: self._steps.pop(address))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(functools.partial(self._came_late, question, ref))
            raise

    @asynccontextmanager
    async def announced(self, address: Address, intent: PreviewIntent) -> AsyncIterator[str]:
        """Announce a new message, which the block posts with this nonce."""
        nonce = await intent.begin()
        try:
            yield nonce
        except SendUnknown:
            # A second message must not follow one that may already be shown, unfinished forever.
            self._lost.add(address)
            raise
        except AdapterError:
            intent.undo()
            raise

    async def settled(self, message: Outgoing) -> Outgoing:
        """Wait until no preview can follow the row; return the row, with its late preview if any.

        A preview is late if its id was unknown when the turn ended.
        """
        await self._wait(message.address)
        self._lost.discard(message.address)
        if message.file is not None or message.preview_ref is not None or not self._late:
            return message
        ref = self._late.pop((message.address, message.reply_to), None)
        return replace(message, preview_ref=ref)

    async def arrived(self, question: MessageRef) -> str | None:
        """Wait for a running step; return the id of the question's late preview, if any.

        The id is removed here, since the caller replaces the preview.
        """
        await self._wait(question.address)
        return self._late.pop((question.address, question.message_ref), None)

    async def _wait(self, address: Address) -> None:
        if (task := self._steps.get(address)) is not None:
            await asyncio.wait([task])

    def _came_late(
        self, question: MessageRef, known: str | None, task: asyncio.Task[str | None]
    ) -> None:
        ref = None if task.cancelled() or task.exception() else task.result()
        if ref is not None and ref != known:
            self._late[question.address, question.message_ref] = ref


class EditedPreviews(Previews):
    """Messages that are posted once, then edited; `text` is a platform's `preview_text`."""

    def __init__(
        self, pacer: Pacer, best_effort: BestEffort, text: Callable[[str], str | None]
    ) -> None:
        super().__init__()
        self._pacer = pacer
        self._best_effort = best_effort
        self._text = text
        self._shown: Recent[tuple[Address, str], str] = Recent(_REMEMBERED)

    @abstractmethod
    def budget(self, question: MessageRef) -> tuple[str, bool] | None:
        """Return the pacer's key and whether it is a group; None if no preview may be shown."""

    @abstractmethod
    async def post(self, question: MessageRef, text: str, nonce: str) -> str:
        """Post a new message and return its id; raises as `Adapter.send`."""

    @abstractmethod
    async def edit(self, address: Address, ref: str, text: str) -> None:
        """Edit a message posted by `post`; raises as `Adapter.send`."""

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
        if (budget := self.budget(question)) is None:
            return ref
        address, shown = question.address, await render_in_thread(self._text, text)
        if shown is None or (ref is not None and self._shown.get((address, ref)) == shown):
            return ref
        chat, is_group = budget
        if (slot := self._pacer.try_preview(chat, group=is_group)) is None:
            return ref
        with slot, self._best_effort("preview", chat):
            if ref is None:
                async with self.announced(address, intent) as nonce:
                    ref = await self.post(question, shown, nonce)
            else:
                await self.edit(address, ref, shown)
            self._shown[address, ref] = shown
        return ref
