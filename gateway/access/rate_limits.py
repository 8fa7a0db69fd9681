"""Rate limits of admission and of the web chat, counted in memory and reset by a restart.

`AdmissionLimits` counts messages; `VisitorLimits` counts requests, streams and bytes of web users.
"""

import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from adapters.base import Clock
from adapters.door import OWNER, End, LimitReached, Reach, Requester, Visitor, network_of
from adapters.messages import InboundMessage

OfSender = Literal["messages", "urgent", "overheard", "notices", "quotas", "tries", "refusals"]
"""Limits per sender. Per minute: messages; urgent commands; overheard (messages to others); notices
(about too many messages). Per hour: quotas (notices about an exhausted one); tries (wrong owner
codes); refusals (notices that codes are disabled)."""
Window = OfSender | Literal["strangers", "doors", "all tries", "summaries"]
"""Per hour and account: strangers (stored messages), doors (replies that say where to request
access). Per hour for all: all tries, summaries (notices to owners that more people ask)."""

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86_400.0
STRANGERS_PER_HOUR = 200
"""Beyond this, strangers' messages are denied without a row, so that a flood cannot fill the
disk."""
DOORS_PER_HOUR = 30
"""Replies of an account that tell strangers in channels where to request access."""
URGENT_PER_MIN = 60
"""Urgent commands (`/stop`, `/status`) of one sender."""
TRIES_PER_HOUR = 5
ALL_TRIES_PER_HOUR = 50
"""With both limits, guessing one of 31 ** 8 codes takes a million years."""
VISIT_S = 10.0
"""Span of the next two limits, in seconds; short, so that a page waits only briefly."""
REQUESTS_PER_SPAN = 120
"""Most reads, and most writes, of one user; several tabs with pictures stay below it."""
STREAMS_PER_SPAN = 20
"""Most new event streams of a member or guest, since each reads a whole chat. Owners' programs open
one per question."""
STREAMS_OF_USER = 8
"""Most open event streams of one user; only visible windows have one."""
BODY_BYTES_OF_USER = 50_000_000
"""Most bytes of one user in transfer, requests and files: two of the largest messages."""
BODY_BYTES = 256_000_000
"""The same for all users: a quarter of the usual 1 GiB of memory."""
BUSY_S = 5
"""Seconds after which a page retries a refused request."""
SWEEP_FROM = 1000
"""Number of keys in a window above which keys without recent items are dropped."""


class SlidingWindow:
    """Allows at most `limit` items per key within the last `span_s` seconds.

    A repeated item gets the same answer, so a transaction retried after a rollback counts once. Not
    thread-safe.
    """

    def __init__(self, limit: int, span_s: float, clock: Clock = time.monotonic) -> None:
        self._limit = limit
        self._span_s = span_s
        self._clock = clock
        self._items: dict[Hashable, dict[Hashable, float]] = {}
        self._sweep_at = SWEEP_FROM

    def has_room(self, whose: Hashable, item: Hashable = None) -> bool:
        """Whether an item is counted or would be."""
        items = self._recent(whose)
        return item in items or len(items) < self._limit

    def wait_s(self, whose: Hashable) -> float:
        """Return the seconds until a new item has room, 0 if now; thread-safe."""
        now = self._clock()
        # Copied, since another thread may count meanwhile.
        times = tuple(self._items.get(whose, {}).values())[-self._limit :]
        return max(0.0, times[0] + self._span_s - now) if len(times) == self._limit else 0.0

    def count(self, whose: Hashable, item: Hashable) -> bool:
        """Count an item; return False if it has no room."""
        if not self.has_room(whose, item):
            return False
        # A repeated item keeps its time, so items stay in order.
        self._items.setdefault(whose, {}).setdefault(item, self._clock())
        if len(self._items) > self._sweep_at:
            self._items = {
                each: items for each in list(self._items) if (items := self._recent(each))
            }
            self._sweep_at = max(SWEEP_FROM, 2 * len(self._items))
        return True

    def take_back(self, whose: Hashable, item: Hashable) -> None:
        """Remove an item from the count."""
        self._items.get(whose, {}).pop(item, None)

    def _recent(self, whose: Hashable) -> dict[Hashable, float]:
        if not (items := self._items.get(whose, {})):
            return items
        since = self._clock() - self._span_s
        # The oldest is first.
        while items and items[oldest := next(iter(items))] <= since:
            del items[oldest]
        return items


class AdmissionLimits:
    """All limits of admission; a message counts once per window."""

    def __init__(self, per_min: int) -> None:
        self._windows: Mapping[Window, SlidingWindow] = {
            "notices": SlidingWindow(1, MINUTE_S),
            "quotas": SlidingWindow(1, HOUR_S),
            "strangers": SlidingWindow(STRANGERS_PER_HOUR, HOUR_S),
            "tries": SlidingWindow(TRIES_PER_HOUR, HOUR_S),
            "all tries": SlidingWindow(ALL_TRIES_PER_HOUR, HOUR_S),
            "refusals": SlidingWindow(1, HOUR_S),
            "doors": SlidingWindow(DOORS_PER_HOUR, HOUR_S),
            "summaries": SlidingWindow(1, HOUR_S),
        }
        self.take(per_min)

    def take(self, per_min: int) -> None:
        """Change the limit per sender; 0 for none."""
        limits: dict[Window, int] = {
            "messages": per_min,
            "overheard": per_min,
            "urgent": URGENT_PER_MIN,
        }
        kept = {name: window for name, window in self._windows.items() if name not in limits}
        new = {name: SlidingWindow(limit, MINUTE_S) for name, limit in limits.items() if per_min}
        # One assignment, since another thread may be reading.
        self._windows = kept | new

    def full(self, message: InboundMessage) -> frozenset[Window]:
        """Return the windows without room for this message."""
        its = self._of(message, self._windows)
        return frozenset(name for name, window, item in its if not window.has_room(*item))

    def count(self, message: InboundMessage, windows: Iterable[Window]) -> frozenset[Window]:
        """Count a message in some windows; return those without room."""
        its = self._of(message, windows)
        return frozenset(name for name, window, item in its if not window.count(*item))

    def wait_s(self, platform: str, sender: str) -> float:
        """Return the seconds until a sender may send another message; 0 if now."""
        window = self._windows.get("messages")
        return 0.0 if window is None else window.wait_s((platform, sender))

    def _of(
        self, message: InboundMessage, names: Iterable[Window]
    ) -> Iterator[tuple[Window, SlidingWindow, tuple[Hashable, Hashable]]]:
        """Yield the active windows, each with the message's key and item."""
        windows, here = self._windows, message.address
        account, sender = (here.platform, here.account), (here.platform, message.sender)
        item = (account, message.dedupe_key)
        whose = {"strangers": account, "doors": account, "all tries": None, "summaries": None}
        for name in names:
            if name in windows:
                yield name, windows[name], (whose.get(name, sender), item)


@dataclass(eq=False, slots=True)
class _OpenStream:
    sender: str
    place: str
    end: End


class VisitorLimits:
    """Limits of the web chat's users; see `adapters.door.VisitLimits`.

    Owners share no limit with others. Clients of the Unix socket (no address) have no limit on
    requests and streams.

    Args:
        streams: Most event streams of all users.
        streams_of_address: Most event streams of one address or IPv6 /64 network.
    """

    def __init__(
        self, streams: int = 500, streams_of_address: int = 50, clock: Clock = time.monotonic
    ) -> None:
        self._most = streams
        self._most_of_address = streams_of_address
        self._requests = SlidingWindow(REQUESTS_PER_SPAN, VISIT_S, clock)
        self._openings = SlidingWindow(STREAMS_PER_SPAN, VISIT_S, clock)
        self._streams: list[_OpenStream] = []
        self._bytes: dict[str, int] = {}

    def ask(self, visitor: Visitor, caller: Requester, *, reads: bool) -> None:
        """Count a request."""
        if caller.address:
            _count(self._requests, (visitor.sender, reads))

    @contextmanager
    def stream(self, visitor: Visitor, caller: Requester, end: End) -> Iterator[None]:
        """Count an event stream while the block runs; beyond the limit, end the user's oldest."""
        if not caller.address:
            yield
            return
        is_owner = visitor.role == OWNER.role
        if not is_owner:
            _count(self._openings, visitor.sender)
        opened = _OpenStream(visitor.sender, network_of(caller.address), end)
        own = [each for each in self._streams if each.sender == opened.sender]
        oldest = own[0] if len(own) >= STREAMS_OF_USER else None
        others = [each for each in self._streams if each is not oldest]
        of_address = sum(each.place == opened.place for each in others)
        is_full = len(others) >= self._most or of_address >= self._most_of_address
        if is_full and not is_owner:
            raise LimitReached("Too many pages are open. Please wait a little.", BUSY_S, busy=True)
        if oldest is not None:
            oldest.end()
        self._streams = [*others, opened]
        try:
            yield
        finally:
            self._streams = [each for each in self._streams if each is not opened]

    @contextmanager
    def room(self, visitor: Visitor) -> Iterator[Reach]:
        """Yield a function that counts held bytes, released after the block.

        A request larger than a limit is admitted only alone.
        """
        whose, held = visitor.sender, 0

        def reach(size: int) -> None:
            nonlocal held
            own, in_all = self._bytes.get(whose, 0) - held, sum(self._bytes.values()) - held
            is_full = own and own + size > BODY_BYTES_OF_USER
            if visitor.role != OWNER.role:
                is_full = is_full or (in_all and in_all + size > BODY_BYTES)
            if size > held and is_full:
                text = "Parley is busy with other files and messages."
                raise LimitReached(text, BUSY_S, busy=True)
            held = max(held, size)
            self._bytes[whose] = own + held

        try:
            yield reach
        finally:
            left = self._bytes.pop(whose, 0) - held
            if left:
                self._bytes[whose] = left


def _count(window: SlidingWindow, whose: Hashable) -> None:
    wait_s = window.wait_s(whose)
    if wait_s:
        text = "Too many requests in a short time. Please wait a little."
        raise LimitReached(text, int(wait_s) + 1)
    window.count(whose, object())
