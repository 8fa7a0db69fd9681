"""Budgets: what a day may cost, what it has cost so far, and whose turns it went to."""

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from agent.money.costs import format_usd
from gateway.agent_ports.budgets import today
from gateway.console import charts, register
from gateway.console.charts import BarChart
from gateway.console.pages.overview import days_until_now
from gateway.console.register import (
    HOME,
    Ask,
    Result,
    Shown,
    listed,
    older,
    page,
)
from gateway.storage.people import members
from gateway.storage.reports import costs
from gateway.storage.reports.costs import GroupPage
from gateway.storage.reports.ledger import Group

BUDGETS = f"{HOME}/budgets"
DAYS = 30
"""Of the chart, today included."""


def drawn(spent: Sequence[tuple[str, float]], limit_usd: float | None) -> BarChart:
    """Return the chart of what days have cost, in order, beside the limit."""
    title = f"Spending per day, the last {len(spent)} days"
    if limit_usd is None:
        return charts.bars(title, [""], [(day, (usd,)) for day, usd in spent], format_usd)
    parts = [(day, (min(usd, limit_usd), max(usd - limit_usd, 0.0))) for day, usd in spent]
    series = ["within the limit", "over the limit"]
    return charts.bars(title, series, parts, format_usd, limit_usd)


def _read(
    conn: Connection, zone: tzinfo, following: GroupPage
) -> tuple[list[tuple[str, float]], list[Group], Mapping[str, str]]:
    """Return the cost of each day, who has spent something today, and their names."""
    spans = days_until_now(zone, DAYS)
    by_day = costs.by_span_and_model(conn, spans)
    days = [(day.name, sum(each.money.usd for each in spent.values())) for day, spent in by_day]
    people = costs.by_key(conn, "sender", spans[-1].start, _no_rates, following)
    return days, people, members.names(conn, [each.name for each in people])


def _no_rates(_: str) -> None:
    """Prompts are not compared with the least possible here."""


@page(BUDGETS, "Budgets", "People")
async def budgets(ask: Ask) -> Result:
    """Show the limits, today's spending by person, and that of the last days."""
    settings = ask.inside.settings
    zone = ZoneInfo(settings.sessions.timezone)
    here, after = today(zone), ask.query("after")
    following = GroupPage(register.PAGE + 1, after or None)
    days, people, names = await ask.inside.database.read(_read, zone, following)
    limit, limit_of_person = settings.budget.daily_usd, settings.budget.sender_daily_usd
    return Shown(
        "budgets.html",
        {
            "budget": settings.budget,
            "quotas": settings.quotas,
            "used": days[-1][1],
            "share": share(days[-1][1], limit),
            "chart": drawn(days, limit),
            "people": [
                (each, share(each.spent.money.usd, limit_of_person)) for each in listed(people)
            ],
            "names": names,
            "begins": here.end.timestamp(),
            "now": datetime.now(zone).timestamp(),
            "older": older(BUDGETS, people, lambda group: group.name),
            "first": BUDGETS if after else "",
        },
    )


def share(usd: float, limit_usd: float | None) -> float | None:
    """Return how much of a limit is used, 1 for all of it; None where there is no limit."""
    if limit_usd is None:
        return None
    return usd / limit_usd if limit_usd else 1.0
