"""Writes ahead of need the summary of a compaction to come (gateway/context/summaries.py)."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from agent.context.meter import TokenMeter
from agent.context.summary_model import SummaryCalls
from agent.context_compressor import prepare_summary
from agent.context_engine import CompressionRequest, Days, Limits
from agent.processes.threads import in_daemon
from agent.view.view import Summary, View

Write = Callable[[CompressionRequest], Summary | None]


async def prepare(
    view: View,
    meter: TokenMeter,
    limits: Limits,
    calls: SummaryCalls,
    write: Write = prepare_summary,
    days: Days = (),
) -> Summary | None:
    """Write ahead what a compaction of this view would need; None where it would cut nothing.

    Args:
        limits: Of the model that answers.
        calls: What may be asked with; closed when this returns.
        write: How the engine of the conversation does it.
        days: When the messages were said, as far as that is known.

    Raises:
        SummaryFailed: The summary model gave nothing usable.
    """
    try:
        # Writing may take minutes, and a thread of the pool would hold up the end of the process.
        written = in_daemon(lambda: write(_request(view, meter, limits, calls, days)))
        summary = await asyncio.wrap_future(written)
    finally:
        calls.close()
    return summary and replace(summary, model=calls.model or "")


def _request(
    view: View, meter: TokenMeter, limits: Limits, calls: SummaryCalls, days: Days
) -> CompressionRequest:
    tokens = meter.measure(view).tokens
    return CompressionRequest(
        plan=view.plan,
        entries=tuple(view.entries),
        tokens=tokens,
        fixed_tokens=meter.fixed_tokens(view.messages[0]),
        limits=before_growth(limits, tokens),
        estimate=meter.estimate,
        trigger="prepare",
        summarise=calls,
        summary_window=calls.window_tokens,
        today=datetime.now(UTC).date().isoformat(),
        days=days,
    )


def before_growth(limits: Limits, tokens: int) -> Limits:
    """Return the limits for a tail that will have grown when the view reaches its threshold.

    At least half of a tail is left: what is expected may not come.
    """
    growth = min(max(0, limits.threshold_tokens - tokens), limits.tail_tokens // 2)
    left = (limits.tail_tokens - growth) / max(1, limits.threshold_tokens)
    return replace(limits, target_ratio=left)
