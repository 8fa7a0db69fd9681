"""When a compaction pays: arithmetic on the prices of a prompt cache.

Compacting breaks the cached prefix, and the summary has to be paid; every later request then reads
less. The planner asks `early_pays` before the first call of a turn whose cache has died
(`compression.early`). How far down is no question of price: the less is kept, the less every
request costs, so the limits of the settings decide (`compression.target_ratio`, `protect_last_n`).
"""

import math
from dataclasses import dataclass

from agent.context.phases.summary import LEAST_SUMMARY_TOKENS
from agent.context_engine import Limits
from agent.usage import Prices


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices for a token, in units of what one costs that is read without a cache."""

    read: float
    write: float
    output: float

    @classmethod
    def of(cls, prices: Prices | None, ttl: str) -> "Rates":
        """Return the rates of a model with cache entries that live for `ttl` ("5m" or "1h").

        Prices that are not known are taken to stand to each other like most of Claude's.
        """
        known = prices or CLAUDE
        # All rates of a model that is free are 0, whatever the unit.
        unit = known.input or 1.0
        write = known.cache_write_1h if ttl == "1h" else known.cache_write_5m
        return cls(known.cache_read / unit, write / unit, known.output / unit)


CLAUDE = Prices(1.0, cache_write_5m=1.25, cache_write_1h=2.0, cache_read=0.1, output=5.0)
"""In units of an input token. Source: Anthropic's prices, of all models but the newest."""


def payback_requests(
    view_tokens: int,
    kept_tokens: int,
    summary_tokens: int,
    rates: Rates,
    *,
    asks_model: bool,
) -> float:
    """Return the requests after which compacting a view whose cache has died pays for itself.

    The summary model reads a view of n tokens at the full price, but the next request would have
    had to write it anyway. With s tokens kept, the summary's u among them:
    (n + o·u + w·s - w·n) / (r·(n - s)). With n = 100K, s = 23K, u = 1.8K, w = 1.25 and o = 5 that
    is 1.7 at r = 0.1. Without `- w·n` it would be 17.9, and never less than 1 / r: at r = 0.1 no
    compaction would pay within 9.

    Args:
        view_tokens: Size of the view.
        kept_tokens: Its size afterwards, the summary included.
        summary_tokens: What the summary model writes.
        rates: Of the model that answers; the summary model is taken to cost as much.
        asks_model: False where the summary is the extractor's, or is there already.

    Returns:
        0 where it costs nothing more, `math.inf` where it saves nothing.
    """
    saved = rates.read * (view_tokens - kept_tokens)
    if saved <= 0:
        return math.inf
    cost = rates.write * (kept_tokens - view_tokens)
    if asks_model:
        cost += view_tokens + rates.output * summary_tokens
    return max(0.0, cost / saved)


def early_pays(
    view_tokens: int,
    limits: Limits,
    rates: Rates,
    *,
    fixed_tokens: int,
    asks_model: bool,
    most_requests: float,
) -> bool:
    """Whether to compact a view early because its cache entry has died.

    Args:
        view_tokens: Its size; one that is no larger than what compactions aim at is left alone.
        limits: What decides how much will be kept.
        rates: Of the model that answers.
        fixed_tokens: System prompt and tools, which stay.
        asks_model: Whether a model would write the summary.
        most_requests: `compression.payback_requests`.
    """
    if view_tokens <= limits.target_tokens:
        return False
    summary_tokens = min(LEAST_SUMMARY_TOKENS, limits.max_summary_tokens)
    changing = min(limits.tail_tokens, limits.target_tokens - fixed_tokens) + summary_tokens
    # The summary is added also where prompt and tools alone fill the target.
    kept_tokens = fixed_tokens + max(summary_tokens, changing)
    requests = payback_requests(
        view_tokens, kept_tokens, summary_tokens, rates, asks_model=asks_model
    )
    return requests <= most_requests
