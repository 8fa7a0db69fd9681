"""Tools that an engine offers to the model, beside the ordinary ones."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import create_model
from structlog.testing import capture_logs

from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Limits
from agent.errors import ToolError
from agent.messages import ToolSchema
from agent.plugins.engines.tools import EngineTools
from agent.tools.context import ToolContext, ToolOutcome, TurnServices
from agent.tools.registry import Arguments, Tool, ToolRegistry
from tests.agent.tools.doubles import NOW, MemoryReader
from tests.support.scripted_model import tool_call

GREP = ToolSchema("grep", "Searches what was archived.", {"type": "object"})


class Searching(ContextEngine):
    """Answers calls of its tool as the test says."""

    name = "searching"

    def __init__(self, answer: Callable[[Mapping[str, Any]], Any]) -> None:
        super().__init__(Limits(4_000), {})
        self.answer = answer

    def compress(self, request: CompressionRequest) -> Compressed | None:
        return None

    def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        answer: str = self.answer(arguments)
        return answer


async def _add(context: ToolContext, arguments: Any) -> str:
    return str(arguments.one + arguments.two)


ADD = Tool(
    "add",
    "Adds.",
    "idempotent",
    create_model("Add", __base__=Arguments, one=(int, ...), two=(int, ...)),
    _add,
    exclusive=False,
)


def context(answer: Callable[[Mapping[str, Any]], Any] = lambda arguments: "found") -> ToolContext:
    """Return the context of a turn with an engine that answers so."""
    return ToolContext(
        "1", MemoryReader(), lambda: NOW, services=TurnServices(engine=Searching(answer))
    )


def tools(time_limit_s: float = 5) -> EngineTools:
    """Return the engine's tool beside another one."""
    return EngineTools(ToolRegistry([ADD]), [GREP], time_limit_s=time_limit_s)


async def outcome(answer: Callable[[Mapping[str, Any]], Any], arguments: str = "{}") -> ToolOutcome:
    """Run the engine's tool once."""
    call = tool_call("grep", {})
    call["function"]["arguments"] = arguments
    return await tools().execute(call, context(answer))


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What hanging tools wait for; they are let go when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_the_engines_tools_follow_the_others() -> None:
    """In a fixed order; they only read, and run one at a time."""
    box = tools()
    assert [schema.name for schema in box.schemas] == ["add", "grep"]
    assert (box.effect("add"), box.effect("grep"), box.effect("?")) == (
        "idempotent",
        "read",
        "read",
    )
    assert (box.exclusive("add"), box.exclusive("grep")) == (False, True)


def test_a_name_is_given_once() -> None:
    """A tool that would hide another one is left out, with a warning."""
    again = replace(GREP, description="Another.")
    with capture_logs() as logs:
        box = EngineTools(ToolRegistry([ADD]), [replace(GREP, name="add"), GREP, again])
    assert box.schemas[1:] == (GREP,)
    assert [(event["event"], event["tool"]) for event in logs] == [
        ("engine_tool_skipped", "add"),
        ("engine_tool_skipped", "grep"),
    ]


async def test_each_call_goes_where_it_belongs() -> None:
    """The others' to the others, an unknown one as well."""
    box = tools()
    assert await box.execute(tool_call("add", {"one": 1, "two": 2}), context()) == ToolOutcome(
        "3", "ok"
    )
    assert "no tool 'lost'" in (await box.execute(tool_call("lost", {}), context())).text


async def test_the_engine_gets_the_arguments() -> None:
    """As a map; no text means none."""
    assert await outcome(lambda given: f"got {given}", '{"words": ["a"]}') == ToolOutcome(
        "got {'words': ['a']}", "ok"
    )
    assert (await outcome(str, " ")).text == "{}"


@pytest.mark.parametrize("raw", ["{", "[1]", "7"])
async def test_arguments_must_be_an_object(raw: str) -> None:
    """The model is told."""
    answer = await outcome(str, raw)
    assert answer.status == "error"
    assert "the arguments of grep" in answer.text


async def test_what_the_engine_tells_the_model() -> None:
    """A ToolError's text, without a log line."""

    def refuse(arguments: Mapping[str, Any]) -> str:
        raise ToolError("no such page")

    with capture_logs() as logs:
        assert await outcome(refuse) == ToolOutcome("Error: no such page", "error")
    assert logs == []


async def test_what_it_should_not_raise() -> None:
    """The model learns the class, the log the traceback."""
    with capture_logs() as logs:
        answer = await outcome(lambda arguments: arguments["missing"])
    assert answer == ToolOutcome("Error: grep failed with KeyError", "error")
    assert [(event["event"], event["tool"]) for event in logs] == [("tool_failed", "grep")]


async def test_what_takes_too_long(hang: threading.Event) -> None:
    """The turn goes on."""
    box = tools(time_limit_s=1)
    answer = await box.execute(tool_call("grep", {}), context(lambda arguments: hang.wait()))
    assert answer == ToolOutcome("Error: grep did not finish within 1 s", "error")


async def test_without_an_engine_there_is_no_answer() -> None:
    """A tool box may outlive the engine that offered its tools."""
    bare = replace(context(), services=TurnServices())
    answer = await tools().execute(tool_call("grep", {}), bare)
    assert answer == ToolOutcome(
        "Error: this turn has no context engine that could answer", "error"
    )
