"""Waits until Discord answers a question without which a channel cannot go on (step 1)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from adapters.errors import SendDelayed

log = structlog.get_logger()

T = TypeVar("T")
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


async def answer_to(request: Callable[[], Awaitable[T]], *, channel: str, action: str) -> T:
    """Make a request about a channel until it succeeds or is refused, however long that takes.

    Args:
        request: Raises SendDelayed when it is to be made again.
        channel: Whose work waits meanwhile, for the log.
        action: What is asked for: "channel" (what it is) or "history".
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await request()
        except SendDelayed as exc:
            log.warning("discord_read_delayed", action=action, channel=channel, reason=str(exc))
            await asyncio.sleep(exc.retry_after_s or pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
