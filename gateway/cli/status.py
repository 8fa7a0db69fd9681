"""`parley status`, `parley alerts test` and `parley usage`: how the gateway is, and what it used.

All read the database whether a gateway runs or not; `status` also asks the process through its
socket. Exit codes of `status`: 0 it runs and is ready, 1 it runs and is not, 3 it does not run.
"""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast
from zoneinfo import ZoneInfo

import typer
from rich.table import Column
from sqlalchemy import Connection

from agent.messages import count
from agent.models.catalog import DEFAULT_NAMES, facts_of
from agent.models.factory import resolve_provider
from agent.settings import FactsSettings
from gateway.access.web_door import called
from gateway.agent_ports import budgets
from gateway.backup import backups
from gateway.cli.common import (
    AFTER,
    LISTED,
    AsJson,
    AsLines,
    Limit,
    opened,
    out,
    page_of,
    readable,
    say,
    settings_of,
    show_json,
    show_lines,
    show_next,
    table,
    warn,
)
from gateway.console.presentation import stretch
from gateway.errors import GatewayError
from gateway.findings.finding import Evidence
from gateway.findings.report import FINDINGS, pressing, report
from gateway.http import control
from gateway.settings.loading import Loaded
from gateway.settings.tree import Settings
from gateway.storage.conversation import conversations
from gateway.storage.database import location_of
from gateway.storage.queue import alerts
from gateway.storage.queue.alerts import Alert
from gateway.storage.reports import health, spending
from gateway.storage.reports import usage as reports
from gateway.storage.reports.spending import CachePrices, KnownRates, Rates, Spent, Where
from gateway.supervision.accounts import WORKING

NOT_READY, NOT_RUNNING = 1, 3
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
_DAYS = re.compile(r"([1-9][0-9]{0,3})d")

status_app = typer.Typer(add_completion=False)
alerts_app = typer.Typer(help="Alerts to owners.", no_args_is_help=True)
usage_app = typer.Typer(add_completion=False)


@status_app.command()
def status(context: typer.Context, json: AsJson = False) -> None:
    """Show whether the gateway runs, what waits, what it costs, and what is wrong."""
    known = readable(context)
    settings = known.settings
    running, trouble = None, ""
    try:
        running = asyncio.run(control.ready_in(settings.home))
    except GatewayError as exc:
        trouble = str(exc)
    found = {
        "home": str(settings.home),
        "running": running is not None or bool(trouble),
        "ready": bool(running and running["ready"]),
        "process": running,
        "trouble": trouble,
        "models": [
            "/".join(filter(None, (resolve_provider(each), each.name)))
            for each in (settings.model, *settings.fallbacks)
        ],
        "backup": _backup(settings),
        **_stored(known, running, trouble),
    }
    if json:
        show_json(found)
    else:
        for line, style in lines(found):
            say(line, style)
    if not found["ready"]:
        raise typer.Exit(NOT_READY if found["running"] else NOT_RUNNING)


def _backup(settings: Settings) -> dict[str, Any] | None:
    to = backups.folder_of(settings)
    if to is None:
        return None
    last = backups.newest(to)
    told: dict[str, Any] = {"to": str(to), "every_h": settings.backup.every_h, "path": None}
    if last is not None:
        told |= {"path": str(last.path), "age_s": round(last.age_s(datetime.now(UTC)))}
    return told


def _stored(found: Loaded, running: dict[str, Any] | None, hangs: str) -> dict[str, Any]:
    """Return the figures of the database, or why it cannot be read; and the findings."""
    settings = found.settings
    facts = Evidence(settings.home, found, running=running, hangs=hangs)
    wanted = [each for each in FINDINGS.values() if each.page]
    try:
        with opened(settings) as conn:
            facts, there = replace(facts, opened=conn), alerts.found(conn)
            stored = {"database": _database(settings), **_figures(conn, settings, there)}
            rows = report(wanted, facts, there)
    except GatewayError as exc:
        stored = {"database": {"trouble": str(exc)}}
        rows = report(wanted, replace(facts, database_trouble=str(exc)))
    return stored | {"findings": [each.as_data() for each in pressing(rows)]}


def _database(settings: Settings) -> dict[str, Any]:
    location = location_of(settings)
    if isinstance(location, Path):
        files = (location, Path(f"{location}-wal"))
        size = sum(each.stat().st_size for each in files if each.exists())
        return {"at": str(location), "bytes": size}
    return {"at": "a server of PostgreSQL"}


def _figures(conn: Connection, settings: Settings, there: list[Alert]) -> dict[str, Any]:
    waiting, unsent = health.waiting(conn, "unanswered"), health.waiting(conn, "unsent")
    since = budgets.today(ZoneInfo(settings.sessions.timezone)).start.timestamp()
    spent = spending.total(conn, Where(since))
    return {
        "queue": {"messages": waiting.count, "oldest_s": round(waiting.oldest_s, 1)},
        "outbox": {"messages": unsent.count, "oldest_s": round(unsent.oldest_s, 1)},
        "questions": health.waiting(conn, "asked").count,
        "dead_letters_7d": health.dead_sends(conn, 7 * health.DAY_S),
        "replicas": {
            "living": health.living_replicas(conn),
            "silent": health.silent_replicas(conn),
        },
        "today": {
            "usd": spent.usd,
            "limit_usd": settings.budget.daily_usd,
            "calls": spent.calls,
            "tokens": spent.usage.total_tokens,
        },
        "alerts": [
            {"kind": each.kind, "subject": each.subject, "text": each.text, "since": each.since}
            for each in there
        ],
    }


Line = tuple[str, str]
"""A line and its style."""


def lines(found: dict[str, Any]) -> list[Line]:
    """Return the lines of the screen."""
    told = [_first(found)]
    process = found["process"] or {}
    for name, state in process.get("adapters", {}).items():
        told.append((f"  {'adapter':<10} {name} {state}", "" if state in WORKING else "yellow"))
    told.append((f"  {'models':<10} {', then '.join(found['models'])}", ""))
    database = found["database"]
    if "trouble" in database:
        told.append((f"  {'database':<10} {database['trouble']}", "red"))
    else:
        size = f", {database['bytes'] / 1e6:,.1f} MB" if "bytes" in database else ""
        told.append((f"  {'database':<10} {database['at']}{size}", ""))
        told += _of_database(found)
    told.append(_of_backup(found["backup"]))
    for each in found["findings"]:
        since = f" (for {stretch(each['since_s'])})" if each["since_s"] else ""
        told.append((f"  {each['id']}: {each['text']}{since}", _COLOURS[each["level"]]))
    return told if found["findings"] else [*told, (f"  {'findings':<10} none", "")]


def _first(found: dict[str, Any]) -> Line:
    process = found["process"]
    if found["trouble"]:
        return found["trouble"], "bold red"
    if process is None:
        source = "" if "trouble" in found["database"] else "; this is from the database"
        return f"no gateway runs in {found['home']}{source}", "bold yellow"
    since = stretch(time.time() - process["started_at"])
    head = f"parley {process['version']} runs in {found['home']} since {since}"
    if found["ready"]:
        return f"{head}, and is ready", "bold green"
    blocking = [
        each["text"]
        for each in found["findings"]
        if each["level"] == "error" and FINDINGS[each["id"]].blocks
    ]
    why = "; ".join(blocking) or "see parley doctor"
    return f"{head}, and is not ready: {why}", "bold red"


def _of_database(found: dict[str, Any]) -> list[Line]:
    today, replicas = found["today"], found["replicas"]
    limit = f" of ${today['limit_usd']:,.2f}" if today["limit_usd"] is not None else ""
    spent = f"{count(today['calls'], 'call')}, {today['tokens']:,} tokens"
    silent = f", {len(replicas['silent'])} silent" if replicas["silent"] else ""
    told = [
        (f"  {'queue':<10} {_waiting(found['queue'], 'for an answer')}", ""),
        (f"  {'outbox':<10} {_waiting(found['outbox'], 'to be sent')}", ""),
        (f"  {'today':<10} ${today['usd']:,.2f}{limit}, {spent}", ""),
    ]
    # A replica that was stopped stays on the list: a single one needs no line.
    if replicas["living"] + len(replicas["silent"]) > 1:
        style = "yellow" if silent else ""
        told.append((f"  {'replicas':<10} {replicas['living']} alive{silent}", style))
    if found["questions"]:
        asked = count(found["questions"], "question")
        told.append((f"  {'questions':<10} {asked} to a person", "yellow"))
    return told


def _waiting(rows: dict[str, Any], what: str) -> str:
    if not rows["messages"]:
        return f"nothing waits {what}"
    messages = count(rows["messages"], "message")
    return f"{messages} {what}, the oldest for {stretch(rows['oldest_s'])}"


def _of_backup(backup: dict[str, Any] | None) -> Line:
    name = f"  {'backup':<10}"
    if backup is None:
        return f"{name} none (backup.to)", "dim"
    if backup["path"] is None:
        return f"{name} none yet in {backup['to']}", "yellow"
    return f"{name} {stretch(backup['age_s'])} old: {backup['path']}", ""


@alerts_app.command("test")
def test_alerts(context: typer.Context) -> None:
    """Have the gateway that runs send one test each way: to the chats and to the webhook.

    Exit code 1 where no way works.
    """
    try:
        done = asyncio.run(control.test_alerts(settings_of(context).home))
    except GatewayError as exc:
        warn(str(exc), "red")
        raise typer.Exit(1) from exc
    chats, is_posted = done["chats"], done["webhook"]
    if chats:
        say(f"entered for {count(chats, 'chat')}; look whether it arrives")
    else:
        warn("no chat: no owner has written to the bot directly, and alerts.to names none")
    if is_posted is not None:
        told = "the webhook took it" if is_posted else "the webhook did not take it; see the log"
        (say if is_posted else warn)(told)
    if not chats and not is_posted:
        raise typer.Exit(1)


class By(StrEnum):
    """What `parley usage` groups calls by."""

    DAY = "day"
    SENDER = "sender"
    CONVERSATION = "conversation"
    MODEL = "model"
    OUTCOME = "outcome"


PAGED = (By.SENDER, By.CONVERSATION)
"""The groups of which there can be many."""
TOKENS = {
    "input": "input_tokens",
    "cache read": "cache_read_tokens",
    "write 5m": "cache_write_5m_tokens",
    "write 1h": "cache_write_1h_tokens",
    "output": "output_tokens",
}
NUMBERS = ("calls", *TOKENS, "hits")


@usage_app.command()
def usage(
    context: typer.Context,
    by: Annotated[
        By,
        typer.Option(
            metavar="<name>",
            help=f"What the calls of a line have in common: {', '.join(By)}.",
        ),
    ] = By.DAY,
    since: Annotated[
        str, typer.Option(help="First day, as in 2026-09-01, or a number of days, as in 7d.")
    ] = "30d",
    limit: Limit = LISTED,
    after: Annotated[str | None, typer.Option(metavar="NAME", help=AFTER)] = None,
    *,
    json: AsLines = False,
) -> None:
    """Show calls, tokens and cost; `--by outcome` shows how turns ended.

    "x least" is what prompts were billed in multiples of the least possible. Pages (`--limit`,
    `--after`) are those of `--by sender` and `--by conversation`.
    """
    if after is not None and by not in PAGED:
        pages = " and ".join(f"`--by {each}`" for each in PAGED)
        raise typer.BadParameter(f"only {pages} have pages", param_hint="--after")
    settings = settings_of(context)
    zone = ZoneInfo(settings.sessions.timezone)
    today = datetime.now(zone).date()
    first = _first_day(since, today)
    following = None
    with opened(settings) as conn:
        if by not in PAGED:
            lines = _usage_lines(conn, by, (first, today), zone, _rates(settings))
            spent = sum((line.spent for line in lines), Spent())
        else:
            where = Where(budgets.day_of(first, zone).start.timestamp())
            rates = spending.rates_of(conn, where, _rates(settings))
            spent = spending.total(conn, where, rates)
            name = cast("spending.By", by.value)
            found = spending.spent(conn, name, where, rates, limit=limit + 1, after=after)
            shown, following = page_of(list(found), limit, lambda name: name)
            numbers = map(int, shown) if by == By.CONVERSATION else ()
            titles = conversations.titles(conn, list(numbers))
            titled = {str(number): title for number, title in titles.items()}
            lines = [UsageLine(name, found[name], titled.get(name, "")) for name in shown]
    if json:
        for line in lines:
            named = {"name": line.name} | ({"title": line.title} if line.title else {})
            turns = {} if line.turns is None else {"turns": line.turns}
            show_lines([named | turns | _spent_as_data(line.spent)])
        facts = {"since": str(first), "timezone": str(zone), "by": by.value}
        show_lines([{"total": _spent_as_data(spent), **facts}])
        return
    _show_usage(lines, spent, by)
    show_next(following)


def _first_day(text: str, today: date) -> date:
    """Return the first day that counts; "1d" is today alone."""
    if days := _DAYS.fullmatch(text):
        return today - timedelta(days=int(days[1]) - 1)
    try:
        first = date.fromisoformat(text)
    except ValueError as exc:
        wanted = f"neither a date such as {today} nor a number of days such as 7d"
        raise typer.BadParameter(f"{text!r} is {wanted}", param_hint="--since") from exc
    if first > today:
        raise typer.BadParameter(f"{text} is still to come", param_hint="--since")
    return first


class UsageLine(NamedTuple):
    """The calls of a line; `turns` is None if turns are not counted."""

    name: str
    spent: Spent
    title: str = ""
    turns: int | None = None


def _usage_lines(
    conn: Connection, by: By, days: tuple[date, date], zone: tzinfo, known: KnownRates
) -> list[UsageLine]:
    """Return the lines without pages; `days` are the first and the last one."""
    where = Where(budgets.day_of(days[0], zone).start.timestamp())
    if by == By.OUTCOME:
        ended = reports.by_outcome(conn, where.since)
        return [UsageLine(name, spent, turns=turns) for name, (turns, spent) in ended.items()]
    rates = spending.rates_of(conn, where, known)
    if by == By.DAY:
        return list(_days(conn, days, zone, rates))
    return [
        UsageLine(*each) for each in spending.spent(conn, "provider_model", where, rates).items()
    ]


def _days(
    conn: Connection, days: tuple[date, date], zone: tzinfo, rates: Rates
) -> Iterator[UsageLine]:
    """Yield the days with calls: those of the settings' time zone, of 23 to 25 hours."""
    begun = datetime.fromtimestamp(spending.first_call_at(conn) or time.time(), zone).date()
    first = max(days[0], begun)
    for n in range((days[1] - first).days + 1):
        day = first + timedelta(days=n)
        start, end = budgets.day_of(day, zone)
        spent = spending.total(conn, Where(start.timestamp(), end.timestamp()), rates)
        if spent.calls:
            yield UsageLine(str(day), spent)


def _rates(settings: Settings) -> KnownRates:
    """Return the prices of a model by its name: from the settings, else from the catalog."""
    blocks = (settings.model, *settings.fallbacks)
    named = {block.name or DEFAULT_NAMES.get(resolve_provider(block)): block for block in blocks}
    given = {name: block.facts for name, block in named.items()}
    return lambda name: CachePrices.of(facts_of(name, given.get(name, FactsSettings())))


def _show_usage(lines: Sequence[UsageLine], total: Spent, by: By) -> None:
    """Print lines, and the total of all pages."""
    turns = sum(line.turns or 0 for line in lines)
    counts = ("turns", "share") if by == By.OUTCOME else ()
    numbers = ("calls", *TOKENS, "hits", *(() if counts else ("x least",)))
    headings = [Column(by.value, overflow="fold")]
    headings += [Column(name, justify="right") for name in counts]
    headings += [Column(name, justify="right", no_wrap=True) for name in numbers]
    headings.append(Column("cost", justify="right"))
    rows = []
    for line in lines:
        counted = (f"{line.turns:,}", f"{line.turns / turns:.1%}") if line.turns else ("-", "-")
        name = " ".join(f"{called(line.name)} {line.title}".split())
        rows.append(_cells(name, counted if counts else (), line.spent))
    shown = table(headings, rows)
    shown.add_row(*_cells("total", (f"{turns:,}", "") if counts else (), total), style="bold")
    out.print(shown)


def _cells(name: str, counted: Sequence[str], spent: Spent) -> list[str]:
    """Return a line; `counted` is a number of turns and its share, only by outcome."""
    hits, least = spent.hit_ratio, spent.least_ratio
    numbers = (spent.calls, *(getattr(spent.usage, kind) for kind in TOKENS.values()))
    cells = (name, *counted, *(f"{number:,}" for number in numbers))
    ratios = ["-" if hits is None else f"{hits:.1%}"]
    if not counted:
        ratios.append("-" if least is None else f"{least:.2f}")
    return [*cells, *ratios, spent.cost]


def _spent_as_data(spent: Spent) -> dict[str, Any]:
    """Return a sum as data; `usd` is null, not 0, if no price is known."""
    all_unknown = 0 < spent.calls == spent.unknown_calls
    return {
        "calls": spent.calls,
        **{kind: getattr(spent.usage, kind) for kind in TOKENS.values()},
        "hit_ratio": spent.hit_ratio,
        "billed_to_least_ratio": spent.least_ratio,
        "usd": None if all_unknown else spent.usd,
        "unknown_calls": spent.unknown_calls,
        "estimated": spent.estimated_calls > 0,
    }
