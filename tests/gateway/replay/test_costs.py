"""What a replay would have cost."""

from dataclasses import replace

import pytest

from agent.usage import Usage
from gateway.replay.costs import (
    Costs,
    Tariff,
    costs,
    prices_text,
    summary_usage,
    totals,
)
from gateway.replay.recorded_model import Bill
from gateway.storage.reports.timeline import Shrinking, Timeline
from tests.gateway.replays import FACTS, PRICES, TARIFF, bill, billed, shrinking, timeline_of

UNPRICED = replace(TARIFF, facts=replace(FACTS, prices=None))
DEAR = replace(FACTS, name="writer", prices=replace(PRICES, input=100, output=500))
WITH_WRITER = replace(TARIFF, writer=DEAR)
SUMMARISED = {"retained_share": 1.0, "tokens_after_reported": 20_000}


def idle(before_call: int, before: int = 80_000) -> Shrinking:
    return shrinking(before_call, before, 20_000, trigger="idle", **SUMMARISED)


def long_talk(*compactions: Shrinking) -> Timeline:
    """Return four turns of two calls each with 80,000 tokens of context."""
    return timeline_of(*[80_000] * 8, compactions=compactions)


STEADY = billed(*(float(n) for n in range(8)))
RESTED = billed(0, 1, 2, 3, 1000, 1001, 5000, 5001)
"""The third and the fourth turn came after the cache had died."""


def test_bills_are_summed_by_placing() -> None:
    """What was played stays first."""
    one = billed(bills=[bill("anchored", 1, input_tokens=5), bill("system_and_3")])
    two = billed(bills=[bill("anchored", 2, input_tokens=7), bill("system_and_3")])
    found = totals([Costs(one.bills, 1.0), Costs(two.bills, 0.5)])
    assert [(it.placing, it.requests) for it in found.bills] == [
        ("anchored", 3),
        ("system_and_3", 4),
    ]
    assert found.bills[0].tally.billed == Usage(input_tokens=12)
    assert found.summaries_usd == 1.5


def test_nothing_sums_to_nothing() -> None:
    """A conversation that failed before its first call has no bills."""
    assert totals([Costs()]) == Costs()
    assert Costs().usd(TARIFF) == 0


def cells_of(one: Bill, tariff: Tariff = TARIFF, summaries_usd: float = 0) -> tuple[str, ...]:
    [cells] = Costs((one,), summaries_usd).rows(tariff)
    return cells


def test_a_bill_counts_both_kinds_of_writes() -> None:
    """The price tells them apart."""
    hour = bill(cache_write_1h_tokens=1_000_000, cache_write_5m_tokens=1_000_000)
    cells = cells_of(hour)
    assert cells[4] == "2,000,000"
    assert cells[-4:] == ("16.250", "~$3.25", "~$0", "~$3.25")


def test_without_prices_the_usual_ratios_hold() -> None:
    """Only the money is unknown."""
    cells = cells_of(bill(cache_write_5m_tokens=100), UNPRICED)
    assert cells[-4:] == ("12.500", "unknown price", "~$0", "unknown price")


def test_summaries_are_part_of_the_cost() -> None:
    """So that a play that needs more of them compares with one that needs fewer."""
    found = Costs((bill(input_tokens=1_000_000), bill(input_tokens=5)), 0.25)
    assert found.usd(TARIFF) == pytest.approx(1.25)
    assert next(found.rows(TARIFF))[-3:] == ("~$1.00", "~$0.25", "~$1.25")
    assert found.usd(UNPRICED) is None


@pytest.mark.parametrize(("times", "usd"), [("warm", 0.008), ("cold", 0.08)])
def test_a_summary_costs_what_the_cache_left_to_read(times: str, usd: float) -> None:
    """And 2,000 tokens that are written."""
    asked = billed(0, 1, 2, 3, 4 if times == "warm" else 1000)
    found = costs(long_talk(shrinking(4, 80_000)), asked, TARIFF)
    assert found.summaries_usd == pytest.approx(usd + 0.01)
    prune = shrinking(4, 80_000, retained_share=None)
    assert costs(long_talk(prune), asked, UNPRICED).summaries_usd == 0
    assert costs(long_talk(idle(4)), asked, UNPRICED).summaries_usd is None


def test_an_auxiliary_model_has_prices_of_its_own() -> None:
    """It has never seen the conversation: for it there is no cache."""
    found = costs(long_talk(idle(4)), STEADY, WITH_WRITER)
    assert found.summaries_usd == pytest.approx(8 + 1)
    assert "; summaries: writer, $ per million" in WITH_WRITER.prices_text()
    assert TARIFF.prices_text() == prices_text(FACTS)


def test_prices_are_told_with_their_source() -> None:
    """And when that was read."""
    assert prices_text(FACTS) == (
        "claude-x, $ per million tokens: input 1, cache write 5m 1.25, cache write 1h 2,"
        " cache read 0.1, output 5; source: a price list (2026)"
    )


def test_a_summary_reads_the_view() -> None:
    """From the cache while that is warm, else at the full price; a prune needs none."""
    [told] = long_talk(idle(4)).compactions
    assert summary_usage(told, STEADY, TARIFF) == Usage(
        cache_read_tokens=80_000, output_tokens=2_000
    )
    cold = Usage(input_tokens=80_000, output_tokens=2_000)
    assert summary_usage(told, RESTED, TARIFF) == cold
    assert summary_usage(shrinking(4, retained_share=None), STEADY, TARIFF) == Usage()
