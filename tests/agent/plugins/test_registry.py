"""Hooks around calls of tools: a veto, failures, and what they close."""

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.plugins.registry import LoadedPlugin, Plugins, TurnHooks
from agent.tools.context import ToolContext, ToolOutcome
from tests.agent.plugins.plugins import active, plugins
from tests.agent.tools.doubles import context

HERE: ToolContext = context(call_id="call_1", roles=frozenset({"guest"}))
DONE = ToolOutcome("sun", "ok")


def guarded(name: str) -> bool:
    return name == "terminal"


def hooks_of(*loaded: LoadedPlugin) -> TurnHooks:
    return TurnHooks(plugins(*loaded), guarded)


def broken(_: dict[str, Any]) -> None:
    raise ValueError("broken")


async def test_a_hook_sees_the_call() -> None:
    """All that there is to know about it, as a copy."""
    seen: list[dict[str, Any]] = []
    arguments = {"deep": {"list": [1]}}

    async def change(call: dict[str, Any]) -> None:
        seen.append(dict(call))
        call["arguments"]["deep"]["list"].append(2)

    hooks = hooks_of(active(pre_tool_call=change, post_tool_call=seen.append))
    assert await hooks.before("look", arguments, HERE) is None
    await hooks.after("look", arguments, DONE, HERE)
    assert arguments == {"deep": {"list": [1]}}
    call = {"tool": "look", "conversation": "c1", "call_id": "call_1", "may_act": False}
    assert seen[1] == call | {"arguments": arguments, "status": "ok", "result": "sun"}
    assert seen[0].items() >= call.items()


@pytest.mark.parametrize(("said", "told"), [("not today", "not today"), (" ", "no reason")])
async def test_a_veto_is_told_to_the_model(said: str, told: str) -> None:
    """The first one counts; whoever comes behind is not asked."""
    asked: list[dict[str, Any]] = []
    hooks = hooks_of(
        active("first", pre_tool_call=lambda _: None),
        active("guard", pre_tool_call=lambda _: said),
        active("last", pre_tool_call=asked.append),
    )
    refused = await hooks.before("look", {}, HERE)
    assert refused is not None
    assert refused.startswith(f"the plugin guard does not allow this call: {told}")
    assert asked == []


@pytest.mark.parametrize("hook", [broken, lambda _: False, lambda _: True])
async def test_a_hook_that_fails_closes_guarded_tools(hook: Any) -> None:
    """It may be there to forbid them; for the rest of the turn it is not asked again."""
    hooks = hooks_of(active("guard", pre_tool_call=hook))
    with capture_logs() as logs:
        first = await hooks.before("terminal", {}, HERE)
        again = await hooks.before("terminal", {}, HERE)
        harmless = await hooks.before("look", {}, HERE)
    assert first == again
    assert "guard, which must be asked before, cannot answer" in str(first)
    assert harmless is None
    assert [each["event"] for each in logs] == ["plugin_failed"]


async def test_a_hook_that_hangs_closes_guarded_tools() -> None:
    """Once its time is up."""
    end = threading.Event()

    def hang(_: dict[str, Any]) -> None:
        end.wait()

    hooks = hooks_of(active("guard", 0.001, pre_tool_call=hang))
    assert await hooks.before("look", {}, HERE) is None
    assert await hooks.before("terminal", {}, HERE) is not None
    end.set()


async def test_what_fails_afterwards_is_left_out_before() -> None:
    """A plugin is left out as a whole, and the next turn begins with all of them."""
    asked: list[dict[str, Any]] = []
    mine = active("mine", pre_tool_call=asked.append, post_tool_call=broken)
    hooks = hooks_of(mine)
    await hooks.after("look", {}, DONE, HERE)
    await hooks.after("look", {}, DONE, HERE)
    assert await hooks.before("look", {}, HERE) is None
    assert await hooks.before("terminal", {}, HERE) is not None
    assert asked == []
    assert await hooks_of(mine).before("terminal", {}, HERE) is None
    assert len(asked) == 1


async def test_a_guard_that_is_not_loaded_closes_guarded_tools() -> None:
    """All others run."""
    hooks = TurnHooks(Plugins(missing_guards=("guard",)), guarded)
    assert "guard" in str(await hooks.before("terminal", {}, HERE))
    assert await hooks.before("look", {}, HERE) is None
