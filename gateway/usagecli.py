"""`parley usage`: what was used and what it cost, from the ledger; changes nothing.

Reads the database's file itself, whether a gateway runs or not.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta, tzinfo
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from agent.models.catalog import DEFAULT_NAMES, facts_of
from agent.models.factory import resolve_provider
from agent.settings import FactsSettings
from gateway.commandline import AsJson, Since, first_day, opened, settings_of
from gateway.console import out, show_json

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gateway.settings import Settings
    from gateway.storage.costs import Group
    from gateway.storage.prompts import Answer, CachePrices


class By(StrEnum):
    """What the calls of a line have in common."""

    DAY = "day"
    SENDER = "sender"
    CONVERSATION = "conversation"
    MODEL = "model"
    OUTCOME = "outcome"


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
    *,
    json: AsJson = False,
) -> None:
    """Show calls, tokens and cost; `--by outcome` shows how turns ended.

    "x least" is what prompts were billed in multiples of the least possible.
    """
    settings = settings_of(context)
    zone = ZoneInfo(settings.sessions.timezone)
    today = datetime.now(zone).date()
    first = first_day(since, today)
    with opened(settings) as conn:
        groups = _groups(conn, by, (first, today), zone)
        if by != By.OUTCOME:
            prompts = import_module("gateway.storage.prompts")
            answers = prompts.answers_since(conn, _since(first, zone))
            compared = prompts.compare(answers, _rates(settings), _naming(by, zone))
            groups = prompts.with_prompts(groups, compared)
    view = import_module("gateway.usageview")
    if json:
        facts = {"since": str(first), "timezone": str(zone), "by": by.value}
        show_json(view.as_data(groups, facts))
    else:
        view.show(groups, by.value, out)


def _groups(conn: "Connection", by: By, days: tuple[date, date], zone: tzinfo) -> Sequence["Group"]:
    """Return the lines; `days` are the first and the last one."""
    costs, spending = import_module("gateway.storage.costs"), import_module("gateway.spending")
    since = _since(days[0], zone)
    groups: Sequence[Group]
    if by == By.DAY:
        # No query for days before there was a ledger.
        begun = datetime.fromtimestamp(costs.first_at(conn) or since, zone).date()
        bounds = ((day, spending.day_of(day, zone)) for day in _each(max(days[0], begun), days[1]))
        groups = costs.by_span(
            conn,
            [costs.Span(str(day), a.timestamp(), b.timestamp()) for day, (a, b) in bounds],
        )
    elif by == By.OUTCOME:
        groups = costs.by_outcome(conn, since)
    else:
        groups = costs.by_key(conn, by.value, since)
    return groups


def _since(first: date, zone: tzinfo) -> float:
    start: datetime = import_module("gateway.spending").day_of(first, zone).start
    return start.timestamp()


def _rates(settings: "Settings") -> "Callable[[str], CachePrices | None]":
    """Return what is known of a model by its name: the settings' word first, then the table's."""
    rates = import_module("gateway.storage.prompts").CachePrices
    blocks = (settings.model, *settings.fallbacks)
    named = {block.name or DEFAULT_NAMES.get(resolve_provider(block)): block for block in blocks}
    given = {name: block.facts for name, block in named.items()}
    return lambda name: rates.of(facts_of(name, given.get(name, FactsSettings())))


def _naming(by: By, zone: tzinfo) -> "Callable[[Answer], str]":
    """Return what says in which line an answer is."""
    ways: dict[By, Callable[[Answer], str]] = {
        By.DAY: lambda answer: str(datetime.fromtimestamp(answer.at, zone).date()),
        By.SENDER: lambda answer: answer.sender or "?",
        By.CONVERSATION: lambda answer: str(answer.conversation),
        By.MODEL: lambda answer: "/".join(filter(None, answer.cache)),
    }
    return ways[by]


def _each(first: date, last: date) -> Iterator[date]:
    return (first + timedelta(days=n) for n in range((last - first).days + 1))
