"""The cost of a call: tokens times the model's prices (agent/models/catalog.py).

An unknown price never counts as 0, neither in a sum nor in what users see.
"""

import math
from dataclasses import replace

from agent.errors import ModelError
from agent.messages import Usage, count
from agent.models.base import ChatModel, Completion, ModelRequest, estimate_usage
from agent.models.catalog import Prices
from agent.ports import ModelCall

UNKNOWN = "unknown price"
_PER = 1_000_000


def cost_usd(usage: Usage, prices: Prices | None) -> float | None:
    """Return the cost of a call in US dollars, or None if the prices are unknown."""
    if prices is None:
        return None
    return (
        usage.input_tokens * prices.input
        + usage.cache_write_5m_tokens * prices.cache_write_5m
        + usage.cache_write_1h_tokens * prices.cache_write_1h
        + usage.cache_read_tokens * prices.cache_read
        + usage.output_tokens * prices.output
    ) / _PER


def forecast(model: ChatModel, prompt_tokens: int, warm_tokens: int, ttl: str) -> Usage:
    """Return the lowest usage that a request will be billed, without the answer.

    Warm tokens are read, the others are written if the model uses breakpoints. A prompt below the
    model's minimum is plain input: none of it is cached.

    Args:
        warm_tokens: Tokens at the start of the prompt that the provider's cache still has.
        ttl: Lifetime of its breakpoints, "5m" or "1h".
    """
    if prompt_tokens < model.facts.min_cache_tokens:
        return Usage(input_tokens=prompt_tokens)
    # A compaction may have made the prompt shorter than its warm part.
    read = min(warm_tokens, prompt_tokens)
    new = prompt_tokens - read
    if model.cache_layout is None:
        return Usage(input_tokens=new, cache_read_tokens=read)
    if ttl == "1h":
        return Usage(cache_read_tokens=read, cache_write_1h_tokens=new)
    return Usage(cache_read_tokens=read, cache_write_5m_tokens=new)


def format_usd(cost: float | None, *, estimated: bool = False) -> str:
    """Format an amount: "$1.20", "$0.0123", "~$0.0123", "unknown price"; "$0" is exactly 0.

    Amounts below a dollar have four decimals, or as many as two significant digits require.
    """
    if cost is None:
        return UNKNOWN
    mark = "~" if estimated else ""
    if cost == 0:
        return f"{mark}$0"
    if cost >= 1:
        return f"{mark}${cost:,.2f}"
    text = f"{cost:.{max(4, 1 - math.floor(math.log10(cost)))}f}"
    whole, _, decimals = text.partition(".")
    return f"{mark}${whole}.{decimals.rstrip('0').ljust(2, '0')}"


def sum_text(usd: float, unknown_calls: int, *, estimated: bool) -> str:
    """Return "$1.20", "~$1.20 + 3 calls of unknown price" or "1 call of unknown price"."""
    known = format_usd(usd, estimated=estimated)
    if not unknown_calls:
        return known
    unknown = f"{count(unknown_calls, 'call')} of {UNKNOWN}"
    return f"{known} + {unknown}" if usd else unknown


def call_of(model: ChatModel, request: ModelRequest, completion: Completion) -> ModelCall:
    """Return the booking of an answered call; an unreported usage is estimated."""
    reported = completion.usage
    usage = reported or estimate_usage(request, completion.message, model.name)
    told_usd = completion.cost_usd
    return ModelCall(
        provider=model.provider,
        model=model.name,
        usage=usage,
        cost_usd=cost_usd(usage, model.facts.prices) if told_usd is None else told_usd,
        estimated=reported is None,
        reported_name=completion.model,
    )


def failed_call(model: ChatModel, failure: ModelError, expected: Usage | None) -> ModelCall | None:
    """Return the booking of a failed call, or None if the model had not begun to answer.

    An unreported usage is taken from the prompt's `expected` usage.
    """
    if failure.usage is not None:
        return lost_call(model, failure.usage)
    if expected is None or not failure.written_tokens:
        return None
    return lost_call(model, replace(expected, output_tokens=failure.written_tokens))


def lost_call(model: ChatModel, usage: Usage) -> ModelCall:
    """Return the booking of a call that is billed but ended without an answer."""
    return ModelCall(
        provider=model.provider,
        model=model.name,
        usage=usage,
        cost_usd=cost_usd(usage, model.facts.prices),
        purpose="lost",
        estimated=True,
    )
