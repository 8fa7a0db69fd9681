"""The tool registry: arguments, what becomes of failures, and the schema that a model is shown."""

import asyncio
from enum import Enum
from typing import Any, Literal

import pytest
import structlog
from pydantic import BaseModel, Field, RootModel, field_validator
from structlog.testing import capture_logs

from agent.engines.lcm import tools as lcm
from agent.errors import ToolError
from agent.settings import ToolSettings
from agent.tokens import estimate_tools
from agent.tools.catalog import builtin_tools
from agent.tools.context import ToolContext, ToolOutcome
from agent.tools.registry import (
    LONG_TEXT_CHARS,
    Arguments,
    Tool,
    ToolRegistry,
    parse_arguments,
    shown_schema,
)
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

    with structlog.testing.capture_logs() as logs:
        outcome = await outcome_of('{"left": 1}', run=hang, timeout_s=1)
    assert outcome == ("error", "Error: add did not finish within 1 s")
    assert [(each["event"], each["tool"]) for each in logs] == [("tool_timed_out", "add")]


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
        outcome = registry.refusal(call("add", '{"left": 1}'))
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


DEFAULT_TOKENS = 1_870
"""What the default tools may take of every request, estimated as for the newest Claude."""


class Place(BaseModel):
    """Somewhere."""

    title: str = "here"


PLACE = {"type": "object", "properties": {"title": {"type": "string", "default": "here"}}}


class Places(RootModel[list[Place]]):
    """Several."""


class Kind(Enum):
    """Of what kind."""

    SMALL = "small"
    LARGE = "large"


class Tree(BaseModel):
    """Refers to itself."""

    below: list["Tree"] = []


class SumArguments(Arguments):
    """What is added."""

    left: int
    right: int = Field(1, ge=0, le=9, description="Added to left")
    note: str | None = Field(None, min_length=1, max_length=20, description="Kept")
    text: str = Field("", max_length=LONG_TEXT_CHARS)


def shown(annotation: Any, **field: Any) -> dict[str, Any]:
    """Return what is shown of one argument."""
    model = type("One", (BaseModel,), {"__annotations__": {"it": annotation}, **field})
    properties: dict[str, dict[str, Any]] = shown_schema(model)["properties"]
    return properties["it"]


def test_a_schema_is_terse() -> None:
    """Types, descriptions, defaults, and bounds that a sensible call could break."""
    assert shown_schema(SumArguments) == {
        "type": "object",
        "properties": {
            "left": {"type": "integer"},
            "right": {
                "type": "integer",
                "maximum": 9,
                "default": 1,
                "description": "Added to left",
            },
            "note": {"type": "string", "maxLength": 20, "description": "Kept"},
            "text": {"type": "string"},
        },
        "required": ["left"],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        '{"left": 1, "other": 1}',
        '{"left": 1, "right": -1}',
        '{"left": 1, "right": 10}',
        '{"left": 1, "note": ""}',
        '{"left": 1, "text": "' + "x" * (LONG_TEXT_CHARS + 1) + '"}',
        '{"left": null}',
        "{}",
    ],
    ids=["unknown", "below", "above", "empty", "long", "null", "missing"],
)
async def test_what_is_not_shown_is_checked(arguments: str) -> None:
    """The schema says less than the check asks for."""
    tool = Tool("add", "Adds.", "read", SumArguments, pytest.fail)
    with pytest.raises(ToolError, match="the arguments of add do not fit"):
        parse_arguments(tool, arguments)


async def test_null_passes_for_left_out() -> None:
    """Models write it although the schema does not name it."""
    tool = Tool("add", "Adds.", "read", SumArguments, pytest.fail)
    assert parse_arguments(tool, '{"left": 1, "note": null}').note is None


@pytest.mark.parametrize(
    ("annotation", "default", "expected"),
    [
        (int | None, None, {"type": "integer"}),
        (int | str | None, None, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (list[int], [], {"type": "array", "items": {"type": "integer"}}),
        (bool, False, {"type": "boolean", "default": False}),
        (int, 0, {"type": "integer", "default": 0}),
        (float, Field(gt=0), {"type": "number"}),
        (int, Field(ge=1900), {"type": "integer", "minimum": 1900}),
        (Literal["a", "b"], "a", {"type": "string", "enum": ["a", "b"], "default": "a"}),
        (Kind | None, None, {"type": "string", "enum": ["small", "large"]}),
        (dict[str, int], {"title": 1}, shown(dict[str, int]) | {"default": {"title": 1}}),
    ],
)
def test_what_is_shown_of_an_argument(annotation: Any, default: Any, expected: Any) -> None:
    """An empty default and null say that it may be left out, which `required` says as well."""
    assert shown(annotation, it=default) == expected


def test_null_is_shown_where_it_must_be_said() -> None:
    """A required argument cannot be left out."""
    assert shown(int | None)["anyOf"] == [{"type": "integer"}, {"type": "null"}]


def test_a_class_that_is_used_once_stands_in_its_place() -> None:
    """A property named `title` stays; what is said about the argument does as well."""
    assert shown(list[Place]) == {"type": "array", "items": PLACE}
    assert shown(Places) == shown(list[Place])
    told = Field(None, description="Where")
    assert shown(Place | None, it=told) == PLACE | {"description": "Where"}


def test_a_class_that_is_used_twice_has_a_name() -> None:
    """One that refers to itself always is."""

    class Both(BaseModel):
        one: Place
        two: Place
        tree: Tree

    schema = shown_schema(Both)
    assert schema["properties"]["one"] == {"$ref": "#/$defs/Place"}
    assert schema["$defs"]["Place"]["properties"] == {
        "title": {"type": "string", "default": "here"}
    }
    assert schema["$defs"]["Tree"] == {
        "type": "object",
        "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
    }


def test_the_default_tools_are_cheap() -> None:
    """They stand in every request."""
    schemas = builtin_tools(ToolSettings()).schemas
    assert estimate_tools(schemas, "claude-sonnet-5") <= DEFAULT_TOKENS


@pytest.mark.parametrize("said", ['"$defs"', '"title"', '"null"', '"additionalProperties"'])
def test_no_tool_of_ours_says_what_tells_nothing(said: str) -> None:
    """Those of the engine included."""
    schemas = (*builtin_tools(ToolSettings()).schemas, *lcm.SCHEMAS)
    assert said not in str([schema.parameters for schema in schemas]).replace("'", '"')
