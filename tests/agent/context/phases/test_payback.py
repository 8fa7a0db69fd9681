"""Whether a compaction earns back what it costs."""

import math
from dataclasses import astuple, dataclass, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.phases.payback import Rates, due_tokens, early_pays, payback_requests
from agent.context.phases.summary import LEAST_SUMMARY_TOKENS
from agent.context_engine import Limits
from agent.usage import FREE, Prices

CLAUDE = Rates(read=0.1, write=1.25, output=5.0)
NEWEST = replace(CLAUDE, read=0.025)
VIEW, KEPT, SUMMARY = 100_000, 23_000, 1_800
LIMITS = Limits(200_000)


def payback(rates: Rates = CLAUDE, *, warm: bool = False, asks_model: bool = True) -> float:
    return payback_requests(VIEW, KEPT, SUMMARY, rates, warm=warm, asks_model=asks_model)


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
    needed = payback_requests(
        90_000, kept, LEAST_SUMMARY_TOKENS, CLAUDE, warm=False, asks_model=True
    )
    pays = partial(early_pays, 90_000, LIMITS, CLAUDE, fixed_tokens=3_000, asks_model=True)
    assert needed > 0
    assert pays(most_requests=needed)
    assert not pays(most_requests=needed - 1e-9)


@pytest.mark.parametrize(("rates", "requests"), [(CLAUDE, 6.2), (NEWEST, 20.9)])
def test_the_figures_of_the_design_come_out(rates: Rates, requests: float) -> None:
    """The figures of docs/caching.md, where `o·u` is what the model writes."""
    assert payback(rates, warm=True) == pytest.approx(requests, abs=0.05)


def test_a_cold_view_pays_sooner_since_it_has_to_be_written_anyway() -> None:
    """(100K + 9K + 28.75K - 125K) / 7.7K."""
    assert payback() == pytest.approx(12_750 / 7_700)
    assert payback() < payback(warm=True)


def test_an_extract_of_a_cold_view_costs_nothing() -> None:
    """The next request is smaller at once."""
    assert payback(asks_model=False) == 0


def test_an_extract_of_a_warm_view_costs_the_writing_of_what_is_kept() -> None:
    """The prefix was there to be read."""
    assert payback(warm=True, asks_model=False) == pytest.approx(1.25 * KEPT / 7_700)


@pytest.mark.parametrize("kept", [VIEW, VIEW + 1])
def test_what_gets_no_smaller_never_pays(kept: int) -> None:
    """Not after any number of requests."""
    assert payback_requests(VIEW, kept, 0, CLAUDE, warm=False, asks_model=False) == math.inf


def test_a_free_model_saves_nothing() -> None:
    """There is no bill to make smaller."""
    assert payback(Rates.of(FREE, "5m")) == math.inf


@given(
    kept=st.tuples(st.integers(0, VIEW), st.integers(0, VIEW)),
    warm=st.booleans(),
    asks_model=st.booleans(),
)
def test_keeping_more_never_pays_sooner(
    kept: tuple[int, int], warm: bool, asks_model: bool
) -> None:
    """Neither warm nor cold, whoever writes the summary."""
    one, two = (
        payback_requests(VIEW, each, SUMMARY, CLAUDE, warm=warm, asks_model=asks_model)
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


# Before the threshold


def due(growth: float, calls: int, rates: Rates = CLAUDE, limits: Limits = LIMITS) -> int:
    return due_tokens(limits, rates, fixed_tokens=3_000, growth_tokens=growth, calls=calls)


@given(
    st.floats(0, 50_000),
    st.integers(0, 10_000),
    st.tuples(st.floats(0, 1), st.floats(0, 2)),
    st.sampled_from([8_000, 32_000, 200_000, 1_000_000]),
    st.floats(0.1, 0.8),
)
def test_a_compaction_is_due_between_four_fifths_of_the_threshold_and_the_threshold(
    growth: float, calls: int, prices: tuple[float, float], window: int, ratio: float
) -> None:
    """Whatever tokens cost and however fast the view grows."""
    limits = Limits(window, target_ratio=ratio)
    found = due(growth, calls, Rates(*prices, output=5.0), limits)
    assert int(0.8 * limits.threshold_tokens) <= found <= limits.threshold_tokens


def test_nothing_is_due_early_where_reading_is_free_or_nothing_is_known_of_the_loop() -> None:
    """A shorter prompt costs no less, or the turn may end with the next call."""
    assert due(1_000, 500, Rates(0.0, 0.0, 0.0)) == LIMITS.threshold_tokens
    assert due(0, 0) == due(1_000, 1) == LIMITS.threshold_tokens


def test_the_faster_a_view_grows_and_the_cheaper_it_is_read_the_later_it_is_due() -> None:
    """Compactions would follow each other too closely, or save too little."""
    assert due(500, 500) < due(12_000, 500) <= LIMITS.threshold_tokens
    assert due(2_000, 500) < due(2_000, 500, NEWEST)


@dataclass(slots=True)
class Trace:
    """What a loop costs, in input tokens, by what its provider's cache bills.

    Its summary is written ahead at 80 % of the threshold.
    """

    rates: Rates
    most: int = 0
    fixed: int = 8_000
    cost: float = 0.0

    def run(self, growths: list[int], *, by_price: bool) -> "Trace":
        size, held, prepared, grown = self.fixed + 2_000, 0, 0, 0
        for calls, growth in enumerate(growths):
            before = prepared
            if not prepared and size >= 0.8 * LIMITS.threshold_tokens:
                prepared = size
                self.cost += self.rates.read * size
            rate = grown / max(1, calls)
            if size >= self.due(rate, calls, is_there=bool(before), by_price=by_price):
                gap = size - prepared
                told = 0.25 * gap if by_price else gap
                size, held, prepared = int(self.fixed + 22_000 + told), self.fixed, 0
            self.most = max(self.most, size)
            self.cost += self.rates.read * held + self.rates.write * (size - held)
            held, size, grown = size, size + growth, grown + growth
        return self

    def due(self, growth: float, calls: int, *, is_there: bool, by_price: bool) -> int:
        if not (is_there and by_price):
            return LIMITS.threshold_tokens
        return due_tokens(
            LIMITS, self.rates, fixed_tokens=self.fixed, growth_tokens=growth, calls=calls
        )


growths = st.integers(200, 8_000).flatmap(
    lambda most: st.lists(st.integers(0, most), min_size=20, max_size=400)
)


@given(growths, st.sampled_from([CLAUDE, replace(CLAUDE, read=0.05), NEWEST]))
def test_a_loop_never_costs_more_than_by_the_threshold_alone(
    growths: list[int], rates: Rates
) -> None:
    """Beside 0.5: a prepared summary at the threshold, whose tail kept all that had come since.

    A loop that ends right after a compaction has it for nothing: that is a twentieth at most.
    """
    old = Trace(rates).run(growths, by_price=False)
    new = Trace(rates).run(growths, by_price=True)
    assert new.cost <= 1.05 * old.cost
    assert new.most <= max(old.most, LIMITS.threshold_tokens)


def test_a_long_loop_costs_a_fifth_less() -> None:
    """Steps of a thousand tokens at the prices of most Claudes."""
    growths = [1_000] * 1_000
    old = Trace(CLAUDE).run(growths, by_price=False)
    new = Trace(CLAUDE).run(growths, by_price=True)
    assert new.cost <= 0.80 * old.cost
