"""Tools of plugins: which can be offered, and what one may do while it runs."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import BaseModel

from agent.errors import ToolError, TurnSuspended
from agent.plugins.supervision import Caller
from agent.plugins.tools import hosted, tool_problem
from agent.ports import PastMessage
from agent.tools.context import ToolContext, ToolOutcome, TurnServices
from agent.tools.registry import Tool, ToolRegistry
from tests.agent.plugins.plugins import NoArguments, tool
from tests.agent.tools.doubles import MemoryReader, call, context


class Unserialisable(BaseModel):
    """No JSON schema describes it."""

    function: Callable[[], int]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "two words"}, "in its name only letters"),
        ({"name": 7}, "in its name only letters"),
        ({"description": " "}, "no description"),
        ({"effect": "write"}, "its effect is 'write'"),
        ({"run": None}, "its run is no function"),
        ({"timeout_s": 0}, "its timeout_s is 0"),
        ({"timeout_s": "1"}, "its timeout_s is '1'"),
        ({"arguments": dict}, "no class derived from pydantic"),
        ({"arguments": Unserialisable}, "no JSON schema: PydanticInvalidForJsonSchema"),
    ],
)
def test_what_no_model_could_call_is_no_tool(changes: dict[str, Any], problem: str) -> None:
    """Each for a reason that its author understands."""
    assert problem in str(tool_problem(replace(tool(lambda *_: ""), **changes)))


def test_a_sound_tool_has_no_problem() -> None:
    """Only what is no tool at all is something else."""
    assert tool_problem(tool(lambda *_: "")) is None
    assert tool_problem("tool") == "it is no agent.tools.registry.Tool"


async def run(offered: Tool, used: ToolContext | None = None) -> ToolOutcome:
    """Run a plugin's tool as the loop would."""
    registry = ToolRegistry([hosted(offered, Caller("mine", 10))])
    return await registry.execute(call(offered.name), used or context())


@pytest.mark.parametrize(("value", "text"), [(None, ""), (7, "7"), ("sun", "sun")])
async def test_results_become_text(value: object, text: str) -> None:
    """Of sync and of async tools."""

    async def later(*_: object) -> object:
        return value

    assert await run(tool(lambda *_: value)) == ToolOutcome(text, "ok")
    assert await run(tool(later)) == ToolOutcome(text, "ok")


def failing(failure: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise failure

    return fail


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ToolError("ask otherwise"), "Error: ask otherwise"),
        (ValueError("secret"), "Error: weather failed with ValueError"),
        (TurnSuspended("wait"), "Error: weather failed with RuntimeError"),
    ],
)
async def test_failures_are_outcomes(failure: Exception, told: str) -> None:
    """None ends or suspends the turn."""
    assert await run(tool(failing(failure))) == ToolOutcome(told, "error")


async def test_a_tool_that_blocks_is_left_behind() -> None:
    """Whatever it calls, the event loop goes on."""
    end = threading.Event()

    async def block(*_: object) -> None:
        end.wait()

    outcome = await run(tool(block, timeout_s=1))
    end.set()
    assert outcome == ToolOutcome("Error: weather: no answer within 1 s", "error")


class Box:
    """Takes files, on the loop that it was made on."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def offer(self, name: str, mime: str, content: bytes) -> str:
        assert asyncio.get_running_loop() is self.loop
        return f"{name} {mime} {len(content)}"


async def test_a_tool_reads_the_conversation_and_offers_files() -> None:
    """From its own thread; it gets nothing that could change anything else."""

    async def use(used: ToolContext, _: NoArguments) -> object:
        assert used.files is not None
        assert used.services == TurnServices()
        [message] = await used.reader.read(from_seq=None, limit=1, contains=None)
        output = await used.reader.read_output("o1")
        return message.text, output, await used.files.offer("a", "text/plain", b"x"), used.scope

    reader = MemoryReader([PastMessage(1, "user", "hi", "")], o1="long")
    used = context(reader, files=Box(), scope="telegram:7", progress=Mock())
    assert (await run(tool(use), used)).text == str(("hi", "long", "a text/plain 1", "telegram:7"))


@pytest.mark.parametrize(
    ("changes", "restricted"),
    [
        ({}, False),
        ({"restricted": True}, True),
        ({"effect": "idempotent"}, True),
        ({"effect": "side_effect"}, True),
    ],
)
async def test_what_changes_something_is_not_for_guests(
    changes: dict[str, Any], restricted: bool
) -> None:
    """Whatever the plugin says about it."""
    offered = tool(lambda *_: "", **changes)
    assert hosted(offered, Caller("mine", 1)).restricted is restricted
    outcome = await run(offered, context(may_act=False))
    assert (outcome.status == "refused") is restricted
