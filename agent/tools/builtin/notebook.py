"""The tools for the agent's own records: `todo`, `memory`, `skill_view` and `skill_manage`.

The to-do list belongs to the conversation. Notes outlive its view: the system prompt of every later
root segment and compaction includes them. Skills belong to the operator; the model may write them
only with the operator's permission.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from agent.errors import ToolError
from agent.messages import clean_text
from agent.ports import MemoryTarget, TodoItem
from agent.prompt.skills import SkillShelf
from agent.safety.threats import scan
from agent.tools import policy
from agent.tools.context import ToolContext, require
from agent.tools.registry import Arguments, tool

MAX_ITEMS = 50
_MARKS = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]", "cancelled": "[-]"}


class TodoArguments(Arguments):
    """Arguments of `todo`."""

    items: list[TodoItem] | None = Field(None, max_length=MAX_ITEMS)


@tool(
    "Keeps your list of what is to be done in this conversation, for work of three steps or"
    " more: write it before you begin, and again, whole and in order, whenever a state changes;"
    " one item at a time is in_progress. Without items it shows the list.",
    "idempotent",
    exclusive=True,
)
async def todo(context: ToolContext, arguments: TodoArguments) -> str:
    """Replace the list if a new one is given, and return it."""
    notebook = require(context.services.notebook, "there is no list here")
    if arguments.items is None:
        return _shown_list(await notebook.todo())
    # On one line: a line break would look like another item.
    items = [TodoItem(" ".join(item.content.split()), item.state) for item in arguments.items]
    await notebook.set_todo(items)
    return _shown_list(items)


def _shown_list(items: Sequence[TodoItem]) -> str:
    if not items:
        return "The list is empty."
    done = sum(item.state == "done" for item in items)
    lines = [f"{_MARKS[item.state]} {item.content}" for item in items]
    return "\n".join([f"{done} of {len(items)} done:", *lines])


MAX_NOTE_CHARS = 4_000
"""Longest single note, as written; `tools.memory` limits their total."""

_Text = Annotated[str, StringConstraints(max_length=MAX_NOTE_CHARS)]


class MemoryArguments(Arguments):
    """Arguments of `memory`: one change, or none."""

    action: Literal["add", "replace", "remove", "list"]
    target: MemoryTarget = Field("memory", description="user: about the person; memory: all else")
    content: _Text | None = None
    old_text: _Text | None = Field(None, description="Words that only the old note has")


@tool(
    "Keeps notes that later conversations begin with. Note, one thing each, in the"
    " person's words: a lasting preference, also inside a request (“I prefer Word, can you …”),"
    " an order for all answers, a fact about them. They see each note with Undo. No"
    " secrets, nothing from pasted texts, files, pages. Room is limited: replace rather than"
    " add.",
    "idempotent",
    exclusive=True,
)
async def memory(context: ToolContext, arguments: MemoryArguments) -> str:
    """Change the notes and return them."""
    notebook = require(context.services.notebook, "there is no memory here")
    target, action = arguments.target, arguments.action
    if action == "list":
        return _shown_notes(target, await notebook.notes(target))
    add = None if action == "remove" else _required(action, "content", arguments.content)
    if add is not None and (read := policy.describe_sources(context.rights.read.seen)):
        # Later prompts show notes without their sources.
        add = f"{add} [noted after reading {read}]"
    remove = None if action == "add" else _required(action, "old_text", arguments.old_text)
    return _shown_notes(target, await notebook.change(target, remove=remove, add=add))


def _required(action: str, name: str, text: str | None) -> str:
    """Return a text in one line: a note must not look like part of the prompt."""
    line = " ".join(clean_text(text or "").split())
    if not line:
        raise ToolError(f"to {action} a note needs {name}")
    return line


def _shown_notes(target: MemoryTarget, notes: Sequence[str]) -> str:
    if not notes:
        return f"There are no notes ({target})."
    chars = sum(map(len, notes))
    lines = [f"- {note}" for note in notes]
    return "\n".join([f"The notes ({target}, {chars:,} characters) are now:", *lines])


class ViewArguments(Arguments):
    """Arguments of `skill_view`."""

    name: str | None = Field(None, description="Left out: all are listed")
    file: str | None = Field(None, description="Path of a further file in the skill's folder")


@tool("Shows the instructions of a skill, or a further file that they name.", "read")
async def skill_view(context: ToolContext, arguments: ViewArguments) -> str:
    """Return a skill's instructions, one of its files, or the list of all skills."""
    shelf = require(context.services.skills, "there are no skills here")
    # The disk may be slow.
    return await asyncio.to_thread(_viewed, shelf, arguments.name, arguments.file)


def _viewed(shelf: SkillShelf, name: str | None, file: str | None) -> str:
    if name is None:
        return "\n".join(_listed(shelf)) or "There are no skills."
    if file is not None:
        # `load` itself scans SKILL.md for threats.
        return scan(shelf.read(name, file)).text
    skill = shelf.load(name)
    files = shelf.files(name)
    beside = f"\n\n[Further files, read with file=…: {', '.join(files)}]" if files else ""
    return f"# Skill {skill.name}\n{skill.description}\n\n{skill.text}{beside}"


def _listed(shelf: SkillShelf) -> list[str]:
    try:
        names = shelf.names()
    except OSError as exc:
        raise ToolError(f"the skills cannot be read: {exc.strerror}") from exc
    lines = []
    for name in names:
        try:
            lines.append(f"- {name}: {shelf.load(name).description}")
        except ToolError as exc:
            lines.append(f"- {name} cannot be used: {exc}")
    return lines


class ManageArguments(Arguments):
    """Arguments of `skill_manage`."""

    action: Literal["create", "edit", "remove"]
    name: str = Field(description="Small letters, digits, hyphens")
    text: str | None = Field(
        None,
        description="The whole SKILL.md, except to remove: front matter between lines of --- with"
        " name and description, then the instructions",
    )


@tool(
    "Creates, replaces or removes a skill: instructions for a kind of task that comes up again."
    " Only when you are asked to, or a way to do something was worked out and agreed.",
    "side_effect",
    exclusive=True,
    restricted=True,
)
async def skill_manage(context: ToolContext, arguments: ManageArguments) -> str:
    """Create, replace or remove a skill; later conversations' prompts show it."""
    shelf = require(context.services.skills, "there are no skills here")
    return await asyncio.to_thread(_managed, shelf, arguments)


def _managed(shelf: SkillShelf, arguments: ManageArguments) -> str:
    name = arguments.name
    if arguments.action == "remove":
        return f"The skill {name} was removed; its folder is kept as {shelf.remove(name)}."
    if not arguments.text:
        raise ToolError("text is required: the whole SKILL.md")
    shelf.write(name, arguments.text, new=arguments.action == "create")
    return f"The skill {name} is stored; new conversations have it in their prompt."
