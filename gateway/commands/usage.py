"""`/usage`: a conversation's tokens and cost, and the sender's remaining budget of today."""

import math
from collections.abc import Mapping
from zoneinfo import ZoneInfo

from agent.messages import Usage, count, listed
from agent.models.catalog import Prices
from agent.money.costs import cost_usd, format_usd
from gateway.agent_ports.budgets import ROUNDING_USD, today
from gateway.commands.registry import (
    IMMEDIATE,
    Command,
    CommandContext,
    CommandResult,
    MoneyRules,
    StatusFacts,
)
from gateway.commands.status import context_text, firing_text, tokens_text
from gateway.storage.conversation import conversations
from gateway.storage.reports import spending, usage
from gateway.storage.reports.spending import Spent, Where
from gateway.storage.reports.usage import ContextFill, Figures, UsageReport


@Command("usage", "show the tokens and the cost of this conversation", IMMEDIATE, 70)
def show_usage(context: CommandContext) -> CommandResult:
    """Show the conversation's figures and the sender's spending today."""
    conn, conversation_id, money = context.conn, context.conversation, context.services.money
    model = context.services.figures(conversations.chosen_model(conn, conversation_id))
    standing = usage.standing(conn, conversation_id, model.fixed_tokens)
    report = usage.report(conn, conversation_id, standing.session_id, money.rates)
    since = today(ZoneInfo(money.timezone)).start.timestamp()
    own = spending.total(conn, Where(since, sender=context.sender))
    by_all_usd = 0.0 if money.daily_usd is None else spending.spent_usd(conn, since)
    return CommandResult(usage_text(standing, report, own, by_all_usd, model, money))


def usage_text(
    standing: ContextFill,
    report: UsageReport,
    own: Spent,
    by_all_usd: float,
    model: StatusFacts,
    money: MoneyRules,
) -> str:
    """Return the answer to `/usage`.

    Args:
        own: The sender's costs today, in all conversations.
        by_all_usd: Costs of all senders today; 0 without a shared budget.
    """
    lines = {
        "Context": context_text(standing, model),
        "Compression": firing_text(model),
        f"This segment (#{standing.number})": _figures_text(report.segment),
        "Whole conversation": _figures_text(report.whole),
    }
    if report.delegated.turns:
        lines["Delegated tasks"] = _figures_text(report.delegated)
    if report.last_turn.calls:
        calls = count(report.last_turn.calls, "model call")
        lines["Last answer"] = f"{calls}; {_spent_text(report.last_turn)}"
    if cache := _cache_text(report, money):
        lines["Prompt cache"] = cache
    lines["Your spending today"] = _today_text(own, by_all_usd, money)
    return listed(lines)


def _figures_text(figures: Figures) -> str:
    turns, calls = count(figures.turns, "turn"), count(figures.spent.calls, "model call")
    work = f"{turns}, {calls}, {count(figures.tool_calls, 'tool call')}"
    text = f"{work}; {_spent_text(figures.spent)}"
    if figures.compactions:
        compactions = count(figures.compactions, "compaction")
        text += f"; {compactions} saved {figures.saved_tokens:,} tokens of context"
    return text


def _spent_text(spent: Spent) -> str:
    return f"{tokens_text(spent)}; {spent.cost}"


def _cache_text(report: UsageReport, money: MoneyRules) -> str:
    """Describe the actual and possible savings by caching; empty if unknown."""
    saved_usd, parts = saved_by_cache_usd(report.models, money.prices), list[str]()
    if saved_usd and saved_usd > 0:
        parts.append(f"saved {format_usd(saved_usd)} so far")
    elif saved_usd:
        parts.append(f"cost {format_usd(-saved_usd)} more than it saved so far")
    least = report.compared
    if least.least_ratio is not None:
        times = f"{least.least_ratio:.2f} \N{MULTIPLICATION SIGN} the least possible"
        parts.append(f"billed {times} over the last {count(least.compared_calls, 'call')}")
    return "; ".join(parts)


def saved_by_cache_usd(models: Mapping[str, Spent], prices: Mapping[str, Prices]) -> float | None:
    """Return the savings by prompt caching; None if a model's price is unknown.

    Negative if cache writes cost more than reads saved.
    """
    saved_usd = 0.0
    for name, spent in models.items():
        usage, known = spent.usage, prices.get(name)
        cached = cost_usd(usage, known)
        # The same tokens without a cache: the whole prompt at full price.
        plain = cost_usd(Usage(usage.prompt_tokens, usage.output_tokens), known)
        if cached is None or plain is None:
            return None
        saved_usd += plain - cached
    return saved_usd


def _today_text(own: Spent, by_all_usd: float, money: MoneyRules) -> str:
    """Describe the sender's spending and what is left of the budgets."""
    spent, limit_usd = own.cost, money.sender_daily_usd
    left_of_all_usd = math.inf if money.daily_usd is None else money.daily_usd - by_all_usd
    if limit_usd is not None:
        spent += f" of {format_usd(limit_usd)}"
    # Float sums: an exhausted budget may seem to have a billionth left.
    if left_of_all_usd <= ROUNDING_USD:
        return f"{spent}; today's budget for everybody is used up"
    if limit_usd is None:
        return spent
    left_usd = max(limit_usd - own.usd, 0.0)
    text = f"{spent}, {format_usd(left_usd)} left"
    # Only the operator may see the amount left of the shared budget.
    return text if left_usd <= left_of_all_usd else f"{text}, but less for everybody together"
