"""The tool `send_file`."""

from dataclasses import replace

import pytest

from agent.errors import ToolError
from agent.tools.builtin.send_file import TOOL, FileArguments, send_file
from tests.agent.tools.doubles import context


class Box:
    """Keeps what is offered."""

    def __init__(self) -> None:
        self.offered: list[tuple[str, str, bytes]] = []

    async def offer(self, name: str, mime: str, content: bytes) -> str:
        self.offered.append((name, mime, content))
        return "clean name"


@pytest.mark.parametrize(
    ("name", "mime"),
    [("a.md", "text/markdown"), ("a.csv", "text/csv"), ("a", "text/plain"), ("a.x1", "text/plain")],
)
async def test_a_text_becomes_a_file(name: str, mime: str) -> None:
    """Its type follows from its name; the result tells the name under which it is shown."""
    box = Box()
    told = await send_file(replace(context(), files=box), FileArguments(name=name, text="grün"))
    assert box.offered == [(name, mime, "grün".encode())]
    assert told == "The file 'clean name' (5 bytes) will be shown with your answer."


async def test_half_a_surrogate_pair_does_no_harm() -> None:
    """Models write such things."""
    box = Box()
    await send_file(replace(context(), files=box), FileArguments(name="a", text="\ud800!"))
    assert box.offered[0][2] == b"?!"


async def test_where_no_files_are_taken_the_model_is_told() -> None:
    """It can write the text in its answer instead."""
    with pytest.raises(ToolError, match="no files can be sent here"):
        await send_file(context(), FileArguments(name="a.md", text="x"))


async def test_a_file_needs_a_name() -> None:
    """An empty one is a mistake of the model's."""
    with pytest.raises(ToolError, match="needs a name"):
        await send_file(replace(context(), files=Box()), FileArguments(name=" ", text="x"))


def test_it_may_run_again() -> None:
    """The same file of the same turn is one file."""
    assert TOOL.effect == "idempotent"
