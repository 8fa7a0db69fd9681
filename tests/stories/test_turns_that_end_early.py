"""Turns that end early: each call is booked and none twice, and what was seen stays."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from agent.errors import ModelError, ModelNotFound, ModelRefused
from agent.messages import Usage, assistant_message
from agent.models.base import Completion
from agent.models.catalog import ModelFacts, Prices
from agent.tokens import estimate_tokens
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool
from gateway.pipeline import notices
from gateway.storage import schema
from gateway.storage.conversation import turn_journal
from gateway.storage.queue import leases
from gateway.storage.reports import spending as books
from tests.support.faulty_models import Counting
from tests.support.gateway import HeldModel, Running, agent_of, running, serving
from tests.support.scripted_model import ScriptedModel, Step, tool_call

PRICED = ModelFacts("claude", prices=Prices(1.0, 1.25, 2.0, 0.1, 5.0))
"""A dollar for a million tokens that are read."""
ACT = [tool_call("act", {})]


def part(text: str) -> Completion:
    """Return an answer that was cut by the output limit; it cost 3 dollars."""
    return Completion(assistant_message(text), "length", Usage(3_000_000))


async def ledger(chat: Running) -> list[str]:
    """Return what each call was booked as."""
    return [row.purpose for row in await chat.rows(schema.ledger)]


async def outcomes(chat: Running) -> list[str]:
    return [row.outcome for row in await chat.rows(schema.turn)]


# What people have seen


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [(ModelNotFound("404"), "provider_failed"), (ModelRefused("policy"), "refused")],
)
async def test_parts_that_were_recorded_stand_before_the_notice(
    tmp_path: Path, failure: ModelError, outcome: str
) -> None:
    """They were previewed: nobody takes them back."""
    async with running(tmp_path, [part("One, "), part("two, "), failure]) as chat:
        told = await chat.ask("count")
        assert told == f"One, two, \n\n*[{notices.failure_text(failure)}]*"
        assert await outcomes(chat) == [outcome]


async def test_a_budget_that_ends_in_the_middle_keeps_the_first_part(tmp_path: Path) -> None:
    """The rest is not asked for; the notice stands behind what there is."""
    model = ScriptedModel([part("One, ")], facts=PRICED)
    async with running(tmp_path, model, budget={"sender_daily_usd": 3}) as chat:
        told = await chat.ask("count")
        assert told.startswith("One, \n\n*[Today's budget for you is used up ($3.00). ")
        assert told.endswith("]*")
        assert await outcomes(chat) == ["spend_limit"]
        assert len(model.requests) == 1


@pytest.mark.parametrize("script", [[ModelNotFound("404")], [ACT, ModelNotFound("404")]])
async def test_without_a_part_there_is_the_notice_alone(tmp_path: Path, script: list[Step]) -> None:
    """Calls of tools are no words of an answer."""
    agent = agent_of(ScriptedModel(script), tools=[Counting().tool])
    async with running(tmp_path, agent) as chat:
        assert await chat.ask("count") == notices.failure_text(ModelNotFound(""))


async def test_a_part_of_an_earlier_turn_is_not_shown_again(tmp_path: Path) -> None:
    """Each turn has its own."""
    script: list[Step] = [part("One, "), "two.", ModelNotFound("404")]
    async with running(tmp_path, script) as chat:
        assert await chat.ask("count") == "One, two."
        assert await chat.ask("more") == notices.failure_text(ModelNotFound(""))


# Calls that are cut off


async def test_a_stop_of_the_gateway_books_the_call_that_it_cut_off(tmp_path: Path) -> None:
    """As lost, with what was written by then; the resumed turn makes and books its own."""
    model = HeldModel(begun="Once upon a time")
    model.hold("a story")
    async with serving(tmp_path, model, queue={"grace_s": 0}) as gateway:
        await gateway.chat.say("a story")
        await gateway.chat.until(lambda: gateway.chat.adapter.previews)
        gateway.stop.set()
        await gateway.ended()
        [lost] = await gateway.chat.rows(schema.ledger)
    assert (lost.purpose, lost.estimated) == ("lost", True)
    assert lost.input_tokens > 10
    assert lost.output_tokens == estimate_tokens("Once upon a time", "scripted")
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == ["re: a story"]
        assert await ledger(chat) == ["lost", "answer"]


async def taken_over(chat: Running) -> None:
    """Have another process take all conversations."""
    other = await chat.gateway.database.write(leases.register, "other")
    await chat.gateway.database.write(leases.reap_others, other)


async def test_a_lost_lease_books_the_answer_that_it_dropped(tmp_path: Path) -> None:
    """With what the provider reported; whoever goes on with the turn books their own call."""
    model = HeldModel(lambda _: Completion(assistant_message("Hi."), "stop", Usage(70, 5)))
    gate = model.hold("one")
    async with running(tmp_path, model) as chat:
        await chat.say("one")
        await chat.until(lambda: model.waiting)
        await taken_over(chat)
        gate.set()
        await chat.logged("lease_lost")
        [lost] = await chat.rows(schema.ledger)
    assert (lost.purpose, lost.estimated) == ("lost", False)
    assert (lost.input_tokens, lost.output_tokens) == (70, 5)


async def test_a_lost_lease_books_a_step_that_it_dropped_once(tmp_path: Path) -> None:
    """The journal does so, and the turn that ends for it does not do so again."""
    model = HeldModel(lambda _: ACT)
    gate = model.hold("one")
    async with running(tmp_path, agent_of(model, tools=[Counting().tool])) as chat:
        await chat.say("one")
        await chat.until(lambda: model.waiting)
        await taken_over(chat)
        gate.set()
        await chat.logged("lease_lost")
        assert await ledger(chat) == ["lost"]


class NoArguments(Arguments):
    """For a tool that takes none."""


def tool_of(run: Callable[[], Awaitable[str]]) -> Tool:
    """Return a tool named "act"."""

    async def act(_context: ToolContext, _arguments: NoArguments) -> str:
        return await run()

    return Tool("act", "Acts.", "side_effect", NoArguments, act)


@pytest.mark.parametrize("how", ["stop", "shutdown"])
async def test_a_turn_that_is_cut_off_in_a_tool_books_nothing_more(
    tmp_path: Path, how: str
) -> None:
    """The call that asked for the tool is on record as the answer that it was."""
    begun = asyncio.Event()

    async def run() -> str:
        begun.set()
        await asyncio.get_running_loop().create_future()
        return "never"

    agent = agent_of(ScriptedModel([ACT]), tools=[tool_of(run)])
    async with serving(tmp_path, agent, queue={"grace_s": 0}) as gateway:
        await gateway.chat.say("one")
        await begun.wait()
        if how == "stop":
            await gateway.chat.say("/stop")
            await gateway.chat.logged("turn_finished")
        gateway.stop.set()
        await gateway.ended()
        assert await ledger(gateway.chat) == ["answer"]


async def test_a_stop_that_comes_while_the_answer_is_committed_books_it_once(
    tmp_path: Path,
) -> None:
    """The row says "stopped" before the commit is: its words are dropped, its price is not."""
    model = HeldModel(lambda _: Completion(assistant_message("Hi."), "stop", Usage(70, 5)))
    gate = model.hold("one")
    async with running(tmp_path, model) as chat:
        await chat.say("one")
        await chat.until(lambda: model.waiting)
        await chat.execute(update(schema.conversation).values(cancel_upto_seq=1))
        gate.set()
        line = await chat.logged("turn_finished")
        [lost] = await chat.rows(schema.ledger)
    assert (line["outcome"], line["input_tokens"], line["output_tokens"]) == ("interrupted", 70, 5)
    assert (lost.purpose, lost.input_tokens, lost.estimated) == ("lost", 70, False)


async def test_a_cancelled_commit_that_took_place_books_its_call_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is cancelled while the answer is committed does not know whether it was."""
    booked = asyncio.Event()
    async with running(tmp_path, ["Hi."]) as chat:
        write = chat.gateway.database.write

        async def cancelled(fn: Any, *args: Any, **named: Any) -> Any:
            done = await write(fn, *args, **named)
            if fn is turn_journal.commit:
                raise asyncio.CancelledError
            if fn is books.book:
                booked.set()
            return done

        monkeypatch.setattr(chat.gateway.database, "write", cancelled)
        await chat.say("one")
        await booked.wait()
        assert (await ledger(chat), await outcomes(chat)) == (["answer"], ["final_text"])
