"""The tool `clarify`."""

from typing import Any

import pytest

from agent.errors import ToolError
from agent.tools.builtin import clarify
from agent.tools.context import Inquiry, Reply
from agent.tools.registry import parse_arguments
from tests.agent.tools.doubles import context
from tests.agent.tools.test_gate import Folk


def arguments(raw: str) -> Any:
    return parse_arguments(clarify.TOOL, raw)


async def test_it_asks_and_returns_the_answer() -> None:
    """Question and choices go to the people of the turn, for the call that runs."""
    folk = Folk(Reply("answered", "red", "web:me"))
    asked = arguments('{"question": "Which?", "choices": ["red", " blue "]}')
    assert await clarify.TOOL.run(context(people=folk, call_id="c1"), asked) == "The answer: red"
    assert folk.asked == [Inquiry("clarify", "c1", "clarify", "Which?", ("red", "blue"))]


async def test_nobody_answers() -> None:
    """The model is told to go on."""
    using = context(people=Folk(Reply("expired")))
    assert await clarify.TOOL.run(using, arguments('{"question": "?"}')) == clarify.NOBODY_ANSWERED


async def test_where_nobody_can_be_asked_it_says_so() -> None:
    """As in a delegated child."""
    with pytest.raises(ToolError, match="nobody can be asked"):
        await clarify.TOOL.run(context(), arguments('{"question": "?"}'))


@pytest.mark.parametrize(
    "raw",
    [
        '{"question": ""}',
        '{"question": "?", "choices": ["1","2","3","4","5","6"]}',
        '{"question": "?", "choices": [" "]}',
        '{"question": "?", "choices": ["' + "x" * 61 + '"]}',
    ],
    ids=["no question", "too many", "blank", "too long"],
)
def test_buttons_stay_small(raw: str) -> None:
    """Platforms take no others."""
    with pytest.raises(ToolError):
        arguments(raw)
