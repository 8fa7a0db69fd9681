"""`parley import`: takes over what another agent has left behind."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.common import AsJson, opened, settings_of
from gateway.cli.output import say, show_json
from gateway.errors import StorageUnavailable
from gateway.setup import hermes, hermes_settings
from gateway.setup.hermes import Import
from gateway.setup.hermes_home import HermesHome, Line
from gateway.storage.database import location_of
from gateway.storage.migrations import open_database
from gateway.storage.queue import arrivals

import_app = typer.Typer(help="Take over the data of another agent.", no_args_is_help=True)

_STYLES = {"taken": "green", "known": "dim", "left out": "yellow"}


@import_app.callback()
def _group() -> None:
    """Take over the data of another agent."""


@import_app.command("hermes")
def import_hermes(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Its home, such as ~/.hermes; nothing is changed.")
    ],
    person: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="PLATFORM:ID",
            help="Whose notes and sessions without a chat are; the first of access.owners, or web.",
        ),
    ] = None,
    *,
    take_secrets: Annotated[
        bool, typer.Option("--take-secrets", help="Copy tokens and keys; they are never printed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Take over settings, SOUL.md, notes, skills and sessions; what is there already stays.

    No gateway may run on the database (SQLite). A second run does what the first one did not.
    """
    settings = settings_of(context)
    home = HermesHome.of(folder)
    secrets = sorted(name for name, _ in hermes_settings.found_in(home).secrets.values())
    if secrets and not take_secrets and not dry_run and sys.stdin.isatty():
        say(f"It has these secrets: {', '.join(secrets)}")
        take_secrets = typer.confirm("Copy them into files of PARLEY_HOME/secrets?", default=False)
    task = Import(home, settings, person, take_secrets)
    lines = _surveyed(task) if dry_run else asyncio.run(_taken_over(task))
    if json:
        show_json([asdict(line) for line in lines])
        return
    _show(lines)
    if dry_run:
        say("\nNothing was changed: this was a dry run.", "bold")


def _surveyed(task: Import) -> list[Line]:
    try:
        with opened(task.settings) as conn:
            known = arrivals.positions(conn, hermes.SOURCE)
            notes = hermes.notes_of(conn, task)
    except StorageUnavailable:
        # There is no database yet, so nothing was imported.
        known, notes = {}, set()
    return hermes.survey(task, known, notes)


async def _taken_over(task: Import) -> list[Line]:
    settings = task.settings
    async with open_database(location_of(settings), settings.home) as database:
        return await hermes.take_over(task, database)


def _show(lines: Sequence[Line]) -> None:
    ordered = sorted(lines, key=lambda line: _PARTS.index(line.part))
    for part, found in groupby(ordered, key=attrgetter("part")):
        say(f"\n{part}", "bold")
        for line in found:
            note = f": {line.note}" if line.note else ""
            say(f"  {line.outcome:<9} {line.what}{note}", _STYLES[line.outcome])


_PARTS = ("settings", "secrets", "files", "memory", "skills", "sessions")
