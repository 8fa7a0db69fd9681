"""`parley upgrade --check`: what a start of this version would change, and what to do before.

Nothing is changed and nobody is asked: program, schema, settings, plugins and disk are compared
where they are. The steps of an upgrade, and what each version changes, are in docs/upgrade.md.
"""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from agent.plugins import finding
from gateway.cli.common import AsJson, loaded
from gateway.cli.output import say, show_json
from gateway.errors import GatewayError, SettingsError
from gateway.http import control
from gateway.lifecycle import backups
from gateway.settings.loading import Loaded
from gateway.settings.tree import Settings
from gateway.storage import maintenance, migrations, schema
from gateway.storage.database import location_of
from gateway.wiring import refuse_unusable

Level = Literal["fine", "note", "blocked"]
_STYLES: dict[Level, tuple[str, str]] = {
    "fine": ("✓", "green"),
    "note": ("…", "yellow"),
    "blocked": ("✗", "red"),
}
ROOM = 2.2
"""Free disk, as a multiple of the database: for a backup, and for what a migration writes anew."""
OLD_BACKUP_S = 3_600.0
"""A backup that is older lacks more than a few minutes' words."""

upgrade_app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class UpgradeStep:
    """One thing that was compared."""

    about: str
    level: Level
    text: str


@upgrade_app.command()
def upgrade(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Compare; nothing is changed.")] = False,
    json: AsJson = False,
) -> None:
    """Say what starting this version would change here, and what to do first; offline."""
    if not check:
        raise typer.BadParameter(
            "Parley does not replace itself: install the new version as you installed this one"
            " (docs/upgrade.md), then `parley upgrade --check`"
        )
    found = list(_compared(context))
    if json:
        show_json([asdict(each) for each in found])
    else:
        for each in found:
            mark, style = _STYLES[each.level]
            say(f"{mark} {each.about}: {each.text}", style)
    if any(each.level == "blocked" for each in found):
        raise typer.Exit(1)


def _compared(context: typer.Context) -> Iterator[UpgradeStep]:
    try:
        read = loaded(context)
    except SettingsError as exc:
        for line in str(exc).splitlines():
            yield UpgradeStep("settings", "blocked", line)
        return
    yield from _settings(read)
    settings = read.settings
    running = asyncio.run(control.ready_in(settings.home))
    yield _program(running)
    schemas = list(_schema(settings))
    yield from schemas
    yield from _plugins(settings)
    yield from _room(settings)
    if any(each.level == "note" for each in schemas):
        yield _backup(settings)


def _settings(read: Loaded) -> Iterator[UpgradeStep]:
    for line in read.warnings:
        yield UpgradeStep("settings", "note", line)
    try:
        refuse_unusable(read.settings)
    except SettingsError as exc:
        yield UpgradeStep("settings", "blocked", str(exc))
        return
    if not read.warnings:
        yield UpgradeStep("settings", "fine", "this version knows every key")


def _program(running: dict[str, Any] | None) -> UpgradeStep:
    here = version("parley")
    if running is None:
        return UpgradeStep("program", "fine", f"{here} is installed; no gateway runs here")
    at_work = str(running.get("version", "an older version"))
    if at_work == here:
        return UpgradeStep("program", "fine", f"{here} is installed, and runs")
    return UpgradeStep("program", "note", f"{here} is installed, {at_work} runs: restart it")


def _schema(settings: Settings) -> Iterator[UpgradeStep]:
    location = location_of(settings)
    if isinstance(location, Path) and not location.exists():
        yield UpgradeStep(
            "schema", "fine", f"{location} is not there yet; the first start makes it"
        )
        return
    try:
        with maintenance.reading(location) as conn:
            found = migrations.schema_revision(conn)
            migrations.refuse_newer(conn)
    except GatewayError as exc:
        yield UpgradeStep("schema", "blocked", str(exc))
        return
    waiting = migrations.behind(found)
    if not waiting:
        yield UpgradeStep("schema", "fine", f"revision {schema.REVISION}, as this version has it")
        return
    how = "`parley db migrate`, or the next start, migrates it; an older version then refuses it"
    text = f"revision {found}, this version has {schema.REVISION}: {len(waiting)} to go. {how}"
    yield UpgradeStep("schema", "note", text)
    for each in waiting:
        yield UpgradeStep("migration", "note", each)


def _plugins(settings: Settings) -> Iterator[UpgradeStep]:
    enabled = set(settings.plugins.enabled)
    versions = _installed()
    for each in finding.available(settings.home):
        if each.name not in enabled:
            continue
        which = versions.get(each.name, each.source)
        if each.problem is None:
            yield UpgradeStep("plugin", "fine", f"{each.name} ({which}) can be tried")
        else:
            yield UpgradeStep("plugin", "blocked", f"{each.name} ({which}): {each.problem}")


def _installed() -> dict[str, str]:
    """Return the package and version of each plugin that is installed as one."""
    return {
        each.name: f"{each.dist.name} {each.dist.version}"
        for each in entry_points(group=finding.GROUP)
        if each.dist is not None
    }


def _room(settings: Settings) -> Iterator[UpgradeStep]:
    location = location_of(settings)
    if not (isinstance(location, Path) and location.exists()):
        return
    size, free = location.stat().st_size, shutil.disk_usage(location.parent).free
    text = f"{free / 1e6:,.0f} MB free beside a database of {size / 1e6:,.0f} MB"
    if free < ROOM * size:
        more = f"; a backup and a migration may need {ROOM * size / 1e6:,.0f} MB"
        yield UpgradeStep("disk", "blocked", text + more)
    else:
        yield UpgradeStep("disk", "fine", text)


def _backup(settings: Settings) -> UpgradeStep:
    last = backups.newest(backups.folder_of(settings))
    age_s = None if last is None else last.age_s(datetime.now(UTC))
    if last is not None and age_s is not None and age_s <= OLD_BACKUP_S:
        return UpgradeStep("backup", "fine", f"{last.path} is {age_s / 60:,.0f} minutes old")
    how = "`parley backup --to FOLDER` first: it is the only way back from a migration"
    return UpgradeStep("backup", "note", how)
