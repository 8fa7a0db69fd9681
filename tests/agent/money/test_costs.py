"""What calls cost, and how money is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import Usage
from agent.models.base import ChatModel
from agent.models.catalog import FREE, ModelFacts, Prices
from agent.money.costs import cost_usd, forecast, format_usd, sum_text
from agent.prompt_caching import CacheLayout
from tests.support.scripted_model import ScriptedModel

PRICES = Prices(input=2, cache_write_5m=2.5, cache_write_1h=4, cache_read=0.2, output=10)


def model(layout: CacheLayout | None = "native", min_cache_tokens: int = 1000) -> ChatModel:
    """Return a model that takes breakpoints, unless `layout` is None."""
    facts = ModelFacts("m", min_cache_tokens=min_cache_tokens)
    return ScriptedModel([], facts=facts, cache_layout=layout)


def test_each_kind_has_its_price() -> None:
    """A million tokens of each kind cost the sum of the list."""
    million = 1_000_000
    usage = Usage(million, million, million, million, million)
    assert cost_usd(usage, PRICES) == pytest.approx(18.7)


def test_unknown_prices_are_not_zero() -> None:
    """Without a list there is no amount; what runs inside Parley is free."""
    assert cost_usd(Usage(5, 5), None) is None
    assert cost_usd(Usage(5, 5), FREE) == 0


@pytest.mark.parametrize(
    ("warm", "ttl", "expected"),
    [
        (0, "5m", Usage(cache_write_5m_tokens=5000)),
        (4000, "5m", Usage(cache_read_tokens=4000, cache_write_5m_tokens=1000)),
        (4000, "1h", Usage(cache_read_tokens=4000, cache_write_1h_tokens=1000)),
        (9000, "1h", Usage(cache_read_tokens=5000)),
    ],
)
def test_forecast_reads_what_is_warm_and_writes_the_rest(
    warm: int, ttl: str, expected: Usage
) -> None:
    """Never more than the prompt, and the lifetime says at which price."""
    assert forecast(model(), 5000, warm, ttl) == expected


def test_forecast_without_breakpoints_writes_nothing() -> None:
    """A provider that keeps its own cache gives what is warm at its price."""
    expected = Usage(input_tokens=1000, cache_read_tokens=4000)
    assert forecast(model(None), 5000, 4000, "5m") == expected


def test_forecast_below_the_minimum_is_input() -> None:
    """So short a prompt is not cached."""
    assert forecast(model(min_cache_tokens=5001), 5000, 4000, "5m") == Usage(input_tokens=5000)


@given(
    prompt=st.integers(0, 10_000),
    warm=st.integers(0, 10_000),
    ttl=st.sampled_from(["5m", "1h"]),
    layout=st.sampled_from(["native", "envelope", None]),
)
def test_forecast_is_the_whole_prompt(
    prompt: int, warm: int, ttl: str, layout: CacheLayout | None
) -> None:
    """Every token is billed once, and no answer is foreseen."""
    usage = forecast(model(layout), prompt, warm, ttl)
    assert usage.prompt_tokens == prompt
    assert usage.output_tokens == 0


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (0.0, "$0"),
        (1.2, "$1.20"),
        (1234.567, "$1,234.57"),
        (0.5, "$0.50"),
        (0.0123, "$0.0123"),
        (0.012345, "$0.0123"),
        (0.00123, "$0.0012"),
        (0.000034, "$0.000034"),
        (0.000999, "$0.001"),
        (0.99999, "$1.00"),
        (None, "unknown price"),
    ],
)
def test_amounts_for_people(cost: float | None, expected: str) -> None:
    """Cents for what is large, two significant digits at least for what is small."""
    assert format_usd(cost) == expected


def test_estimates_are_marked() -> None:
    """A tilde stands before an amount, not before the lack of one."""
    shown = [format_usd(cost, estimated=True) for cost in (0.0123, 0.0, None)]
    assert shown == ["~$0.0123", "~$0", "unknown price"]


@given(st.floats(min_value=1e-12, max_value=1e6))
def test_nothing_is_rounded_to_zero(cost: float) -> None:
    """Whatever costs something shows a digit."""
    assert any(digit in "123456789" for digit in format_usd(cost))


@pytest.mark.parametrize(
    ("usd", "unknown_calls", "estimated", "expected"),
    [
        (0.0, 0, False, "$0"),
        (1.2, 0, False, "$1.20"),
        (1.2, 3, False, "$1.20 + 3 calls of unknown price"),
        (1.2, 1, True, "~$1.20 + 1 call of unknown price"),
        (0.0, 2, False, "2 calls of unknown price"),
    ],
)
def test_sums_for_people(usd: float, unknown_calls: int, estimated: bool, expected: str) -> None:
    """An unknown part is named, and a sum of nothing but such is no amount."""
    assert sum_text(usd, unknown_calls, estimated=estimated) == expected


def test_prices_hold_for_facts() -> None:
    """A model that the table does not know has no prices."""
    assert ModelFacts("nobody").prices is None
