"""Made-up replays, as `parley replay` would have measured them."""

from typing import Any

from agent.messages import Usage
from agent.models.catalog import ModelFacts, Prices
from agent.money.cache_simulator import Tally
from gateway.replay.player import Replayed
from gateway.replay.recordings import Bill
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.reports.spending import Spent
from gateway.storage.reports.usage import Figures

PRICES = Prices(input=1, cache_write_5m=1.25, cache_write_1h=2, cache_read=0.1, output=5)
FACTS = ModelFacts("claude-x", prices=PRICES, source="a price list (2026)")


def compaction(before: int = 500, after: int = 100, **fields: Any) -> CompactionRow:
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
    return CompactionRow(**defaults | fields)


def bill(requests: int = 2, **tokens: int) -> Bill:
    """Return a bill of so many tokens whose least would be to read them all."""
    billed = Usage(**tokens)
    return Bill(requests, Tally(billed, Usage(cache_read_tokens=billed.prompt_tokens)))


def replayed(name: str = "talk", **fields: Any) -> Replayed:
    """Return how a conversation went; well, unless `fields` say otherwise."""
    defaults: dict[str, Any] = {
        "messages": 6,
        "took": Figures(2, 1, Spent(usage=Usage(300, 20))),
        "compactions": (),
        "bill": bill(cache_read_tokens=100),
        "duration_s": 1.25,
        "problem": None,
    }
    return Replayed(name, **defaults | fields)
