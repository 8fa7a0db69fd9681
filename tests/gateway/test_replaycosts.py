"""What a replay would have cost."""

from dataclasses import replace

import pytest

from agent.models.base import Usage
from agent.models.recorded import Billed
from gateway.replaycosts import (
    Early,
    bill_cells,
    early,
    economies,
    prices_text,
    totals,
)
from gateway.storage.timeline import Shrinking, Timeline
from tests.gateway.replays import FACTS, TARIFF, bill, billed, shrinking, timeline_of

FREE_TO_READ = replace(TARIFF, facts=replace(FACTS, prices=None))
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
    found = totals([one, two])
    assert [(it.placing, it.requests) for it in found] == [("anchored", 3), ("system_and_3", 4)]
    assert found[0].tally.billed == Usage(input_tokens=12)


def test_nothing_sums_to_nothing() -> None:
    """A conversation that failed before its first call has no bills."""
    assert totals([Billed()]) == ()


def test_a_bill_counts_both_kinds_of_writes() -> None:
    """The price tells them apart."""
    hour = bill(cache_write_1h_tokens=1_000_000, cache_write_5m_tokens=1_000_000)
    cells = bill_cells(hour, TARIFF)
    assert cells[4] == "2,000,000"
    assert cells[-2:] == ("16.250", "~$3.25")


def test_without_prices_the_usual_ratios_hold() -> None:
    """Only the money is unknown."""
    cells = bill_cells(bill(cache_write_5m_tokens=100), FREE_TO_READ)
    assert cells[-2:] == ("12.500", "unknown price")


def test_prices_are_told_with_their_source() -> None:
    """And when that was read."""
    assert prices_text(FACTS) == (
        "claude-x, $ per million tokens: input 1, cache write 5m 1.25, cache write 1h 2,"
        " cache read 0.1, output 5; source: a price list (2026)"
    )


def test_a_warm_compaction_is_dearer() -> None:
    """What is left out would have been read at a tenth; a dead cache is written anew anyway."""
    [warm] = economies(long_talk(idle(4)), STEADY, TARIFF)
    [cold] = economies(long_talk(idle(4)), RESTED, TARIFF)
    assert (warm.warm, cold.warm) == (True, False)
    assert warm.payback > cold.payback


def test_a_summary_is_priced_warm_and_cold() -> None:
    """It reads the view: from the cache, or at the full price."""
    [found] = economies(long_talk(idle(4)), STEADY, TARIFF)
    assert found.warm_summary == Usage(cache_read_tokens=80_000, output_tokens=2_000)
    assert found.cold_summary == Usage(input_tokens=80_000, output_tokens=2_000)


def test_a_prune_needs_no_summary() -> None:
    """It costs what is written anew."""
    [found] = economies(long_talk(shrinking(4, retained_share=None)), STEADY, TARIFF)
    assert (found.warm_summary, found.cold_summary) == (Usage(), Usage())


def test_a_compaction_lasts_until_the_next() -> None:
    """So long its savings count."""
    found = economies(long_talk(idle(2), idle(5)), STEADY, TARIFF)
    assert [each.later for each in found] == [3, 3]


def test_turns_that_found_a_dead_cache_are_counted() -> None:
    """Not the first one, which had none."""
    assert early(long_talk(), RESTED, TARIFF).cold_turns == 2
    assert early(long_talk(), STEADY, TARIFF).cold_turns == 0


def test_a_longer_life_leaves_fewer() -> None:
    """The pauses were 1,000 and 4,000 seconds."""
    assert early(long_talk(), RESTED, replace(TARIFF, ttl="1h")).cold_turns == 1


def test_where_early_compaction_would_pay_is_told() -> None:
    """By the rule that the planner goes by."""
    assert early(long_talk(), RESTED, TARIFF).would_pay == 2
    assert early(long_talk(), RESTED, replace(TARIFF, most_requests=0.1)).would_pay == 0


def test_a_turn_that_was_compacted_for_is_no_longer_offered() -> None:
    """It is made, or another trigger came first."""
    assert early(long_talk(idle(4)), RESTED, TARIFF).would_pay == 1


def test_what_early_compaction_saved() -> None:
    """60,000 tokens less: written once, then read by the three requests behind that."""
    found = early(long_talk(idle(4)), RESTED, TARIFF)
    assert (found.made, found.cold_turns) == (1, 2)
    assert found.cost_usd == pytest.approx(0.08 + 0.01)
    assert found.saved_usd == pytest.approx(0.06 * 1.25 + 3 * 0.06 * 0.1)
    hour = early(long_talk(idle(4)), RESTED, replace(TARIFF, ttl="1h"))
    assert hour.saved_usd == pytest.approx(0.06 * 2 + 3 * 0.06 * 0.1)


def test_money_of_unknown_price_stays_unknown() -> None:
    """Also in a sum."""
    unknown = early(long_talk(idle(4)), RESTED, FREE_TO_READ)
    assert (unknown.cost_usd, (unknown + Early()).saved_usd) == (None, None)
    assert "summaries unknown price, saved unknown price" in unknown.text(FREE_TO_READ)


def test_early_compactions_are_told_in_words() -> None:
    """How often it was done, and where it would pay."""
    none, one = Early(2, 0, 1), Early(1, 1, 0, 0.09, 0.5)
    would = "within 6 requests it would pay at"
    assert none.text(TARIFF) == (
        f"2 turns found a dead cache. Compacted early: none; {would} 1 of them."
    )
    assert one.text(TARIFF) == (
        "1 turn found a dead cache. Compacted early: 1 turn; summaries ~$0.09, saved ~$0.50;"
        f" {would} 0 of the others."
    )
