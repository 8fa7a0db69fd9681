"""Looks after the database: `parley db`, `parley backup`, `parley forget`, `parley dead-letters`.

A dead letter is what was given up. What `forget` and `dead-letters` change goes through the running
gateway, or directly into the database where none runs.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer

from gateway.agent_ports.tools import Workspaces
from gateway.cli.common import (
    AFTER,
    LISTED,
    AsJson,
    AsLines,
    ConversationArgument,
    Limit,
    act,
    opened,
    settings_of,
    step_back,
)
from gateway.cli.output import page_of, say, show_json, show_lines, show_next, show_table, warn
from gateway.lifecycle import pruning
from gateway.storage import identity, maintenance
from gateway.storage.database import location_of
from gateway.storage.engine import lock_database
from gateway.storage.queue import dead_letters
from gateway.storage.queue.dead_letters import DeadLetter
from gateway.storage.reports import history

db_app = typer.Typer(help="Look after the database's schema.", no_args_is_help=True)
backup_app = typer.Typer(add_completion=False)
forget_app = typer.Typer(add_completion=False)
letters_app = typer.Typer(help="What was given up, and why.", no_args_is_help=True)


@db_app.command("upgrade")
def db_upgrade(context: typer.Context) -> None:
    """Bring the database to this version's schema (`parley run` does it by itself)."""
    say(f"schema revision {maintenance.upgrade(location_of(settings_of(context)))}")


@db_app.command("current")
def db_current(context: typer.Context) -> None:
    """Print the schema revision of the database."""
    say(maintenance.current(location_of(settings_of(context))) or "no schema yet")


@db_app.command("check")
def db_check(context: typer.Context) -> None:
    """Compare the database with this version: revision, tables, integrity."""
    step_back()
    problems = maintenance.check(location_of(settings_of(context)))
    for problem in problems:
        warn(problem, "red")
    if problems:
        raise typer.Exit(1)
    say("the database is sound and has this version's schema")


@db_app.command("prune")
def db_prune(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be erased.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Erase what is older than `retention` and `storage.raw_days` allow, at once."""
    settings = settings_of(context)
    retention, raw_days = settings.retention, settings.storage.raw_days
    if dry_run:
        with opened(settings) as conn:
            counted = pruning.count_all(conn, retention, raw_days)
        gone = {name: each._asdict() for name, each in counted.items()}
    else:
        # The settings of whoever asks: those of the running gateway may be older.
        target = {"retention": retention.model_dump(), "raw_days": raw_days}
        gone = act(settings, "prune", orjson.dumps(target).decode())
    if json:
        show_json(gone)
        return
    done = "would be erased" if dry_run else "erased"
    for name, each in gone.items():
        say(f"{name}: {each['rows']:,} rows, {each['bytes']:,} bytes {done}")


@db_app.command("compact")
def db_compact(context: typer.Context) -> None:
    """Make the file as small as what is in it; the gateway must be stopped."""
    before, after = maintenance.compact(location_of(settings_of(context)))
    say(f"{before:,} bytes before, {after:,} after")


@db_app.command("accept")
def db_accept(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Go on with the database that is there, after a restore: it may lack what was stored."""
    settings = settings_of(context)
    path = maintenance.file_at(
        location_of(settings),
        "what is restored there is taken as it is, there is nothing to accept",
    )
    mark = identity.mark_of(path, settings.home)
    if not yes:
        what = path if path.exists() else "an empty database"
        typer.confirm(f"Go on with {what}, whatever it lacks?", abort=True, err=True)
    # Fails while a gateway runs, which writes the mark itself.
    with lock_database(path):
        known = identity.accept(mark)
    say("the next start takes it as it is" if known else "there is nothing to accept")


@backup_app.command()
def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Where to write the copy.")],
) -> None:
    """Copy the database, consistently, also while the gateway runs."""
    step_back()
    size = maintenance.backup(location_of(settings_of(context)), file)
    say(f"{file}: {size:,} bytes")


@forget_app.command()
def forget(
    context: typer.Context,
    conversation: ConversationArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Erase one conversation for good: transcript, queue, sessions, stored outputs, files."""
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
    """List what was given up, the newest first."""
    with opened(settings_of(context)) as conn:
        found: list[DeadLetter] = dead_letters.find_all(conn, limit + 1, after)
    letters, following = page_of(found, limit, lambda letter: letter.id)
    if json:
        show_lines(map(asdict, letters))
        return
    headings = ("id", "kind", "conversation", "platform", "at", "reason")
    rows = [[getattr(letter, name) for name in headings] for letter in letters]
    show_table(headings, rows, "nothing was given up", after)
    show_next(following)


@letters_app.command("show")
def letters_show(context: typer.Context, letter: Letter, *, json: AsJson = False) -> None:
    """Print one dead letter with its text."""
    with opened(settings_of(context)) as conn:
        found: DeadLetter = dead_letters.find(conn, letter)
    if json:
        show_json(asdict(found))
        return
    for name in ("id", "kind", "conversation", "platform", "chat", "at", "reason"):
        say(f"{name}: {getattr(found, name)}")
    say(f"\n{found.text}")


@letters_app.command("retry")
def letters_retry(context: typer.Context, letter: Letter) -> None:
    """Put a dead letter back into its queue."""
    act(settings_of(context), "retry-dead-letter", letter)
    say(f"{letter} is back in its queue")


@letters_app.command("drop")
def letters_drop(context: typer.Context, letter: Letter) -> None:
    """Take a dead letter off the list."""
    act(settings_of(context), "drop-dead-letter", letter)
    say(f"{letter} is dropped")
