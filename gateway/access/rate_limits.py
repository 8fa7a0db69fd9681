"""Rate limits and quotas of admission: counts in memory over a sliding span.

They are forgotten at a restart; but for tokens, which stand in the ledger.
"""

import math
import time
from collections.abc import Collection, Hashable, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from adapters.base import Clock
from adapters.messages import InboundMessage
from gateway.settings.tree import QuotaSettings

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

    @property
    def limit(self) -> int:
        """How many items there may be."""
        return self._limit

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

    def room_in_s(self, whose: Hashable, items: Collection[Hashable]) -> float:
        """Return when there is room for these items; 0 for now, infinity for never."""
        if len(items) > self._limit:
            return math.inf
        known = self._recent(whose)
        times = list(known.values())
        too_many = len(times) + sum(item not in known for item in items) - self._limit
        return max(0.0, times[too_many - 1] + self._span_s - self._clock()) if too_many > 0 else 0.0

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
        self.messages = SlidingWindow(per_min, MINUTE_S) if per_min else None
        self.overheard = SlidingWindow(per_min, MINUTE_S) if per_min else None
        self.urgent = SlidingWindow(URGENT_PER_MIN, MINUTE_S) if per_min else None
        self.notices = SlidingWindow(1, MINUTE_S)
        self.strangers = SlidingWindow(STRANGERS_PER_HOUR, HOUR_S)
        self.tries = SlidingWindow(TRIES_PER_HOUR, HOUR_S)
        self.all_tries = SlidingWindow(ALL_TRIES_PER_HOUR, HOUR_S)
        self.refusals = SlidingWindow(1, HOUR_S)
        self.doors = SlidingWindow(DOORS_PER_HOUR, HOUR_S)
        self.summaries = SlidingWindow(1, HOUR_S)


class Quotas:
    """What a sender may have in a day: messages, files, tokens."""

    def __init__(
        self,
        settings: QuotaSettings | None = None,
        timezone: str = "UTC",
        clock: Clock = time.monotonic,
    ) -> None:
        """Count from now on.

        Args:
            settings: The limits; None for none.
            timezone: In which a day of tokens begins.
            clock: Seconds, for messages and files.
        """
        self._settings = settings or QuotaSettings()
        self._zone = ZoneInfo(timezone)
        messages, files = self._settings.messages_per_day, self._settings.files_per_day
        self._messages = SlidingWindow(messages, DAY_S, clock) if messages else None
        self._files = SlidingWindow(files, DAY_S, clock) if files else None
        self._told = SlidingWindow(1, HOUR_S, clock)

    @property
    def token_day(self) -> datetime | None:
        """When the day began whose tokens are limited; None where they are not."""
        if self._settings.tokens_per_day is None:
            return None
        now = datetime.now(self._zone)
        return now.replace(hour=0, minute=0, second=0, microsecond=0)

    def refusal(self, message: InboundMessage, used_tokens: int = 0) -> str | None:
        """Count a message and its files; None where that is not too much.

        Nothing of a message is counted that is refused.

        Args:
            used_tokens: Of its sender, since `token_day`.

        Returns:
            What its sender is told; empty where they were told within the last hour.
        """
        address = message.address
        whose, item = (address.platform, message.sender), (address.account, message.dedupe_key)
        files = [(*item, n) for n in range(len(message.attachments))]
        told = self._tokens_used_up(used_tokens)
        told = told or _no_room(self._messages, whose, [item], "messages")
        told = told or _no_room(self._files, whose, files, "files")
        if told is not None:
            return told if self._told.count(whose, item) else ""
        _count(self._messages, whose, [item])
        _count(self._files, whose, files)
        return None

    def _tokens_used_up(self, used: int) -> str | None:
        limit, start = self._settings.tokens_per_day, self.token_day
        if limit is None or start is None or used < limit:
            return None
        anew = start + timedelta(days=1)
        return (
            f"I did not take this message: your {limit:,} tokens of today are used up. They start"
            f" anew at {anew:%H:%M} {self._zone}."
        )


def _count(window: SlidingWindow | None, whose: Hashable, items: Sequence[Hashable]) -> None:
    if window is not None:
        for item in items:
            window.count(whose, item)


def _no_room(
    window: SlidingWindow | None, whose: Hashable, items: Sequence[Hashable], what: str
) -> str | None:
    """Return why so many items are too many; None where there is room, or no limit."""
    wait_s = 0.0 if window is None or not items else window.room_in_s(whose, items)
    if window is None or wait_s <= 0:
        return None
    most = f"{window.limit} {what if window.limit > 1 else what.removesuffix('s')}"
    if math.isinf(wait_s):
        return f"I did not take this message: I take at most {most} a day from you."
    hours, minutes = divmod(math.ceil(wait_s / MINUTE_S), 60)
    span = f"{hours} h {minutes} min" if hours else f"{minutes} min"
    return (
        f"I did not take this message: I take at most {most} in 24 hours from you."
        f" There is room again in {span}."
    )
