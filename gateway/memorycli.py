"""`parley memory`: what the agent has noted down about people and conversations; erases it.

What it changes goes through the running gateway, or directly into the database where none runs.
"""

from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commandline import AsJson, act, opened, settings_of
from gateway.console import say, show_json, show_table

if TYPE_CHECKING:
    from gateway.storage.notebook import Note

memory_app = typer.Typer(help="What the agent has noted down.", no_args_is_help=True)


@memory_app.command("list")
def memory_list(
    context: typer.Context,
    scope: Annotated[
        str | None, typer.Argument(help="PLATFORM:ID of a person, or conversation:ID; all.")
    ] = None,
    *,
    json: AsJson = False,
) -> None:
    """List notes; those of a person stand in the prompts of all their direct chats."""
    notebook = import_module("gateway.storage.notebook")
    with opened(settings_of(context)) as conn:
        notes: list[Note] = notebook.all_notes(conn, scope)
    if json:
        show_json([asdict(note) for note in notes])
        return
    rows = [(note.id, note.scope, note.target, note.at, note.text) for note in notes]
    show_table(("id", "scope", "about", "since", "note"), rows, "there are no notes")


@memory_app.command("remove")
def memory_remove(
    context: typer.Context,
    which: Annotated[str, typer.Argument(help="Id of a note, or a scope for all its notes.")],
) -> None:
    """Erase a note, or all of a scope; prompts that hold it keep it until `/new`."""
    removed: int = act(settings_of(context), "remove-memory", which)
    say(f"{removed} {'note' if removed == 1 else 'notes'} erased")
