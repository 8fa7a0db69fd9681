"""The tool `todo`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from agent.errors import ToolError
from agent.tools.builtin.todo import MAX_CHARS, MAX_ITEMS, TOOL, TodoArguments, todo
from agent.tools.context import MemoryTarget, TodoItem
from agent.tools.registry import parse_arguments
from tests.agent.tools.doubles import context


@dataclass
class Notebook:
    """Keeps a list."""

    items: list[TodoItem] = field(default_factory=list)

    async def todo(self) -> Sequence[TodoItem]:
        return self.items

    async def set_todo(self, items: Sequence[TodoItem]) -> None:
        self.items = [*items]

    async def notes(self, target: MemoryTarget) -> Sequence[str]:
        raise AssertionError(target)

    async def change(
        self, target: MemoryTarget, *, remove: str | None, add: str | None
    ) -> Sequence[str]:
        raise AssertionError((target, remove, add))


async def run(book: Notebook | None, arguments: str = "{}") -> str:
    parsed = parse_arguments(TOOL, arguments)
    assert isinstance(parsed, TodoArguments)
    return await todo(context(notebook=book), parsed)


async def test_a_list_is_written_and_shown() -> None:
    """Whole, one line for each item."""
    book = Notebook()
    told = await run(
        book,
        '{"items": [{"content": "a\\nb", "state": "done"}, {"content": " c "},'
        ' {"content": "d", "state": "in_progress"}, {"content": "e", "state": "cancelled"}]}',
    )
    assert told == "1 of 4 done:\n[x] a b\n[ ] c\n[>] d\n[-] e"
    assert book.items[0] == TodoItem("a b", "done")
    assert await run(book) == told


async def test_an_empty_list_is_told_from_none() -> None:
    """No items: the list is shown; an empty one: it is emptied."""
    book = Notebook([TodoItem("a")])
    assert await run(book) == "0 of 1 done:\n[ ] a"
    assert await run(book, '{"items": []}') == "The list is empty."
    assert book.items == []


@pytest.mark.parametrize(
    "items",
    [
        '[{"content": " "}]',
        f'[{{"content": "{"x" * (MAX_CHARS + 1)}"}}]',
        "[" + ",".join(['{"content": "x"}'] * (MAX_ITEMS + 1)) + "]",
        '[{"content": "x", "state": "soon"}]',
    ],
)
async def test_what_is_no_list_is_refused(items: str) -> None:
    """Empty, too long, too many, in no known state."""
    with pytest.raises(ToolError, match="do not fit"):
        await run(Notebook(), f'{{"items": {items}}}')


async def test_without_a_notebook_there_is_no_list() -> None:
    """The model is told."""
    with pytest.raises(ToolError, match="no list here"):
        await run(None)
