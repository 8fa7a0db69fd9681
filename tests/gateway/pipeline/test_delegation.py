"""Delegated children in a running gateway: what they see, how they end, what survives a crash."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console
from sqlalchemy import update

from agent.errors import ModelRefused, ModelUnreachable
from agent.messages import ChatMessage, ToolCall, decode, text_of
from agent.models.base import ModelRequest
from agent.models.catalog import ModelFacts, Prices
from agent.models.recovery import Recovery, RetryPolicy
from agent.ports import Effect
from agent.prompt.system import CHILD_IDENTITY
from agent.tools.builtin.history import read_conversation
from agent.tools.builtin.notebook import memory, todo
from agent.tools.builtin.people import delegate_task, send_file
from agent.tools.context import ToolContext
from agent.tools.gate import ApprovalRules
from agent.tools.registry import Arguments, Tool
from agent.turn.loop import OUTCOME_UNKNOWN, WRAP_UP
from gateway.cli.sessions import show_list
from gateway.errors import NotFound
from gateway.pipeline import delegation
from gateway.storage import schema
from gateway.storage.conversation import delegates
from gateway.storage.reports import history
from tests.support.gateway import (
    HeldModel,
    Running,
    agent_of,
    change,
    fail_once,
    running,
)
from tests.support.scripted_model import Step, tool_call
from tests.support.storage import forget

Reply = Callable[[ModelRequest], Step]
TASK = "count the words"


class NoArguments(Arguments):
    """For a tool that takes none."""


def tool_of(
    run: Callable[[ToolContext], Awaitable[str]], effect: Effect = "side_effect", name: str = "act"
) -> Tool:
    """Return a tool without arguments."""

    async def act(context: ToolContext, _arguments: NoArguments) -> str:
        return await run(context)

    return Tool(name, "Acts.", effect, NoArguments, act)


def delegated(task: str = TASK, call_id: str = "d1") -> ToolCall:
    """Return a call of the tool."""
    return tool_call("delegate_task", {"task": task}, call_id)


def acts(call_id: str = "a1") -> list[ToolCall]:
    """Return a step that calls `act`."""
    return [tool_call("act", {}, call_id)]


def is_child(request: ModelRequest) -> bool:
    """Whether a request is one of a child."""
    return CHILD_IDENTITY in text_of(request.messages[0])


def results(request: ModelRequest) -> list[dict[str, Any]]:
    """Return what the children handed over, from the newest messages of a request."""
    found = [message for message in request.messages if message["role"] == "tool"]
    return [orjson.loads(text_of(message)) for message in found]


def parent_and(child: Reply, *calls: ToolCall) -> Reply:
    """Return a script: the parent calls and repeats what came back; `child` answers the others."""

    def script(request: ModelRequest) -> Step:
        if is_child(request):
            return child(request)
        if request.messages[-1]["role"] == "tool":
            found = [f"{each['outcome']}: {each['answer']}" for each in results(request)]
            return " | ".join(found)
        return list(calls or (delegated(),))

    return script


def model_of(*steps: Step, calls: tuple[ToolCall, ...] = ()) -> HeldModel:
    """Return a model: its children play these steps, the parent the same script as ever."""
    rest = iter(steps)
    return HeldModel(parent_and(lambda _: next(rest), *calls))


def agent_with(model: HeldModel, *tools: Tool, retry: RetryPolicy | None = None) -> Any:
    """Return an agent that can delegate."""
    agent = agent_of(model, tools=[delegate_task, *tools])
    return agent if retry is None else replace(agent, recovery=Recovery(retry))


async def child_of(chat: Running) -> Any:
    """Return the only child's row."""
    [child] = [row for row in await chat.rows(schema.conversation) if row.parent_turn_id]
    return child


async def child_turn(chat: Running) -> Any:
    """Return the turn of the only child."""
    child = await child_of(chat)
    [turn] = [row for row in await chat.rows(schema.turn) if row.conversation == child.id]
    return turn


async def child_messages(chat: Running) -> list[ChatMessage]:
    """Return the transcript of the only child."""
    child = await child_of(chat)
    rows = [row for row in await chat.rows(schema.message) if row.conversation == child.id]
    return [decode(row.body) for row in rows]


async def test_a_child_sees_its_task_and_hands_over_its_answer(tmp_path: Path) -> None:
    """Nothing of the conversation is in its requests; its parent gets a typed result."""
    model = model_of("three words", calls=(delegated(),))
    async with running(tmp_path, agent_with(model)) as chat:
        assert await chat.ask("my secret") == "final_text: three words"
        child = await child_of(chat)
    [request] = [each for each in model.requests if is_child(each)]
    assert [text_of(message) for message in request.messages[1:]] == [TASK]
    assert "my secret" not in str(request)
    [result] = results(model.requests[-1])
    assert result["conversation"] == child.id
    assert result["iterations"] == 1
    assert result["used_tokens"] > 0
    assert result["cost_usd"] == 0


async def test_a_child_has_no_tools_of_its_parent_alone(tmp_path: Path) -> None:
    """It asks nobody, delegates nothing, keeps no notes, shows no files."""
    kept = [read_conversation]
    taken = [memory, todo, send_file]
    forbidden = [tool_call("delegate_task", {"task": "more"}, "x")]
    model = model_of(forbidden, "done")
    async with running(tmp_path, agent_with(model, *kept, *taken)) as chat:
        assert await chat.ask("go") == "final_text: done"
        assert "there is no tool" in text_of((await child_messages(chat))[2])
    [first, _] = [each for each in model.requests if is_child(each)]
    assert [tool.name for tool in first.tools] == ["read_conversation"]


async def test_a_child_reads_its_own_transcript_alone(tmp_path: Path) -> None:
    """Its reader is bound to its own conversation; its workspace is its parent's."""
    seen: list[ToolContext] = []

    async def look(context: ToolContext) -> str:
        seen.append(context)
        return " / ".join(
            m.text for m in await context.reader.read(from_seq=None, limit=9, contains=None)
        )

    model = model_of(acts(), "done")
    async with running(tmp_path, agent_with(model, tool_of(look, "read"))) as chat:
        await chat.ask("my secret")
        assert text_of((await child_messages(chat))[2]).startswith(TASK)
    [context] = seen
    assert "my secret" not in str(context)
    assert (context.services.notebook, context.services.delegates, context.files) == (
        None,
        None,
        None,
    )


async def test_a_child_belongs_to_its_parent_on_record(tmp_path: Path) -> None:
    """It has a transcript, a turn and a ledger of its own, under the parent's chat and sender."""
    async with running(tmp_path, agent_with(model_of("done"))) as chat:
        await chat.ask("go")
        child, turn = await child_of(chat), await child_turn(chat)
        booked = [row for row in await chat.rows(schema.ledger) if row.conversation == child.id]
        assert (child.chat, child.user, child.title) == ("c1", "u1", TASK)
        assert (child.owner, child.ready_no) == (None, None)
        assert (turn.state, turn.outcome) == ("done", "final_text")
        assert [(row.sender, row.turn_id) for row in booked] == [("telegram:u1", turn.id)]
        assert [m["role"] for m in await child_messages(chat)] == ["user", "assistant"]
        assert [row.conversation for row in await chat.rows(schema.outbox)] == [1]
        done = chat.events("delegate_finished")
        assert [(line["conversation"], line["outcome"]) for line in done] == [
            (child.id, "final_text")
        ]


async def test_three_children_run_at_once_and_a_fourth_waits(tmp_path: Path) -> None:
    """It begins when one of them has ended."""
    tasks = ["one", "two", "three", "four"]
    calls = tuple(delegated(task, f"d-{task}") for task in tasks)
    model = HeldModel(parent_and(lambda request: f"did {text_of(request.messages[-1])}", *calls))
    gates = [model.hold(task) for task in tasks]
    async with running(tmp_path, agent_with(model)) as chat:
        await chat.say("go")
        await chat.until(lambda: len(model.waiting) == 3)
        assert len(await chat.rows(schema.conversation)) == 1 + 3
        for gate in (gates[1], gates[3], gates[0], gates[2]):
            gate.set()
        [answer] = await chat.answers(1)
        assert answer == " | ".join(f"final_text: did {task}" for task in tasks)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ModelUnreachable("boom"), "provider_failed: No model answered."),
        (ModelRefused("no"), "refused: The model declined to do the task."),
        (ValueError("secret of the code"), "failed: The agent that did the task broke."),
    ],
)
async def test_a_child_that_breaks_gives_a_result(
    tmp_path: Path, failure: Exception, told: str
) -> None:
    """Its parent goes on; what broke stands in the log, and nothing of it in the chat."""
    model = HeldModel(parent_and(lambda _: failure))
    at_once = RetryPolicy(retry_for_s=0, backoff_s=(1,))
    async with running(tmp_path, agent_with(model, retry=at_once)) as chat:
        assert await chat.ask("go") == told
        turn = await child_turn(chat)
        assert (turn.state, turn.outcome) == ("done", told.partition(":")[0])
        assert len(chat.events("delegate_failed")) == isinstance(failure, ValueError)


async def test_a_child_that_loops_ends_with_its_iterations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last call asks what was done, without tools."""
    monkeypatch.setattr(delegation, "MAX_ITERATIONS", 3)

    def child(request: ModelRequest) -> Step:
        if not request.allow_tools:
            return "went round in circles"
        return acts(f"a{len(request.messages)}")

    async def act(_: ToolContext) -> str:
        return "again"

    model = HeldModel(parent_and(child))
    agent = agent_with(model, tool_of(act, "read"))
    async with running(tmp_path, agent) as chat:
        assert await chat.ask("go") == "max_iterations: went round in circles"
        assert results(model.requests[-1])[0]["iterations"] == 4


async def test_a_child_ends_with_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a call has read and written counts; the last one sums up."""
    monkeypatch.setattr(delegation, "MAX_TOKENS", 1)
    model = model_of(acts(), "as far as I came")
    agent = agent_with(model, tool_of(lambda _: asyncio.sleep(0, "x"), "read"))
    async with running(tmp_path, agent) as chat:
        assert await chat.ask("go") == "budget_exhausted: as far as I came"


class ChildTime:
    """The time that children have: it passes when a test says so, and not otherwise."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._scope = asyncio.timeout(None)
        patch.setattr(delegation, "child_timeout", self._begin)

    def _begin(self, _seconds: float | None) -> asyncio.Timeout:
        self._scope = asyncio.timeout(None)
        return self._scope

    def pass_(self) -> None:
        """Have the time be over that runs now."""
        self._scope.reschedule(asyncio.get_running_loop().time())


async def test_a_tool_that_hangs_ends_with_the_childs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call gets a result, and the child says what it did."""

    async def hang(_: ToolContext) -> str:
        time.pass_()
        await asyncio.Event().wait()
        return "never"

    model = model_of(acts(), "it hung")
    async with running(tmp_path, agent_with(model, tool_of(hang))) as chat:
        time = ChildTime(monkeypatch)
        assert await chat.ask("go") == "budget_exhausted: it hung"
        _, _, cut, asked, _ = await child_messages(chat)
        assert "outcome is unknown" in text_of(cut)
        assert text_of(asked) == WRAP_UP


async def test_a_model_that_hangs_ends_with_the_childs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it does not even sum up, its parent is told that; both calls are booked as lost."""
    model = model_of()
    model.hold(TASK)
    model.hold(WRAP_UP)
    async with running(tmp_path, agent_with(model)) as chat:
        time = ChildTime(monkeypatch)
        await chat.say("go")
        for asked in (TASK, WRAP_UP):
            await model.watch.until(lambda asked=asked: asked in model.waiting)
            time.pass_()
        await chat.until(chat.texts)
        assert chat.texts() == ["budget_exhausted: The time for the task was used up."]
        turn = await child_turn(chat)
        assert (turn.state, turn.error) == ("done", "no time was left")
        lost = [row for row in await chat.rows(schema.ledger) if row.purpose == "lost"]
        assert [row.turn_id for row in lost] == [turn.id] * 2


async def test_stop_ends_the_children_with_their_parent(tmp_path: Path) -> None:
    """What they were doing is closed and booked; nobody goes on with it."""
    started = asyncio.Event()

    async def hang(_: ToolContext) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    model = model_of(acts())
    async with running(tmp_path, agent_with(model, tool_of(hang))) as chat:
        await chat.say("go")
        await started.wait()
        await chat.say("/stop")
        await chat.logged("turn_finished")
        turn = await child_turn(chat)
        assert (turn.state, turn.outcome) == ("cancelled", "interrupted")
        assert text_of((await child_messages(chat))[-1]) == "Cancelled by the user."


def careful(model: HeldModel) -> Any:
    """Return an agent whose tool `act` needs an approval."""
    agent = agent_with(model, tool_of(lambda _: asyncio.sleep(0, "acted")))
    return replace(agent, approval=ApprovalRules())


def branching() -> HeldModel:
    """Return a model with two children: one acts, the other only thinks."""

    def child(request: ModelRequest) -> Step:
        newest = request.messages[-1]
        if newest["role"] == "tool":
            return f"it {text_of(newest)}"
        return acts() if text_of(newest) == "act" else "thought"

    return HeldModel(parent_and(child, delegated("act", "d1"), delegated("think", "d2")))


async def test_an_approval_inside_a_child_is_asked_in_the_parents_chat(tmp_path: Path) -> None:
    """Parent and child wait as rows, over a restart too; the other child is not asked again."""
    before, after = branching(), branching()
    async with running(tmp_path, careful(before)) as chat:
        await chat.say("go")
        question = (await chat.answers(1))[0]
        assert question.startswith("For a task I delegated, `act`:")
        await chat.logged("turn_suspended")
        [inquiry] = await chat.rows(schema.inquiry)
        assert (inquiry.conversation, inquiry.state) == (1, "pending")
    async with running(tmp_path, careful(after)) as chat:
        await chat.say("/approve 1 once")
        await chat.until(lambda: "final_text: it acted | final_text: thought" in chat.texts())
        turns = await chat.rows(schema.turn)
        assert [(row.state, row.attempt) for row in turns] == [("done", 1)] * 3
    asked = [text_of(each.messages[-1]) for each in after.requests if is_child(each)]
    assert asked == ["acted"]


async def test_stop_takes_back_what_a_child_asks(tmp_path: Path) -> None:
    """No answer is taken any more; child and parent have ended."""
    async with running(tmp_path, careful(model_of(acts()))) as chat:
        await chat.say("go")
        await chat.logged("turn_suspended")
        await chat.say("/stop")
        await chat.logged("turn_finished")
        assert [row.state for row in await chat.rows(schema.inquiry)] == ["cancelled"]
        assert [row.state for row in await chat.rows(schema.turn)] == ["cancelled"] * 2


async def test_a_child_that_had_ended_is_not_asked_again(tmp_path: Path) -> None:
    """The resumed parent finds its result by the call, though it was never recorded."""
    model = model_of("one", "two", calls=(delegated("a", "d1"), delegated("b", "d2")))
    model.hold("b")
    async with running(tmp_path, agent_with(model)) as chat:
        await chat.say("go")
        await chat.logged("delegate_finished")
        await chat.until(lambda: model.waiting)
    after = model_of("two again")
    async with running(tmp_path, agent_with(after)) as chat:
        [answer] = await chat.answers(1)
    assert answer == "final_text: one | final_text: two again"
    assert [text_of(each.messages[-1]) for each in after.requests if is_child(each)] == ["b"]


async def test_a_child_goes_on_where_its_records_end(tmp_path: Path) -> None:
    """A side effect of unknown outcome is reported to the child's model, never run again."""
    runs: list[str] = []
    started = asyncio.Event()

    async def act(_: ToolContext) -> str:
        runs.append("ran")
        started.set()
        await asyncio.Event().wait()
        return "never"

    async with running(tmp_path, agent_with(model_of(acts()), tool_of(act))) as chat:
        await chat.say("go")
        await started.wait()
    after = model_of("I cannot tell")
    async with running(tmp_path, agent_with(after, tool_of(act))) as chat:
        assert await chat.answers(1) == ["final_text: I cannot tell"]
        assert (await child_turn(chat)).attempt <= 1
    assert runs == ["ran"]
    assert text_of(after.requests[0].messages[-1]) == OUTCOME_UNKNOWN


async def test_a_child_that_ends_the_process_again_and_again_is_given_up(tmp_path: Path) -> None:
    """Before its parent is: that one goes on with a result."""
    held = model_of()
    held.hold(TASK)
    async with running(tmp_path, agent_with(held)) as chat:
        await chat.say("go")
        await chat.until(lambda: held.waiting)
    # A stop that leaves no time, unlike a crash, is not counted.
    older = update(schema.turn).where(schema.turn.c.conversation > 1).values(attempt=2)
    await change(tmp_path, lambda conn: conn.execute(older))
    async with running(tmp_path, agent_with(model_of())) as chat:
        assert await chat.answers(1) == ["failed: The agent that did the task broke."]
        assert (await child_turn(chat)).error == "the process ended whenever it was worked on"


async def test_a_child_is_compacted_like_any_conversation(tmp_path: Path) -> None:
    """In its own lineage; its transcript has every message, and its requests fit."""

    def child(request: ModelRequest) -> Step:
        number = len(model.requests)
        return acts(f"a{number}") if number < 12 else "read it all"

    model = HeldModel(parent_and(child))
    model.context_length = 8_000
    tool = tool_of(lambda _: asyncio.sleep(0, "line of a log " * 200), "read")
    async with running(
        tmp_path, agent_with(model, tool), compression={"protect_last_n": 2}
    ) as chat:
        assert await chat.ask("go") == "final_text: read it all"
        made = await chat.rows(schema.compaction)
        assert {row.conversation for row in made} == {(await child_of(chat)).id}
        assert len(await child_messages(chat)) == 1 + 2 * 10 + 1


async def test_a_budget_that_is_used_up_ends_the_child(tmp_path: Path) -> None:
    """It counts for who asked the parent, which may still have enough for a short answer."""
    model = model_of(acts(), "never")
    prices = Prices(input=1000.0, cache_write_5m=0, cache_write_1h=0, cache_read=0, output=0)
    model.facts = ModelFacts("scripted", prices=prices)
    agent = agent_with(model, tool_of(lambda _: asyncio.sleep(0, "word " * 9_000), "read"))
    async with running(tmp_path, agent, budget={"sender_daily_usd": 6.0}) as chat:
        assert await chat.ask("go") == "spend_limit: A budget is used up."
        assert (await child_turn(chat)).outcome == "spend_limit"


async def test_an_id_that_is_used_again_is_another_child(tmp_path: Path) -> None:
    """Some servers count the calls of each step from one."""

    def script(request: ModelRequest) -> Step:
        if is_child(request):
            return f"did {text_of(request.messages[-1])}"
        found = [each["answer"] for each in results(request)]
        return [delegated(f"part {len(found)}", "same")] if len(found) < 2 else " ".join(found)

    async with running(tmp_path, agent_with(HeldModel(script))) as chat:
        assert await chat.ask("go") == "did part 0 did part 1"


async def test_a_child_works_with_the_model_that_was_chosen(tmp_path: Path) -> None:
    """It is its parent's agent, with fewer tools."""
    main = model_of("never")
    other = HeldModel(parent_and(lambda _: "by the other"))
    other.name = other.label = "other"
    agent = replace(agent_with(main), models=[main, other])
    async with running(tmp_path, agent) as chat:
        await chat.ask("/model other")
        assert await chat.ask("go") == "final_text: by the other"
    assert main.requests == []


async def test_lists_and_usage_know_of_children(tmp_path: Path) -> None:
    """`parley sessions list` names their parents, `/usage` tells what they took."""
    async with running(tmp_path, agent_with(model_of("done"))) as chat:
        await chat.ask("go")
        assert "Delegated tasks" in (usage := await chat.ask("/usage"))
        assert usage.count("1 turn, 1 model call") == 1
        await chat.say("hi", chat="c2", sender="u2")
        found = await chat.gateway.database.read(history.overviews)
        assert [(row.id, row.parent) for row in found] == [(3, None), (2, 1), (1, None)]
        counted = await chat.gateway.database.read(history.accounts)
        assert counted == [("telegram", "default", 2)]
    with StringIO() as out:
        show_list(found, Console(file=out, width=160))
        assert [line.split()[0] for line in out.getvalue().splitlines()] == ["id", "3", "2", "1"]
        assert "2 (of 1)" in out.getvalue()


async def test_forget_erases_children(tmp_path: Path) -> None:
    """With the parent all that its children have on record is gone."""
    async with running(tmp_path, agent_with(model_of("done"))) as chat:
        await chat.ask("go")
        await chat.gateway.database.write(forget, 1)
        for table in (schema.conversation, schema.turn, schema.message, schema.ledger):
            assert await chat.rows(table) == []


async def test_a_child_is_not_forgotten_alone(tmp_path: Path) -> None:
    """Its parent may wait for it; the parent is named."""
    async with running(tmp_path, careful(model_of(acts()))) as chat:
        await chat.say("go")
        await chat.logged("turn_suspended")
        with pytest.raises(NotFound, match="conversation 2 belongs to conversation 1"):
            await chat.gateway.database.write(forget, 2)
        assert len(await chat.rows(schema.conversation)) == 2


async def test_what_a_stopped_child_asks_is_not_shown(tmp_path: Path) -> None:
    """Its question had not been sent yet."""
    async with running(tmp_path, careful(model_of(acts()))) as chat:
        held = chat.adapter.held["c1"] = asyncio.Event()
        await chat.say("/help")
        await chat.say("go")
        await chat.logged("turn_suspended")
        await chat.say("/stop")
        await chat.logged("turn_finished")
        held.set()
        await chat.until_rows(
            schema.outbox, lambda rows: all(row.state != "pending" for row in rows)
        )
        assert [row.state for row in await chat.rows(schema.outbox) if row.choices] == ["dropped"]


async def test_a_child_whose_end_is_not_stored_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent's attempt ends too: nothing is done twice, and no model is told of it."""
    done: list[int] = []

    async def act(_context: ToolContext) -> str:
        done.append(1)
        return "acted"

    model = model_of(acts(), "first", "again")
    fail_once(monkeypatch, delegates, "end_child")
    async with running(tmp_path, agent_with(model, tool_of(act))) as chat:
        assert await chat.ask("go") == "final_text: again"
    assert done == [1]
