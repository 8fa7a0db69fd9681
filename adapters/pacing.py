"""Rate budgets of a platform's account, groups and chats: when a request may be sent.

Messages queue twice, first come first served: in their chat for the chat's budgets, then for the
overall one. Best-effort requests (previews, typing, reactions) yield to the queue.

A platform counts arrivals. So a request counts from its answer, not from its start (`Slot`): then
two requests cannot arrive within one period, however late one of them is.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from adapters.base import Clock, Share
from adapters.errors import SendDelayed

# Assumed duration of a request whose answer is not reported, and the longest duration.
_UNTOLD_S = 0.07
_LONGEST_S = 0.5
# A quarter of a second's messages may leave at once: enough for a few chats. If all of them left at
# the end of one period and the start of the next, they would exceed the limit.
_BURST_PART = 4
# Previews leave a quarter of a group's minute to answers.
_LEFT_PART = 4
_NEVER = float("-inf")
_MINUTE_S = 60.0
# Extra distance between messages of processes that share a budget: requests may arrive in a
# different order than they left, and no process sees the others' requests.
_APART = 1.05


@dataclass(frozen=True, slots=True)
class PaceLimits:
    """A platform's rate budgets; edits count like messages.

    Attributes:
        per_s: Messages per second over all chats.
        chat_interval_s: Mean time between two messages in one chat; 0 for no limit.
        chat_burst: Most messages of a chat in any `chat_burst * chat_interval_s` seconds.
        group_per_min: Messages per minute in one group; None for no limit.
        group_preview_interval_s: Minimum time from any message in a group to a preview there.
        max_wait_s: Longest wait for a budget within one send.
        share: This process's share of the account's and groups' budgets.
    """

    per_s: int
    chat_interval_s: float
    group_per_min: int | None = None
    chat_burst: int = 1
    group_preview_interval_s: float = 3.0
    typing_interval_s: float = 4.0
    max_wait_s: float = 10.0
    share: Share = field(default_factory=Share)


class Slot:
    """A request charged to the budgets; truthy, and a context manager around the request."""

    __slots__ = ("_answered_at", "_clock", "begun_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begun_at = clock()
        self._answered_at: float | None = self.begun_at + _UNTOLD_S

    def __enter__(self) -> None:
        self._answered_at = None

    def __exit__(self, *_: object) -> None:
        self._answered_at = self._clock()

    def counted_at(self, now: float) -> float:
        """Return the latest time at which the platform may have counted it."""
        known = now if self._answered_at is None else self._answered_at
        return min(known, self.begun_at + _LONGEST_S)


class Pacer:
    """The rate budgets of one account. Not thread-safe; used in one event loop."""

    _PRUNE_ABOVE = 4096

    def __init__(
        self,
        limits: PaceLimits,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._limits = limits
        self._share = limits.share
        self._clock = clock
        self._sleep = sleep
        self._all = _Rate(limits.per_s, self._share)
        self._gate = _WaitingLine()
        self._promised_at = _NEVER
        self._chats: dict[str, _ChatBudgets] = {}

    async def wait(self, chat: str, *, group: bool) -> Slot:
        """Wait for the chat's turn and charge one message to all its budgets.

        Use: `with await pacer.wait(chat, group=False): await request()`.

        Raises:
            SendDelayed: The turn would come later than `max_wait_s`; nothing was charged.
        """
        deadline = self._clock() + self._limits.max_wait_s
        state = self._chat(chat)
        # Refused before it queues, if the queue is too long.
        ahead_s = state.line.length * self._limits.chat_interval_s
        self._check(state.free_at(self._clock(), group=group) + ahead_s, deadline, "chat")
        async with state.line.place():
            await self._wait_until(lambda now: state.free_at(now, group=group), deadline, "chat")
            self._check_gate(deadline)
            async with self._gate.place():
                await self._wait_until(
                    lambda now: max(self._all.free_at(now), state.blocked_until),
                    deadline,
                    "overall",
                )
                return self._charge(state)

    async def wait_signal(self, chat: str) -> Slot:
        """Wait until no message needs the overall budget, and charge it once; raises as `wait`.

        For small but necessary requests, such as a reaction that replaces another one.
        """
        deadline = self._clock() + self._limits.max_wait_s
        while (slot := self.try_signal(chat)) is None:
            now = self._clock()
            free_at = max(self._all.free_at(now), self._chat(chat).blocked_until)
            # Always later than now: if only the queue is in the way, the budget is free.
            at = max(free_at, now + self._all.interval_s)
            self._check(at, deadline, "overall")
            await self._sleep(at - now)
        return slot

    def try_preview(self, chat: str, *, group: bool) -> Slot | None:
        """Charge one message if it may be sent at once; else charge nothing, return None."""
        now, state = self._clock(), self._chat(chat)
        if not self._is_quiet(state, now) or state.line.length:
            return None
        if state.free_at(now, group=group) > now:
            return None
        if group and not self._group_has_room(state, now):
            return None
        return self._charge(state)

    def try_typing(self, chat: str) -> Slot | None:
        """Like `try_signal`; also returns None while an earlier "typing" is still shown."""
        now, state = self._clock(), self._chat(chat)
        if state.typing_until > now or (slot := self.try_signal(chat)) is None:
            return None
        state.typing_until = now + self._limits.typing_interval_s
        return slot

    def try_signal(self, chat: str) -> Slot | None:
        """Charge only the overall budget, if a small request may be sent now."""
        if not self._is_quiet(self._chat(chat), self._clock()):
            return None
        return self._all.charge(Slot(self._clock))

    def block(self, chat: str, seconds: float) -> None:
        """Block a chat at the platform's request."""
        state = self._chat(chat)
        state.blocked_until = max(state.blocked_until, self._clock() + seconds)

    def block_all(self, seconds: float) -> None:
        """Block the whole account at the platform's request."""
        self._all.block(self._clock() + seconds)

    async def _wait_until(
        self, free_at: Callable[[float], float], deadline: float, what: str
    ) -> None:
        """Wait for a budget; check it at each wake-up, since it may have been blocked meanwhile."""
        while (at := free_at(now := self._clock())) > now:
            self._check(at, deadline, what)
            await self._sleep(at - now)

    def _check(self, at: float, deadline: float, what: str) -> None:
        if at > deadline:
            raise SendDelayed(f"the {what} budget is used up", at - self._clock())

    def _check_gate(self, deadline: float) -> None:
        """Refuse to queue for the overall budget if the queue is too long.

        Refused messages should return one after the other and slightly early, so that the queue
        neither overflows again nor runs empty.
        """
        now = self._clock()
        at = max(self._all.free_at(now), now) + self._gate.length * self._all.interval_s
        if at > deadline:
            self._promised_at = max(self._promised_at + self._all.interval_s, at)
            # They may wait in the queue for the other half.
            early_s = self._limits.max_wait_s / 2
            raise SendDelayed("the overall budget is used up", self._promised_at - now - early_s)

    def _is_quiet(self, state: "_ChatBudgets", now: float) -> bool:
        """Return whether the overall budget has room and no message waits for it."""
        free_at = max(self._all.free_at(now), state.blocked_until)
        return not self._gate.length and free_at <= now

    def _group_has_room(self, state: "_ChatBudgets", now: float) -> bool:
        if state.minute is None:
            return True
        early = now < state.recent.last_at(now) + self._limits.group_preview_interval_s
        reserve = (self._limits.group_per_min or 0) // _LEFT_PART // self._share.of
        return not early and state.minute.left(now) > reserve

    def _charge(self, state: "_ChatBudgets") -> Slot:
        return state.charge(self._all.charge(Slot(self._clock)))

    def _chat(self, chat: str) -> "_ChatBudgets":
        state = self._chats.get(chat)
        if state is None:
            if len(self._chats) >= self._PRUNE_ABOVE:
                # Memory follows activity: chats whose budgets are full again are dropped.
                now = self._clock()
                busy = {name: each for name, each in self._chats.items() if each.busy(now)}
                self._chats = busy
            state = self._chats[chat] = _ChatBudgets.of(self._limits)
        return state


class _Rate:
    """At most `per_s` events in any second, evenly spaced except for a burst after a quiet time."""

    def __init__(self, per_s: int, share: Share) -> None:
        self._per_s = per_s
        self._share = share
        self._window = _Window(per_s, 1.0, share)
        self._due_at = _NEVER
        self._blocked_until = _NEVER

    @property
    def interval_s(self) -> float:
        """Mean time between two events."""
        alone_s = 1.0 / self._per_s
        return alone_s if self._share.of == 1 else alone_s * self._share.of * _APART

    def free_at(self, now: float) -> float:
        # The bursts of all processes together form one burst.
        lead_s = (self._per_s // self._share.of // _BURST_PART) * self.interval_s
        return max(
            self._due_at - lead_s,
            self._window.free_at(now),
            self._blocked_until,
            self._share.held_until,
        )

    def charge(self, slot: Slot) -> Slot:
        self._due_at = max(self._due_at, slot.begun_at) + self.interval_s
        self._window.add(slot)
        return slot

    def block(self, until: float) -> None:
        self._blocked_until = max(self._blocked_until, until)


class _Window:
    """At most `size` events in any `period_s` seconds; with a share, over all processes."""

    def __init__(self, size: int, period_s: float, share: Share | None = None) -> None:
        self._whole = size
        self._slots: deque[Slot] = deque(maxlen=size)
        self._period_s = period_s
        self._share = share

    @property
    def _size(self) -> int:
        return self._whole if self._share is None else max(self._whole // self._share.of, 1)

    def free_at(self, now: float) -> float:
        size = self._size
        if len(self._slots) < size:
            return _NEVER
        period_s = self._period_s
        if self._share is not None and self._share.of > 1:
            # If there are more processes than events, each has one event in a longer period.
            period_s *= _APART * max(self._share.of / self._whole, 1.0)
        return self._slots[-size].counted_at(now) + period_s

    def last_at(self, now: float) -> float:
        return self._slots[-1].counted_at(now) if self._slots else _NEVER

    def left(self, now: float) -> int:
        return self._size - sum(slot.counted_at(now) > now - self._period_s for slot in self._slots)

    def add(self, slot: Slot) -> None:
        self._slots.append(slot)


class _WaitingLine:
    """A first-in, first-out queue; `length` includes the head."""

    def __init__(self) -> None:
        self.length = 0
        self._head = asyncio.Lock()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for the head of the queue, and leave it at the end of the block."""
        self.length += 1
        try:
            async with self._head:
                yield
        finally:
            self.length -= 1


@dataclass(slots=True)
class _ChatBudgets:
    recent: _Window
    of_group: _Window
    minute: _Window | None
    line: _WaitingLine = field(default_factory=_WaitingLine)
    blocked_until: float = _NEVER
    typing_until: float = _NEVER

    @classmethod
    def of(cls, limits: PaceLimits) -> "_ChatBudgets":
        burst, period_s = limits.chat_burst, limits.chat_burst * limits.chat_interval_s
        recent, of_group = _Window(burst, period_s), _Window(burst, period_s, limits.share)
        per_min = limits.group_per_min
        minute = None if per_min is None else _Window(per_min, _MINUTE_S, limits.share)
        return cls(recent, of_group, minute)

    def free_at(self, now: float, *, group: bool) -> float:
        if not group:
            return max(self.recent.free_at(now), self.blocked_until)
        at = max(self.of_group.free_at(now), self.blocked_until)
        return at if self.minute is None else max(at, self.minute.free_at(now))

    def charge(self, slot: Slot) -> Slot:
        self.recent.add(slot)
        self.of_group.add(slot)
        if self.minute is not None:
            self.minute.add(slot)
        return slot

    def busy(self, now: float) -> bool:
        last_at = self.recent.last_at(now)
        quiet_at = max(last_at + _MINUTE_S, self.blocked_until, self.typing_until)
        return bool(self.line.length) or quiet_at > now
