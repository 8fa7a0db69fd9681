"""`parley memory`: what the agent has noted down about people and conversations; erases it.

What it changes goes through the running gateway, or directly into the database where none runs.
"""

from dataclasses import asdict
from typing import Annotated

import typer

from gateway.cli.common import AFTER, LISTED, AsLines, Limit, act, id_of, opened, settings_of
from gateway.cli.console import page_of, say, show_lines, show_next, show_table
from gateway.storage.people import notebook
from gateway.storage.people.notebook import Note

memory_app = typer.Typer(help="What the agent has noted down.", no_args_is_help=True)


@memory_app.command("list")
def memory_list(
    context: typer.Context,
    scope: Annotated[
        str | None, typer.Argument(help="PLATFORM:ID of a person, or conversation:ID; all.")
    ] = None,
    limit: Limit = LISTED,
    after: Annotated[
        int | None, typer.Option(parser=id_of("note"), metavar="ID", help=AFTER)
    ] = None,
    *,
    json: AsLines = False,
) -> None:
    """List notes, newest first; a person's stand in the prompts of all their direct chats."""
    with opened(settings_of(context)) as conn:
        found: list[Note] = notebook.all_notes(conn, scope, limit + 1, after)
    notes, following = page_of(found, limit, lambda note: note.id)
    if json:
        show_lines(map(asdict, notes))
        return
    rows = [(note.id, note.scope, note.target, note.at, note.text) for note in notes]
    show_table(("id", "scope", "about", "since", "note"), rows, "there are no notes", after)
    show_next(following)


@memory_app.command("remove")
def memory_remove(
    context: typer.Context,
    which: Annotated[str, typer.Argument(help="Id of a note, or a scope for all its notes.")],
) -> None:
    """Erase a note, or all of a scope; prompts that hold it keep it until `/new`."""
    removed: int = act(settings_of(context), "remove-memory", which)
    say(f"{removed} {'note' if removed == 1 else 'notes'} erased")
