"""What `/usage` and `/insights` answer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.messages import Usage
from agent.models.catalog import FREE, Prices
from agent.money.cache_simulator import CacheRules
from gateway.commands.registry import MoneyRules, StatusFacts
from gateway.commands.usage import saved_by_cache_usd, usage_text
from gateway.storage import schema
from gateway.storage.reports.spending import Spent
from gateway.storage.reports.usage import ContextFill, Figures, UsageReport
from tests.support.gateway import running

MODEL = StatusFacts("claude-test", 200_000, 100_000, "compressor", 900)
STANDING = ContextFill(3, 1234, 9, 2, "What is it? #2", 50_000, "reported", 1)
PRICES = Prices(4.0, 5.0, 8.0, 0.4, 20.0)
LAST = Spent(2, Usage(20, 50, 930, 50), 0.0125)
WHOLE = Spent(
    40, Usage(990_000, 12_345, 1_000_000, 10_000), 1.5, unknown_calls=1, estimated_calls=1
)
REPORT = UsageReport(
    segment=Figures(1, 1, LAST, 1, 80_000),
    whole=Figures(12, 31, WHOLE, 2, 160_000),
    models={"claude-test": WHOLE},
    last_turn=LAST,
)
NOTHING = UsageReport(Figures(), Figures(), {}, Spent())
TODAY = Spent(5, Usage(), 0.3)


def told(
    report: UsageReport = REPORT, today: Spent = TODAY, by_all_usd: float = 0.0, **money: Any
) -> list[str]:
    rules = replace(MoneyRules(prices={"claude-test": PRICES}), **money)
    return usage_text(STANDING, report, today, by_all_usd, MODEL, rules).splitlines()


def test_usage_tells_segment_conversation_and_last_turn_apart() -> None:
    """Turns, calls, tokens by kind with the share of the cache, cost, what compactions saved."""
    assert told() == [
        "- **Context**: 50,000 of 200,000 tokens (25%), reported",
        "- **Compression**: from 100,000 tokens on (engine compressor)",
        (
            "- **This segment (#2)**: 1 turn, 2 model calls, 1 tool call;"
            " 1,000 tokens in, 930 from the cache (93%), 50 into it; 50 out; $0.0125;"
            " 1 compaction saved 80,000 tokens of context"
        ),
        (
            "- **Whole conversation**: 12 turns, 40 model calls, 31 tool calls; 2,000,000 tokens"
            " in, 1,000,000 from the cache (50%), 10,000 into it; 12,345 out;"
            " ~$1.50 + 1 call of unknown price; 2 compactions saved 160,000 tokens of context"
        ),
        (
            "- **Last answer**: 2 model calls; 1,000 tokens in, 930 from the cache (93%),"
            " 50 into it; 50 out; $0.0125"
        ),
        "- **Prompt cache**: saved $3.59 so far",
        "- **Your spending today**: $0.30",
    ]


def test_the_usage_of_an_empty_conversation() -> None:
    """Zeros, and no word about compactions, a last answer or the cache."""
    lines = told(NOTHING, Spent())
    assert lines[2:] == [
        (
            "- **This segment (#2)**: 0 turns, 0 model calls, 0 tool calls;"
            " 0 tokens in, 0 from the cache (0%); 0 out; $0"
        ),
        (
            "- **Whole conversation**: 0 turns, 0 model calls, 0 tool calls;"
            " 0 tokens in, 0 from the cache (0%); 0 out; $0"
        ),
        "- **Your spending today**: $0",
    ]


@pytest.mark.parametrize(
    ("spent_usd", "text"),
    [(0.3, "$0.30 of $2.00, $1.70 left"), (2.5, "$2.50 of $2.00, $0 left")],
)
def test_what_is_left_of_a_budget_is_told(spent_usd: float, text: str) -> None:
    """Never less than nothing."""
    today = Spent(5, Usage(), spent_usd)
    assert told(today=today, sender_daily_usd=2.0)[-1] == f"- **Your spending today**: {text}"


@pytest.mark.parametrize(
    ("by_all_usd", "sender_daily_usd", "text"),
    [
        (3.0, 2.0, "$0.30 of $2.00, $1.70 left"),
        (9.0, 2.0, "$0.30 of $2.00, $1.70 left, but less for everybody together"),
        (10.0, 2.0, "$0.30 of $2.00; today's budget for everybody is used up"),
        (9.0, None, "$0.30"),
        (10.0 - 1e-12, None, "$0.30; today's budget for everybody is used up"),
    ],
)
def test_nothing_is_left_where_the_budget_for_all_is_used_up(
    by_all_usd: float, sender_daily_usd: float | None, text: str
) -> None:
    """What everybody may spend is not shown."""
    lines = told(by_all_usd=by_all_usd, daily_usd=10.0, sender_daily_usd=sender_daily_usd)
    assert lines[-1] == f"- **Your spending today**: {text}"


def test_an_unknown_price_is_never_nothing() -> None:
    """In the figures of today as in all others."""
    assert told(today=Spent(1, unknown_calls=1))[-1].endswith("1 call of unknown price")


@pytest.mark.parametrize(
    ("usage", "saved_usd"),
    [
        (Usage(1_000_000, 1_000_000), 0.0),
        (Usage(0, 0, cache_read_tokens=1_000_000), 3.6),
        (Usage(0, 0, cache_write_5m_tokens=1_000_000), -1.0),
        (Usage(0, 0, cache_write_1h_tokens=1_000_000), -4.0),
    ],
)
def test_caching_saves_what_reads_are_cheaper_less_what_writes_are_dearer(
    usage: Usage, saved_usd: float
) -> None:
    """Output costs the same with and without it."""
    found = saved_by_cache_usd({"m": Spent(1, usage)}, {"m": PRICES})
    assert found == pytest.approx(saved_usd)


def test_savings_of_unknown_models_are_unknown() -> None:
    """Also where those of others are known."""
    read = Usage(cache_read_tokens=1_000_000)
    models = {"m": Spent(1, read), "x": Spent(1, read)}
    assert saved_by_cache_usd(models, {"m": PRICES}) is None
    assert saved_by_cache_usd(models, {"m": PRICES, "x": FREE}) == pytest.approx(3.6)
    assert not [line for line in told(prices={}) if "Prompt cache" in line]


def test_a_cache_that_cost_more_than_it_saved_is_told() -> None:
    """Honestly."""
    models = {"claude-test": Spent(1, Usage(cache_write_1h_tokens=1_000_000))}
    lines = told(replace(REPORT, models=models))
    assert "- **Prompt cache**: cost $4.00 more than it saved so far" in lines


def billed(ratio: str, calls: str) -> str:
    return f"billed {ratio} \N{MULTIPLICATION SIGN} the least possible over the last {calls}"


@pytest.mark.parametrize(
    ("compared", "text"),
    [
        (Spent(compared_calls=2, billed_usd=1.0, least_usd=1.0), billed("1.00", "2 calls")),
        (Spent(compared_calls=2, billed_usd=2.5, least_usd=1.35), billed("1.85", "2 calls")),
        (Spent(compared_calls=1, billed_usd=0.8, least_usd=1.0), billed("1.00", "1 call")),
    ],
)
def test_how_close_the_bill_came_to_the_least_is_told(compared: Spent, text: str) -> None:
    """Beside what caching saved."""
    lines = told(replace(REPORT, compared=compared))
    assert f"- **Prompt cache**: saved $3.59 so far; {text}" in lines


def test_the_least_is_told_where_nothing_was_saved() -> None:
    """A Claude can cache: a bill without a word of it is worth knowing."""
    lines = told(replace(NOTHING, compared=Spent(2, Usage(), 1.0, 0, 0, 2, 1.48, 1.0)))
    assert f"- **Prompt cache**: {billed('1.48', '2 calls')}" in lines


def test_free_and_unknown_models_have_no_least() -> None:
    """Nor a line about a cache."""
    known: tuple[dict[str, Prices], ...] = ({"claude-test": FREE}, {})
    for prices in known:
        assert MoneyRules(prices=prices).rates("claude-test") is None
        assert not [line for line in told(NOTHING, prices=prices) if "Prompt cache" in line]


def test_rules_of_the_settings_come_before_those_of_the_table() -> None:
    """A prompt below the minimum could not have been cached."""
    rules = {"claude-test": CacheRules(min_tokens=20_000)}
    found = MoneyRules(prices={"claude-test": PRICES}, rules=rules).rates("claude-test")
    assert found is not None
    assert found.rules.min_tokens == 20_000


async def test_both_are_answered_from_the_books(tmp_path: Path) -> None:
    """At once, with what the sender spent in other chats too."""
    async with running(tmp_path) as chat:
        assert (await chat.ask("/insights")).endswith("nothing was asked.")
        await chat.ask("What is it?")
        assert "- **Turns**: 1: answered 1 (100%)" in await chat.ask("/insights")
        booked = schema.ledger.update().values(usd=0.25)
        await chat.execute(booked)
        assert "out; $0.25\n- **Your spending today**: $0.25" in await chat.ask("/usage")
        assert "out; $0\n- **Your spending today**: $0.25" in await chat.ask("/usage", chat="c2")
        assert "- **Your spending today**: $0" in await chat.ask("/usage", chat="c3", sender="u2")


async def test_usage_knows_of_the_budget_for_all(tmp_path: Path) -> None:
    """Whoever has spent it."""
    budget = {"daily_usd": 1.0, "sender_daily_usd": 5.0}
    async with running(tmp_path, budget=budget) as chat:
        await chat.ask("What is it?")
        await chat.execute(schema.ledger.update().values(usd=1.0))
        told = await chat.ask("/usage", chat="c2", sender="u2")
        assert told.endswith("$0 of $5.00; today's budget for everybody is used up")
