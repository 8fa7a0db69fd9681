"""Events and spans move series; labels are bounded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import MODEL, PURPOSE
from agent.spans import Span
from gateway.logging.recent import EVERYTHING
from gateway.metrics.series import EVENTS, MOST_VALUES, NONE, OTHER, SPANS, Counts, Vocabulary

KNOWN = {"platform": ["telegram", "web"], "account": ["default"], "model": ["m"], "tool": ["look"]}
FINISHED = {
    "event": "turn_finished",
    "level": "info",
    "platform": "telegram",
    "account": "default",
    "outcome": "final_text",
    "duration_ms": 1500,
    "iterations": 2,
    "input_tokens": 100,
    "cache_read_tokens": 300,
    "cache_write_tokens": 0,
    "output_tokens": 20,
    "cost_usd": None,
}


@pytest.fixture
def counts() -> Counts:
    """Nothing has happened yet."""
    return Counts(Vocabulary(lambda: KNOWN))


def counters(counts: Counts, name: str) -> list[tuple[tuple[str, ...], float]]:
    """Return the values of a counter by its labels."""
    [family] = [each for each in counts.registry.collect() if each.name == f"parley_{name}"]
    return [(tuple(each.labels.values()), each.value) for each in family.samples]


def test_an_event_moves_all_of_its_series(counts: Counts) -> None:
    """A turn counts, takes its time and its tokens; what is not known stands at 0."""
    counts.event("turn_finished", FINISHED)
    assert counters(counts, "turns") == [(("telegram", "default", "final_text"), 1.0)]
    tokens = dict(counters(counts, "turn_tokens"))
    assert tokens["telegram", "cache_read"] == 300.0
    assert counters(counts, "turn_cost_usd") == [(("telegram",), 0.0)]
    value, labels = counts.registry.get_sample_value, {"platform": "telegram"}
    assert value("parley_turn_seconds_sum", labels) == 1.5
    assert value("parley_turn_seconds_bucket", labels | {"le": "1.0"}) == 0
    assert value("parley_turn_seconds_bucket", labels | {"le": "2.5"}) == 1


def test_a_call_of_a_model_moves_tokens_by_kind(counts: Counts) -> None:
    """Time, first text and tokens come from its span."""
    told = {MODEL: "m", PURPOSE: "answer", "parley.first_token_s": 0.2}
    told |= {"gen_ai.usage.input_tokens": 500, "gen_ai.usage.cache_read.input_tokens": 400}
    counts.span(Span("chat", "", 1, None, 0, 3_000_000_000, dict(told)))
    assert counters(counts, "model_calls") == [(("m", "answer", NONE), 1.0)]
    assert dict(counters(counts, "model_tokens")) == {
        ("m", "answer", "input"): 500.0,
        ("m", "answer", "output"): 0.0,
        ("m", "answer", "cache_read"): 400.0,
        ("m", "answer", "cache_write"): 0.0,
    }
    labels = {"model": "m", "purpose": "answer"}
    assert counts.registry.get_sample_value("parley_first_token_seconds_sum", labels) == 0.2


def test_what_the_settings_do_not_name_is_folded(counts: Counts) -> None:
    """A model may make up the name of a tool, a server that of a model."""
    counts.event("tool_failed", {"tool": "made_up_by_a_model"})
    counts.event("tool_failed", {"tool": "look"})
    found = dict(counters(counts, "tool_failures"))
    assert found == {(OTHER,): 1.0, ("look",): 1.0}


def test_a_sentence_is_no_label(counts: Counts) -> None:
    """A provider's text may hold anything."""
    counts.event("cache_prefix_moved", {"reason": "the tools of Ann's request have changed"})
    counts.event("cache_prefix_moved", {"reason": None})
    found = dict(counters(counts, "cache_prefix_moves"))
    assert found == {(OTHER,): 1.0, (NONE,): 1.0}


@given(st.lists(st.text() | st.none() | st.booleans() | st.integers(), max_size=200))
def test_no_label_has_more_values_than_it_may(values: list[object]) -> None:
    """Whatever comes."""
    vocabulary = Vocabulary(dict)
    words = [f"word_{number}" for number in range(MOST_VALUES - 5)]
    found = {vocabulary.folded("outcome", each) for each in [*words, *values]}
    assert len(found) <= MOST_VALUES + 2


def test_each_event_of_the_log_is_counted_by_its_name(counts: Counts) -> None:
    """Most are counted in this way alone."""
    names = [f"event_{number}" for number in range(MOST_VALUES + 50)]
    for name in [*names, "lease_lost"]:
        counts.event(EVERYTHING, {"event": name, "level": "warning"})
    found = dict(counters(counts, "log_events"))
    assert found[names[0], "warning"] == 1.0
    assert found[OTHER, "warning"] == 51.0
    assert len(found) == MOST_VALUES + 1


def test_a_counter_of_one_configured_label_begins_at_0(counts: Counts) -> None:
    """For each configured value and `other`; what happened before stays counted."""
    counts.event("tool_failed", {"tool": "look"})
    counts.begin()
    assert dict(counters(counts, "tool_failures")) == {("look",): 1.0, (OTHER,): 0.0}
    counts.event("tool_failed", {"tool": "made_up_by_a_model"})
    counts.begin()
    assert dict(counters(counts, "tool_failures")) == {("look",): 1.0, (OTHER,): 1.0}
    assert counters(counts, "model_failures") == []


def test_a_series_may_want_a_value_of_a_field(counts: Counts) -> None:
    """Errors of any event; of failed calls those that were left to the next model."""
    for level in ("info", "error", "error"):
        counts.event(EVERYTHING, {"event": f"event_{level}", "level": level})
    for action in ("retry", "next_model"):
        counts.event("model_call_failed", {"model": "m", "error": "Refused", "action": action})
    assert counters(counts, "log_errors") == [((), 2.0)]
    assert counters(counts, "model_fallbacks") == [(("m",), 1.0)]


def test_a_flood_of_names_is_not_kept() -> None:
    """What is folded costs no memory either."""
    vocabulary = Vocabulary(lambda: {"tool": ["look"]})
    for n in range(1000):
        assert vocabulary.folded("tool", f"tool_{n}") == OTHER
    assert len(vocabulary._seen["tool"]) == 0


def test_every_source_counts_something(counts: Counts) -> None:
    """Labels, amounts and kinds of all series fit together."""
    for series in EVENTS:
        for source in series.sources:
            event: dict[str, Any] = dict.fromkeys(series.fields, "word")
            event |= {source.amount: 2} if source.amount else {}
            event |= {source.field: source.wanted} if source.field else {}
            counts.event(EVERYTHING if source.name == "*" else source.name, event)
    for series in SPANS:
        for source in series.sources:
            told = dict.fromkeys((each for each in series.fields if each != "error"), "word")
            number = {source.amount: 2} if source.amount else {}
            counts.span(Span(source.name, "", 1, None, 0, 10, {**told, **number}))
    found = {family.name: family.samples for family in counts.registry.collect()}
    for series in (*EVENTS, *SPANS):
        assert found[series.name], series.name
