"""What changes while a turn waits for an approval, and how the call ends: nothing is silent."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import update

from agent.messages import text_of
from agent.settings import McpServerSettings
from agent.tools.context import ToolContext
from agent.tools.mcp.servers import mcp_tools
from agent.tools.registry import Arguments, Tool
from agent.turn.request import Agent
from gateway.storage import schema
from tests.gateway.agent_ports.test_questions import (
    CONVERSATION,
    GROUP,
    MEMBER,
    ONCE,
    SHARED,
    Acting,
    acting,
    asked,
    calling,
    inquiry_states,
    running_quietly,
)
from tests.support import mcp_server
from tests.support.gateway import RecordingModel, Running, agent_of, running
from tests.support.recording_adapter import RecordingAdapter

IS_DUE = update(schema.inquiry).values(expires_at=1.0)


class Number(Arguments):
    """What the tool wants since it was changed."""

    number: int


def changed(acts: Acting) -> Tool:
    """Return the tool with other arguments."""

    async def act(_context: ToolContext, arguments: Number) -> str:
        acts.done.append(str(arguments.number))
        return "did it"

    return Tool("act", "Acts.", "side_effect", Number, act)


def without(_acts: Acting) -> Agent:
    """Return an agent whose tool was switched off, or whose plugin is gone."""
    return agent_of(RecordingModel(calling()), approval="side_effects")


def with_other_arguments(acts: Acting) -> Agent:
    """Return an agent whose tool wants something else."""
    model = RecordingModel(calling())
    return agent_of(model, tools=[changed(acts)], approval="side_effects")


async def told(chat: Running) -> str:
    """Return the one result that the model was given, once its turn is over."""
    await chat.logged("turn_finished")
    [result] = [text_of(m) for m in await chat.transcript() if m["role"] == "tool"]
    [turn] = await chat.rows(schema.turn)
    assert turn.state == "done"
    return result


@pytest.mark.parametrize("ends", ["approved", "expired"])
@pytest.mark.parametrize(
    ("later", "why"),
    [(without, "there is no tool 'act'"), (with_other_arguments, "number: Field required")],
)
async def test_a_tool_that_is_not_what_was_asked_about(
    tmp_path: Path, later: Callable[[Acting], Agent], why: str, ends: str
) -> None:
    """It does not run, approved or not; the model reads why, and the chat what became of it."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        if ends == "expired":
            await chat.execute(IS_DUE)
    async with running_quietly(tmp_path, later(acts)) as chat:
        if ends == "approved":
            await chat.say(ONCE)
        assert why in await told(chat)
        said = (await chat.answers(2))[:2]
        assert said[0].startswith("Approved" if ends == "approved" else "Nobody answered in time")
        assert why in said[1]
        assert acts.done == []


async def test_a_sender_who_lost_the_right(tmp_path: Path) -> None:
    """What they asked for is not done, though somebody who may approves it."""
    acts = Acting()
    member, nobody = {"access": {"telegram": ["u3"]}}, {"access": {"telegram": []}}
    async with asked(tmp_path, acting(acts), GROUP | MEMBER, **member):
        pass
    async with running_quietly(tmp_path, acting(acts), **nobody) as chat:
        await chat.say(ONCE, **GROUP)
        assert "act is not allowed here (default.guests)" in await told(chat)
        assert acts.done == []


async def test_somebody_who_lost_the_right_does_not_approve(tmp_path: Path) -> None:
    """The question stays for those who may."""
    acts = Acting()
    shared = {"sessions": {"groups": "shared"}}
    async with asked(tmp_path, acting(acts), GROUP, **shared, access={"telegram": ["u3"]}):
        pass
    async with running_quietly(tmp_path, acting(acts), **shared) as chat:
        assert "You may not approve that" in await chat.ask(ONCE, **GROUP | MEMBER)
        assert [state for state, *_ in await inquiry_states(chat)] == ["pending"]


@pytest.mark.parametrize(
    ("description", "members", "answer"),
    [
        ("Acts.", ["u3"], "did it"),
        ("Acts on everything.", ["u3"], "`act`"),
        ("Acts.", [], "`act`"),
    ],
    ids=["as before", "another tool", "no right any more"],
)
async def test_an_approval_for_the_conversation_after_a_restart(
    tmp_path: Path, description: str, members: list[str], answer: str
) -> None:
    """It stands for the tool as it was then, and as long as whoever gave it may give it."""
    acts = Acting()
    async with asked(tmp_path, acting(acts), GROUP, **SHARED) as chat:
        await chat.say(CONVERSATION, **GROUP | MEMBER)
        await chat.answers(3)
        await chat.gateway.delivery.wait_idle()
    model = RecordingModel(calling(("act", {"text": "it", "to": "us"})))
    tool = replace(acts.tool(), description=description)
    agent = agent_of(model, tools=[tool], approval="side_effects")
    async with running_quietly(
        tmp_path, agent, **SHARED | {"access": {"telegram": members}}
    ) as chat:
        assert answer in await chat.ask("again", **GROUP)
        assert acts.done == ["it"] * (2 if answer == "did it" else 1)


async def test_a_model_that_is_gone(tmp_path: Path) -> None:
    """The default goes on with the turn, and the call runs as it was approved."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        await chat.execute(update(schema.conversation).values(model="gone"))
    async with running_quietly(tmp_path, acting(acts)) as chat:
        await chat.say(ONCE)
        await chat.until(lambda: "did it" in chat.texts())
        assert (await chat.logged("chosen_model_gone"))["model"] == "gone"
        assert acts.done == ["it"]


async def test_a_choice_of_another_model_waits_for_the_answer(tmp_path: Path) -> None:
    """It counts from the next turn on."""
    acts = Acting()
    script = calling(("act", {"text": "it"}))
    line = [RecordingModel(script, name="main"), RecordingModel(lambda _: "new", name="other")]
    agent = agent_of(*line, tools=[acts.tool()], approval="side_effects")
    async with asked(tmp_path, agent) as chat:
        assert "waits" in await chat.ask("/model other")
        await chat.say(ONCE)
        await chat.until(lambda: any("`other` answers here" in text for text in chat.texts()))
        assert "did it" in chat.texts()
        assert await chat.ask("hello") == "new"


async def test_an_account_that_is_gone_is_waited_for(tmp_path: Path) -> None:
    """Its turns stand still, which is logged at the start; they end where they can be told of."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        await chat.execute(IS_DUE)
    elsewhere = RecordingAdapter("discord")
    async with running(tmp_path, acting(acts), adapter=elsewhere) as chat:
        assert chat.events("account_not_configured")[0]["conversations"] == 1
        await chat.gateway.beside.inquiries.sweep()
        assert [state for state, *_ in await inquiry_states(chat)] == ["pending"]
    async with running_quietly(tmp_path, acting(acts)) as chat:
        texts = await chat.answers(2)
        assert texts[0] == "Nobody answered in time: `act` is not run."
        assert "nobody answered in time" in texts[1]
        await chat.until(lambda: chat.adapter.withdrawn)
        assert acts.done == []


def program(log: Path, *tools: dict[str, Any], **options: Any) -> McpServerSettings:
    """Return a server that offers these tools."""
    plan = orjson.dumps({"log": str(log), "tools": tools}).decode()
    args = ("-I", "-S", mcp_server.__file__, plan)
    return McpServerSettings.model_validate(
        {"command": sys.executable, "args": args, "confined": False} | options
    )


ECHO = mcp_server.TOOLS[0]
OTHER = ECHO | {"inputSchema": mcp_server.NOTHING | {"required": ["line"]}}


@pytest.mark.parametrize(
    ("later", "told_why"),
    [
        ({"tools": ()}, "there is no tool"),
        ({"tools": (OTHER,)}, "'line' is a required property"),
        ({"tools": (ECHO,), "command": "/does/not/exist"}, "is not connected now"),
    ],
    ids=["tool gone", "other schema", "server gone"],
)
async def test_an_mcp_server_that_has_changed(
    tmp_path: Path, later: dict[str, Any], told_why: str
) -> None:
    """What was approved is not what it offers now, or it is not there: the model reads that."""
    log = tmp_path / "called"
    script = calling(("mcp_s_echo", {"text": "hello"}))
    settings = program(log, ECHO)
    async with mcp_tools({"s": settings}, tmp_path) as tools:
        agent = agent_of(RecordingModel(script), tools=tools, approval="side_effects")
        async with asked(tmp_path, agent):
            pass
    definitions = later.pop("tools")
    async with mcp_tools({"s": program(log, *definitions, **later)}, tmp_path) as tools:
        agent = agent_of(RecordingModel(script), tools=tools, approval="side_effects")
        async with running_quietly(tmp_path, agent) as chat:
            await chat.say(ONCE)
            assert told_why in await told(chat)
    assert "called echo" not in log.read_text()
