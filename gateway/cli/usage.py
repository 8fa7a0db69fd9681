"""`parley usage`: what was used and what it cost, from the ledger; changes nothing.

Reads the database's file itself, whether a gateway runs or not. It prints a table with a sum below
it, or JSON.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, cast
from zoneinfo import ZoneInfo

import typer
from rich.console import Console
from rich.table import Column
from sqlalchemy import Connection

from agent.models.catalog import DEFAULT_NAMES, facts_of
from agent.models.factory import resolve_provider
from agent.settings import FactsSettings
from gateway.access.web_door import called
from gateway.agent_ports import budgets
from gateway.cli.common import AFTER, LISTED, AsLines, Limit, Since, first_day, opened, settings_of
from gateway.cli.output import out, page_of, show_lines, show_next, table
from gateway.settings.tree import Settings
from gateway.storage.conversation import conversations
from gateway.storage.reports import spending
from gateway.storage.reports import usage as reports
from gateway.storage.reports.spending import CachePrices, KnownRates, Rates, Spent, Where


class By(StrEnum):
    """What the calls of a line have in common."""

    DAY = "day"
    SENDER = "sender"
    CONVERSATION = "conversation"
    MODEL = "model"
    OUTCOME = "outcome"


PAGED = (By.SENDER, By.CONVERSATION)
"""Of these there can be many; the others are few."""
TOKENS = {
    "input": "input_tokens",
    "cache read": "cache_read_tokens",
    "write 5m": "cache_write_5m_tokens",
    "write 1h": "cache_write_1h_tokens",
    "output": "output_tokens",
}
NUMBERS = ("calls", *TOKENS, "hits")
LEAST = "x least"
"""What prompts were billed in multiples of the least that they could have been."""

usage_app = typer.Typer(add_completion=False)


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
    since: Since = "30d",
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
    first = first_day(since, today)
    following = None
    with opened(settings) as conn:
        lines = _lines(conn, by, (first, today), zone, _rates(settings))
        spent = sum((line.spent for line in lines), Spent())
        if by in PAGED:
            found = spending.page_of_spent(
                {line.name: line.spent for line in lines}, limit + 1, after
            )
            shown, following = page_of(list(found), limit, lambda name: name)
            numbers = map(int, shown) if by == By.CONVERSATION else ()
            titles = conversations.titles(conn, list(numbers))
            titled = {str(number): title for number, title in titles.items()}
            lines = [UsageLine(name, found[name], titled.get(name, "")) for name in shown]
    if json:
        facts = {"since": str(first), "timezone": str(zone), "by": by.value}
        show_lines(as_data(lines, spent, facts))
        return
    show(lines, spent, by.value, out)
    show_next(following)


class UsageLine(NamedTuple):
    """The calls that have something in common; `turns` is None if those are not counted."""

    name: str
    spent: Spent
    title: str = ""
    turns: int | None = None


def _lines(
    conn: Connection, by: By, days: tuple[date, date], zone: tzinfo, known: KnownRates
) -> list[UsageLine]:
    """Return the lines of all pages; `days` are the first and the last one."""
    where = Where(_since(days[0], zone))
    if by == By.OUTCOME:
        ended = reports.by_outcome(conn, where.since)
        return [UsageLine(name, spent, turns=turns) for name, (turns, spent) in ended.items()]
    rates = spending.rates_of(conn, where, known)
    if by == By.DAY:
        return list(_days(conn, days, zone, rates))
    name = cast("spending.By", "provider_model" if by == By.MODEL else by.value)
    return [UsageLine(*each) for each in spending.spent(conn, name, where, rates).items()]


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


def _since(first: date, zone: tzinfo) -> float:
    return budgets.day_of(first, zone).start.timestamp()


def _rates(settings: Settings) -> KnownRates:
    """Return what is known of a model by its name: the settings' word first, then the table's."""
    blocks = (settings.model, *settings.fallbacks)
    named = {block.name or DEFAULT_NAMES.get(resolve_provider(block)): block for block in blocks}
    given = {name: block.facts for name, block in named.items()}
    return lambda name: CachePrices.of(facts_of(name, given.get(name, FactsSettings())))


def show(lines: Sequence[UsageLine], total: Spent, by: str, console: Console) -> None:
    """Print lines named by `by`, and their `total` with those on other pages."""
    turns = sum(line.turns or 0 for line in lines)
    counts = ("turns", "share") if by == "outcome" else ()
    numbers = NUMBERS if counts else (*NUMBERS, LEAST)
    headings = [Column(by, overflow="fold")]
    headings += [Column(name, justify="right") for name in counts]
    headings += [Column(name, justify="right", no_wrap=True) for name in numbers]
    headings.append(Column("cost", justify="right"))
    rows = [_cells(_named(line), _counted(line, turns), line.spent) for line in lines]
    shown = table(headings, rows)
    counted = (f"{turns:,}", "") if by == "outcome" else ()
    shown.add_row(*_cells("total", counted, total), style="bold")
    console.print(shown)


def _counted(line: UsageLine, turns: int) -> tuple[str, ...]:
    """Return a line's turns and their share of all; dashes for what no turn has done."""
    if line.turns is None:
        return ()
    return (f"{line.turns:,}", f"{line.turns / turns:.1%}") if line.turns else ("-", "-")


def _named(line: UsageLine) -> str:
    return " ".join(f"{called(line.name)} {line.title}".split())


def _cells(name: str, counted: Sequence[str], spent: Spent) -> list[str]:
    """Return a line; `counted` are turns and their share by outcome, where nothing is compared."""
    hits, least = spent.hit_ratio, spent.least_ratio
    numbers = (spent.calls, *(getattr(spent.usage, kind) for kind in TOKENS.values()))
    cells = (name, *counted, *(f"{number:,}" for number in numbers))
    ratios = ["-" if hits is None else f"{hits:.1%}"]
    if not counted:
        ratios.append("-" if least is None else f"{least:.2f}")
    return [*cells, *ratios, spent.cost]


def as_data(
    lines: Sequence[UsageLine], total: Spent, facts: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield lines for JSON, and at last their sum with what else is to be said about them."""
    for line in lines:
        yield (
            {"name": line.name}
            | ({"title": line.title} if line.title else {})
            | ({} if line.turns is None else {"turns": line.turns})
            | _figures(line.spent)
        )
    yield {"total": _figures(total), **facts}


def _figures(spent: Spent) -> dict[str, Any]:
    """Return a sum as data; `usd` is null, not 0, where no price is known."""
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
