"""The schema that a model is shown: what is in it, what is left out, and what is checked anyway."""

from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel

from agent.engines.lcm import tools as lcm
from agent.errors import ToolError
from agent.settings import ToolSettings
from agent.tokens.estimate import estimate_tools
from agent.tools.catalog import builtin_tools
from agent.tools.registry import LONG_TEXT_CHARS, Arguments, Tool, parse_arguments, shown_schema

DEFAULT_TOKENS = 1_800
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


class AddArguments(Arguments):
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
    assert shown_schema(AddArguments) == {
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
    tool = Tool("add", "Adds.", "read", AddArguments, pytest.fail)
    with pytest.raises(ToolError, match="the arguments of add do not fit"):
        parse_arguments(tool, arguments)


async def test_null_passes_for_left_out() -> None:
    """Models write it although the schema does not name it."""
    tool = Tool("add", "Adds.", "read", AddArguments, pytest.fail)
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
