"""What the commands of `parley` share: settings, ids, and the database, to read or to change it.

What they print stands in gateway/cli/output.py.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from agent.settings import ReferencedSecret
from agent.spans import trace_of
from gateway.cli.output import warn
from gateway.errors import GatewayError, NotFound, SettingsError, StorageUnavailable
from gateway.http import control
from gateway.metrics.instruments import seed_of
from gateway.settings.changes import located
from gateway.settings.loading import Loaded, file_of, home_of, last_used, load_settings
from gateway.settings.tree import KeyPath, Settings
from gateway.setup.hermes_settings import hint
from gateway.storage import maintenance, migrations, schema
from gateway.storage.database import location_of
from gateway.storage.reports import history

LONGEST_ID = 18
"""Digits; longer numbers are no ids and do not fit into the database's integers."""
OFFERED = 50
"""Conversations of a list at a Tab, the newest."""
NICENESS = 10
"""Leaves this process about a tenth of a busy processor."""
_DAYS = re.compile(r"([1-9][0-9]{0,3})d")


def step_back() -> None:
    """Give all other processes priority, from here to the end of the command."""
    os.nice(NICENESS)


def id_of(kind: str) -> Callable[[str], int]:
    """Return what reads the id of such a thing, and raises NotFound for what is no id."""

    def read(text: str) -> int:
        # Without `isascii` digits of other scripts would be ids too.
        if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_ID):
            raise NotFound(f"{text!r} is no {kind} id; ids are numbers")
        return int(text)

    return read


def conversations_at_a_tab(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of the newest conversations that begin so, each with its title."""
    try:
        with opened(loaded(context).settings) as conn:
            found = history.overviews(conn, OFFERED)
    except GatewayError:
        # There is nothing to offer, and nobody to tell: the shell shows what a Tab prints.
        return []
    named = ((str(each.id), " ".join(f"{each.platform} {each.title}".split())) for each in found)
    return [each for each in named if each[0].startswith(incomplete)]


conversation_id = id_of("conversation")
ConversationArgument = Annotated[
    int,
    typer.Argument(
        parser=conversation_id,
        metavar="ID",
        help="Id from `parley sessions list`.",
        autocompletion=conversations_at_a_tab,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
AsLines = Annotated[bool, typer.Option("--json", help="As JSON lines: one object a line.")]
LISTED = 50
"""Lines of a page, unless told otherwise."""
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Most lines of a page.")
]
AFTER = "Go on behind this line: the page before ends with what to say here."
Since = Annotated[
    str, typer.Option(help="First day, as in 2026-09-01, or a number of days, as in 7d.")
]


def first_day(text: str, today: date) -> date:
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


def loaded(
    context: typer.Context,
    known: Mapping[KeyPath, ReferencedSecret] | None = None,
    **overrides: Any,
) -> Loaded:
    """Read the settings that the options of `parley` itself choose.

    Args:
        known: Secrets that are not read again, by their places.
        overrides: Options of the command that stand for a key, as in `web__port`; None: not given.
    """
    chosen = context.find_root().params
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(
        config=chosen.get("config"),
        overrides={**named, "home": chosen.get("home")},
        known=known,
        hint=hint,
    )


def settings_of(context: typer.Context) -> Settings:
    """Return the settings for a command that only reads; see `readable`."""
    return readable(context).settings


def readable(context: typer.Context) -> Loaded:
    """Read the settings for a command that only reads, or has the running gateway act.

    A mistake in them takes no such command away: with a warning it uses those that the gateway of
    this home runs with, or last ran with.

    Raises:
        SettingsError: They have a mistake, and none are kept in this home.
    """
    try:
        return loaded(context)
    except SettingsError as exc:
        chosen = context.find_root().params
        file = file_of(chosen.get("config"), chosen.get("home"))
        last = last_used(home_of(chosen.get("home")), file)
        if last is None:
            raise
        first, *others = located(exc, file)
        more = f" (and {len(others)} more)" if others else ""
        warn(
            f"{file}: {first}{more}; correct it (`parley config check` lists all). Until then this"
            " command uses the settings that the gateway last ran with."
        )
        return last


@contextmanager
def opened(settings: Settings) -> Iterator[Connection]:
    """Open the database for reading, whether a gateway runs or not.

    Raises:
        StorageUnavailable: It is not there, or its schema is an older version's.
        DatabaseTooNew: Its schema is a newer version's.
    """
    location = location_of(settings)
    with maintenance.reading(location) as conn:
        # Asked first: a newer schema is not the expected one either, and must not be called older.
        migrations.refuse_newer(conn)
        found = migrations.schema_revision(conn)
        where = location if isinstance(location, Path) else "the database"
        if found is None or found < schema.REVISION:
            what = "no schema yet" if found is None else "the schema of an older version"
            remedy = "`parley db migrate` or `parley run` brings it up to date"
            raise StorageUnavailable(f"{where} has {what}; {remedy}")
        yield conn


def trace_in(settings: Settings, conversation: int, seq: int) -> str:
    """Return the trace of an entry of the inbox, as the log of this home has it."""
    return trace_of(conversation, seq, seed_of(settings))


def act(settings: Settings, action: str, target: str = "") -> Any:
    """Have an action of gateway/http/control.py carried out: by the running gateway, else directly.

    Raises:
        NotFound: There is no such target.
        StorageError: The database cannot be opened or written.
    """
    return asyncio.run(control.act(settings.home, location_of(settings), action, target))
