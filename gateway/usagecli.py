"""`parley usage`: what was used and what it cost, from the ledger; changes nothing.

Reads the database's file itself, whether a gateway runs or not.
"""

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta, tzinfo
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from agent.models.catalog import DEFAULT_NAMES, facts_of
from agent.models.factory import resolve_provider
from agent.settings import FactsSettings
from gateway.commandline import AFTER, LISTED, AsLines, Limit, Since, first_day, opened, settings_of
from gateway.console import out, page_of, show_lines, show_next

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gateway.settings import Settings
    from gateway.storage.costs import Group, Spent
    from gateway.storage.rollup import Page, Rates


class By(StrEnum):
    """What the calls of a line have in common."""

    DAY = "day"
    SENDER = "sender"
    CONVERSATION = "conversation"
    MODEL = "model"
    OUTCOME = "outcome"


PAGED = (By.SENDER, By.CONVERSATION)
"""Of these there can be many; the others are few."""


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
            page = _page(limit + 1, after)
            found = import_module("gateway.storage.rollup").by_key(
                conn, by.value, _since(first, zone), rates, page
            )
            groups, following = page_of(found, limit, lambda group: group.name)
        else:
            groups = _groups(conn, by, (first, today), zone, rates)
        spent = _total(conn, by, groups, _since(first, zone), rates)
    view = import_module("gateway.usageview")
    if json:
        facts = {"since": str(first), "timezone": str(zone), "by": by.value}
        show_lines(view.as_data(groups, spent, facts))
        return
    view.show(groups, spent, by.value, out)
    show_next(following)


def _page(limit: int, after: str | None) -> "Page":
    """Return which groups are wanted."""
    page: Page = import_module("gateway.storage.rollup").Page(limit, after)
    return page


def _total(
    conn: "Connection", by: By, groups: Sequence["Group"], since: float, rates: "Rates"
) -> "Spent":
    """Return the sum of all groups, of those on other pages too."""
    spent: Spent
    if by == By.OUTCOME:
        spent = import_module("gateway.storage.costs").total(groups)
    else:
        spent = import_module("gateway.storage.rollup").total(conn, since, rates)
    return spent


def _groups(
    conn: "Connection", by: By, days: tuple[date, date], zone: tzinfo, rates: "Rates"
) -> Sequence["Group"]:
    """Return the lines; `days` are the first and the last one."""
    rollup, spending = import_module("gateway.storage.rollup"), import_module("gateway.spending")
    groups: Sequence[Group]
    if by == By.DAY:
        spans = import_module("gateway.storage.costs").Span
        bounds = ((day, spending.day_of(day, zone)) for day in _each(*days))
        named = [spans(str(day), a.timestamp(), b.timestamp()) for day, (a, b) in bounds]
        groups = rollup.by_span(conn, named, rates)
    elif by == By.OUTCOME:
        costs = import_module("gateway.storage.costs")
        groups = costs.by_outcome(conn, _since(days[0], zone))
    else:
        groups = rollup.by_model(conn, _since(days[0], zone), rates)
    return groups


def _since(first: date, zone: tzinfo) -> float:
    start: datetime = import_module("gateway.spending").day_of(first, zone).start
    return start.timestamp()


def _rates(settings: "Settings") -> "Rates":
    """Return what is known of a model by its name: the settings' word first, then the table's."""
    rates = import_module("gateway.storage.prompts").CachePrices
    blocks = (settings.model, *settings.fallbacks)
    named = {block.name or DEFAULT_NAMES.get(resolve_provider(block)): block for block in blocks}
    given = {name: block.facts for name, block in named.items()}
    return lambda name: rates.of(facts_of(name, given.get(name, FactsSettings())))


def _each(first: date, last: date) -> Iterator[date]:
    return (first + timedelta(days=n) for n in range((last - first).days + 1))
