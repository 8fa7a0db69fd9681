"""Arguments by a foreign schema: names and plain types are checked, the rest is the server's."""

from typing import Any

import pytest

from agent.errors import ToolError
from agent.messages import ToolCall
from agent.tools.context import ToolContext
from agent.tools.mcp.arguments import SchemaArguments
from agent.tools.registry import Tool, ToolRegistry
from tests.agent.tools.doubles import context

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "pattern": "(a+)+$"},
        "count": {"type": ["integer", "null"]},
        "share": {"type": "number"},
        "flag": {"type": "boolean"},
        "any": True,
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "rows": {
            "type": "array",
            "items": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    },
    "required": ["text"],
}


def test_what_fits_comes_back_as_it_is() -> None:
    """No pattern is run: it could take hours."""
    values = {"text": "a" * 60 + "!", "count": 2.0, "share": 1, "flag": True, "any": [1], "more": 1}
    assert SchemaArguments(SCHEMA).checked("t", values) == values


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "- text: Field required"),
        ({"text": True}, "- text: must be string"),
        ({"text": "", "maybe": "soon"}, "- maybe: must be integer or null"),
        ({"text": "", "share": "nan"}, "- share: must be number"),
        ({"text": "", "count": 2.5}, "- count: must be integer or null"),
        ({"text": "", "count": True}, "- count: must be integer or null"),
    ],
)
def test_what_does_not_fit_is_told(values: dict[str, Any], line: str) -> None:
    """One line for each, in words for the model."""
    with pytest.raises(ToolError) as caught:
        SchemaArguments(SCHEMA).checked("t", values)
    assert str(caught.value).splitlines()[1:] == [line]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"count": "42"}, {"count": 42}),
        ({"maybe": "42"}, {"maybe": 42}),
        ({"share": "0.5"}, {"share": 0.5}),
        ({"flag": "true"}, {"flag": True}),
        ({"text": 7}, {"text": "7"}),
        ({"rows": [{"n": "1", "other": "2"}]}, {"rows": [{"n": 1, "other": "2"}]}),
        ({"more": "42"}, {"more": "42"}),
    ],
)
def test_values_are_coerced_where_nothing_is_lost(
    given: dict[str, Any], meant: dict[str, Any]
) -> None:
    """A model that writes "42" for an integer is understood, as built-in tools understand it."""
    values = {"text": ""} | given
    assert SchemaArguments(SCHEMA).checked("t", values) == {"text": ""} | meant


def test_unknown_names_are_told_where_none_are_allowed() -> None:
    """The schema decides."""
    closed = SchemaArguments({**SCHEMA, "additionalProperties": False})
    with pytest.raises(ToolError, match="- more: there is no such argument; known: text, count"):
        closed.checked("t", {"text": "", "more": 1})


async def test_the_registry_takes_such_a_tool() -> None:
    """Its schema is shown as it is, its arguments are checked before it runs."""

    async def run(_context: ToolContext, arguments: dict[str, Any]) -> str:
        return arguments["text"] * 2

    tool = Tool("mcp_s_t", "Doubles.", "side_effect", SchemaArguments(SCHEMA), run)
    registry = ToolRegistry([tool])
    assert registry.schemas[0].parameters == SCHEMA

    async def outcome(arguments: str) -> str:
        call = ToolCall(
            id="c", type="function", function={"name": "mcp_s_t", "arguments": arguments}
        )
        return (await registry.execute(call, context())).text

    assert await outcome('{"text": "ab"}') == "abab"
    assert (
        await outcome("{}") == "Error: the arguments of mcp_s_t do not fit:\n- text: Field required"
    )
    assert "must be a JSON object" in await outcome("[]")
