"""The tool `delegate_task`, and a tool box that lacks some tools."""

import orjson

from agent.tools.builtin import calculate, current_time, delegate_task
from agent.tools.context import Delegated, ToolContext
from agent.tools.registry import Lacking, ToolRegistry
from tests.agent.tools.doubles import context as tool_context
from tests.support.scripted_model import tool_call

BOX = ToolRegistry([calculate.TOOL, current_time.TOOL, delegate_task.TOOL])
LESS = Lacking(BOX, {"delegate_task", "memory"})
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
    assert outcome.text == "Error: there is no tool 'delegate_task' here"


async def test_what_is_left_works_as_ever() -> None:
    """Its class, its checks, its result."""
    call = tool_call("calculate", {"expression": "6*7"}, "c1")
    assert LESS.effect("calculate") == BOX.effect("calculate")
    assert LESS.exclusive("calculate") == BOX.exclusive("calculate")
    assert LESS.restricted("calculate") == BOX.restricted("calculate")
    assert LESS.refusal(call, context_with(None)) is None
    assert (await LESS.execute(call, context_with(None))).text == "42"
