"""`/insights`: a conversation's last days in figures: turns, tools and models."""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta

from agent.messages import count, listed, quoted
from gateway.commands.registry import (
    IMMEDIATE,
    TURN,
    Command,
    CommandContext,
    CommandResult,
    commands,
)
from gateway.commands.status import outcome_text, tokens_text
from gateway.storage.reports import usage
from gateway.storage.reports.spending import Spent
from gateway.storage.reports.usage import Insights

INSIGHTS_DAYS = 30
MOST_NAMES = 5
"""Number of tools (by use) and models (by cost) to name; the rest is summed up."""


@Command("insights", "show how this conversation went over the last 30 days", IMMEDIATE, 80)
def show_insights(context: CommandContext) -> CommandResult:
    """Show the figures of turns in which the agent answered."""
    since = datetime.now(UTC) - timedelta(days=INSIGHTS_DAYS)
    # Turns of commands would make the typical turn look faster.
    quiet = {each.name for each in commands(with_owners=True) if each.route is TURN}
    found = usage.insights(context.conn, context.conversation, since.timestamp(), quiet)
    return CommandResult(insights_text(found))


def insights_text(found: Insights) -> str:
    """Return the answer to `/insights`."""
    title = f"This conversation in the last {INSIGHTS_DAYS} days"
    spent = sum(found.models.values(), Spent())
    if not found.outcomes and not spent.calls:
        return f"{title}: nothing was asked."
    turns = found.outcomes.total()
    shares = [
        f"{outcome_text(name)} {number:,} ({number / turns:.0%})"
        for name, number in found.outcomes.most_common()
    ]
    half_s, most_s = found.duration_s(0.5), found.duration_s(0.95)
    times = {}
    if half_s is not None and most_s is not None:
        took = f"half of the turns took up to {_time(half_s)}, 95% up to {_time(most_s)}"
        times = {"Time": took}
    lines = {
        "Turns": f"{turns:,}: {', '.join(shares)}" if shares else "0",
        **times,
        "Tool calls": _named_text(found.tools),
        "Model calls": f"{spent.calls:,}; {tokens_text(spent)}",
        "Cost": spent.cost,
    }
    models = [
        f"  - {quoted(name)}: {count(each.calls, 'call')}, {each.cost}"
        for name, each in list(found.models.items())[:MOST_NAMES]
    ]
    if others := list(found.models.values())[MOST_NAMES:]:
        models.append(f"  - others: {sum(others, Spent()).cost}")
    return "\n".join([f"{title}:", "", listed(lines), *models])


def _time(seconds: float) -> str:
    """Round a duration up and format it."""
    if seconds < 1:
        return f"{max(math.ceil(seconds * 1000), 1)} ms"
    return f"{seconds:,.1f} s"


def _named_text(tools: Counter[str]) -> str:
    named = tools.most_common(MOST_NAMES)
    parts = [f"{quoted(name)} {number:,}" for name, number in named]
    rest = tools.total() - sum(number for _, number in named)
    if rest:
        parts.append(f"others {rest:,}")
    return f"{tools.total():,}: {', '.join(parts)}" if parts else "0"
