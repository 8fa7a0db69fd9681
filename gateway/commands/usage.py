"""What `/usage` and `/insights` answer: figures from the books, and what they mean in money."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from agent.messages import count, listed, quoted
from agent.models.catalog import Prices, facts_of
from agent.money.cache_simulator import CacheRules
from agent.money.costs import cost_usd, format_usd
from agent.settings import FactsSettings
from agent.usage import Usage
from gateway.agent_ports.budgets import ROUNDING_USD
from gateway.commands.registry import StatusFacts, context_text, firing_text
from gateway.storage.reports import cache_efficiency, ledger
from gateway.storage.reports.cache_efficiency import BilledAnswer, CachePrices
from gateway.storage.reports.ledger import Group, Spent
from gateway.storage.reports.usage import ContextFill, Figures, Insights, UsageReport

INSIGHTS_DAYS = 30
MOST_NAMES = 5
"""So many tools and models are named, the most used and the dearest; the others are summed up."""


@dataclass(frozen=True, slots=True)
class MoneyRules:
    """What is known about money beside the ledger.

    Attributes:
        prices: Of the models in use, by the name under which their calls are booked.
        rules: Of their prompt caches, where those of the table do not hold.
        sender_daily_usd: What a sender may spend in a day; None for no limit.
        daily_usd: What all together may spend; that amount is not shown.
        timezone: Of the day.
    """

    prices: Mapping[str, Prices] = field(default_factory=dict)
    rules: Mapping[str, CacheRules] = field(default_factory=dict)
    sender_daily_usd: float | None = None
    daily_usd: float | None = None
    timezone: str = "UTC"

    def rates(self, name: str) -> CachePrices | None:
        """Return what decides about the least that a model can cost; None for not known."""
        facts = replace(facts_of(name, FactsSettings()), prices=self.prices.get(name))
        known = CachePrices.of(facts)
        return known and known._replace(rules=self.rules.get(name, known.rules))


class Today(NamedTuple):
    """What was spent today, in all conversations.

    Attributes:
        own: By whoever asks.
        by_all_usd: By everybody, in US dollars; only asked for where there is a budget for all.
    """

    own: Spent
    by_all_usd: float = 0.0


def usage_text(
    standing: ContextFill, report: UsageReport, today: Today, model: StatusFacts, money: MoneyRules
) -> str:
    """Return the answer to `/usage`.

    Args:
        standing: How the view stands now.
        report: What the conversation took.
        today: What was spent today.
        model: What answers.
        money: Prices and budgets.
    """
    lines = {
        "Context": context_text(standing, model),
        "Compression": firing_text(model),
        f"This segment (#{standing.number})": _figures_text(report.segment),
        "Whole conversation": _figures_text(report.whole),
    }
    if report.delegated.turns:
        lines["Delegated beside that"] = _figures_text(report.delegated)
    if report.last_turn.calls:
        calls = count(report.last_turn.calls, "model call")
        lines["Last answer"] = f"{calls}; {_spent_text(report.last_turn)}"
    if cache := _cache_text(report, money):
        lines["Prompt cache"] = cache
    lines["Your spending today"] = _today_text(today, money)
    return listed(lines)


def _figures_text(figures: Figures) -> str:
    work = (
        count(figures.turns, "turn"),
        count(figures.spent.calls, "model call"),
        count(figures.tool_calls, "tool call"),
    )
    text = f"{', '.join(work)}; {_spent_text(figures.spent)}"
    if figures.compactions:
        compactions = count(figures.compactions, "compaction")
        text += f"; {compactions} saved {figures.saved_tokens:,} tokens of context"
    return text


def _spent_text(spent: Spent) -> str:
    return f"{_tokens_text(spent)}; {spent.money.text()}"


def _tokens_text(spent: Spent) -> str:
    usage = spent.usage
    written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
    kinds = [f"{usage.cache_read_tokens:,} from the cache ({spent.hit_ratio or 0:.0%})"]
    if written:
        kinds.append(f"{written:,} into it")
    return f"{usage.prompt_tokens:,} tokens in, {', '.join(kinds)}; {usage.output_tokens:,} out"


def _cache_text(report: UsageReport, money: MoneyRules) -> str:
    """Return what caching saved, and how much more it could have; empty for nothing known."""
    saved_usd = saved_by_cache_usd(report.models, money.prices)
    least = least_text(report.answers, money)
    return "; ".join(filter(None, (_saved_text(saved_usd) if saved_usd else "", least)))


def least_text(answers: Sequence[BilledAnswer], money: MoneyRules) -> str:
    """Return how close the bill came to the least possible; empty where that is not known."""
    found = cache_efficiency.compare(answers, money.rates)
    if found.ratio is None:
        return ""
    calls = count(found.calls, "call")
    return (
        f"billed {found.ratio:.2f} \N{MULTIPLICATION SIGN} the least possible over the last {calls}"
    )


def saved_by_cache_usd(models: Sequence[Group], prices: Mapping[str, Prices]) -> float | None:
    """Return what the same calls would have cost more without prompt caching.

    Negative where writing cost more than reading saved.

    Returns:
        None where the price of any of the models is not known.
    """
    saved_usd = 0.0
    for group in models:
        usage = group.spent.usage
        known = prices.get(group.name)
        cached = cost_usd(usage, known)
        plain = cost_usd(Usage(usage.prompt_tokens, usage.output_tokens), known)
        if cached is None or plain is None:
            return None
        saved_usd += plain - cached
    return saved_usd


def _saved_text(saved_usd: float) -> str:
    if saved_usd < 0:
        return f"cost {format_usd(-saved_usd)} more than it saved so far"
    return f"saved {format_usd(saved_usd)} so far"


def _today_text(today: Today, money: MoneyRules) -> str:
    """Return what was spent, and what is left: never more than the budget for all gives."""
    spent, limit_usd = today.own.money.text(), money.sender_daily_usd
    left_of_all_usd = math.inf if money.daily_usd is None else money.daily_usd - today.by_all_usd
    if limit_usd is not None:
        spent += f" of {format_usd(limit_usd)}"
    if left_of_all_usd <= ROUNDING_USD:
        return f"{spent}; today's budget for everybody is used up"
    if limit_usd is None:
        return spent
    left_usd = max(limit_usd - today.own.money.usd, 0.0)
    text = f"{spent}, {format_usd(left_usd)} left"
    return text if left_usd <= left_of_all_usd else f"{text}, but less for everybody together"


def insights_text(found: Insights) -> str:
    """Return the answer to `/insights`."""
    title = f"This conversation in the last {INSIGHTS_DAYS} days"
    spent = ledger.total(found.models)
    if not found.outcomes and not spent.calls:
        return f"{title}: nothing was asked."
    lines = {
        "Turns": _shares_text(found.outcomes),
        **_times(found),
        "Tool calls": _named_text(found.tools),
        "Model calls": f"{spent.calls:,}; {_tokens_text(spent)}",
        "Cost": spent.money.text(),
    }
    models = [f"  - {line}" for line in _models(found.models)]
    return "\n".join([f"{title}:", "", listed(lines), *models])


def _shares_text(outcomes: Counter[str]) -> str:
    turns = outcomes.total()
    shares = [
        f"{name.replace('_', ' ')} {number:,} ({number / turns:.0%})"
        for name, number in outcomes.most_common()
    ]
    return f"{turns:,}: {', '.join(shares)}" if shares else "0"


def _times(found: Insights) -> dict[str, str]:
    half_s, most_s = found.duration_s(0.5), found.duration_s(0.95)
    if half_s is None or most_s is None:
        return {}
    return {"Time": f"half of the turns took up to {_time(half_s)}, 95% up to {_time(most_s)}"}


def _time(seconds: float) -> str:
    """Return a time that something took at most: never less than it was."""
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


def _models(models: Sequence[Group]) -> Iterator[str]:
    """Yield a line for each model, the dearest first."""
    for group in models[:MOST_NAMES]:
        calls = count(group.spent.calls, "call")
        yield f"{quoted(group.name)}: {calls}, {group.spent.money.text()}"
    if others := models[MOST_NAMES:]:
        yield f"others: {ledger.total(others).money.text()}"
