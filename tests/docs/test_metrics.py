"""docs/metrics.md has the series of the code, and so do the dashboard and the alert rules.

`python -m tests.docs.test_metrics` writes the table of the page anew.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import yaml

from gateway.metrics.series import EVENTS, Counts, Vocabulary
from tests.docs.test_events import PAGE as EVENTS_PAGE
from tests.docs.test_events import documented_events
from tests.support.every_series import every_series

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
TABLE = re.compile(r"(?<=<!-- series -->\n).*?(?=<!-- end of series -->)", re.DOTALL)
DASHBOARD = ROOT / "deploy" / "grafana" / "parley.json"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
NAMED = re.compile(r"\b(?:parley|process)_[a-z0-9_]+\b")
SUFFIXES = re.compile(r"_(?:bucket|sum|count)$")


def described() -> str:
    """Return the table of docs/metrics.md."""
    rows = ["| series | kind | labels | whose | |", "|---|---|---|---|---|"]
    rows += [
        f"| `{name}` | {each.kind} | {_listed(each.labels)} | {each.scope} | {each.about} |"
        for name, each in every_series().items()
    ]
    return "\n".join(rows)


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


def queries(value: Any) -> Iterator[str]:
    """Yield every query of a dashboard or of rules."""
    match value:
        case dict():
            for key, inner in value.items():
                if key in {"expr", "query", "definition"} and isinstance(inner, str):
                    yield inner
                yield from queries(inner)
        case list():
            for inner in value:
                yield from queries(inner)


def unknown(expressions: Iterator[str]) -> set[str]:
    """Return the series that queries name and the code does not have."""
    known = every_series()
    histograms = {name for name, each in known.items() if each.kind == "histogram"}
    found = set()
    for name in (name for text in expressions for name in NAMED.findall(text)):
        plain = SUFFIXES.sub("", name)
        if name not in known and plain not in histograms:
            found.add(name)
    return found


def test_the_page_has_every_series() -> None:
    """As they are in the table of the code, in its order."""
    found = TABLE.search(PAGE.read_text("utf-8"))
    assert found is not None
    assert found[0].strip() == described()


def test_there_are_enough_of_them() -> None:
    """And each has a sentence of its own."""
    every = every_series()
    assert len(every) >= 60
    assert all(each.about.endswith(".") for each in every.values())


def test_rules_name_events_of_the_log_and_their_fields() -> None:
    """What is no event moves nothing, and nobody would notice."""
    events = documented_events(EVENTS_PAGE.read_text("utf-8"))
    for series in EVENTS:
        for source in series.sources:
            if source.name == "*":
                continue
            here = events[source.name].fields | events[source.name].optional
            worded = {"kind"} if source.word else set()
            pairs = zip(series.labels, series.fields, strict=True)
            wanted = {field for label, field in pairs if label not in worded}
            wanted |= {source.amount, source.field} - {""}
            assert wanted <= here, source


def test_the_dashboard_names_series_of_the_code() -> None:
    """A panel of another one would stay empty."""
    dashboard = orjson.loads(DASHBOARD.read_bytes())
    named = list(queries(dashboard))
    assert len(named) >= 20
    assert unknown(iter(named)) == set()


def test_alert_rules_name_series_of_the_code() -> None:
    """An alert of another one would never fire."""
    named = list(queries(yaml.safe_load(RULES.read_text("utf-8"))))
    assert len(named) >= 15
    assert unknown(iter(named)) == set()


def test_alert_rules_count_series_that_begin_at_0() -> None:
    """`increase()` misses the value that a series begins with, be it a burst of a new kind."""
    rules = " ".join(queries(yaml.safe_load(RULES.read_text("utf-8"))))
    counted = set(re.findall(r"increase\(\s*(\w+)", rules))
    labels = ("platform", "account", "adapter", "model", "tool", "server", "plugin")
    counts = Counts(Vocabulary(lambda: dict.fromkeys(labels, ("configured",))))
    counts.begin()
    samples = [each for family in counts.registry.collect() for each in family.samples]
    assert len(counted) >= 7
    assert counted <= {each.name for each in samples if each.value == 0}


def test_an_unknown_series_is_found() -> None:
    """Of a histogram the three that it is scraped as are known."""
    text = "rate(parley_turns_total[5m]) / parley_turn_seconds_count + parley_turns_bucket"
    assert unknown(iter([text])) == {"parley_turns_bucket"}


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(TABLE.sub(lambda _: f"{described()}\n", text), "utf-8")
