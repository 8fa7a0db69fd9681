"""Made-up replays, as `parley replay` would have measured them."""

from collections.abc import Sequence
from typing import Any

from agent.context_engine import Limits
from agent.models.catalog import ModelFacts
from agent.money.cache_simulator import Tally
from agent.usage import Prices, Usage
from gateway.replay.costs import Tariff
from gateway.replay.recorded_model import Bill, Billed, Placing
from gateway.replay.report import Replayed
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.reports.timeline import Call, ConversationTotals, Shrinking, Timeline

PRICES = Prices(input=1, cache_write_5m=1.25, cache_write_1h=2, cache_read=0.1, output=5)
FACTS = ModelFacts("claude-x", prices=PRICES, source="a price list", read_on="2026")
TARIFF = Tariff(FACTS, Limits(context_length=200_000))


def timeline_of(
    *prompts: int, cached: Sequence[int] = (), compactions: Sequence[Shrinking] = ()
) -> Timeline:
    """Return calls of these prompt tokens, two calls to a turn."""
    reads = [*cached, *[0] * (len(prompts) - len(cached))]
    calls = (
        Call(n // 2 + 1, 1, Usage(input_tokens=tokens - read, cache_read_tokens=read))
        for n, (tokens, read) in enumerate(zip(prompts, reads, strict=True))
    )
    return Timeline(tuple(calls), tuple(compactions))


def shrinking(before_call: int, before: int = 500, after: int = 100, **fields: Any) -> Shrinking:
    """Return a compaction of so many tokens."""
    defaults: dict[str, Any] = {
        "id": 1,
        "parent_session_id": 1,
        "child_session_id": 2,
        "trigger": "threshold",
        "engine": "compressor",
        "level": "extract",
        "messages_before": 30,
        "messages_after": 12,
        "tokens_before": before,
        "tokens_after": after,
        "tokens_after_reported": None,
        "summary_model": None,
        "retained_share": 1.0,
        "cache_tokens_lost": 400,
        "failure": None,
        "duration_ms": 7,
        "at": 0.0,
    }
    return Shrinking(before_call, CompactionRow(**defaults | fields))


def bill(placing: Placing = "anchored", requests: int = 2, **tokens: int) -> Bill:
    """Return a bill of so many tokens whose least would be to read them all."""
    billed = Usage(**tokens)
    return Bill(placing, requests, Tally(billed, Usage(cache_read_tokens=billed.prompt_tokens)))


def billed(*asked_s: float, bills: Sequence[Bill] = (), fixed_tokens: int = 0) -> Billed:
    """Return how a conversation was billed whose answers were asked for at these times."""
    return Billed(tuple(bills) or (bill(cache_read_tokens=100),), asked_s, fixed_tokens)


def replayed(name: str = "talk", timeline: Timeline | None = None, **fields: Any) -> Replayed:
    """Return how a conversation went; well, unless `fields` say otherwise."""
    defaults: dict[str, Any] = {
        "work": ConversationTotals(messages=6, turns=2, tool_calls=1, tokens_in=300, tokens_out=20),
        "timeline": timeline_of(100, 200) if timeline is None else timeline,
        "billed": billed(),
        "duration_s": 1.25,
        "problem": None,
    }
    return Replayed(name, **defaults | fields)
