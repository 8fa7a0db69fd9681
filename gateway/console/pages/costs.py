"""Costs and usage: what calls of models took, by day and model, platform and person."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from agent.money.costs import format_usd
from gateway.console import charts
from gateway.console.pages.overview import days_until_now
from gateway.console.register import HOME, Ask, Result, Shown, page
from gateway.console.wording import short
from gateway.storage.people import members
from gateway.storage.reports import costs as reports
from gateway.storage.reports.costs import Rates, Senders
from gateway.storage.reports.ledger import Compared, Group, Span, Spent, total

PERIODS: Mapping[str, int] = {"7 days": 7, "30 days": 30, "90 days": 90}
USUAL = "30 days"
DEAREST = 20
MOST_COMPARED = 30
"""Days whose prompts are compared with the least that they could have cost: that takes time."""


def _read(
    conn: Connection, spans: Sequence[Span], rates: Rates, *, compares: bool
) -> tuple[list[tuple[Span, dict[str, Spent]]], Compared]:
    prompts = reports.total(conn, spans[0].start, rates).prompts if compares else Compared()
    return reports.by_span_and_model(conn, spans), prompts


@page(f"{HOME}/costs", "Costs", "Now")
async def costs(ask: Ask) -> Result:
    """Show what was spent in a period."""
    period = ask.query("period", USUAL)
    count = PERIODS.get(period, PERIODS[USUAL])
    zone = ZoneInfo(ask.inside.settings.sessions.timezone)
    spans = days_until_now(zone, count)
    database, rates = ask.inside.database, ask.inside.money().rates
    # Side by side: each of the two sums up the ledger.
    (days, prompts), (senders, known) = await asyncio.gather(
        database.read(_read, spans, rates, compares=count <= MOST_COMPARED),
        database.search(_of_senders, spans[0].start),
    )
    money = {span.name: _of_models(each, _usd) for span, each in days}
    tokens = {span.name: _of_models(each, _tokens) for span, each in days}
    models = _models(days)
    names = [each.name for each in models]
    return Shown(
        "costs.html",
        {
            "periods": PERIODS,
            "period": period if period in PERIODS else USUAL,
            "spent": total(models),
            "prompts": prompts,
            "drawn": {
                "money": charts.bars(
                    "Cost by model", *charts.stacked(list(money.items()), names), format_usd
                ),
                "tokens": charts.bars(
                    "Tokens by model", *charts.stacked(list(tokens.items()), names), short
                ),
            },
            "by": {"Model": models, "Person": senders.dearest},
            "most": DEAREST,
            "platforms": senders.platforms,
            "names": known,
        },
    )


def _of_senders(conn: Connection, since: float) -> tuple[Senders, Mapping[str, str]]:
    found = reports.of_senders(conn, since, DEAREST)
    return found, members.names(conn, [each.name for each in found.dearest])


def _models(days: Sequence[tuple[Span, Mapping[str, Spent]]]) -> list[Group]:
    found: dict[str, Spent] = {}
    for _, each in days:
        for name, spent in each.items():
            found[name] = found.get(name, Spent()) + spent
    groups = [Group(name, spent) for name, spent in found.items()]
    return sorted(groups, key=lambda group: (-group.spent.money.usd, group.name))


def _of_models(each: Mapping[str, Spent], of: Callable[[Spent], float]) -> dict[str, float]:
    return {name: of(spent) for name, spent in each.items()}


def _usd(spent: Spent) -> float:
    return spent.money.usd


def _tokens(spent: Spent) -> float:
    return float(spent.usage.prompt_tokens + spent.usage.output_tokens)
