"""The tool registry: arguments, and what becomes of failures."""

import asyncio
from typing import Any

import pytest
from pydantic import Field, field_validator
from structlog.testing import capture_logs

from agent.errors import ToolError
from agent.tools.context import ToolContext, ToolOutcome
from agent.tools.registry import Arguments, Tool, ToolRegistry
from tests.agent.tools.doubles import call, context


class AddArguments(Arguments):
    left: int
    right: int = Field(1, ge=0, description="Added to left")
    note: str | None = None


async def add(_context: ToolContext, arguments: AddArguments) -> str:
    return f"{arguments.left + arguments.right} {arguments.note}"


def tool(run: Any = add, **changes: Any) -> Tool:
    values: dict[str, Any] = {"name": "add", "description": "Adds.", "effect": "read"}
    return Tool(**{**values, "arguments": AddArguments, "run": run, **changes})


async def outcome_of(arguments: str, **changes: Any) -> tuple[str, str]:
    registry = ToolRegistry([tool(**changes)])
    outcome = await registry.execute(call("add", arguments), context())
    return outcome.status, outcome.text


def test_schemas_keep_the_order_of_the_tools() -> None:
    """The order is the caller's, for a stable prompt prefix."""
    registry = ToolRegistry([tool(name="b"), tool(name="a")])
    assert [schema.name for schema in registry.schemas] == ["b", "a"]


def test_two_tools_of_one_name_are_refused() -> None:
    """A second tool would silently replace the first."""
    with pytest.raises(ValueError, match="two tools are named 'add'"):
        ToolRegistry([tool(), tool()])


def test_effect_and_exclusive_are_those_of_the_tool() -> None:
    """An unknown tool does nothing, which is a read."""
    registry = ToolRegistry([tool(effect="side_effect", exclusive=True)])
    assert (registry.effect("add"), registry.exclusive("add")) == ("side_effect", True)
    assert (registry.effect("x"), registry.exclusive("x")) == ("read", False)


@pytest.mark.parametrize(
    "raw",
    [
        '{"left": 2, "right": 3}',
        '{"left": "2", "right": 3.0}',
        '```json\n{"left":2,"right":3}\n```',
        '{"left":2,"right":3,}',
        "{'left': 2, 'right': 3, 'note': None}",
    ],
)
async def test_values_are_coerced_where_nothing_is_lost(raw: str) -> None:
    """Text that is a number, a code fence, a trailing comma, Python's spelling are accepted."""
    assert await outcome_of(raw) == ("ok", "5 None")


async def test_a_number_passes_for_text() -> None:
    """Models write numbers where text is asked for."""
    assert await outcome_of('{"left": 1, "note": 7}') == ("ok", "2 7")


async def test_an_unknown_tool_is_answered_with_the_known_names() -> None:
    """The model can choose another one."""
    outcome = await ToolRegistry([tool(name="a"), tool(name="b")]).execute(call("c"), context())
    assert outcome.status == "error"
    assert outcome.text == "Error: there is no tool 'c'. Known tools: a, b"


async def test_missing_arguments_are_named_with_their_type() -> None:
    """An empty text means no arguments."""
    status, text = await outcome_of("")
    assert status == "error"
    assert "- left: Field required (expected integer)" in text


async def test_every_misfit_gets_a_line() -> None:
    """Name, problem and expected type are there for each argument."""
    _, text = await outcome_of('{"left": "two", "right": -1, "note": [], "other": 1}')
    lines = text.splitlines()
    assert lines[0] == "Error: the arguments of add do not fit:"
    assert [line.split(":")[0] for line in lines[1:]] == ["- left", "- right", "- note", "- other"]
    assert "greater than or equal to 0 (expected integer)" in lines[2]
    assert "(expected string)" in lines[3]
    assert lines[4] == "- other: Extra inputs are not permitted"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ('{"left": 1', "are not valid JSON"),
        ("{'left': }", "are not valid JSON"),
        ("[1]", "must be a JSON object, not a list"),
        ('{"left": ' * 500 + "1" + "}" * 500, "are nested too deep"),
    ],
)
async def test_what_is_no_json_object_is_explained(raw: str, problem: str) -> None:
    """The text says what is wrong with the arguments as a whole, and the tool does not run."""

    async def run(_context: ToolContext, _arguments: AddArguments) -> str:
        raise AssertionError("the tool ran")

    status, text = await outcome_of(raw, run=run)
    assert status == "error"
    assert problem in text


async def test_a_tool_error_is_its_text() -> None:
    """What a tool raises on purpose goes to the model."""

    async def refuse(_context: ToolContext, _arguments: AddArguments) -> str:
        raise ToolError("not today")

    assert await outcome_of('{"left": 1}', run=refuse) == ("error", "Error: not today")


async def test_a_tool_that_takes_too_long_is_ended() -> None:
    """The timeout is the tool's own."""

    async def hang(_context: ToolContext, _arguments: AddArguments) -> str:
        await asyncio.Event().wait()
        return "never"

    outcome = await outcome_of('{"left": 1}', run=hang, timeout_s=1)
    assert outcome == ("error", "Error: add did not finish within 1 s")


@pytest.mark.parametrize("error", [RuntimeError("secret"), TimeoutError("secret")])
async def test_a_crash_tells_the_model_the_class_only(error: Exception) -> None:
    """The traceback is logged; what the exception says stays out of the conversation."""

    async def crash(_context: ToolContext, _arguments: AddArguments) -> str:
        raise error

    with capture_logs() as logs:
        status, text = await outcome_of('{"left": 1}', run=crash)
    assert (status, text) == ("error", f"Error: add failed with {type(error).__name__}")
    assert [(entry["event"], entry["tool"], entry["log_level"]) for entry in logs] == [
        ("tool_failed", "add", "error")
    ]
    assert logs[0]["exc_info"]


async def test_checks_that_break_are_failures_of_the_tool() -> None:
    """A plugin's validators may raise anything: the turn goes on."""

    class Broken(Arguments):
        left: int

        @field_validator("left")
        @classmethod
        def _check(cls, left: int) -> int:
            raise KeyError(left)

    registry = ToolRegistry([tool(arguments=Broken)])
    with capture_logs() as logs:
        outcome = registry.refusal(call("add", '{"left": 1}'), context())
    assert outcome == ToolOutcome("Error: add failed with KeyError", "error")
    assert [(entry["event"], entry["tool"]) for entry in logs] == [("tool_failed", "add")]


async def test_a_cancellation_goes_on() -> None:
    """A cancelled turn does not turn into an error text."""
    started = asyncio.Event()

    async def hang(_context: ToolContext, _arguments: AddArguments) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    async with asyncio.TaskGroup() as group:
        task = group.create_task(outcome_of('{"left": 1}', run=hang))
        await started.wait()
        task.cancel()
    assert task.cancelled()
