"""`parley usage`: what was used and what it cost, from the ledger; changes nothing.

Reads the database's file itself, whether a gateway runs or not.
"""

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal
from zoneinfo import ZoneInfo

import typer

from agent.models.catalog import DEFAULT_NAMES, facts_of
from agent.models.factory import resolve_provider
from agent.settings import FactsSettings
from gateway.agent_ports import budgets
from gateway.cli import usageview
from gateway.cli.common import AFTER, LISTED, AsLines, Limit, Since, first_day, opened, settings_of
from gateway.cli.console import out, page_of, show_lines, show_next
from gateway.settings.tree import Settings
from gateway.storage.reports import cache_efficiency, costs, ledger
from gateway.storage.reports.cache_efficiency import Rates
from gateway.storage.reports.costs import GroupPage
from gateway.storage.reports.ledger import Group, Span, Spent

if TYPE_CHECKING:
    from sqlalchemy import Connection


class By(StrEnum):
    """What the calls of a line have in common."""

    DAY = "day"
    SENDER = "sender"
    CONVERSATION = "conversation"
    MODEL = "model"
    OUTCOME = "outcome"


PAGED = (By.SENDER, By.CONVERSATION)
"""Of these there can be many; the others are few."""


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
        show_lines(usageview.as_data(groups, spent, facts))
        return
    usageview.show(groups, spent, by.value, out)
    show_next(following)


def _total(
    conn: "Connection", by: By, groups: Sequence[Group], since: float, rates: Rates
) -> Spent:
    """Return the sum of all groups, of those on other pages too."""
    return ledger.total(groups) if by == By.OUTCOME else costs.total(conn, since, rates)


def _groups(
    conn: "Connection", by: By, days: tuple[date, date], zone: tzinfo, rates: Rates
) -> Sequence[Group]:
    """Return the lines; `days` are the first and the last one."""
    if by == By.DAY:
        bounds = ((day, budgets.day_of(day, zone)) for day in _each(*days))
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
    return lambda name: cache_efficiency.CachePrices.of(
        facts_of(name, given.get(name, FactsSettings()))
    )


def _each(first: date, last: date) -> Iterator[date]:
    return (first + timedelta(days=n) for n in range((last - first).days + 1))
