"""The overview: whether all is well, what needs somebody, what goes on and what it costs."""

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from agent.money.costs import format_usd
from gateway.agent_ports.budgets import day_of
from gateway.console import charts
from gateway.console.register import HOME, Ask, Result, Shown, page
from gateway.console.wording import number
from gateway.findings.report import FINDINGS, pressing
from gateway.logging.recent import MOST_LINES, RECENT, lately, newest, tallied
from gateway.storage.queue import alerts
from gateway.storage.reports import conversation_list, health, spending
from gateway.storage.reports.conversation_list import DayTurns, Span, Wanted
from gateway.storage.reports.spending import Spent, Where

DAYS = 14
NEWEST = 6
PAST_ALERTS = 5
MOST_WARNINGS = 10
"""Events of which warnings are shown, the most frequent ones."""


def days_until_now(zone: tzinfo, count: int) -> list[Span]:
    """Return the last days of a time zone, today included, as stretches of time in order."""
    today = datetime.now(zone).date()
    spans = []
    for n in range(count - 1, -1, -1):
        day = today - timedelta(days=n)
        start, end = day_of(day, zone)
        spans.append(Span(str(day), start.timestamp(), end.timestamp()))
    return spans


def _read(conn: Connection, spans: Sequence[Span]) -> dict[str, Any]:
    """Return what one look at the database finds."""
    return {
        "waiting": {what: health.waiting(conn, what) for what in health.WAITS},
        "alerts": alerts.found(conn, with_past=True, limit=50),
        "days": conversation_list.turns_by_day(conn, spans),
        "spent": [spending.total(conn, Where(span.start, span.end)) for span in spans],
        "replicas": health.replicas(conn),
        "newest": conversation_list.listed(conn, Wanted(), NEWEST),
    }


@page(HOME, "Overview", "Now")
async def overview(ask: Ask) -> Result:
    """Show how the gateway is."""
    inside = ask.inside
    zone = ZoneInfo(inside.settings.sessions.timezone)
    spans = days_until_now(zone, DAYS)
    facts = await inside.examination.facts()
    found = await inside.examination.report(lambda each: each.page, facts)
    read = await inside.database.read(_read, spans)
    opened = [each for each in read["alerts"] if each.over_at is None]
    warnings = tallied(newest(RECENT, (), lately(), MOST_LINES))
    return Shown(
        "overview.html",
        read
        | {
            "live": facts.gateway,
            "accounts": {":".join(name): each for name, each in facts.gateway.accounts.items()},
            "needs": pressing(found),
            "warnings": warnings[:MOST_WARNINGS],
            "all_warnings": sum(each.count for each in warnings),
            "alerts": opened,
            "past_alerts": [each for each in read["alerts"] if each not in opened][:PAST_ALERTS],
            "today": read["spent"][-1],
            "turns_today": read["days"][-1],
            "all_days": sum(read["spent"], Spent()),
            "days": DAYS,
            "traffic": _traffic(read["days"]),
            "costs": _costs(spans, read["spent"]),
            "places": {name: f"{HOME}/{each.page}" for name, each in FINDINGS.items()},
            "now": datetime.now(zone).timestamp(),
        },
    )


def _traffic(days: Sequence[DayTurns]) -> charts.BarChart:
    parts = [(each.begun - each.dead - each.failed, each.dead, each.failed) for each in days]
    rows = [(day.name, [float(n) for n in each]) for day, each in zip(days, parts, strict=True)]
    return charts.bars("Turns by day", ["answered", "given up", "no answer"], rows, number)


def _costs(spans: Sequence[Span], spent: Sequence[Spent]) -> charts.BarChart:
    rows = [(span.name, [each.usd]) for span, each in zip(spans, spent, strict=True)]
    return charts.bars("Cost by day", ["cost"], rows, format_usd)
