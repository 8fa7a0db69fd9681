"""Session hygiene: the safety net before a turn, at 85 % of the window.

It catches what escaped the agent's own compressor: growth overnight, a model with a smaller window.
It runs in the turn of its conversation, so it never holds up the intake of messages.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from agent.context.planner import Planner
from agent.view.view import View

log = structlog.get_logger()

HYGIENE_SHARE = 0.85
"""Share of the window; fixed, since 50 % would compress on every turn. Source: Hermes."""
MIN_MESSAGES = 4
"""Shorter histories are left alone. Source: Hermes."""
TIMEOUT_S = 30.0
"""For the summary model; then the extractor takes over."""
TELL_AFTER_S = 5.0


def is_due(tokens: int, window_tokens: int, messages: int) -> bool:
    """Whether a view of this size must be compacted before its turn.

    Args:
        window_tokens: Of the model that will answer.
        messages: Of the history, without the system message.
    """
    return messages >= MIN_MESSAGES and tokens >= HYGIENE_SHARE * window_tokens


async def clean(planner: Planner, view: View, tell: Callable[[], Awaitable[None]]) -> None:
    """Compact the view if that is due; `tell` is called if it takes longer than `TELL_AFTER_S`."""
    window_tokens = planner.engine.limits.context_length
    tokens = (await planner.measured(view)).tokens
    if not planner.enabled or not is_due(tokens, window_tokens, len(view.entries)):
        return
    try:
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(_tell_later(tell), name="hygiene notice")
            done = await planner.compact(view, "hygiene", timeout_s=TIMEOUT_S)
            telling.cancel()
    except BaseExceptionGroup as failures:
        # The caller tells errors apart by their class.
        raise failures.exceptions[0] from failures
    if done is None:
        log.warning("hygiene_without_effect", tokens=tokens, window_tokens=window_tokens)


async def _tell_later(tell: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(TELL_AFTER_S)
    await tell()
