"""Budgets: what a day may cost, what it has cost so far, and whose turns it went to."""

from collections.abc import Mapping
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from gateway.agent_ports.budgets import today
from gateway.console import register
from gateway.console.register import HOME, Ask, Result, Shown, listed, older, page
from gateway.storage.people import members
from gateway.storage.reports import costs
from gateway.storage.reports.costs import GroupPage
from gateway.storage.reports.ledger import Group, spent_usd

BUDGETS = f"{HOME}/budgets"


def _read(
    conn: Connection, since: float, following: GroupPage
) -> tuple[float, list[Group], Mapping[str, str]]:
    """Return what was spent since then, by whom, and their names."""
    people = costs.by_key(conn, "sender", since, lambda _: None, following)
    return spent_usd(conn, since), people, members.names(conn, [each.name for each in people])


@page(BUDGETS, "Budgets", "People")
async def budgets(ask: Ask) -> Result:
    """Show the limits, today's spending by person, and that of the last days."""
    settings = ask.inside.settings
    zone = ZoneInfo(settings.sessions.timezone)
    here, after = today(zone), ask.query("after")
    following = GroupPage(register.PAGE + 1, after or None)
    since = here.start.timestamp()
    used, people, names = await ask.inside.database.read(_read, since, following)
    limit, limit_of_person = settings.budget.daily_usd, settings.budget.sender_daily_usd
    return Shown(
        "budgets.html",
        {
            "budget": settings.budget,
            "quotas": settings.quotas,
            "used": used,
            "share": share(used, limit),
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
