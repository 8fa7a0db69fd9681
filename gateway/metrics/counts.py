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


@dataclass(slots=True)
class Distribution:
    """A histogram: how many values in each bucket, the last one without a bound, and their sum."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.buckets[bisect_left(SECONDS, value)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class _Move:
    """A rule, ready for use."""

    rule: Mover
    sources: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, rule: Mover) -> "_Move":
        return cls(rule, tuple(zip(rule.series.labels, rule.sources, strict=True)))


class Counts:
    """What was counted since the start of this process; safe on every thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Distribution]] = {}
        self._events, self._spans = _by_source(EVENTS), _by_source(SPANS)
        for rule in (*EVENTS, *SPANS):
            self._enter(rule.series)

    @property
    def heard(self) -> Iterable[str]:
        """Names of the events that move something."""
        return self._events

    def event(self, source: str, event: Mapping[str, Any]) -> None:
        """Count an event of the log."""
        for move in self._events[source]:
            self._move(move, event, 1.0)

    def span(self, span: Span) -> None:
        """Count a span that is over."""
        moves = self._spans.get(span.name)
        if moves:
            told = {"error": span.error, **span.attributes}
            for move in moves:
                self._move(move, told, span.duration_s)

    def counters(self, series: Series) -> list[tuple[Labels, float]]:
        """Return the values of a counter."""
        with self._lock:
            return list(self._counters[series.name].items())

    def histograms(self, series: Series) -> list[tuple[Labels, Sequence[int], float]]:
        """Return the buckets, each with those below it, and the sum of a histogram's values."""
        with self._lock:
            kept = self._histograms[series.name]
            return [(labels, list(each.buckets), each.total) for labels, each in kept.items()]

    def _enter(self, series: Series) -> None:
        """Begin at 0, so that the first move shows as one; with labels nobody knows where."""
        if series.kind == "counter":
            values = self._counters.setdefault(series.name, {})
            if not series.labels:
                values[()] = 0.0
        else:
            kept = self._histograms.setdefault(series.name, {})
            if not series.labels:
                kept[()] = Distribution()

    def _move(self, move: _Move, told: Mapping[str, Any], usual: float) -> None:
        rule = move.rule
        if rule.only is not None and told.get(rule.only[0]) != rule.only[1]:
            return
        amount = _amount(rule.amount, told, usual)
        if amount is None:
            return
        folded = self._vocabulary.folded
        # Not a generator: this is done forty times for a message.
        labels = [
            source[1:] if source[0] == "=" else folded(label, told.get(source))
            for label, source in move.sources
        ]
        self._add(rule.series, tuple(labels), amount * rule.scale)

    def _add(self, series: Series, labels: Labels, amount: float) -> None:
        with self._lock:
            if series.kind == "counter":
                values = self._counters[series.name]
                values[labels] = values.get(labels, 0.0) + max(amount, 0.0)
                return
            kept = self._histograms[series.name]
            if labels not in kept:
                kept[labels] = Distribution()
            kept[labels].observe(amount)


def _by_source(rules: Iterable[Mover]) -> dict[str, list[_Move]]:
    found: defaultdict[str, list[_Move]] = defaultdict(list)
    for rule in rules:
        found[rule.source].append(_Move.of(rule))
    return dict(found)


def _amount(wanted: str, told: Mapping[str, Any], usual: float) -> float | None:
    """Return what a rule adds; None where the field does not hold a number."""
    if not wanted:
        return usual
    if wanted[0] == "=":
        return float(wanted[1:])
    found = told.get(wanted)
    return float(found) if isinstance(found, int | float) else None
