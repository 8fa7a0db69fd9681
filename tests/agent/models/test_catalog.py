"""The tables of models and providers."""

from typing import get_args

import pytest
from anthropic.types import Model
from openai.types import ChatModel

from agent.models.catalog import (
    DEFAULT_NAMES,
    FREE,
    ModelFacts,
    Prices,
    bills_writes,
    can_reason,
    context_length,
    facts_of,
    find_facts,
    output_limit,
    provider_of,
)
from agent.settings import FactsSettings

CLAUDES = (
    *(f"claude-fable-{version}" for version in ("5-1", "5")),
    *(f"claude-opus-{version}" for version in ("5-5", "5", "4-8", "4-7", "4-6", "4-5")),
    *(f"claude-sonnet-{version}" for version in ("5-5", "5", "4-6", "4-5")),
    *(f"claude-haiku-{version}" for version in ("5-5", "4-5")),
)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("claude-sonnet-5-5", 1_000_000),
        ("claude-haiku-4-5", 200_000),
        ("claude-opus-4-6-20260101", 1_000_000),
        ("claude-opus-4-6-latest", 1_000_000),
        ("anthropic/claude-opus-4.6", 1_000_000),
        ("claude-opus-4-6@20260101", 1_000_000),
        ("claude-next-9", 200_000),
        ("gpt-whatever", 128_000),
    ],
)
def test_windows(name: str, tokens: int) -> None:
    """Known models by any spelling, cautious guesses for the others."""
    assert context_length(name) == tokens


def test_newer_version_is_not_its_predecessor() -> None:
    """A name that only begins like a known one is unknown."""
    assert find_facts("claude-sonnet-5-9") is None


def test_output_limit_is_capped_for_known_models_only() -> None:
    """A small wish stays, a large one is cut to what the model has."""
    limits = [output_limit(name, 90_000) for name in ("claude-haiku-4-5", "claude-opus-5", "x")]
    assert limits == [64_000, 90_000, 90_000]
    assert output_limit("claude-haiku-4-5", 100) == 100


def test_defaults_are_known_to_the_sdks() -> None:
    """The default names exist in the installed SDKs' model types."""
    literal, _ = get_args(Model)
    assert DEFAULT_NAMES["anthropic"] in get_args(literal)
    assert DEFAULT_NAMES["openai"] in get_args(ChatModel)


def test_default_claude_is_the_newest_sonnet() -> None:
    """No Sonnet of the SDK is newer than the default."""
    literal, _ = get_args(Model)
    sonnets = [name for name in get_args(literal) if name.startswith("claude-sonnet-")]
    versions = {name: [int(part) for part in name.split("-")[2:4]] for name in sonnets}
    assert max(versions, key=lambda name: versions[name]) == DEFAULT_NAMES["anthropic"]


def test_every_row_says_where_it_is_from() -> None:
    """Prices, minimum, source and date stand in each row."""
    rows = [find_facts(name) for name in CLAUDES]
    assert all(row and row.prices and "(autumn 2026)" in row.source for row in rows)
    assert all(row and 512 <= row.min_cache_tokens <= 4096 for row in rows)


def test_cache_prices_follow_the_input() -> None:
    """Writing costs 1.25 and 2 times the input, reading a tenth or less."""
    for name in CLAUDES:
        facts = find_facts(name)
        assert facts is not None
        assert facts.prices is not None
        assert facts.prices.cache_write_5m == pytest.approx(facts.prices.input * 1.25)
        assert facts.prices.cache_write_1h == pytest.approx(facts.prices.input * 2)
        assert facts.prices.cache_read <= facts.prices.input * 0.1 + 1e-9


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("claude-opus-5", 512),
        ("claude-sonnet-5", 1024),
        ("claude-opus-4-7", 2048),
        ("claude-opus-4-8", 2048),
        ("claude-sonnet-4-6", 2048),
        ("claude-fable-5", 2048),
        ("claude-haiku-5-5", 4096),
        ("gpt-5.6-sol", 1024),
    ],
)
def test_disputed_minimum_is_the_larger_one(name: str, tokens: int) -> None:
    """Where sources disagree, or say nothing, the larger minimum holds."""
    facts = find_facts(name)
    assert facts is not None
    assert facts.min_cache_tokens == tokens


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-5.6-sol", True),
        ("openai/gpt-6.1-terra", True),
        ("gpt-6-luna", True),
        ("gpt-5.5-2026-04-23", False),
        ("gpt-5-2025-08-07", False),
        ("gpt-4o", False),
        ("claude-opus-5", False),
    ],
)
def test_which_openai_models_bill_writes(name: str, expected: bool) -> None:
    """GPT-5.6 and later, whatever a date in the name looks like."""
    assert bills_writes(name) is expected
    assert (find_facts(name) is not None) is (expected or "claude" in name)


def test_openai_rows_know_no_prices_and_no_sizes() -> None:
    """The window stays the cautious guess, and no cost is claimed."""
    facts = find_facts("gpt-6.1-terra")
    assert facts is not None
    assert (facts.prices, facts.context_length) == (None, None)
    assert context_length("gpt-6.1-terra") == 128_000
    assert output_limit("gpt-6.1-terra", 90_000) == 90_000


def test_facts_without_overrides_are_the_rows() -> None:
    """A known model keeps its source; an unknown one is nothing but its name."""
    assert facts_of("claude-opus-5", FactsSettings()) is find_facts("claude-opus-5")
    assert facts_of("nobody", FactsSettings()) == ModelFacts("nobody")


def test_single_values_are_replaced() -> None:
    """The operator's price and minimum stand, the others are the table's."""
    facts = facts_of("claude-opus-5", FactsSettings(cache_read_usd=0.25, min_cache_tokens=9))
    assert facts.prices == Prices(5, 6.25, 10, 0.25, 25)
    assert facts.min_cache_tokens == 9
    assert facts.source.startswith("settings")
    assert "price list" in facts.source


def test_input_and_output_price_an_unknown_model() -> None:
    """Cache prices follow from the input unless they are given too."""
    facts = facts_of("nobody", FactsSettings(input_usd=2, output_usd=8, cache_read_usd=0.5))
    assert facts.prices == Prices(2, 2.5, 4, 0.5, 8)
    assert facts.source == "settings"


@pytest.mark.parametrize(
    "given", [FactsSettings(input_usd=2), FactsSettings(output_usd=2, cache_read_usd=1)]
)
def test_half_a_price_list_is_none(given: FactsSettings) -> None:
    """A cost that leaves something out would be wrong: it stays unknown."""
    assert facts_of("gpt-5.6", given).prices is None


def test_zero_is_a_price() -> None:
    """A model of one's own machine may cost nothing, said so in the settings."""
    facts = facts_of("llama", FactsSettings(input_usd=0, output_usd=0))
    assert facts.prices == FREE


@pytest.mark.parametrize(("told", "sees"), [(None, True), (True, True), (False, False)])
def test_a_model_can_look_at_pictures_unless_the_operator_says_not(
    told: bool | None, sees: bool
) -> None:
    """A provider that refuses them all the same is asked without, see agent/turn/request.py."""
    for name in ("claude-opus-5", "llama"):
        assert facts_of(name, FactsSettings(vision=told)).vision is sees


@pytest.mark.parametrize(
    ("name", "thinks"),
    [
        ("o1", True),
        ("o4-mini-2025-04-16", True),
        ("gpt-5", True),
        ("gpt-6.1-terra", True),
        ("openai/gpt-5.4-mini", True),
        ("gpt-4o", False),
        ("gpt-4.1-mini", False),
        ("gpt-3.5-turbo", False),
        ("chatgpt-4o-latest", False),
        ("omni", False),
        ("claude-opus-5", False),
    ],
)
def test_models_that_think_before_they_answer(name: str, thinks: bool) -> None:
    """OpenAI's, by their names."""
    assert can_reason(name) is thinks


@pytest.mark.parametrize(
    ("key", "provider"),
    [
        ("sk-ant-1", "anthropic"),
        ("sk-or-1", "openrouter"),
        ("sk-proj-1", "openai"),
        ("12345:abc", None),
        ("", None),
    ],
)
def test_a_key_tells_its_provider(key: str, provider: str | None) -> None:
    """OpenAI's shape begins the others', too."""
    assert provider_of(key) == provider
