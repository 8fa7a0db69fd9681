"""When a compaction pays: arithmetic on the prices of a prompt cache.

Compacting breaks the cached prefix, and the summary has to be paid; every later request then reads
less. The planner asks `due_tokens` in a loop whose summary is ready, `early_pays` before the first
call of a turn whose cache has died (`compression.early`); `parley replay` shows `payback_requests`.
How far down is no question of price: the less is kept, the less every request costs, so the limits
of the settings decide (`compression.target_ratio`, `protect_last_n`).
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


CALLS_PER_PAYBACK = 8
"""A loop has to have made so many calls for each in which a compaction earns its cost back: it may
end with the next one. Source: simulated, docs/decisions/310."""
EARLIEST_SHARE = 0.8
"""Share of the threshold below which no price has a warm view compacted, and no summary is written
ahead: every compaction takes something away that prices do not count."""

CLAUDE = Prices(1.0, cache_write_5m=1.25, cache_write_1h=2.0, cache_read=0.1, output=5.0)
"""In units of an input token. Source: Anthropic's prices, of all models but the newest."""


def payback_requests(
    view_tokens: int,
    kept_tokens: int,
    summary_tokens: int,
    rates: Rates,
    *,
    warm: bool,
    asks_model: bool,
) -> float:
    """Return after how many requests a compaction has earned back what it costs more than none.

    Warm, for a view of n tokens of which s are kept, the summary's u among them:
    (r·n + o·u + w·s) / (r·(n - s)). With n = 100K, s = 23K, u = 1.8K, w = 1.25 and o = 5 that is
    6.2 at r = 0.1 and 20.9 at r = 0.025.

    Cold, the summary model reads at the full price, but the next request would have had to write
    the whole view anyway: (n + o·u + w·s - w·n) / (r·(n - s)), 1.7 in the example. Without `- w·n`
    it would be 17.9, and never less than 1 / r: at r = 0.1 no compaction would pay within 9.

    Args:
        view_tokens: Size of the view.
        kept_tokens: Its size afterwards, the summary included.
        summary_tokens: What the summary model writes.
        rates: Of the model that answers; the summary model is taken to cost as much.
        warm: Whether the provider's cache still holds the view.
        asks_model: False where the summary is the extractor's, or is there already.

    Returns:
        0 where it costs nothing more, `math.inf` where it saves nothing.
    """
    saved = rates.read * (view_tokens - kept_tokens)
    if saved <= 0:
        return math.inf
    cost = rates.write * (kept_tokens if warm else kept_tokens - view_tokens)
    if asks_model:
        cost += view_tokens * (rates.read if warm else 1) + rates.output * summary_tokens
    return max(0.0, cost / saved)


def due_tokens(
    limits: Limits, rates: Rates, *, fixed_tokens: int, growth_tokens: float, calls: int
) -> int:
    """Return the size from which a loop's view is compacted, its summary being written already.

    With K kept and g more with each call, compacting at n costs C = (w - r)·(K - fixed) once in
    (n - K) / g calls, which read r·(n + K) / 2 each: least where (n - K)² = 2·g·C / r. The loop
    must be old enough, too: `CALLS_PER_PAYBACK` times the C / (r·(n - K)) calls that it takes to
    earn the cost back.

    Args:
        limits: Of the window and of what is kept.
        rates: Of the model that answers.
        fixed_tokens: System prompt and tools, which stay in the cache.
        growth_tokens: By how much the view grows with each call.
        calls: How many the loop has made.

    Returns:
        From `EARLIEST_SHARE` of the threshold up to the threshold itself, where nothing is gained
        before it.
    """
    threshold = limits.threshold_tokens
    moved = limits.tail_tokens + min(LEAST_SUMMARY_TOKENS, limits.max_summary_tokens)
    cost = max(0.0, rates.write - rates.read) * moved
    # A model that reads its cache for free gains nothing from a shorter prompt.
    if calls <= 0 or rates.read <= 0:
        return threshold
    least_cost = math.sqrt(2 * growth_tokens * cost / rates.read)
    old_enough = CALLS_PER_PAYBACK * cost / (rates.read * calls)
    best = min(threshold, fixed_tokens + moved + max(least_cost, old_enough))
    return max(int(best), int(EARLIEST_SHARE * threshold))


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
        view_tokens, kept_tokens, summary_tokens, rates, warm=False, asks_model=asks_model
    )
    return requests <= most_requests
