"""Markdown → what a platform shows: a short text on the event loop, a long one beside it.

The parser is imported with the first renderer, not with this package.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LOOP_CHARS = 8_000
"""Longest text that is rendered on the event loop: 8 ms of real answers, 60 ms of the worst text
that is known (docs/performance.md). A thread costs 0.1 ms and shares the interpreter every 5 ms.
"""
# Two, so that one hostile answer does not keep the next long one waiting.
_BESIDE = ThreadPoolExecutor(2, thread_name_prefix="rendering")


async def rendered(render: Callable[[str], T], markdown: str) -> T:
    """Return what `render`, a pure function, makes of a text.

    A caller that is cancelled does not end the thread, which ends by itself: rendering is bounded.
    """
    if len(markdown) <= LOOP_CHARS:
        return render(markdown)
    return await asyncio.get_running_loop().run_in_executor(_BESIDE, render, markdown)
