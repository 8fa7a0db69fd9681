"""The tool `todo`: the agent's list of what is to be done in this conversation."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from agent.errors import ToolError
from agent.tools.context import TodoItem, ToolContext
from agent.tools.registry import Arguments, Tool

MAX_ITEMS = 50
MAX_CHARS = 300
"""Of one item: it is a line of a list, not a note."""

_MARKS = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]", "cancelled": "[-]"}
_Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_CHARS)]


class Item(Arguments):
    """One thing to be done."""

    content: _Line
    state: Literal["pending", "in_progress", "done", "cancelled"] = "pending"


class TodoArguments(Arguments):
    """The list as it is to be."""

    items: list[Item] | None = Field(None, max_length=MAX_ITEMS)


async def todo(context: ToolContext, arguments: TodoArguments) -> str:
    """Replace the list where one is given, and show it as it stands."""
    if context.services.notebook is None:
        raise ToolError("there is no list here")
    if arguments.items is None:
        return _shown(await context.services.notebook.todo())
    items = [TodoItem(" ".join(item.content.split()), item.state) for item in arguments.items]
    await context.services.notebook.set_todo(items)
    return _shown(items)


def _shown(items: Sequence[TodoItem]) -> str:
    if not items:
        return "The list is empty."
    done = sum(item.state == "done" for item in items)
    lines = [f"{_MARKS[item.state]} {item.content}" for item in items]
    return "\n".join([f"{done} of {len(items)} done:", *lines])


TOOL = Tool(
    name="todo",
    description=(
        "Keeps your list of what is to be done in this conversation, for work of three steps or"
        " more: write it before you begin, and again, whole and in order, whenever a state changes;"
        " one item at a time is in_progress. Without items it shows the list."
    ),
    effect="idempotent",
    arguments=TodoArguments,
    run=todo,
    exclusive=True,
)
