"""Budgets: what a day may cost, what it has cost so far, and whose turns it went to."""

from collections.abc import Mapping
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from gateway.agent_ports.budgets import today
from gateway.console import register
from gateway.console.register import HOME, Ask, Result, Shown, listed, older, page
from gateway.storage.people import members
from gateway.storage.reports import spending
from gateway.storage.reports.spending import Spent, Where

BUDGETS = f"{HOME}/budgets"


def _read(
    conn: Connection, since: float, after: str | None
) -> tuple[float, Mapping[str, Spent], Mapping[str, str]]:
    """Return what was spent since then, by whom, and their names."""
    found = spending.spent(conn, "sender", Where(since))
    used = sum(found.values(), Spent()).usd
    people = spending.page_of_spent(found, register.PAGE + 1, after)
    return used, people, members.names(conn, list(people))


@page(BUDGETS, "Budgets", "People")
async def budgets(ask: Ask) -> Result:
    """Show the limits, today's spending by person, and that of the last days."""
    settings = ask.inside.settings
    zone = ZoneInfo(settings.sessions.timezone)
    here, after = today(zone), ask.query("after")
    since = here.start.timestamp()
    used, people, names = await ask.inside.database.read(_read, since, after or None)
    limit, limit_of_person = settings.budget.daily_usd, settings.budget.sender_daily_usd
    return Shown(
        "budgets.html",
        {
            "budget": settings.budget,
            "quotas": settings.quotas,
            "used": used,
            "share": share(used, limit),
            "people": [
                (name, people[name], share(people[name].usd, limit_of_person))
                for name in listed(list(people))
            ],
            "names": names,
            "begins": here.end.timestamp(),
            "now": datetime.now(zone).timestamp(),
            "older": older(BUDGETS, list(people), lambda name: name),
            "first": BUDGETS if after else "",
        },
    )


def share(usd: float, limit_usd: float | None) -> float | None:
    """Return how much of a limit is used, 1 for all of it; None where there is no limit."""
    if limit_usd is None:
        return None
    return usd / limit_usd if limit_usd else 1.0
