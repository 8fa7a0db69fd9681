"""`parley dead-letters`: what was given up, and why; puts it back or takes it off the list.

What it changes goes through the running gateway, or directly into the database where none runs.
"""

from dataclasses import asdict
from typing import Annotated

import typer

from gateway.cli.common import AFTER, LISTED, AsJson, AsLines, Limit, act, opened, settings_of
from gateway.cli.console import page_of, say, show_json, show_lines, show_next, show_table
from gateway.storage.queue import dead_letters
from gateway.storage.queue.dead_letters import DeadLetter

letters_app = typer.Typer(help="What was given up, and why.", no_args_is_help=True)

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
