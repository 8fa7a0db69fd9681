"""Markdown → the format of a platform; in a thread, so that no text delays the event loop."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Render = Callable[[str], T]
"""A pure function that renders a text."""


async def rendered(render: Render[T], markdown: str) -> T:
    """Render a text.

    A caller that is cancelled does not end the thread, which ends by itself: rendering is bounded.
    """
    return await asyncio.to_thread(render, markdown)


class Renderings:
    """Renders a text once for all its readers and keeps the newest; for one event loop.

    Args:
        most: Renderings to keep.
    """

    def __init__(self, render: Render[str], most: int) -> None:
        self._render = render
        self._most = most
        self._kept: OrderedDict[str, asyncio.Future[str]] = OrderedDict()

    async def of(self, markdown: str) -> str:
        """Return the rendering of a text; concurrent readers of the same text share it."""
        if markdown not in self._kept:
            loop = asyncio.get_running_loop()
            self._kept[markdown] = loop.run_in_executor(None, self._render, markdown)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(markdown)
        try:
            # A reader that leaves must not cancel the rendering for the others.
            return await asyncio.shield(self._kept[markdown])
        except Exception:
            self._kept.pop(markdown, None)
            raise
