"""Counts events and spans by the table, in memory; a number is all that the path pays.

Labels are bounded. A label that has a list of known values (platforms, accounts, models, tools:
what the settings name) takes no other one; of the rest `MOST_VALUES` are told apart, if they look
like a word of the code. Everything else is `other`.
"""

import re
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.spans import Span
from gateway.metrics.series import EVENTS, SECONDS, SPANS, Mover, Series

MOST_VALUES = 40
OTHER = "other"
NONE = "none"
_WORD = re.compile(r"[A-Za-z0-9_.:/#+-]{1,80}")

Labels = tuple[str, ...]


class Vocabulary:
    """The values that labels may have.

    Args:
        known: Returns all that a label may have now, of labels that have a list.
    """

    def __init__(self, known: Callable[[], Mapping[str, Collection[str]]]) -> None:
        self._known = known
        self._seen: defaultdict[str, dict[Any, str]] = defaultdict(dict)

    def folded(self, label: str, value: Any) -> str:
        """Return a value as it stands in a label."""
        seen = self._seen[label]
        found = seen.get(value)
        if found is None:
            found = self._judged(label, value, len(seen))
            # What is not told apart is not kept either: a flood of values costs no memory.
            if found != OTHER:
                seen[value] = found
        return found

    def _judged(self, label: str, value: Any, seen: int) -> str:
        if value is None or value == "":
            return NONE
        text = str(value).lower() if isinstance(value, bool) else str(value)
        known = self._known().get(label)
        if known is not None:
            return text if text in known else OTHER
        return text if seen < MOST_VALUES and _WORD.fullmatch(text) else OTHER


class Total:
    """The value of a counter."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value; a counter never goes back."""
        self.total += max(value, 0.0)


class Distribution:
    """A histogram: how many values in each bucket, the last one without a bound, and their sum."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.buckets[bisect_left(SECONDS, value)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class _Move:
    """A rule, ready for use: a message applies twenty-five of them.

    Attributes:
        amount: The field that is added; a number is added itself, "" stands for what is usual.
        moved: What it moves, by what stands in the fields. What labels do not tell apart is not
            kept there: a flood of values costs no memory.
    """

    rule: Mover
    sources: tuple[str, ...]
    amount: str | float
    moved: dict[tuple[Any, ...], Total | Distribution] = field(default_factory=dict)

    @classmethod
    def of(cls, rule: Mover) -> "_Move":
        amount = float(rule.amount[1:]) if rule.amount[:1] == "=" else rule.amount
        return cls(rule, tuple(rule.sources), amount)

    def value(self, told: Mapping[str, Any], usual: float) -> float | None:
        """Return what is added; None where the rule is about others, or the field has no number."""
        only = self.rule.only
        if only is not None and told.get(only[0]) != only[1]:
            return None
        amount = self.amount
        found = amount if isinstance(amount, float) else told.get(amount) if amount else usual
        return found * self.rule.scale if isinstance(found, int | float) else None


class Counts:
    """What was counted since the start of this process; safe on every thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._kept: dict[str, dict[Labels, Any]] = {}
        self._events, self._spans = _by_source(EVENTS), _by_source(SPANS)
        for rule in (*EVENTS, *SPANS):
            kept = self._kept.setdefault(rule.series.name, {})
            # At 0, so that the first move shows as one; with labels nobody knows where.
            if not rule.series.labels:
                kept[()] = _new(rule.series)

    @property
    def heard(self) -> Iterable[str]:
        """Names of the events that move something."""
        return self._events

    def event(self, source: str, event: Mapping[str, Any]) -> None:
        """Count an event of the log."""
        with self._lock:
            self._apply(self._events[source], event, 1.0)

    def span(self, span: Span) -> None:
        """Count a span that is over."""
        moves = self._spans.get(span.name)
        if moves:
            told = {"error": span.error, **span.attributes}
            with self._lock:
                self._apply(moves, told, span.duration_s)

    def counters(self, series: Series) -> list[tuple[Labels, float]]:
        """Return the values of a counter."""
        with self._lock:
            return [(labels, each.total) for labels, each in self._kept[series.name].items()]

    def histograms(self, series: Series) -> list[tuple[Labels, Sequence[int], float]]:
        """Return the buckets, each with those below it, and the sum of a histogram's values."""
        with self._lock:
            kept = self._kept[series.name]
            return [(labels, list(each.buckets), each.total) for labels, each in kept.items()]

    def _apply(self, moves: Iterable[_Move], told: Mapping[str, Any], usual: float) -> None:
        for move in moves:
            value = move.value(told, usual)
            if value is not None:
                fields = tuple(map(told.get, move.sources))
                (move.moved.get(fields) or self._found(move, fields)).add(value)

    def _found(self, move: _Move, fields: tuple[Any, ...]) -> Total | Distribution:
        """Return what a rule moves where these values stand in its fields."""
        series = move.rule.series
        labels = tuple(
            source[1:] if source[0] == "=" else self._vocabulary.folded(label, value)
            for label, source, value in zip(series.labels, move.sources, fields, strict=True)
        )
        kept = self._kept[series.name]
        found: Total | Distribution = kept.setdefault(labels, _new(series))
        if OTHER not in labels:
            move.moved[fields] = found
        return found


def _new(series: Series) -> Total | Distribution:
    return Total() if series.kind == "counter" else Distribution()


def _by_source(rules: Iterable[Mover]) -> dict[str, list[_Move]]:
    found: defaultdict[str, list[_Move]] = defaultdict(list)
    for rule in rules:
        found[rule.source].append(_Move.of(rule))
    return dict(found)
