"""Pacing: when a chat may be sent to, edited in or shown "typing" (step 8). Knows no platform."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from adapters.errors import SendDelayed


@dataclass(frozen=True, slots=True)
class PaceLimits:
    """A platform's budgets; edits count like messages.

    Attributes:
        per_s: Messages in one second over all chats.
        chat_interval_s: Least time between two messages in one chat.
        group_per_min: Messages in one minute in one group.
        group_preview_interval_s: Least time from any message in a group to a preview there.
        group_reserve: Messages per minute in a group that previews leave to final answers.
        typing_interval_s: Least time between two typing signals in one chat.
        max_wait_s: Longest wait for a budget inside of one send.
    """

    per_s: int
    chat_interval_s: float
    group_per_min: int
    group_preview_interval_s: float = 3.0
    group_reserve: int = 5
    typing_interval_s: float = 4.0
    max_wait_s: float = 10.0


class Pacer:
    """The budgets of one account. Not thread-safe; one event loop."""

    _PRUNE_ABOVE = 4096

    def __init__(
        self,
        limits: PaceLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._all = _Window(limits.per_s, 1.0)
        self._chats: dict[str, _Chat] = {}

    async def wait(self, chat: str, *, group: bool) -> None:
        """Wait for the chat's turn and charge one message to all its budgets.

        Raises:
            SendDelayed: The turn would come later than `max_wait_s`; nothing was charged.
        """
        deadline = self._clock() + self._limits.max_wait_s
        while (at := self._next_turn(chat, group=group)) > self._clock():
            if at > deadline:
                raise SendDelayed("the chat's budget is used up", at - self._clock())
            await self._sleep(at - self._clock())
        self._charge(chat, group=group)

    def try_preview(self, chat: str, *, group: bool) -> bool:
        """Charge one message if it may go out at once; False, and nothing is charged, if not."""
        now = self._clock()
        if self._next_turn(chat, group=group) > now:
            return False
        if group and not self._group_has_room(self._chat(chat), now):
            return False
        self._charge(chat, group=group)
        return True

    def try_typing(self, chat: str) -> bool:
        """Whether a typing signal may be sent now; it costs nothing but the overall budget."""
        now, state = self._clock(), self._chat(chat)
        free_at = max(self._all.free_at(), state.typing_until, state.blocked_until)
        if free_at > now:
            return False
        state.typing_until = now + self._limits.typing_interval_s
        self._all.add(now)
        return True

    def block(self, chat: str, seconds: float) -> None:
        """Keep a chat quiet because the platform asked for it."""
        state = self._chat(chat)
        state.blocked_until = max(state.blocked_until, self._clock() + seconds)

    def _next_turn(self, chat: str, *, group: bool) -> float:
        state = self._chat(chat)
        at = max(state.last_at + self._limits.chat_interval_s, state.blocked_until)
        at = max(at, self._all.free_at())
        return max(at, state.minute.free_at()) if group else at

    def _charge(self, chat: str, *, group: bool) -> None:
        now, state = self._clock(), self._chat(chat)
        state.last_at = now
        self._all.add(now)
        if group:
            state.minute.add(now)

    def _group_has_room(self, state: "_Chat", now: float) -> bool:
        early = now < state.last_at + self._limits.group_preview_interval_s
        left = self._limits.group_per_min - state.minute.used(now)
        return not early and left > self._limits.group_reserve

    def _chat(self, chat: str) -> "_Chat":
        state = self._chats.get(chat)
        if state is None:
            self._prune()
            state = self._chats[chat] = _Chat(_Window(self._limits.group_per_min, 60.0))
        return state

    def _prune(self) -> None:
        """Forget chats whose budgets are full again, so that memory follows activity."""
        if len(self._chats) < self._PRUNE_ABOVE:
            return
        now = self._clock()
        self._chats = {chat: state for chat, state in self._chats.items() if state.busy(now)}


class _Window:
    """At most `size` events in any `period_s` seconds."""

    def __init__(self, size: int, period_s: float) -> None:
        self._stamps: deque[float] = deque(maxlen=size)
        self._period_s = period_s

    def free_at(self) -> float:
        full = len(self._stamps) == self._stamps.maxlen
        return self._stamps[0] + self._period_s if full else float("-inf")

    def used(self, now: float) -> int:
        return sum(1 for stamp in self._stamps if stamp > now - self._period_s)

    def add(self, now: float) -> None:
        self._stamps.append(now)


@dataclass(slots=True)
class _Chat:
    minute: _Window
    last_at: float = float("-inf")
    blocked_until: float = float("-inf")
    typing_until: float = float("-inf")

    def busy(self, now: float) -> bool:
        return max(self.last_at + 60.0, self.blocked_until, self.typing_until) > now
