"""Slack's budgets (step 8): one message a second per channel, and so many calls of each method.

Source: https://docs.slack.dev/apis/web-api/rate-limits and the methods' own pages. All tiers are
"at least", per method and workspace.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager

from adapters.pacing import PaceLimits, Pacer, Slot
from adapters.slack.errors import Limited, mapped

# The workspace-wide limit of posts is not published ("several hundred per minute").
LIMITS = PaceLimits(per_s=10, chat_interval_s=1.0)

POST = "chat.postMessage"
START = "chat.startStream"
APPEND = "chat.appendStream"
STOP = "chat.stopStream"
UPDATE = "chat.update"
REACT = "reactions.add"
UNREACT = "reactions.remove"
STATUS = "assistant.threads.setStatus"
USERS = "users.info"
_PER_MIN = {
    START: 20,
    STOP: 20,
    APPEND: 100,
    UPDATE: 50,
    REACT: 50,
    UNREACT: 50,
    STATUS: 50,
    USERS: 100,
}
_BLOCKED_S = 30.0


class Budgets:
    """The budgets of one app.

    Args:
        limits: What may be posted.
        clock: Monotonic seconds.
    """

    def __init__(self, limits: PaceLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._posts = Pacer(limits, clock=clock)
        self._methods = {
            method: Pacer(_tier(per_min), clock=clock) for method, per_min in _PER_MIN.items()
        }

    @asynccontextmanager
    async def turn(self, method: str, channel: str) -> AsyncIterator[None]:
        """Wait for the turn of a call; the call is the body.

        Raises:
            SendDelayed: It would come too late; nothing was charged.
            CallFailed: The body's call did.
        """
        pacer, chat = self._pacer(method, channel)
        slot = await pacer.wait(chat, group=True)
        with _taken(pacer, chat, slot):
            yield

    def chance(self, method: str, channel: str) -> AbstractContextManager[None] | None:
        """Return what is to be put around a call that is only best effort; None if it may not be.

        It leaves room for calls that are more. Raises what the call does, as CallFailed.
        """
        pacer, chat = self._pacer(method, channel)
        slot = pacer.try_preview(chat, group=True)
        return None if slot is None else _taken(pacer, chat, slot)

    def _pacer(self, method: str, channel: str) -> tuple[Pacer, str]:
        """Posts are counted by channel, other methods over all of them."""
        if method == POST:
            return self._posts, channel
        return self._methods[method], method


@contextmanager
def _taken(pacer: Pacer, chat: str, slot: Slot) -> Iterator[None]:
    """Tell the pacer when the call ends, and be quiet for as long as Slack asks for."""
    try:
        with slot, mapped():
            yield
    except Limited as exc:
        pacer.block(chat, _BLOCKED_S if exc.retry_after_s is None else exc.retry_after_s)
        raise


def _tier(per_min: int) -> PaceLimits:
    return PaceLimits(
        per_s=per_min,
        chat_interval_s=0.0,
        chat_burst=per_min,
        group_per_min=per_min,
        group_preview_interval_s=0.0,
        group_reserve=per_min // 4,
    )
