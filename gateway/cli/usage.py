"""`parley usage`: shows calls, tokens and costs from the ledger."""

import re
import time
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, cast
from zoneinfo import ZoneInfo

import typer
from rich.table import Column
from sqlalchemy import Connection

from agent.models.catalog import DEFAULT_NAMES, facts_of
from agent.models.factory import resolve_provider
from agent.settings import FactsSettings
from gateway.access.web_door import called
from gateway.agent_ports import budgets
from gateway.cli.common import (
    AFTER,
    LISTED,
    AsLines,
    Limit,
    opened,
    out,
    page_of,
    settings_of,
    show_lines,
    show_next,
    table,
)
from gateway.settings.tree import Settings
from gateway.storage.conversation import conversations
from gateway.storage.reports import spending
from gateway.storage.reports import usage as reports
from gateway.storage.reports.spending import CachePrices, KnownRates, Rates, Spent, Where

_DAYS = re.compile(r"([1-9][0-9]{0,3})d")

usage_app = typer.Typer(add_completion=False)


class By(StrEnum):
    """The groupings of `parley usage`."""

    DAY = "day"
    SENDER = "sender"
    CONVERSATION = "conversation"
    MODEL = "model"
    OUTCOME = "outcome"


PAGED = (By.SENDER, By.CONVERSATION)
"""Groupings with many rows."""
TOKENS = {
    "input": "input_tokens",
    "cache read": "cache_read_tokens",
    "write 5m": "cache_write_5m_tokens",
    "write 1h": "cache_write_1h_tokens",
    "output": "output_tokens",
}


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
        str, typer.Option(help="First day, such as 2026-09-01, or a number of days, such as 7d.")
    ] = "30d",
    limit: Limit = LISTED,
    after: Annotated[str | None, typer.Option(metavar="NAME", help=AFTER)] = None,
    *,
    json: AsLines = False,
) -> None:
    """Show calls, tokens and cost; `--by outcome` shows how turns ended.

    "x least" is the billed prompt cost as a multiple of the lowest possible. `--limit` and
    `--after` apply to `--by sender` and `--by conversation`.
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
    """Return the first day to count; "1d" is only today."""
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
    """One output line; `turns` is None if turns are not counted."""

    name: str
    spent: Spent
    title: str = ""
    turns: int | None = None


def _usage_lines(
    conn: Connection, by: By, days: tuple[date, date], zone: tzinfo, known: KnownRates
) -> list[UsageLine]:
    """Return the lines of an unpaged grouping; `days` is (first, last)."""
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
    """Yield the days with calls in the settings' time zone (23 to 25 hours long)."""
    begun = datetime.fromtimestamp(spending.first_call_at(conn) or time.time(), zone).date()
    first = max(days[0], begun)
    for n in range((days[1] - first).days + 1):
        day = first + timedelta(days=n)
        start, end = budgets.day_of(day, zone)
        spent = spending.total(conn, Where(start.timestamp(), end.timestamp()), rates)
        if spent.calls:
            yield UsageLine(str(day), spent)


def _rates(settings: Settings) -> KnownRates:
    """Return a lookup of model prices: from the settings, else from the catalog."""
    blocks = (settings.model, *settings.fallbacks)
    named = {block.name or DEFAULT_NAMES.get(resolve_provider(block)): block for block in blocks}
    given = {name: block.facts for name, block in named.items()}
    return lambda name: CachePrices.of(facts_of(name, given.get(name, FactsSettings())))


def _show_usage(lines: Sequence[UsageLine], total: Spent, by: By) -> None:
    """Print the lines and the total of all pages."""
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
    """Format a line; `counted` is the number and share of turns, only by outcome."""
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
