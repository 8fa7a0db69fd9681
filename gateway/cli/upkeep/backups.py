"""`parley backup` and `parley restore`: one folder with all that a home is, and back."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.common import AsJson, loaded, settings_of, step_back
from gateway.cli.output import say, show_json, warn
from gateway.doctor.settings import plain_secrets
from gateway.errors import GatewayError
from gateway.lifecycle import backups
from gateway.lifecycle.backups import DUMP, HOME, Backup
from gateway.settings.loading import home_of, load_settings
from gateway.storage import maintenance
from gateway.storage.database import DatabaseServer, location_of

backup_app = typer.Typer(add_completion=False)
restore_app = typer.Typer(add_completion=False)


@backup_app.command()
def backup(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="Copy the database alone, to this file.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Folder of all backups; else backup.to of the settings.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Remove the oldest beyond so many; else none goes.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Back up database, home and workspaces, even while the gateway runs; verified."""
    step_back()
    found = loaded(context)
    if file is not None:
        if to is not None or keep is not None:
            raise typer.BadParameter("a FILE is a copy of the database alone: leave --to, --keep")
        size = maintenance.backup(location_of(found.settings), file)
        say(f"{file}: {size:,} bytes")
        return
    folder = to.absolute() if to is not None else backups.folder_of(found.settings)
    if folder is None:
        raise GatewayError("where to? `parley backup --to FOLDER`, or set backup.to")
    if keep is None and to is None:
        keep = found.settings.backup.keep
    made = backups.make(found.settings, folder, keep)
    if json:
        show_json(facts_of(made))
        return
    count = len(made.manifest["files"])
    say(f"{made.path}: {made.size_bytes:,} bytes in {count:,} files, verified")
    if made.lacks:
        warn(made.lacks)
    file = found.config_file
    if file is not None and not _holds(made, file, found.settings.home):
        warn(f"the settings file is not in it, as it lies elsewhere: keep a copy of {file}")
    elif plain := plain_secrets(found):
        warn(f"it holds secrets as they stand in the settings file: {', '.join(plain)}")


def _holds(made: Backup, file: Path, home: Path) -> bool:
    """Whether a settings file is in a backup: one that lies elsewhere is not."""
    file, home = file.resolve(), home.resolve()
    is_here = file.is_relative_to(home)
    return is_here and f"{HOME}/{file.relative_to(home)}" in made.manifest["files"]


def facts_of(found: Backup) -> dict[str, Any]:
    """Return what is known of a backup, for JSON."""
    told = found.manifest
    return {
        "path": str(found.path),
        "at": found.at.isoformat(),
        "age_s": round(found.age_s(datetime.now(UTC))),
        "bytes": found.size_bytes,
        "files": len(told["files"]),
        "left_out": dict(found.left_out),
        "version": told["version"],
        "revision": told["revision"],
    }


@restore_app.command()
def restore(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A backup: a folder `parley-<time>`.")],
    check: Annotated[bool, typer.Option("--check", help="Only say what would be done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    outside: Annotated[
        list[Path] | None,
        typer.Option(help="A place outside of PARLEY_HOME that the backup may be written to."),
    ] = None,
) -> None:
    """Restore a backup into an empty PARLEY_HOME, after checking it completely."""
    # What restores is imported for no other command.
    from gateway.lifecycle import restoring  # noqa: PLC0415

    step_back()
    home, path = home_of(context.find_root().params.get("home")), folder.absolute()
    allowed = [each.absolute() for each in outside or ()]
    plan = restoring.plan_of(path, home, _server(context, path, home), allowed)
    for line in plan.lines():
        say(line)
    if check:
        return
    if not yes:
        typer.confirm("Restore it?", abort=True, err=True)
    restoring.restore(plan)
    say(f"{home} is restored: `parley doctor` looks at it, `parley run` starts it")
    say("what came after the backup is missing; platforms deliver again what was not acknowledged")


def _server(context: typer.Context, path: Path, home: Path) -> DatabaseServer | None:
    """Return where a copy of PostgreSQL's goes: by the settings, else by those in the backup."""
    if backups.require(path).manifest.get("database") != DUMP:
        return None
    settings = settings_of(context)
    kept = path / HOME / "parley.yaml"
    if settings.storage.url is None and kept.exists():
        settings = load_settings(config=kept, overrides={"home": home}).settings
    location = location_of(settings)
    return location if isinstance(location, DatabaseServer) else None
