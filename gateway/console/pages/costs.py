"""Costs by day, model, platform and person, and the budgets of this day."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from agent.money.costs import format_usd
from gateway.agent_ports.budgets import today
from gateway.console import presentation, register
from gateway.console.pages.overview import days_until_now
from gateway.console.presentation import short
from gateway.console.register import HOME, Ask, Result, Shown, listed, page, pages
from gateway.storage.people import members
from gateway.storage.reports import spending
from gateway.storage.reports.conversation_list import Period
from gateway.storage.reports.spending import KnownRates, Spent, Where

BUDGETS = f"{HOME}/budgets"
PERIODS: Mapping[str, int] = {"7 days": 7, "30 days": 30, "90 days": 90}
USUAL = "30 days"
DEAREST = 20
MOST_COMPARED = 30
"""Days whose prompts are compared with the least possible cost, which takes time."""


def _by_day(
    conn: Connection, spans: Sequence[Period], known: KnownRates, *, compares: bool
) -> tuple[dict[str, dict[str, Spent]], dict[str, Spent]]:
    """Return the costs by day and model, and the total by model."""
    whole = Where(spans[0].start)
    rates = spending.rates_of(conn, whole, known) if compares else {}
    days = {
        span.name: spending.spent(conn, "provider_model", Where(span.start, span.end))
        for span in spans
    }
    return days, spending.spent(conn, "provider_model", whole, rates)


@page(f"{HOME}/costs", "Costs", "Now")
async def costs(ask: Ask) -> Result:
    """Show the costs of a period."""
    period = ask.query("period", USUAL)
    count = PERIODS.get(period, PERIODS[USUAL])
    zone = ZoneInfo(ask.inside.settings.sessions.timezone)
    spans = days_until_now(zone, count)
    database, rates = ask.inside.database, ask.inside.money().rates
    # At the same time: each of the two sums up the ledger.
    (days, models), (senders, known, platforms) = await asyncio.gather(
        database.read(_by_day, spans, rates, compares=count <= MOST_COMPARED),
        database.search(_of_senders, spans[0].start),
    )
    money = {day: {name: spent.usd for name, spent in each.items()} for day, each in days.items()}
    tokens = {
        day: {name: float(spent.usage.total_tokens) for name, spent in each.items()}
        for day, each in days.items()
    }
    names = list(models)
    return Shown(
        "costs.html",
        {
            "periods": PERIODS,
            "period": period if period in PERIODS else USUAL,
            "spent": sum(models.values(), Spent()),
            "drawn": {
                "money": presentation.bars(
                    "Cost by model", *presentation.stacked(list(money.items()), names), format_usd
                ),
                "tokens": presentation.bars(
                    "Tokens by model", *presentation.stacked(list(tokens.items()), names), short
                ),
            },
            "by": {"Model": models, "Person": senders},
            "most": DEAREST,
            "platforms": platforms,
            "names": known,
        },
    )


def _of_senders(
    conn: Connection, since: float
) -> tuple[dict[str, Spent], Mapping[str, str], list[tuple[str, float]]]:
    found = spending.spent(conn, "sender", Where(since), limit=DEAREST)
    platforms = _platforms(spending.usd_by_sender(conn, since))
    return found, members.names(conn, list(found)), platforms


def _platforms(senders: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the platforms with their costs, the dearest first; "?" is work without a sender."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, usd in senders.items():
        platform, colon, _ = name.partition(":")
        found[platform if colon else "?"] += usd
    return sorted(found.items(), key=lambda platform: (-platform[1], platform[0]))


def _of_today(
    conn: Connection, since: float, after: str | None
) -> tuple[float, Mapping[str, Spent], Mapping[str, str]]:
    """Return the costs since then, in all and by person, and names."""
    most = register.PAGE + 1
    people = spending.spent(conn, "sender", Where(since), limit=most, after=after)
    return spending.spent_usd(conn, since), people, members.names(conn, list(people))


@page(BUDGETS, "Budgets", "People")
async def budgets(ask: Ask) -> Result:
    """Show the limits, and today's spending by person."""
    settings = ask.inside.settings
    zone = ZoneInfo(settings.sessions.timezone)
    here, after = today(zone), ask.query("after")
    since = here.start.timestamp()
    used, people, names = await ask.inside.database.read(_of_today, since, after or None)
    limit, limit_of_person = settings.budget.daily_usd, settings.budget.sender_daily_usd
    return Shown(
        "budgets.html",
        {
            "budget": settings.budget,
            "quotas": settings.quotas,
            "used": used,
            "share": used_share(used, limit),
            "people": [
                (name, people[name], used_share(people[name].usd, limit_of_person))
                for name in listed(list(people))
            ],
            "names": names,
            "begins": here.end.timestamp(),
            "now": datetime.now(zone).timestamp(),
            **pages(BUDGETS, list(people), str, after),
        },
    )


def used_share(usd: float, limit_usd: float | None) -> float | None:
    """Return the used part of a limit, 1 for all of it; None without a limit."""
    if limit_usd is None:
        return None
    return usd / limit_usd if limit_usd else 1.0
