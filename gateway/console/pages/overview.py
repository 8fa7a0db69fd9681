"""The overview: whether all is well, what needs somebody, what goes on and what it costs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from agent.money.costs import format_usd
from gateway.agent_ports.budgets import day_of
from gateway.console import charts
from gateway.console.pages.setup import DEMO_NAME, SETUP
from gateway.console.register import HOME, Ask, Inside, Result, Shown, page
from gateway.console.wording import number, stretch
from gateway.logging.recent import MOST_LINES, RECENT, lately, newest, tallied
from gateway.storage.queue import alerts
from gateway.storage.queue.alerts import Alert
from gateway.storage.reports import conversation_list, health, spending
from gateway.storage.reports.conversation_list import DayTurns, Span, Wanted
from gateway.storage.reports.spending import Spent, Where
from gateway.supervision.accounts import WORKING

DAYS = 14
LATE_S = 300.0
"""What waits for longer should be looked at."""
NEWEST = 6
PAST_ALERTS = 5
MOST_WARNINGS = 10
"""Events of which warnings are shown, the most frequent ones."""
_LOG, _LISTED = f"{HOME}/log?level=warning", f"{HOME}/conversations?state="
PLACES: Mapping[str, str] = {
    "adapter-stopped": _LOG,
    "adapter-unreachable": _LOG,
    "adapter-silent": f"{_LISTED}unsent",
    "key-refused": SETUP,
    "money-gone": SETUP,
    "model-failing": _LOG,
    "budget-low": f"{HOME}/budgets",
    "budget-used-up": f"{HOME}/budgets",
    "answer-dead": f"{HOME}/dead-letters",
    "message-dead": f"{HOME}/dead-letters",
    "update-set-aside": _LOG,
    "disk-full": f"{HOME}/doctor",
    "database-down": f"{HOME}/doctor",
    "outbox-old": f"{_LISTED}unsent",
    "stranger-asks": f"{HOME}/people",
    "backup-overdue": f"{HOME}/doctor",
    "settings-refused": f"{HOME}/settings",
}
"""Where an alert of each trouble leads to."""


@dataclass(frozen=True, slots=True)
class Need:
    """Something that somebody should look at."""

    text: str
    where: str = ""
    kind: str = "warn"


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
        "dead_sends": health.dead_sends(conn, health.DAY_S),
    }


@page(HOME, "Overview", "Now")
async def overview(ask: Ask) -> Result:
    """Show how the gateway is."""
    inside = ask.inside
    zone = ZoneInfo(inside.settings.sessions.timezone)
    spans = days_until_now(zone, DAYS)
    look = await inside.health.look()
    read = await inside.database.read(_read, spans)
    opened = [each for each in read["alerts"] if each.over_at is None]
    warnings = tallied(newest(RECENT, (), lately(), MOST_LINES))
    return Shown(
        "overview.html",
        read
        | {
            "health": look,
            "needs": [*_of_model(inside), *_of_health(look), *_of_database(read, opened)],
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
            "places": PLACES,
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


def _of_model(inside: Inside) -> Iterator[Need]:
    if inside.facts(None).name == DEMO_NAME:
        yield Need("Only the demo model answers so far, and it understands nothing.", SETUP)


def _of_health(look: Mapping[str, Any]) -> Iterator[Need]:
    if look["database"] != "writable":
        yield Need(f"The database is {look['database']}.", kind="bad")
    if look["descriptors"] != "free":
        yield Need("The process has hardly any file descriptors left.", kind="bad")
    for name, state in look["adapters"].items():
        if state not in WORKING:
            yield Need(f"{name} is {state}.", kind="bad")
    for name, account in look["accounts"].items():
        if account["silent_s"] is not None:
            text = f"{name} has taken nothing for {stretch(account['silent_s'])}."
            yield Need(text, f"{HOME}/conversations?state=unsent", "bad")


def _of_database(read: Mapping[str, Any], opened: Sequence[Alert]) -> Iterator[Need]:
    for each in opened:
        yield Need(each.text, PLACES.get(each.kind, f"{HOME}#alerts"), "bad")
    told = {each.kind for each in opened}
    for kind, count, one, many, where in _counts(read):
        if count and kind not in told:
            yield Need(f"{count:,} {one if count == 1 else many}.", where)
    for replica in read["replicas"]:
        if replica.late_s:
            yield Need(f"Replica {replica.name} is late by {stretch(replica.late_s)}.")


def _counts(read: Mapping[str, Any]) -> Iterator[tuple[str, int, str, str, str]]:
    """Yield the trouble that may tell of it, how many there are, for one and for many, where."""
    waiting = read["waiting"]
    for name, kind, what, state in (
        ("unanswered", "", "for an answer", "waiting"),
        ("unsent", "outbox-old", "to be shown", "unsent"),
    ):
        found = waiting[name]
        age, count = stretch(found.oldest_s), found.count if found.oldest_s > LATE_S else 0
        one = f"message has waited {what} for {age}"
        many = f"messages have waited {what}, the oldest for {age}"
        yield kind, count, one, many, _LISTED + state
    asked, strangers = waiting["asked"].count, waiting["strangers"].count
    one, many = "question waits for a person", "questions wait for a person"
    yield "", asked, one, many, f"{HOME}/approvals"
    one, many = "stranger asks to be let in", "strangers ask to be let in"
    yield "stranger-asks", strangers, one, many, f"{HOME}/people"
    one, many = "turn was given up today", "turns were given up today"
    yield "message-dead", read["days"][-1].dead, one, many, f"{HOME}/dead-letters"
    one, many = "answer was given up within a day", "answers were given up within a day"
    yield "answer-dead", read["dead_sends"], one, many, f"{HOME}/dead-letters"
