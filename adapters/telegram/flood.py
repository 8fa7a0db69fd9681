"""What is done about a 429, and about requests that are only best effort (steps 8 and 9)."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from adapters.errors import AdapterError
from adapters.pacing import Pacer
from adapters.telegram.errors import Flooded

log = structlog.get_logger()

# Telegram does not say whom a 429 is for: one of a chat comes alone, one of the bot hits whatever
# is under way.
_CHATS = 3
_WITHIN_S = 5.0


class Flood:
    """Keeps a chat quiet, or the whole bot, as long as Telegram asked for.

    Args:
        pacer: The budgets of the bot.
        clock: Monotonic seconds.
    """

    def __init__(self, pacer: Pacer, clock: Callable[[], float] = time.monotonic) -> None:
        self._pacer = pacer
        self._clock = clock
        self._refused_at: OrderedDict[str, float] = OrderedDict()

    def heed(self, chat: str, exc: AdapterError) -> None:
        """Block what an error asks for, if it does."""
        if not isinstance(exc, Flooded) or exc.retry_after_s is None:
            return
        self._pacer.block(chat, exc.retry_after_s)
        if self._chats_refused(chat) >= _CHATS:
            log.warning("telegram_flooded", seconds=exc.retry_after_s)
            self._pacer.block_all(exc.retry_after_s)

    @contextmanager
    def best_effort(self, action: str, chat: str) -> Iterator[None]:
        """Swallow what a request meets that nothing depends on."""
        try:
            yield
        except AdapterError as exc:
            self.heed(chat, exc)
            log.debug("telegram_signal_failed", action=action, chat=chat, reason=str(exc))

    def _chats_refused(self, chat: str) -> int:
        now = self._clock()
        self._refused_at[chat] = now
        self._refused_at.move_to_end(chat)
        while now - next(iter(self._refused_at.values())) > _WITHIN_S:
            self._refused_at.popitem(last=False)
        return len(self._refused_at)
