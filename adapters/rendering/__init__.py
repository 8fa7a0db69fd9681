"""Markdown → the format of a platform: cheap texts on the event loop, expensive ones in a thread.

The parser is imported with the first renderer, not with this package.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from operator import mul
from typing import TypeVar

T = TypeVar("T")
Render = Callable[[str], T]
"""A pure function that renders a text."""

# Cost that each character adds to a text: about its cost in the worst texts found, on the slowest
# platform. A nested list begins with "- " and the like, a link with "://".
_SIGN_COSTS = {
    **dict.fromkeys(("[", "<"), 100),
    **dict.fromkeys(("\n", "\r", "*", "_", "://", "- ", "+ ", ". ", ") "), 60),
    "]": 40,
    **dict.fromkeys(("`", "~", "|", "&", "> "), 20),
    "\\": 10,
}
LOOP_COST = 10_000
"""Highest cost of a text rendered on the event loop: 99 of 100 real answers cost less.

A thread costs 0.1 ms and shares the interpreter every 5 ms.
"""
MAX_COST = 500_000
"""More expensive texts are shown as plain text; a real answer of 100,000 characters costs less."""
# Two, so that one hostile answer does not delay the next expensive one.
_BESIDE = ThreadPoolExecutor(2, thread_name_prefix="rendering")


def cost(markdown: str) -> int:
    """Estimate the microseconds that rendering takes on any platform; usually too high."""
    counts = map(markdown.count, _SIGN_COSTS)
    signs: int = sum(map(mul, _SIGN_COSTS.values(), counts))
    return len(markdown) + signs


def is_cheap(markdown: str) -> bool:
    """Whether a text may be rendered on the event loop."""
    return len(markdown) <= LOOP_COST and cost(markdown) <= LOOP_COST


async def rendered(render: Render[T], markdown: str) -> T:
    """Render a text.

    A caller that is cancelled does not end the thread, which ends by itself: rendering is bounded.
    """
    if is_cheap(markdown):
        return render(markdown)
    return await _beside(render, markdown)


def _beside(render: Render[T], markdown: str) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(_BESIDE, render, markdown)


class Renderings:
    """Renders a text once for all its readers and keeps the newest; for one event loop.

    Args:
        most_chars: Characters of renderings to keep.
    """

    def __init__(self, render: Render[str], most_chars: int) -> None:
        self._render = render
        self._room = most_chars
        self._kept: OrderedDict[bytes, str] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Future[str]] = {}

    async def of(self, markdown: str) -> str:
        """Return the rendering of a text; concurrent readers of the same text share it."""
        key = blake2b(markdown.encode("utf-8", "surrogatepass")).digest()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if is_cheap(markdown):
            shown = self._render(markdown)
            self._keep(key, shown)
            # A long history has hundreds of these: let other tasks run in between.
            await asyncio.sleep(0)
            return shown
        if key not in self._under_way:
            self._under_way[key] = _beside(self._render, markdown)
            self._under_way[key].add_done_callback(partial(self._finished, key))
        # A reader that leaves must not cancel the rendering for the others.
        return await asyncio.shield(self._under_way[key])

    def _finished(self, key: bytes, rendering: asyncio.Future[str]) -> None:
        del self._under_way[key]
        if not rendering.cancelled() and rendering.exception() is None:
            self._keep(key, rendering.result())

    def _keep(self, key: bytes, shown: str) -> None:
        self._kept[key] = shown
        self._room -= len(shown)
        while self._room < 0:
            _, dropped = self._kept.popitem(last=False)
            self._room += len(dropped)
