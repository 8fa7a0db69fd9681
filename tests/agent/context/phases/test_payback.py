"""Whether a compaction earns back what it costs."""

import math
from dataclasses import astuple, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.phases.payback import Rates, early_pays, payback_requests
from agent.context.phases.summary import LEAST_SUMMARY_TOKENS
from agent.context_engine import Limits
from agent.usage import FREE, Prices

CLAUDE = Rates(read=0.1, write=1.25, output=5.0)
NEWEST = replace(CLAUDE, read=0.025)
VIEW, KEPT, SUMMARY = 100_000, 23_000, 1_800
LIMITS = Limits(200_000)


def payback(rates: Rates = CLAUDE, *, asks_model: bool = True) -> float:
    return payback_requests(VIEW, KEPT, SUMMARY, rates, asks_model=asks_model)


def early(
    view_tokens: int, rates: Rates = CLAUDE, *, asks_model: bool = True, limits: Limits = LIMITS
) -> bool:
    return early_pays(
        view_tokens, limits, rates, fixed_tokens=3_000, asks_model=asks_model, most_requests=6
    )


def test_rates_are_in_units_of_an_input_token() -> None:
    """Whatever a token costs, a compaction pays by the proportions."""
    prices = Prices(3.0, cache_write_5m=3.75, cache_write_1h=6.0, cache_read=0.3, output=15.0)
    assert astuple(Rates.of(prices, "5m")) == pytest.approx((0.1, 1.25, 5.0))
    assert astuple(Rates.of(prices, "1h")) == pytest.approx((0.1, 2.0, 5.0))


def test_unknown_prices_are_taken_for_claudes() -> None:
    """A rule that is switched on works for a model without a price list too."""
    assert Rates.of(None, "5m") == CLAUDE


def test_what_pays_back_in_just_the_time_for_it_is_done() -> None:
    """The setting names the most requests that may be needed."""
    kept = 3_000 + LIMITS.tail_tokens + LEAST_SUMMARY_TOKENS
    needed = payback_requests(90_000, kept, LEAST_SUMMARY_TOKENS, CLAUDE, asks_model=True)
    pays = partial(early_pays, 90_000, LIMITS, CLAUDE, fixed_tokens=3_000, asks_model=True)
    assert needed > 0
    assert pays(most_requests=needed)
    assert not pays(most_requests=needed - 1e-9)


@pytest.mark.parametrize(("rates", "requests"), [(CLAUDE, 1.66), (NEWEST, 6.62)])
def test_the_figures_of_the_page_come_out(rates: Rates, requests: float) -> None:
    """Of docs/caching.md: (100K + 9K + 28.75K - 125K) / 7.7K at r = 0.1."""
    assert payback(rates) == pytest.approx(requests, abs=0.005)


def test_an_extract_of_a_cold_view_costs_nothing() -> None:
    """The next request is smaller at once."""
    assert payback(asks_model=False) == 0


@pytest.mark.parametrize("kept", [VIEW, VIEW + 1])
def test_what_gets_no_smaller_never_pays(kept: int) -> None:
    """Not after any number of requests."""
    assert payback_requests(VIEW, kept, 0, CLAUDE, asks_model=False) == math.inf


def test_a_free_model_saves_nothing() -> None:
    """There is no bill to make smaller."""
    assert payback(Rates.of(FREE, "5m")) == math.inf


@given(
    kept=st.tuples(st.integers(0, VIEW), st.integers(0, VIEW)),
    asks_model=st.booleans(),
)
def test_keeping_more_never_pays_sooner(kept: tuple[int, int], asks_model: bool) -> None:
    """Whoever writes the summary."""
    one, two = (
        payback_requests(VIEW, each, SUMMARY, CLAUDE, asks_model=asks_model)
        for each in sorted(kept)
    )
    assert 0 <= one <= two


def test_a_large_view_is_compacted_early() -> None:
    """At 80 % of the threshold: (80K + 10K + 31.25K - 100K) / 5.5K is under 4."""
    assert early(80_000)


def test_cheap_reads_make_it_wait() -> None:
    """What is read for next to nothing takes 15 requests to earn a summary back."""
    assert not early(80_000, NEWEST)
    assert early(80_000, NEWEST, asks_model=False)


@pytest.mark.parametrize("asks_model", [True, False])
def test_a_view_that_no_compaction_makes_smaller_is_left_alone(asks_model: bool) -> None:
    """60 % of the threshold is what they aim at."""
    assert not early(LIMITS.target_tokens, asks_model=asks_model)


def test_no_more_is_kept_than_compactions_aim_at() -> None:
    """A tail that is set as large as the threshold is clipped to the target."""
    large_tail = replace(LIMITS, target_ratio=0.8)
    assert early(80_000, limits=large_tail, asks_model=False)


def test_what_no_plan_can_change_is_kept() -> None:
    """A view of tools and system prompt alone cannot pay."""
    assert not early_pays(
        70_000, LIMITS, CLAUDE, fixed_tokens=69_000, asks_model=False, most_requests=6
    )
