"""What owners alone decide, they are asked where they are, and answer there."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from agent.tools import policy
from agent.tools.context import ToolContext
from agent.tools.gate import ApprovalRules
from agent.tools.registry import Arguments, Tool
from gateway.commands.approvals import NOT_HERE, ONLY_OWNERS_APPROVE, OVER
from gateway.storage import schema
from tests.support.gateway import RecordingModel, Running, agent_of, running
from tests.support.recording_adapter import RecordingAdapter
from tests.support.scripted_model import tool_call
from tests.support.storage import forget

OWNED: dict[str, Any] = {"mode": "allowlist", "owners": ["telegram:u1"], "telegram": ["u2"]}
MEMBER: dict[str, Any] = {"sender": "u2", "sender_name": "Mem`ber"}
SAID_YES = "An owner has answered. Approved, this once: `act` (1)."


class Acts(Arguments):
    what: str = ""


@asynccontextmanager
async def guarded(
    home: Path, *steps: Any, access: dict[str, Any] = OWNED, by_owners: bool = True
) -> AsyncIterator[tuple[Running, list[str]]]:
    """Run a gateway whose model acts in a turn of a member; owners decide."""
    ran: list[str] = []

    async def act(_context: ToolContext, arguments: Acts) -> str:
        ran.append(arguments.what)
        return "done"

    call = [tool_call("act", {"what": "tidy up"})]
    tool = Tool("act", "Acts.", "side_effect", Acts, act)
    agent = agent_of(RecordingModel(steps or ["hello", call, "end"]), tools=[tool])
    rules = ApprovalRules(policy.build_table("side_effects", by_owners=by_owners))
    agent = replace(agent, approval=rules)
    quiet = RecordingAdapter(previews=False)
    async with running(home, agent, adapter=quiet, access=access) as chat:
        yield chat, ran


async def asked(chat: Running, **how: Any) -> str:
    """Have an owner say hello, then a member ask for something; returns what the owner reads."""
    await chat.ask("hello", "own")
    assert "May I run `act`?" in await chat.ask("go", "c2", **MEMBER, **how)
    question = (await chat.answers(2, "own"))[1]
    # A question without a receipt is asked again behind a restart.
    await chat.gateway.delivery.wait_idle()
    return question


@pytest.mark.parametrize("how", [{}, {"chat_kind": "group"}], ids=["direct", "group"])
@pytest.mark.parametrize("pressed", [True, False])
async def test_an_owner_answers_in_a_chat_of_their_own(
    tmp_path: Path, how: dict[str, Any], *, pressed: bool
) -> None:
    """Who asks, where and what for stands there; the place where it was asked learns of it."""
    async with guarded(tmp_path) as (chat, ran):
        question = await asked(chat, **how)
        for shown in ("`Mem'ber` (`telegram:u2`)", '"what": "tidy up"', "conversation 2"):
            assert shown in question
        assert ("`c2`" in question) is bool(how)
        [_, told] = [sent for sent in chat.adapter.shown if sent.address.chat == "own"]
        assert told.choices[0].text == "/approve 1 once"
        await chat.say("/approve 1 once", "own", pressed=pressed)
        texts = await chat.answers(3, "c2")
        assert (texts[1:], ran) == ([SAID_YES, "end"], ["tidy up"])
        await chat.until(lambda: len(chat.adapter.withdrawn) == (1 if pressed else 2))
        off = {(each.address.chat, each.note) for each in chat.adapter.withdrawn}
        assert off == {("c2", "approved")} | (set() if pressed else {("own", "approved")})


async def test_the_first_answer_wins(tmp_path: Path) -> None:
    """Of two owners one says no; what the other says comes too late, and is told so."""
    access = OWNED | {"owners": ["telegram:u1", "telegram:u3"]}
    call = [tool_call("act", {"what": "tidy up"})]
    async with guarded(tmp_path, "hi", "hi", call, "end", access=access) as (chat, ran):
        await chat.ask("hello", "other", sender="u3")
        await asked(chat)
        await chat.answers(2, "other")
        assert "Denied" in await chat.ask("/deny 1", "other", sender="u3")
        assert await chat.ask("/approve 1", "own") == OVER["answered"]
        await chat.until(lambda: len(chat.adapter.withdrawn) == 3)
        assert (await chat.answers(3, "c2"))[2] == "end"
        assert ran == []


async def test_who_is_no_owner_any_more_answers_nothing(tmp_path: Path) -> None:
    """They were asked, and removed before they answered; the question waits for another owner."""
    async with guarded(tmp_path) as (chat, _):
        await asked(chat)
    access = OWNED | {"owners": ["telegram:u9"], "telegram": ["u1", "u2"]}
    async with guarded(tmp_path, "end", access=access) as (chat, ran):
        assert await chat.ask("/approve 1", "own") == NOT_HERE
        [row] = await chat.rows(schema.inquiry)
        assert (row.state, ran) == ("pending", [])


@pytest.mark.parametrize(
    ("sender", "where", "why"),
    [
        ("u2", {}, NOT_HERE),
        ("u2", {"chat": "c2"}, ONLY_OWNERS_APPROVE),
        ("u1", {"chat_kind": "group"}, NOT_HERE),
    ],
)
async def test_nobody_else_answers_and_nowhere_else(
    tmp_path: Path, sender: str, where: dict[str, Any], why: str
) -> None:
    """A member neither there nor elsewhere; an owner not in a group where it was not asked."""
    async with guarded(tmp_path) as (chat, ran):
        await asked(chat)
        place = {"chat": "elsewhere"} | where
        assert await chat.ask("/approve 1", sender=sender, **place) == why
        assert ran == []


async def test_what_members_may_decide_is_asked_where_it_arises(tmp_path: Path) -> None:
    """No owner is told of it, nor can one answer it from elsewhere."""
    async with guarded(tmp_path, by_owners=False) as (chat, ran):
        await chat.ask("hello", "own")
        await chat.ask("go", "c2", **MEMBER)
        assert await chat.ask("/approve 1", "own") == NOT_HERE
        assert (chat.texts("own"), ran) == (["hello", NOT_HERE], [])


async def test_an_owner_who_asks_is_not_asked_twice(tmp_path: Path) -> None:
    """Neither in the same chat nor in another one of theirs."""
    call = [tool_call("act", {})]
    async with guarded(tmp_path, "hi", call, "end") as (chat, _):
        await chat.ask("hello", "own")
        await chat.ask("go", "mine")
        assert "Approved" in await chat.ask("/approve 1", "mine")
        await chat.answers(3, "mine")
        assert chat.texts("own") == ["hi"]


async def test_owners_are_told_once_whatever_restarts(tmp_path: Path) -> None:
    """The question and what owners are told are one transaction: killed behind it, both stand."""
    async with guarded(tmp_path) as (chat, _):
        await asked(chat)
    async with guarded(tmp_path, "end") as (chat, ran):
        await chat.say("/approve 1", "own")
        await chat.answers(2, "c2")
        assert ran == ["tidy up"]
        keys = [row.source_key for row in await chat.rows(schema.outbox)]
        assert keys.count("inquiry:1:owner:1:buttons:1") == 1


@pytest.mark.thorough
async def test_a_question_that_is_over_is_over_for_owners(tmp_path: Path) -> None:
    """The member stops it, or its time is over: their buttons go."""
    async with guarded(tmp_path) as (chat, _):
        await asked(chat)
        await chat.say("/stop", "c2", **MEMBER)
        await chat.until(lambda: len(chat.adapter.withdrawn) == 2)
        assert {each.note for each in chat.adapter.withdrawn} == {"stopped"}
        assert await chat.ask("/approve 1", "own") == OVER["cancelled"]


async def test_time_is_over_for_owners_too(tmp_path: Path) -> None:
    """The sweep takes their buttons off as well."""
    async with guarded(tmp_path) as (chat, _):
        await asked(chat)
        await chat.execute(update(schema.inquiry).values(expires_at=1.0))
    async with guarded(tmp_path, "end") as (chat, ran):
        await chat.until(lambda: len(chat.adapter.withdrawn) == 2)
        assert {each.address.chat for each in chat.adapter.withdrawn} == {"own", "c2"}
        assert ran == []


async def test_what_is_forgotten_is_gone_from_the_chats_of_owners(tmp_path: Path) -> None:
    """`parley forget` of the member's conversation leaves nothing of what was asked."""
    async with guarded(tmp_path) as (chat, _):
        await asked(chat)
        await chat.gateway.database.write(forget, 2)
        rows = await chat.rows(schema.outbox)
        assert "tidy up" not in json.dumps([row.payload for row in rows])
        assert [row.conversation for row in rows] == [1]
