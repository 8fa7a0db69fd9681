"""Costs and usage: what calls of models took, by day and model, platform and person."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from agent.money.costs import format_usd
from gateway.console import charts
from gateway.console.pages.overview import days_until_now
from gateway.console.register import HOME, Ask, Result, Shown, page
from gateway.console.wording import short
from gateway.storage.reports import costs as reports
from gateway.storage.reports.costs import GroupPage, Rates
from gateway.storage.reports.ledger import Group, Span, Spent, total

PERIODS: Mapping[str, int] = {"7 days": 7, "30 days": 30, "90 days": 90, "1 year": 365}
USUAL = "30 days"
DEAREST = 20
MOST_BARS = 92
"""Longer periods have a bar for each week."""
WEEK = 7


@dataclass(frozen=True, slots=True)
class _Read:
    days: Sequence[tuple[Span, Mapping[str, Spent]]]
    models: Sequence[Group]
    platforms: Sequence[Group]
    people: Sequence[Group]


def _read(conn: Connection, spans: Sequence[Span], rates: Rates) -> _Read:
    since = spans[0].start
    return _Read(
        reports.by_span_and_model(conn, spans),
        reports.by_model(conn, since, rates),
        reports.by_platform(conn, since),
        reports.by_key(conn, "sender", since, _no_rates, GroupPage(DEAREST)),
    )


def _no_rates(_: str) -> None:
    """Prompts of single people are not compared with the least possible."""


@page(f"{HOME}/costs", "Costs", "Now")
async def costs(ask: Ask) -> Result:
    """Show what was spent in a period."""
    period = ask.query("period", USUAL)
    count = PERIODS.get(period, PERIODS[USUAL])
    zone = ZoneInfo(ask.inside.settings.sessions.timezone)
    spans = _bars(days_until_now(zone, count))
    read = await ask.inside.database.search(_read, spans, ask.inside.money().rates)
    money = {span.name: _of_models(each, _usd) for span, each in read.days}
    tokens = {span.name: _of_models(each, _tokens) for span, each in read.days}
    spent = total(read.models)
    return Shown(
        "costs.html",
        {
            "periods": PERIODS,
            "period": period if period in PERIODS else USUAL,
            "spent": spent,
            "drawn": {
                "money": charts.bars(
                    "Cost by model", *charts.stacked(list(money.items())), format_usd
                ),
                "tokens": charts.bars(
                    "Tokens by model", *charts.stacked(list(tokens.items())), short
                ),
            },
            "by": {
                "Model": read.models,
                "Platform": read.platforms,
                "Person": read.people,
            },
            "dearest": DEAREST,
            "label": "Day" if count <= MOST_BARS else "Week",
        },
    )


def _bars(days: Sequence[Span]) -> list[Span]:
    """Return the stretches of time of the bars: days, of a long period weeks."""
    if len(days) <= MOST_BARS:
        return list(days)
    # From the end: the last week is a whole one.
    first = len(days) % WEEK
    weeks = [days[n : n + WEEK] for n in range(first, len(days), WEEK)]
    return [Span(week[0].name, week[0].start, week[-1].end) for week in weeks]


def _of_models(each: Mapping[str, Spent], of: Callable[[Spent], float]) -> dict[str, float]:
    return {name: of(spent) for name, spent in each.items()}


def _usd(spent: Spent) -> float:
    return spent.money.usd


def _tokens(spent: Spent) -> float:
    return float(spent.usage.prompt_tokens + spent.usage.output_tokens)
