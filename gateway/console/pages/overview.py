"""The overview, approvals and dead letters that wait for a person, and the costs.

Decisions follow the same rules as commands in a chat or on the command line.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from adapters.messages import Address, InboundMessage
from adapters.registry import BUILT_IN, DEFAULT_ACCOUNT
from agent.money.costs import format_usd
from gateway.agent_ports.budgets import day_of
from gateway.console import register
from gateway.console.presentation import bars, number, short, stacked
from gateway.console.register import HOME, Ask, Moved, Result, Shown, action, listed, page, pages
from gateway.errors import NotFound
from gateway.findings.report import FINDINGS, pressing
from gateway.storage.conversation import questions
from gateway.storage.people import members
from gateway.storage.queue import alerts, dead_letters
from gateway.storage.reports import conversation_list, health, spending
from gateway.storage.reports.conversation_list import Period, Wanted
from gateway.storage.reports.spending import KnownRates, Spent, Where

DAYS = 14
NEWEST = 6
PAST_ALERTS = 5
APPROVALS = f"{HOME}/approvals"
LETTERS = f"{HOME}/dead-letters"
LONGEST_ANSWER = 10_000
"""Longest answer to a question of the agent, in characters."""
GONE = "{id} is not on the list any more: it was retried or dropped before."
RETRIED = {
    "turn": "{id} is asked again.",
    "send": "{id} is sent again.",
}
PERIODS: Mapping[str, int] = {"7 days": 7, "30 days": 30, "90 days": 90}
USUAL = "30 days"
DEAREST = 20
MOST_COMPARED = 30
"""Most days to compare with the lowest possible cost, which takes time."""


def days_until_now(zone: tzinfo, count: int) -> list[Period]:
    """Return the last days of a time zone in order, including today."""
    today = datetime.now(zone).date()
    spans = []
    for n in range(count - 1, -1, -1):
        day = today - timedelta(days=n)
        start, end = day_of(day, zone)
        spans.append(Period(str(day), start.timestamp(), end.timestamp()))
    return spans


def _read(conn: Connection, spans: Sequence[Period]) -> dict[str, Any]:
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
    """Show the state of the gateway."""
    inside = ask.inside
    zone = ZoneInfo(inside.settings.sessions.timezone)
    spans = days_until_now(zone, DAYS)
    facts = await inside.examination.facts()
    found = await inside.examination.report(lambda each: each.page, facts)
    read = await inside.database.read(_read, spans)
    opened = [each for each in read["alerts"] if each.over_at is None]
    begun = [
        (day.name, [float(n) for n in (day.begun - day.dead - day.failed, day.dead, day.failed)])
        for day in read["days"]
    ]
    spent = [(span.name, [each.usd]) for span, each in zip(spans, read["spent"], strict=True)]
    return Shown(
        "overview.html",
        read
        | {
            "live": facts.gateway,
            "accounts": {":".join(name): each for name, each in facts.gateway.accounts.items()},
            "needs": pressing(found),
            "alerts": opened,
            "past_alerts": [each for each in read["alerts"] if each not in opened][:PAST_ALERTS],
            "today": read["spent"][-1],
            "turns_today": read["days"][-1],
            "all_days": sum(read["spent"], Spent()),
            "days": DAYS,
            "traffic": bars("Turns by day", ["answered", "given up", "no answer"], begun, number),
            "costs": bars("Cost by day", ["cost"], spent, format_usd),
            "places": {name: f"{HOME}/{each.page}" for name, each in FINDINGS.items()},
        },
    )


@page(APPROVALS, "Approvals", "Now")
async def approvals(ask: Ask) -> Result:
    """Show the open questions of all conversations."""
    read, after = ask.inside.database.read, ask.position("after")
    rows = await read(questions.waiting, register.PAGE + 1, after)
    whom = [who for row in listed(rows) for who in row.senders]
    return Shown(
        "approvals.html",
        {
            "waiting": listed(rows),
            "names": await read(members.names, whom),
            **pages(APPROVALS, rows, lambda row: row.question.id, after),
            "now": time.time(),
            "longest": LONGEST_ANSWER,
        },
    )


@action(APPROVALS + "/{id}")
async def answer(ask: Ask) -> Result:
    """Record an owner's answer and resume the waiting turn."""
    said = ask.form.get("answer", "").strip()[:LONGEST_ANSWER]
    owner = InboundMessage(
        address=Address(BUILT_IN, DEFAULT_ACCOUNT, "console", None),
        chat_kind="dm",
        sender=ask.visitor.sender,
        sender_name=ask.visitor.name,
        text="",
        dedupe_key="",
        raw="{}",
        authenticated=True,
    )
    outcome = await ask.inside.operator.answer(owner, ask.number("id"), said)
    return Moved(APPROVALS, outcome.text.replace("`", ""), failed=not outcome.settled)


@page(LETTERS, "Dead letters", "Now")
async def letters(ask: Ask) -> Result:
    """Show turns that were given up and messages that could not be delivered."""
    after = ask.query("after")
    rows = await ask.inside.database.read(dead_letters.find_all, register.PAGE + 1, after or None)
    around = pages(LETTERS, rows, lambda row: row.id, after)
    return Shown("dead_letters.html", {"letters": listed(rows), **around})


@action(LETTERS + "/{id}/retry")
async def retry(ask: Ask) -> Result:
    """Retry a dead letter."""
    return await _settled(ask, "retry-dead-letter")


@action(LETTERS + "/{id}/drop")
async def drop(ask: Ask) -> Result:
    """Remove a dead letter from the list."""
    return await _settled(ask, "drop-dead-letter")


async def _settled(ask: Ask, what: str) -> Result:
    name = ask.names["id"]
    try:
        letter = await ask.inside.operator.act(what, name, ask.by)
    except NotFound:
        # A second click, or another owner.
        return Moved(LETTERS, GONE.format(id=name), failed=True)
    done = RETRIED[letter.kind] if what == "retry-dead-letter" else "{id} is dropped."
    return Moved(LETTERS, done.format(id=letter.id))


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
    # Concurrently, since both sum up the ledger.
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
                "money": bars("Cost by model", *stacked(list(money.items()), names), format_usd),
                "tokens": bars("Tokens by model", *stacked(list(tokens.items()), names), short),
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
    """Return the costs by platform, highest first; "?" is work without a sender."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, usd in senders.items():
        platform, colon, _ = name.partition(":")
        found[platform if colon else "?"] += usd
    return sorted(found.items(), key=lambda platform: (-platform[1], platform[0]))
