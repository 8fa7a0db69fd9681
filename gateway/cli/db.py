"""Stored data: `parley db`, `search`, `audit`, `forget`, `dead-letters`, `backup`, `restore`.

`forget` and `dead-letters` act through the running gateway, or directly on the database.
"""

import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.progress import Progress
from rich.table import Column

from agent.spans import SHOWN_DIGITS
from gateway.agent_ports.tools import Workspaces
from gateway.backup import backups, pruning
from gateway.backup.backups import DUMP, HOME, Backup
from gateway.cli.common import (
    AFTER,
    LISTED,
    AsJson,
    AsLines,
    ConversationArgument,
    Limit,
    act,
    err,
    json_line,
    loaded,
    opened,
    page_of,
    readable,
    say,
    settings_of,
    show_json,
    show_lines,
    show_next,
    show_table,
    trace_in,
    warn,
    write_whole,
)
from gateway.errors import GatewayError
from gateway.findings.settings import plain_secrets
from gateway.settings.loading import home_of, load_settings
from gateway.settings.references import argument
from gateway.storage import audit_log, maintenance
from gateway.storage.database import DatabaseServer, location_of
from gateway.storage.queue import dead_letters
from gateway.storage.queue.dead_letters import DeadLetter
from gateway.storage.reports import history
from gateway.storage.schema import REVISION, iso_time

NICENESS = 10
"""Niceness of long commands: about a tenth of a busy processor."""

db_app = typer.Typer(no_args_is_help=True)
forget_app = typer.Typer(add_completion=False)
letters_app = typer.Typer(no_args_is_help=True)
search_app = typer.Typer(no_args_is_help=True)
audit_app = typer.Typer(no_args_is_help=True)


@db_app.command("migrate")
def db_migrate(context: typer.Context) -> None:
    """Migrate the database to this version's schema (`parley run` does so unless told to wait)."""
    say(f"schema revision {maintenance.upgrade(location_of(loaded(context).settings))}")


@db_app.command("check")
def db_check(context: typer.Context) -> None:
    """Compare the database with this version: revision, tables, integrity."""
    os.nice(NICENESS)
    location = location_of(settings_of(context))
    problems = maintenance.check(location)
    for problem in problems:
        warn(problem, "red")
    if problems:
        raise typer.Exit(1)
    sound = "is sound and " if isinstance(location, Path) else ""
    more = "" if sound else "; `pg_amcheck` says whether its files are sound"
    say(f"the database {sound}has this version's schema (revision {REVISION}){more}")


@db_app.command("prune")
def db_prune(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the rows to erase without erasing them.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Erase rows older than `retention` and `storage.raw_days` now."""
    settings = loaded(context).settings
    retention, raw_days = settings.retention, settings.storage.raw_days
    if dry_run:
        with opened(settings) as conn:
            counted = pruning.count_all(conn, retention, raw_days)
        gone = {name: each._asdict() for name, each in counted.items()}
    else:
        # Use the caller's settings; the running gateway's may be older.
        target = {"retention": retention.model_dump(), "raw_days": raw_days}
        gone = act(settings, "prune", orjson.dumps(target).decode())
    if json:
        show_json(gone)
        return
    done = "would be erased" if dry_run else "erased"
    for name, each in gone.items():
        say(f"{name}: {each['rows']:,} rows, {each['bytes']:,} bytes {done}")


@db_app.command("copy")
def db_copy(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="URL of the SQLite file.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="URL of an empty PostgreSQL database.")
    ],
    *,
    json: AsJson = False,
) -> None:
    """Copy a SQLite file into an empty PostgreSQL database, all or nothing.

    URLs are sqlite:///FILE and postgresql://USER@HOST/NAME, or references to a secret URL
    (env:NAME, file:PATH). Stop every gateway on both databases first.
    """
    from gateway.storage import copying  # noqa: PLC0415

    os.nice(NICENESS)
    home = home_of(context.find_root().params.get("home"))
    file, server = copying.file_of(argument(source), home), copying.server_of(argument(target))
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("rows")

        def tell(part: str, rows: int, total: int) -> None:
            progress.update(task, description=part, completed=rows, total=total)

        digests = copying.copy(file, server, tell)
    if json:
        show_json([each._asdict() for each in digests])
        return
    rows = [[each.table, f"{each.rows:,}", each.sha256[:16]] for each in digests if each.rows]
    show_table(["table", Column("rows", justify="right"), "sha256"], rows, "there was nothing")
    count = sum(each.rows for each in digests)
    say(f"{copying.shown(server)} equals {file}: {count:,} rows")


@db_app.command("compact")
def db_compact(context: typer.Context) -> None:
    """Shrink the database file; stop the gateway first."""
    before, after = maintenance.compact(location_of(loaded(context).settings))
    say(f"{before:,} bytes before, {after:,} after")


@search_app.command("reindex")
def search_reindex(context: typer.Context) -> None:
    """Rebuild the index from the transcripts; chats continue meanwhile."""
    fed: int = act(settings_of(context), "reindex-search")
    say(f"{fed} messages were read again")


SAID = ("conversation", "by", "address", "subject", "detail")


@audit_app.command("export")
def audit_export(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="File to write; by default stdout.")] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write the whole audit log as JSON lines, oldest first."""
    with opened(settings_of(context)) as conn:
        rows = (
            {"seq": row.seq, "at": iso_time(row.at), "kind": row.kind}
            | {name: getattr(row, name) for name in (SAID[:1] if row.erased else SAID)}
            for row in audit_log.records(conn)
        )
        if file is None:
            show_lines(rows)
            return
        size = write_whole(file, map(json_line, rows), force=force)
    say(f"{file}: {size:,} bytes")


@forget_app.command()
def forget(
    context: typer.Context,
    conversation: ConversationArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Erase a conversation permanently: transcript, queue, sessions, stored outputs, files."""
    settings = settings_of(context)
    if not yes:
        with opened(settings) as conn:
            history.overview(conn, conversation)
        typer.confirm(f"Erase conversation {conversation} for good?", abort=True, err=True)
    messages = act(settings, "forget", str(conversation))
    Workspaces(settings.tools.workspace, settings.home).forget(conversation)
    say(f"erased conversation {conversation} with {messages} messages")


Letter = Annotated[str, typer.Argument(metavar="ID", help="Id from `parley dead-letters list`.")]


@letters_app.command("list")
def letters_list(
    context: typer.Context,
    limit: Limit = LISTED,
    after: Annotated[str | None, typer.Option(metavar="ID", help=AFTER)] = None,
    *,
    json: AsLines = False,
) -> None:
    """List the dead letters, newest first."""
    settings = settings_of(context)
    with opened(settings) as conn:
        found: list[DeadLetter] = dead_letters.find_all(conn, limit + 1, after)
    page, following = page_of(found, limit, lambda letter: letter.id)
    # The start of a trace id, which `parley logs` accepts.
    letters = [
        asdict(each)
        | {"trace": trace_in(settings, each.conversation, each.asked_seq)[:SHOWN_DIGITS]}
        for each in page
    ]
    if json:
        show_lines(letters)
        return
    headings = ("id", "kind", "conversation", "platform", "at", "trace", "reason")
    rows = [[each[name] for name in headings] for each in letters]
    show_table(headings, rows, "nothing was given up", after)
    show_next(following)


@letters_app.command("retry")
def letters_retry(context: typer.Context, letter: Letter) -> None:
    """Retry a dead letter."""
    act(settings_of(context), "retry-dead-letter", letter)
    say(f"{letter} is back in its queue")


@letters_app.command("drop")
def letters_drop(context: typer.Context, letter: Letter) -> None:
    """Remove a dead letter from the list."""
    act(settings_of(context), "drop-dead-letter", letter)
    say(f"{letter} is dropped")


backup_app = typer.Typer(add_completion=False)
restore_app = typer.Typer(add_completion=False)


@backup_app.command()
def backup(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="Copy only the database, to this file.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Folder of backups; by default the setting backup.to.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Number of backups to keep; by default all.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Back up database, home and workspaces, verified, even while the gateway runs."""
    os.nice(NICENESS)
    found = readable(context)
    settings = found.settings
    if file is not None:
        if to is not None or keep is not None:
            raise typer.BadParameter("a FILE is a copy of the database alone: leave --to, --keep")
        size = maintenance.backup(location_of(settings), file)
        say(f"{file}: {size:,} bytes")
        return
    folder = to.absolute() if to is not None else backups.folder_of(settings)
    if folder is None:
        raise GatewayError("where to? `parley backup --to FOLDER`, or set backup.to")
    if keep is None and to is None:
        keep = settings.backup.keep
    made = backups.make(settings, folder, keep)
    count = len(made.manifest["files"])
    if json:
        show_json({
            "path": str(made.path),
            "at": made.at.isoformat(),
            "age_s": round(made.age_s(datetime.now(UTC))),
            "bytes": made.size_bytes,
            "files": count,
            "left_out": dict(made.left_out),
            "version": made.manifest["version"],
            "revision": made.manifest["revision"],
        })
        return
    say(f"{made.path}: {made.size_bytes:,} bytes in {count:,} files, verified")
    if made.lacks:
        warn(made.lacks)
    file = found.config_file
    if file is not None and not _holds(made, file, settings.home):
        warn(f"the settings file is not in it, as it is elsewhere: keep a copy of {file}")
    elif plain := plain_secrets(found):
        warn(f"it contains the plain secrets of the settings file: {', '.join(plain)}")


def _holds(made: Backup, file: Path, home: Path) -> bool:
    """Whether a backup contains a settings file; files outside the home are not included."""
    file, home = file.resolve(), home.resolve()
    is_here = file.is_relative_to(home)
    return is_here and f"{HOME}/{file.relative_to(home)}" in made.manifest["files"]


@restore_app.command()
def restore(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The backup, a folder `parley-<time>`.")],
    check: Annotated[bool, typer.Option("--check", help="Only print the plan.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    outside: Annotated[
        list[Path] | None,
        typer.Option(help="A path outside PARLEY_HOME to which the backup may be restored."),
    ] = None,
) -> None:
    """Verify a backup completely, then restore it into an empty PARLEY_HOME."""
    from gateway.backup import restoring  # noqa: PLC0415

    os.nice(NICENESS)
    home, path = home_of(context.find_root().params.get("home")), folder.absolute()
    allowed = [each.absolute() for each in outside or ()]
    plan = restoring.plan_of(path, home, _server(context, path), allowed)
    for line in plan.lines():
        say(line)
    if check:
        return
    if not yes:
        typer.confirm("Restore it?", abort=True, err=True)
    restoring.restore(plan)
    say(f"{home} is restored: `parley doctor` looks at it, `parley run` starts it")
    say("both read the secrets above, and run the commands among them")
    say("what came after the backup is missing; platforms deliver again what was not acknowledged")


def _server(context: typer.Context, path: Path) -> DatabaseServer | None:
    """Return the target of a PostgreSQL copy, named by the operator, never by the backup.

    Ignore a parley.yaml in the home: it can only come from an interrupted restore.
    """
    if backups.require(path).manifest.get("database") != DUMP:
        return None
    config = context.find_root().params.get("config")
    nowhere = {"home": Path(os.devnull)}
    location = location_of(load_settings(config=config, overrides=nowhere).settings)
    return location if isinstance(location, DatabaseServer) else None
