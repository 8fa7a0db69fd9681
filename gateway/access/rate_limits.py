"""Rate limits of admission: counts in memory over a sliding span, forgotten at a restart."""

import time
from collections.abc import Hashable

from adapters.base import Clock

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86_400.0
STRANGERS_PER_HOUR = 200
"""Messages of strangers beyond these are denied without a trace: a flood must not fill the disk."""
DOORS_PER_HOUR = 30
"""Replies of an account that tell a stranger in a channel where to ask to be let in."""
URGENT_PER_MIN = 60
"""Urgent commands (`/stop`, `/status`) of one sender: more than anybody needs, and no flood."""
TRIES_PER_HOUR = 5
ALL_TRIES_PER_HOUR = 50
"""With both, 31 ** 8 codes last for a million years."""
SWEEP_FROM = 1000
"""Senders (or accounts) in a window before those without recent items are dropped."""


class SlidingWindow:
    """At most `limit` items for each of whom within the last `span_s` seconds.

    An item that comes again gets the answer that it got before: a transaction that was rolled back
    and is repeated counts once. For one thread.
    """

    def __init__(self, limit: int, span_s: float, clock: Clock = time.monotonic) -> None:
        self._limit = limit
        self._span_s = span_s
        self._clock = clock
        self._items: dict[Hashable, dict[Hashable, float]] = {}
        self._sweep_at = SWEEP_FROM

    def has_room(self, whose: Hashable, item: Hashable = None) -> bool:
        """Whether an item would be counted, or is."""
        items = self._recent(whose)
        return item in items or len(items) < self._limit

    def count(self, whose: Hashable, item: Hashable) -> bool:
        """Count an item; False where there was no room for it."""
        if not self.has_room(whose, item):
            return False
        # An item that comes again keeps its time: items stay in the order in which they came.
        self._items.setdefault(whose, {}).setdefault(item, self._clock())
        if len(self._items) > self._sweep_at:
            self._sweep()
        return True

    def take_back(self, whose: Hashable, item: Hashable) -> None:
        """Count an item no longer."""
        self._items.get(whose, {}).pop(item, None)

    def _recent(self, whose: Hashable) -> dict[Hashable, float]:
        items = self._items.get(whose, {})
        since = self._clock() - self._span_s
        # The oldest stands first.
        while items and items[oldest := next(iter(items))] <= since:
            del items[oldest]
        return items

    def _sweep(self) -> None:
        self._items = {
            whose: items for whose in list(self._items) if (items := self._recent(whose))
        }
        self._sweep_at = max(SWEEP_FROM, 2 * len(self._items))


class AdmissionLimits:
    """All limits of admission.

    Attributes:
        messages: Messages of each sender in a minute; None for any number.
        overheard: The same for what they say to others.
        urgent: Urgent commands of each sender in a minute; None for any number.
        notices: How often a sender is told that it were too many.
        strangers: Messages of strangers that are kept, for each account in an hour.
        tries: Wrong codes of each sender in an hour.
        all_tries: Wrong codes in an hour.
        refusals: How often a stranger is told that codes are not taken for now.
        doors: How many strangers who mention the bot are told where to ask, for each account in an
            hour.
        summaries: How often owners are told that more people ask than they were told of.
    """

    def __init__(self, per_min: int) -> None:
        self.take(per_min)
        self.notices = SlidingWindow(1, MINUTE_S)
        self.strangers = SlidingWindow(STRANGERS_PER_HOUR, HOUR_S)
        self.tries = SlidingWindow(TRIES_PER_HOUR, HOUR_S)
        self.all_tries = SlidingWindow(ALL_TRIES_PER_HOUR, HOUR_S)
        self.refusals = SlidingWindow(1, HOUR_S)
        self.doors = SlidingWindow(DOORS_PER_HOUR, HOUR_S)
        self.summaries = SlidingWindow(1, HOUR_S)

    def take(self, per_min: int) -> None:
        """Have another limit for each sender, which counts from now on; 0 for none."""
        self.messages = SlidingWindow(per_min, MINUTE_S) if per_min else None
        self.overheard = SlidingWindow(per_min, MINUTE_S) if per_min else None
        self.urgent = SlidingWindow(URGENT_PER_MIN, MINUTE_S) if per_min else None
