"""Counts events and spans by the table, in the counters and histograms of prometheus-client.

Labels are bounded. A label that has a list of known values (platforms, accounts, models, tools:
what the settings name) takes no other one; of the rest `MOST_VALUES` are told apart, if they look
like a word of the code. Everything else is `other`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from agent.spans import Span
from gateway.metrics.series import EVENTS, SECONDS, SPANS, Mover, Series

MOST_VALUES = 40
OTHER = "other"
NONE = "none"
_WORD = re.compile(r"[A-Za-z0-9_.:/#+-]{1,80}")

Labels = tuple[str, ...]
Count = Callable[[Mapping[str, Any], float], None]
"""Counts what an event or a span tells; the number is what it adds where no field says so."""

# No second series for each, with the time of its first event.
disable_created_metrics()  # type: ignore[no-untyped-call]


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


class Counts:
    """What was counted since the start of this process; safe on every thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.registry = CollectorRegistry(auto_describe=False)
        moved = {rule.series.name: rule.series for rule in (*EVENTS, *SPANS)}
        self._moved = {name: _registered(series, self.registry) for name, series in moved.items()}
        self._events, self._spans = self._by_source(EVENTS), self._by_source(SPANS)

    @property
    def heard(self) -> Iterable[str]:
        """Names of the events that move something."""
        return self._events

    def event(self, source: str, event: Mapping[str, Any]) -> None:
        """Count an event of the log."""
        for count in self._events[source]:
            count(event, 1.0)

    def span(self, span: Span) -> None:
        """Count a span that is over."""
        told = {**span.attributes, "error": span.error} if span.error else span.attributes
        for count in self._spans.get(span.name, ()):
            count(told, span.duration_s)

    def counters(self, series: Series) -> list[tuple[Labels, float]]:
        """Return the values of a counter."""
        [family] = self._moved[series.name].collect()
        return [(tuple(each.labels.values()), each.value) for each in family.samples]

    def _by_source(self, rules: Iterable[Mover]) -> dict[str, list[Count]]:
        found: defaultdict[str, list[Count]] = defaultdict(list)
        for rule in rules:
            found[rule.source].append(self._counting(rule))
        return dict(found)

    def _counting(self, rule: Mover) -> Count:
        """Return what counts by a rule; some run several times for each message."""
        moved: Any = self._moved[rule.series.name]
        folded = self._vocabulary.folded
        is_counter = rule.series.kind == "counter"
        sources = [(label, rule.fields.get(label, label)) for label in rule.series.labels]
        # With labels a series is there from its first event on, without them from the start.
        children: dict[Labels, Any] = {} if sources else {(): moved}

        def count(told: Mapping[str, Any], usual: float) -> None:
            if rule.only is not None and told.get(rule.only[0]) != rule.only[1]:
                return
            labels = tuple([
                source[1:] if source[0] == "=" else folded(label, told.get(source))
                for label, source in sources
            ])
            child = children.get(labels)
            if child is None:
                child = children[labels] = moved.labels(*labels)
            amount = _amount(rule, told, usual)
            if amount is None:
                return
            if not is_counter:
                child.observe(amount)
            elif amount > 0:
                child.inc(amount)

        return count


def _amount(rule: Mover, told: Mapping[str, Any], usual: float) -> float | None:
    """Return what a rule adds; None if its field holds no number."""
    if not rule.amount:
        return usual
    if rule.amount[0] == "=":
        return float(rule.amount[1:])
    value = told.get(rule.amount)
    return value * rule.scale if isinstance(value, int | float) else None


def _registered(series: Series, registry: CollectorRegistry) -> Counter | Histogram:
    if series.kind == "counter":
        return Counter(series.name, series.about, series.labels, registry=registry)
    return Histogram(series.name, series.about, series.labels, registry=registry, buckets=SECONDS)
