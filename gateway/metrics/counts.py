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
from typing import Any, NamedTuple

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
        if value > 0:
            self.total += value


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


Moved = Total | Distribution


class _Moves(NamedTuple):
    """What the rules do where the labels are known.

    Attributes:
        fixed: What is added, and to what.
        usual: To what the usual is added: 1 for an event, its duration for a span.
        told: To what a field is added, times a scale.
    """

    fixed: list[tuple[Moved, float]]
    usual: list[Moved]
    told: list[tuple[Moved, str, float]]


class _Movers:
    """All rules about one event or span: a message meets eleven of these, with 25 rules.

    Attributes:
        fields: What decides which series are moved, with which labels.
        moves: Ready for use, by what stands in these fields. What labels do not tell apart is not
            kept there: a flood of values costs no memory.
    """

    def __init__(self, rules: Sequence[Mover]) -> None:
        self.rules = rules
        only = (rule.only[0] for rule in rules if rule.only is not None)
        sources = (source for rule in rules for source in rule.sources if source[0] != "=")
        self.fields = tuple(dict.fromkeys((*sources, *only)))
        self.moves: dict[tuple[Any, ...], _Moves] = {}


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
        rules = self._spans.get(span.name)
        if rules is not None:
            told = {**span.attributes, "error": span.error} if span.error else span.attributes
            with self._lock:
                self._apply(rules, told, span.duration_s)

    def counters(self, series: Series) -> list[tuple[Labels, float]]:
        """Return the values of a counter."""
        with self._lock:
            return [(labels, each.total) for labels, each in self._kept[series.name].items()]

    def histograms(self, series: Series) -> list[tuple[Labels, Sequence[int], float]]:
        """Return the buckets, each with those below it, and the sum of a histogram's values."""
        with self._lock:
            kept = self._kept[series.name]
            return [(labels, list(each.buckets), each.total) for labels, each in kept.items()]

    def _apply(self, rules: _Movers, told: Mapping[str, Any], usual: float) -> None:
        values = tuple(map(told.get, rules.fields))
        moves = rules.moves.get(values) or self._found(rules, values)
        for moved, amount in moves.fixed:
            moved.add(amount)
        for moved in moves.usual:
            moved.add(usual)
        for moved, name, scale in moves.told:
            value = told.get(name)
            if isinstance(value, int | float):
                moved.add(value * scale)

    def _found(self, rules: _Movers, values: tuple[Any, ...]) -> _Moves:
        """Return what is moved where these values stand in the fields of the rules."""
        told = dict(zip(rules.fields, values, strict=True))
        found, are_told_apart = _Moves([], [], []), True
        for rule in rules.rules:
            if rule.only is None or told[rule.only[0]] == rule.only[1]:
                labels = self._labels(rule, told)
                moved = self._kept[rule.series.name].setdefault(labels, _new(rule.series))
                if not rule.amount:
                    found.usual.append(moved)
                elif rule.amount[0] == "=":
                    found.fixed.append((moved, float(rule.amount[1:])))
                else:
                    found.told.append((moved, rule.amount, rule.scale))
                are_told_apart = are_told_apart and OTHER not in labels
        if are_told_apart:
            rules.moves[values] = found
        return found

    def _labels(self, rule: Mover, told: Mapping[str, Any]) -> Labels:
        return tuple(
            source[1:] if source[0] == "=" else self._vocabulary.folded(label, told[source])
            for label, source in zip(rule.series.labels, rule.sources, strict=True)
        )


def _new(series: Series) -> Moved:
    return Total() if series.kind == "counter" else Distribution()


def _by_source(rules: Iterable[Mover]) -> dict[str, _Movers]:
    found: defaultdict[str, list[Mover]] = defaultdict(list)
    for rule in rules:
        found[rule.source].append(rule)
    return {source: _Movers(each) for source, each in found.items()}
