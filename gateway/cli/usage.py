"""`parley usage`: what was used and what it cost, from the ledger; changes nothing.

Reads the database's file itself, whether a gateway runs or not. It prints a table with a sum below
it, or JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Annotated, Any, Literal
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
from gateway.storage.reports import costs, ledger
from gateway.storage.reports.costs import GroupPage, Rates
from gateway.storage.reports.ledger import Group, Span, Spent


class By(StrEnum):
    """What the calls of a line have in common."""

    DAY = "day"
    SENDER = "sender"
    CONVERSATION = "conversation"
    MODEL = "model"
    OUTCOME = "outcome"


PAGED = (By.SENDER, By.CONVERSATION)
"""Of these there can be many; the others are few."""
NUMBERS = ("calls", "input", "cache read", "write 5m", "write 1h", "output", "hits")
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
    rates = _rates(settings)
    following = None
    with opened(settings) as conn:
        if by in PAGED:
            kind: Literal["sender", "conversation"]
            kind = "sender" if by == By.SENDER else "conversation"
            page = GroupPage(limit + 1, after)
            found = costs.by_key(conn, kind, _since(first, zone), rates, page)
            groups, following = page_of(found, limit, lambda group: group.name)
        else:
            groups = _groups(conn, by, (first, today), zone, rates)
        spent = _total(conn, by, groups, _since(first, zone), rates)
    if json:
        facts = {"since": str(first), "timezone": str(zone), "by": by.value}
        show_lines(as_data(groups, spent, facts))
        return
    show(groups, spent, by.value, out)
    show_next(following)


def _total(conn: Connection, by: By, groups: Sequence[Group], since: float, rates: Rates) -> Spent:
    """Return the sum of all groups, of those on other pages too."""
    return ledger.total(groups) if by == By.OUTCOME else costs.total(conn, since, rates)


def _groups(
    conn: Connection, by: By, days: tuple[date, date], zone: tzinfo, rates: Rates
) -> Sequence[Group]:
    """Return the lines; `days` are the first and the last one."""
    if by == By.DAY:
        # Days of the settings' time zone: one of them may have 23 or 25 hours.
        begun = costs.begun(conn)
        if begun is None:
            return []
        first = max(days[0], datetime.fromtimestamp(begun, zone).date())
        bounds = ((day, budgets.day_of(day, zone)) for day in _each(first, days[1]))
        named = [Span(str(day), a.timestamp(), b.timestamp()) for day, (a, b) in bounds]
        return costs.by_span(conn, named, rates)
    if by == By.OUTCOME:
        return costs.by_outcome(conn, _since(days[0], zone))
    return costs.by_model(conn, _since(days[0], zone), rates)


def _since(first: date, zone: tzinfo) -> float:
    return budgets.day_of(first, zone).start.timestamp()


def _rates(settings: Settings) -> Rates:
    """Return what is known of a model by its name: the settings' word first, then the table's."""
    blocks = (settings.model, *settings.fallbacks)
    named = {block.name or DEFAULT_NAMES.get(resolve_provider(block)): block for block in blocks}
    given = {name: block.facts for name, block in named.items()}
    return lambda name: costs.CachePrices.of(facts_of(name, given.get(name, FactsSettings())))


def _each(first: date, last: date) -> Iterator[date]:
    return (first + timedelta(days=n) for n in range((last - first).days + 1))


def show(groups: Sequence[Group], total: Spent, by: str, console: Console) -> None:
    """Print one line for each group, and the sum.

    Args:
        groups: In order.
        total: The sum, of groups on other pages too.
        by: What the calls of a group have in common: the heading of its name.
    """
    turns = sum(group.turns or 0 for group in groups)
    counts = ("turns", "share") if by == "outcome" else ()
    numbers = NUMBERS if counts else (*NUMBERS, LEAST)
    headings = [Column(by, overflow="fold")]
    headings += [Column(name, justify="right") for name in counts]
    headings += [Column(name, justify="right", no_wrap=True) for name in numbers]
    headings.append(Column("cost", justify="right"))
    rows = [_cells(_named(group), _counted(group, turns), group.spent) for group in groups]
    shown = table(headings, rows)
    counted = (f"{turns:,}", "") if by == "outcome" else ()
    shown.add_row(*_cells("total", counted, total), style="bold")
    console.print(shown)


def _counted(group: Group, turns: int) -> tuple[str, ...]:
    """Return a group's turns and their share of all; dashes for what no turn has done."""
    if group.turns is None:
        return ()
    return (f"{group.turns:,}", f"{group.turns / turns:.1%}") if group.turns else ("-", "-")


def _named(group: Group) -> str:
    return " ".join(f"{called(group.name)} {group.title}".split())


def _cells(name: str, counted: Sequence[str], spent: Spent) -> list[str]:
    """Return a line; `counted` are turns and their share by outcome, where nothing is compared."""
    usage, hits, least = spent.usage, spent.hit_ratio, spent.prompts.ratio
    numbers = (
        spent.calls,
        usage.input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_5m_tokens,
        usage.cache_write_1h_tokens,
        usage.output_tokens,
    )
    cells = (name, *counted, *(f"{number:,}" for number in numbers))
    ratios = ["-" if hits is None else f"{hits:.1%}"]
    if not counted:
        ratios.append("-" if least is None else f"{least:.2f}")
    return [*cells, *ratios, spent.money.text()]


def as_data(
    groups: Sequence[Group], total: Spent, facts: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield groups for JSON, and at last their sum with what else is to be said about them."""
    for group in groups:
        yield (
            {"name": group.name}
            | ({"title": group.title} if group.title else {})
            | ({} if group.turns is None else {"turns": group.turns})
            | _figures(group.spent)
        )
    yield {"total": _figures(total), **facts}


def _figures(spent: Spent) -> dict[str, Any]:
    """Return a sum as data; `usd` is null, not 0, where no price is known."""
    usage, money = spent.usage, spent.money
    all_unknown = 0 < spent.calls == money.unknown_calls
    return {
        "calls": spent.calls,
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_5m_tokens": usage.cache_write_5m_tokens,
        "cache_write_1h_tokens": usage.cache_write_1h_tokens,
        "output_tokens": usage.output_tokens,
        "hit_ratio": spent.hit_ratio,
        "billed_to_least_ratio": spent.prompts.ratio,
        "usd": None if all_unknown else money.usd,
        "unknown_calls": money.unknown_calls,
        "estimated": money.estimated,
    }
