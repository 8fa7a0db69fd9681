"""Costs and usage: what calls of models took, by day and model, platform and person."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from agent.money.costs import format_usd
from gateway.console import charts
from gateway.console.pages.overview import days_until_now
from gateway.console.register import HOME, Ask, Result, Shown, page
from gateway.console.wording import short
from gateway.storage.people import members
from gateway.storage.reports import spending
from gateway.storage.reports.conversation_list import Span
from gateway.storage.reports.spending import KnownRates, Spent, Where

PERIODS: Mapping[str, int] = {"7 days": 7, "30 days": 30, "90 days": 90}
USUAL = "30 days"
DEAREST = 20
MOST_COMPARED = 30
"""Days whose prompts are compared with the least that they could have cost: that takes time."""


def _read(
    conn: Connection, spans: Sequence[Span], known: KnownRates, *, compares: bool
) -> tuple[dict[str, dict[str, Spent]], dict[str, Spent]]:
    """Return what was spent by day and model, and in all by model."""
    whole = Where(spans[0].start)
    rates = spending.rates_of(conn, whole, known) if compares else {}
    days = {
        span.name: spending.spent(conn, "provider_model", Where(span.start, span.end))
        for span in spans
    }
    return days, spending.spent(conn, "provider_model", whole, rates)


@page(f"{HOME}/costs", "Costs", "Now")
async def costs(ask: Ask) -> Result:
    """Show what was spent in a period."""
    period = ask.query("period", USUAL)
    count = PERIODS.get(period, PERIODS[USUAL])
    zone = ZoneInfo(ask.inside.settings.sessions.timezone)
    spans = days_until_now(zone, count)
    database, rates = ask.inside.database, ask.inside.money().rates
    # Side by side: each of the two sums up the ledger.
    (days, models), (senders, known) = await asyncio.gather(
        database.read(_read, spans, rates, compares=count <= MOST_COMPARED),
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
                "money": charts.bars(
                    "Cost by model", *charts.stacked(list(money.items()), names), format_usd
                ),
                "tokens": charts.bars(
                    "Tokens by model", *charts.stacked(list(tokens.items()), names), short
                ),
            },
            "by": {"Model": models, "Person": dict(list(senders.items())[:DEAREST])},
            "most": DEAREST,
            "platforms": _platforms(senders),
            "names": known,
        },
    )


def _of_senders(conn: Connection, since: float) -> tuple[dict[str, Spent], Mapping[str, str]]:
    found = spending.spent(conn, "sender", Where(since))
    return found, members.names(conn, list(found)[:DEAREST])


def _platforms(senders: Mapping[str, Spent]) -> list[tuple[str, float]]:
    """Return the platforms with what they cost, the dearest first; "?" is work for nobody."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, spent in senders.items():
        platform, colon, _ = name.partition(":")
        found[platform if colon else "?"] += spent.usd
    return sorted(found.items(), key=lambda platform: (-platform[1], platform[0]))
