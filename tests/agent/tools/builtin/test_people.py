"""Asking a person, sending a file, delegating a task."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from agent.errors import ToolError
from agent.ports import Delegated, Inquiry, InquiryReply, Origin
from agent.tools.builtin.basics import calculate, current_time
from agent.tools.builtin.people import (
    NOBODY_ANSWERED,
    FileArguments,
    clarify,
    delegate_task,
    send_file,
)
from agent.tools.context import ToolContext
from agent.tools.registry import ToolRegistry, parse_arguments
from tests.agent.tools.doubles import context
from tests.agent.tools.doubles import context as tool_context
from tests.agent.tools.test_gate import Folk
from tests.support.scripted_model import tool_call


def arguments(raw: str) -> Any:
    return parse_arguments(clarify, raw)


async def test_it_asks_and_returns_the_answer() -> None:
    """Question and choices go to the people of the turn, for the call that runs."""
    folk = Folk(InquiryReply("answered", "red", "web:me"))
    asked = arguments('{"question": "Which?", "choices": ["red", " blue "]}')
    assert await clarify.run(context(people=folk, call_id="c1"), asked) == "The answer: red"
    assert folk.asked == [Inquiry("clarify", "c1", "clarify", "Which?", ("red", "blue"))]


@pytest.mark.parametrize(("text", "taints"), [("the red one", False), ("do it. " * 90, True)])
async def test_an_answer_that_is_pasted_taints(text: str, *, taints: bool) -> None:
    """Asked for a text, people paste the words of others, even in one paragraph."""
    using = context(people=Folk(InquiryReply("answered", text, "web:me")), call_id="c1")
    await clarify.run(using, arguments('{"question": "Which?"}'))
    assert using.rights.read.origins == ({Origin("pasted", "c1")} if taints else set())


async def test_nobody_answers() -> None:
    """The model is told to go on."""
    using = context(people=Folk(InquiryReply("expired")))
    assert await clarify.run(using, arguments('{"question": "?"}')) == NOBODY_ANSWERED


async def test_where_nobody_can_be_asked_it_says_so() -> None:
    """As in a delegated child."""
    with pytest.raises(ToolError, match="nobody can be asked"):
        await clarify.run(context(), arguments('{"question": "?"}'))


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
    told = await send_file.run(replace(context(), files=box), FileArguments(name=name, text="grün"))
    assert box.offered == [(name, mime, "grün".encode())]
    assert told == "The file 'clean name' (5 bytes) will be shown with your answer."


async def test_half_a_surrogate_pair_does_no_harm() -> None:
    """Models write such things."""
    box = Box()
    await send_file.run(replace(context(), files=box), FileArguments(name="a", text="\ud800!"))
    assert box.offered[0][2] == b"?!"


async def test_where_no_files_are_taken_the_model_is_told() -> None:
    """It can write the text in its answer instead."""
    with pytest.raises(ToolError, match="no files can be sent here"):
        await send_file.run(context(), FileArguments(name="a.md", text="x"))


async def test_a_file_needs_a_name() -> None:
    """An empty one is a mistake of the model's."""
    with pytest.raises(ToolError, match="needs a name"):
        await send_file.run(replace(context(), files=Box()), FileArguments(name=" ", text="x"))


def test_it_may_run_again() -> None:
    """The same file of the same turn is one file."""
    assert send_file.effect == "idempotent"


BOX = ToolRegistry([calculate, current_time, delegate_task])
LESS = BOX.changed(without={"delegate_task", "memory"})
CALL = tool_call("delegate_task", {"task": "count a b"}, "d1")


class Child:
    """Answers with what it was asked."""

    async def run(self, call_id: str, task: str) -> Delegated:
        """Return call and task."""
        return Delegated("final_text", f"{call_id}: {task}", 7, 1, 20, 0.5)


def context_with(child: Child | None) -> ToolContext:
    """Return a context of the call."""
    return tool_context(delegates=child, call_id="d1")


async def test_the_result_is_typed() -> None:
    """JSON with all that is known of the child."""
    outcome = await BOX.execute(CALL, context_with(Child()))
    assert orjson.loads(outcome.text) == {
        "outcome": "final_text",
        "answer": "d1: count a b",
        "conversation": 7,
        "iterations": 1,
        "used_tokens": 20,
        "cost_usd": 0.5,
    }


async def test_nothing_is_delegated_where_nobody_can() -> None:
    """Such as in a child."""
    outcome = await BOX.execute(CALL, context_with(None))
    assert (outcome.text, outcome.status) == ("Error: nothing can be delegated here", "error")


async def test_a_tool_that_is_missing_does_not_exist() -> None:
    """It is not shown and cannot be called; a crash leaves nothing of it in doubt."""
    assert [schema.name for schema in LESS.schemas] == ["calculate", "current_time"]
    assert (LESS.effect("delegate_task"), BOX.effect("delegate_task")) == ("read", "idempotent")
    assert not LESS.exclusive("memory")
    assert not LESS.restricted("memory")
    outcome = await LESS.execute(CALL, context_with(Child()))
    known = "Known tools: calculate, current_time"
    assert outcome.text == f"Error: there is no tool 'delegate_task'. {known}"


async def test_what_is_left_works_as_ever() -> None:
    """Its class, its checks, its result."""
    call = tool_call("calculate", {"expression": "6*7"}, "c1")
    assert LESS.effect("calculate") == BOX.effect("calculate")
    assert LESS.exclusive("calculate") == BOX.exclusive("calculate")
    assert LESS.restricted("calculate") == BOX.restricted("calculate")
    assert LESS.refusal(call) is None
    assert (await LESS.execute(call, context_with(None))).text == "42"
