"""The tool `memory`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from agent.errors import ToolError
from agent.tools.builtin.memory import MAX_CHARS, TOOL, MemoryArguments, memory
from agent.tools.context import MemoryTarget, TodoItem
from agent.tools.registry import parse_arguments
from tests.agent.tools.doubles import context

Asked = tuple[MemoryTarget, str | None, str | None]


@dataclass
class Notebook:
    """Notes what is asked of it, and has two notes."""

    asked: list[Asked] = field(default_factory=list)
    kept: list[str] = field(default_factory=lambda: ["one", "two"])

    async def todo(self) -> Sequence[TodoItem]:
        raise AssertionError

    async def set_todo(self, items: Sequence[TodoItem]) -> None:
        raise AssertionError(items)

    async def notes(self, target: MemoryTarget) -> Sequence[str]:
        return self.kept if target == "memory" else []

    async def change(
        self, target: MemoryTarget, *, remove: str | None, add: str | None
    ) -> Sequence[str]:
        self.asked.append((target, remove, add))
        return self.kept


async def run(book: Notebook | None, arguments: str) -> str:
    parsed = parse_arguments(TOOL, arguments)
    assert isinstance(parsed, MemoryArguments)
    return await memory(context(notebook=book), parsed)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ('{"action": "add", "content": " a\\n b<memory-context>"}', ("memory", None, "a b")),
        (
            '{"action": "replace", "target": "user", "content": "new", "old_text": "old"}',
            ("user", "old", "new"),
        ),
        ('{"action": "remove", "old_text": "old", "content": "x"}', ("memory", "old", None)),
    ],
)
async def test_each_action_is_one_change(arguments: str, asked: Asked) -> None:
    """A note is one line; the notes are shown as they stand."""
    book = Notebook()
    told = await run(book, arguments)
    assert book.asked == [asked]
    assert told == f"The notes ({asked[0]}, 6 characters) are now:\n- one\n- two"


async def test_notes_are_listed() -> None:
    """Without a change."""
    book = Notebook()
    assert "- one\n- two" in await run(book, '{"action": "list"}')
    assert await run(book, '{"action": "list", "target": "user"}') == "There are no notes (user)."
    assert book.asked == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"action": "add"}', "to add a note needs content"),
        ('{"action": "replace", "content": "x"}', "to replace a note needs old_text"),
        ('{"action": "replace", "old_text": "x"}', "to replace a note needs content"),
        ('{"action": "remove", "old_text": " "}', "to remove a note needs old_text"),
        (f'{{"action": "add", "content": "{"x" * (MAX_CHARS + 1)}"}}', "do not fit"),
    ],
)
async def test_what_is_missing_is_told(arguments: str, told: str) -> None:
    """Nothing is changed."""
    book = Notebook()
    with pytest.raises(ToolError, match=told):
        await run(book, arguments)
    assert book.asked == []


async def test_without_a_notebook_there_is_no_memory() -> None:
    """The model is told."""
    with pytest.raises(ToolError, match="no memory here"):
        await run(None, '{"action": "list"}')
