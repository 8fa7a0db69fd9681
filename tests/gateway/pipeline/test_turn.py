"""Turns as people see them: commands, restarts, failures of model and tools, dead letters."""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from sqlalchemy import insert, update
from typing_extensions import override

from adapters.messages import Attachment
from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
)
from agent.messages import assistant_message, text_of
from agent.models.base import Completion, ModelRequest, TextSink
from agent.models.recovery import RetryPolicy
from agent.ports import Effect
from agent.tools.builtin.history import read_conversation
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool
from agent.turn.request import CONTINUE
from gateway.commands.help import help_text
from gateway.commands.new import NEW_TEXT
from gateway.commands.retry import NOTHING_TO_RETRY
from gateway.commands.stop import stop_text
from gateway.context.prompts import OperatorFiles
from gateway.pipeline import notices
from gateway.pipeline.next_turn import NextStep, TurnStarter
from gateway.pipeline.turn import TurnRunner
from gateway.storage import schema
from gateway.storage.conversation import sessions
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import blame, dead_letters
from gateway.storage.queue.blame import Death, DeathCause
from gateway.storage.schema import now_s
from tests.support.gateway import HeldModel, RecordingModel, Running, agent_of, running, serving
from tests.support.recording_adapter import RecordingAdapter
from tests.support.scripted_model import ScriptedModel, Step, tool_call

ODD = "an unexpected error"
GIVE_UP_AT_ONCE = RetryPolicy(retry_for_s=0, backoff_s=(1,))


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a failed turn tried again at once."""
    monkeypatch.setattr("gateway.pipeline.worker.RETRY_AFTER_S", 0.0)


def asked(request: ModelRequest) -> list[str]:
    """Return the texts that a model was given, without the system prompt."""
    return [text_of(message) for message in request.messages[1:]]


def newest(request: ModelRequest) -> str:
    """Return the text of the last message that a model was given."""
    return text_of(request.messages[-1])


def model_of(chat: Running) -> ScriptedModel:
    model = chat.agent.models[0]
    assert isinstance(model, ScriptedModel)
    return model


async def states(chat: Running) -> list[tuple[str, str]]:
    """Return state and outcome of all turns."""
    return [(row.state, row.outcome) for row in await chat.rows(schema.turn)]


class NoArguments(Arguments):
    """For a tool that takes none."""


def tool_of(run: Callable[[], Awaitable[str]], effect: Effect = "side_effect") -> Tool:
    """Return a tool named "act" without arguments."""

    async def act(_context: ToolContext, _arguments: NoArguments) -> str:
        return await run()

    return Tool("act", "Acts.", effect, NoArguments, act)


class Endless:
    """A tool that never ends; `started` is set once it runs."""

    def __init__(self) -> None:
        self.started = asyncio.Event()

    async def __call__(self) -> str:
        self.started.set()
        await asyncio.get_running_loop().create_future()
        return "never"


async def until_held(chat: Running, model: HeldModel, count: int = 1) -> None:
    """Wait until so many requests are held."""
    await chat.until(lambda: len(model.waiting) >= count)


ACT = [tool_call("act", {})]


# Commands


async def test_new_starts_afresh(tmp_path: Path) -> None:
    """The model sees nothing from before; the transcript keeps everything."""
    async with running(tmp_path) as chat:
        await chat.ask("one")
        assert await chat.ask("/new") == NEW_TEXT
        await chat.ask("two")
        assert asked(model_of(chat).requests[-1]) == ["two"]
        assert len(await chat.transcript()) == 4
        assert [row.end_reason for row in await chat.rows(schema.session)] == ["new", None]


async def test_new_keeps_its_place_among_the_messages(tmp_path: Path) -> None:
    """What was written before it belongs to the old session, what came after to the new one."""
    async with running(tmp_path, at_work=False) as chat:
        for text in ("one", "/new", "two"):
            await chat.say(text)
    async with running(tmp_path) as chat:
        assert await chat.answers(3) == ["re: one", NEW_TEXT, "re: two"]
        assert asked(model_of(chat).requests[-1]) == ["two"]


async def test_what_stands_behind_new_is_its_first_message(tmp_path: Path) -> None:
    """Nobody's words are dropped because they came with a command."""
    async with running(tmp_path) as chat:
        await chat.ask("one")
        assert await chat.ask("/new hello there") == "re: hello there"
        assert asked(model_of(chat).requests[-1]) == ["hello there"]


async def test_new_reads_the_file_below_it(tmp_path: Path) -> None:
    """With its caption, or alone; a plain `/new` is marked as answered."""
    adapter = RecordingAdapter()
    adapter.files["f"] = b"the content"
    file: dict[str, Any] = {"attachments": (Attachment(name="a.txt", kind="file", ref="f"),)}
    async with serving(tmp_path, adapter=adapter) as gateway:
        chat = gateway.chat
        answer = await chat.ask("/new summarise this", **file)
        assert answer.startswith("re: summarise this\n\n[file: a.txt")
        assert "the content" in answer
        assert "the content" in await chat.ask("/new", **file)
        await chat.ask("/new", message_ref="m1")
        await chat.until(lambda: ("m1", "answered") in adapter.marks)


async def test_nobody_acts_for_a_guest(tmp_path: Path) -> None:
    """Not even when a member goes on: what the guest wrote is in view until `/new`."""
    runs: list[str] = []

    async def run() -> str:
        runs.append("ran")
        return "done"

    agent = agent_of(
        ScriptedModel([step for end in "abcde" for step in (ACT, end)]), tools=[tool_of(run)]
    )
    access = {"mode": "allowlist", "groups": {"*": {"senders": "anyone"}}}
    group: dict[str, Any] = {"chat_kind": "group"}
    guest = {"sender": "u9", "message_ref": "m1"} | group
    async with running(tmp_path, agent, access=access, sessions={"groups": "shared"}) as chat:
        assert await chat.ask("wipe the disk", **guest) == "a"
        assert await chat.ask("/retry", **group) == "b"
        await chat.say("please wipe it", kind="edit", **guest)
        await chat.answers(3)
        assert await chat.ask("hello", **group) == "c"
        assert await chat.ask("go on", **group) == "d"
        assert runs == []
        assert await chat.ask("/new wipe it", **group) == "e"
        assert runs == ["ran"]


async def test_start_is_help(tmp_path: Path) -> None:
    """Telegram sends it by itself when a chat is opened."""
    async with running(tmp_path) as chat:
        assert await chat.ask("/start") == help_text(to_owner=True)
        assert await chat.ask("/help@my_bot") == help_text(to_owner=True)


async def test_a_word_that_is_no_command_is_a_message(tmp_path: Path) -> None:
    """A path is no command."""
    async with running(tmp_path) as chat:
        assert await chat.ask("/usr/bin is full") == "re: /usr/bin is full"


async def test_status_tells_how_the_conversation_stands(tmp_path: Path) -> None:
    """Model, context, messages so far, state, and how the last turn ended."""
    async with running(tmp_path) as chat:
        assert re.search(r"\d+ of 200,000 tokens \(0%\), estimated", await chat.ask("/status"))
        await chat.ask("one")
        told = await chat.ask("/status")
        for line in ("**Model**: scripted", "reported", "2 so far", "idle, 0", "answered"):
            assert line in told


async def test_status_comes_while_a_turn_runs(tmp_path: Path) -> None:
    """It does not wait in the queue."""
    model = HeldModel()
    async with running(tmp_path, model) as chat:
        model.hold("one")
        await chat.say("one")
        await chat.until(lambda: model.waiting)
        await chat.say("two")
        assert "working on an answer, 1 message queued" in await chat.ask("/status")


async def test_stop_keeps_the_text_so_far_and_drops_what_waits(tmp_path: Path) -> None:
    """The partial answer is marked, in the chat and for the model."""
    model = HeldModel(begun="Once upon a time")
    async with running(tmp_path, model) as chat:
        model.hold("a story")
        await chat.say("a story")
        await chat.until(lambda: chat.adapter.previews)
        await chat.say("and another")
        assert (await chat.say("/stop")).outcome == "command"
        assert set(await chat.answers(2)) == {
            "Stopped. One queued message was dropped.",
            "Once upon a time\n\n*[stopped]*",
        }
        await chat.ask("go on")
        told = ["a story", "Once upon a time\n\n*[stopped]*", "go on"]
        assert asked(model.requests[-1]) == told
        assert [row.state for row in await chat.rows(schema.inbox)] == [
            "cancelled",
            "cancelled",
            "done",
            "done",
        ]


async def test_a_stopped_turn_is_not_run_after_a_restart(tmp_path: Path) -> None:
    """Nothing below a stop is ever run again."""
    model = HeldModel(begun="Once")
    async with running(tmp_path, model) as chat:
        model.hold("a story")
        await chat.say("a story")
        await chat.until(lambda: chat.adapter.previews)
        await chat.say("/stop")
        await chat.answers(2)
        await chat.gateway.delivery.wait_idle()
    async with running(tmp_path) as chat:
        assert await chat.ask("next") == "re: next"
        assert len(model_of(chat).requests) == 1


async def test_a_stop_whose_signal_was_lost_holds_after_a_restart(tmp_path: Path) -> None:
    """The process dies between the stop's commit and the turn's end: the model is not asked."""
    model = HeldModel()
    async with running(tmp_path, model) as chat:
        model.hold("a story")
        await chat.say("a story")
        await chat.until(lambda: model.waiting)
        await chat.execute(update(schema.conversation).values(cancel_upto_seq=1))
    async with running(tmp_path) as chat:
        assert await chat.ask("next") == "re: next"
        assert [asked(request)[-1] for request in model_of(chat).requests] == ["next"]
        assert (await states(chat))[0] == ("cancelled", "interrupted")


# One of several replicas takes no more turns than it has places for.
@pytest.mark.usefixtures("sqlite_alone")
async def test_a_stop_reaches_a_turn_that_waits_for_its_place(tmp_path: Path) -> None:
    """A turn that was frozen but has not begun makes no model call after a stop."""
    model = HeldModel()
    gate = model.hold("busy")
    async with running(tmp_path, model, queue={"max_concurrent_turns": 1}) as chat:
        await chat.say("busy", "a")
        await chat.until(lambda: model.waiting)
        await chat.say("stop me", "b")
        await chat.until_rows(schema.inbox, lambda _: len(chat.gateway.worker._serving) == 2)
        await chat.say("/stop", "b")
        await chat.answers(1, "b")
        gate.set()
        await chat.answers(1, "a")
        assert await chat.ask("next", "b") == "re: next"
        assert [asked(request)[-1] for request in model.requests] == ["busy", "next"]


async def test_a_stop_without_its_signal_is_found_at_the_next_step(tmp_path: Path) -> None:
    """The row alone ends a turn at its commit; open tool calls get a result."""
    model = HeldModel(lambda _: [tool_call("clock", {})])
    gate = model.hold("the time?")
    async with running(tmp_path, model) as chat:
        await chat.say("the time?")
        await chat.until(lambda: model.waiting)
        await chat.execute(update(schema.conversation).values(cancel_upto_seq=1))
        gate.set()
        assert (await chat.logged("turn_finished"))["outcome"] == "interrupted"
        assert await states(chat) == [("cancelled", "interrupted")]


async def test_two_stops_are_two_answers(tmp_path: Path) -> None:
    """The second one comes while the first is still ending the turn."""
    model = HeldModel()
    async with running(tmp_path, model) as chat:
        model.hold("a story")
        await chat.say("a story")
        await chat.until(lambda: model.waiting)
        await chat.say("/stop")
        await chat.say("/stop")
        await chat.answers(2)
        assert await chat.ask("next") == "re: next"


async def test_a_stopped_continuation_keeps_its_first_part(tmp_path: Path) -> None:
    """The chat reads the whole of what was said; the transcript has each part once."""
    cut = Completion(assistant_message("ONE "), "length")
    model = HeldModel(lambda _: cut, begun="TW")
    async with running(tmp_path, model) as chat:
        model.hold(CONTINUE)
        await chat.say("go")
        await chat.until(lambda: model.waiting)
        await chat.say("/stop")
        await chat.logged("turn_finished")
        stopped = next(text for text in await chat.answers(2) if "ONE" in text)
        assert stopped == f"ONE TW\n\n{notices.STOPPED}"
        assert sum("ONE" in text_of(message) for message in await chat.transcript()) == 1


async def test_stop_with_nothing_to_stop(tmp_path: Path) -> None:
    """While idle it says so, and the next message is answered."""
    async with running(tmp_path) as chat:
        assert await chat.ask("/stop") == "There is nothing to stop."
        assert await chat.ask("one") == "re: one"


def test_stop_counts_what_it_dropped() -> None:
    """With and without a running turn."""
    assert stop_text(was_running=False, dropped=2) == (
        "Nothing was running. 2 queued messages were dropped."
    )
    assert stop_text(was_running=True, dropped=0) == "Stopped."


async def test_stop_during_a_tool_closes_its_group(tmp_path: Path) -> None:
    """The call gets the result "cancelled", so that no half group stays (invariant 6)."""
    tool = Endless()
    agent = agent_of(ScriptedModel([ACT, "fine"]), tools=[tool_of(tool)])
    # A preview would get a last word of its own, if it was shown before the stop.
    async with running(tmp_path, agent, adapter=RecordingAdapter(previews=False)) as chat:
        await chat.say("act")
        await tool.started.wait()
        await chat.say("/stop")
        await chat.logged("turn_finished")
        assert text_of((await chat.transcript())[-1]) == "Cancelled by the user."
        assert await chat.answers(1) == ["Stopped."]
        assert await chat.ask("next") == "fine"


async def test_retry_asks_the_last_question_again(tmp_path: Path) -> None:
    """The model sees the question once and not its first answer."""
    async with running(tmp_path, ["first", "second", "third", "fourth"]) as chat:
        await chat.ask("hello")
        await chat.ask("question")
        assert await chat.ask("/retry") == "third"
        assert asked(model_of(chat).requests[-1]) == ["hello", "first", "question"]
        assert await chat.ask("/retry") == "fourth"
        assert asked(model_of(chat).requests[-1]) == ["hello", "first", "question"]


async def test_retry_after_a_failure(tmp_path: Path) -> None:
    """What failed is asked again."""
    script: list[Step] = [ModelRefused("no"), "better"]
    async with running(tmp_path, script) as chat:
        assert await chat.ask("question") == notices.REFUSED
        assert await chat.ask("/retry") == "better"
        assert asked(model_of(chat).requests[-1]) == ["question"]


async def test_retry_after_a_stop(tmp_path: Path) -> None:
    """The stopped question is asked again, without its partial answer."""
    model = HeldModel(begun="Once")
    async with running(tmp_path, model) as chat:
        gate = model.hold("a story")
        await chat.say("a story")
        await chat.until(lambda: chat.adapter.previews)
        await chat.say("/stop")
        await chat.answers(2)
        gate.set()
        assert await chat.ask("/retry") == "re: a story"
        assert asked(model.requests[-1]) == ["a story"]


@pytest.mark.parametrize("before", [[], ["one", "/new"]], ids=["empty", "after new"])
async def test_retry_with_nothing_to_retry(tmp_path: Path, before: list[str]) -> None:
    """A fresh session has no question."""
    async with running(tmp_path) as chat:
        for text in before:
            await chat.ask(text)
        assert await chat.ask("/retry") == NOTHING_TO_RETRY


# Restarts


async def test_an_interrupted_turn_is_resumed(tmp_path: Path) -> None:
    """After a crash the question is answered once, by a new process on the same file."""
    model = HeldModel()
    async with running(tmp_path, model) as chat:
        model.hold("one")
        await chat.say("one")
        await chat.until(lambda: model.waiting)
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == ["re: one"]
        assert chat.events("conversations_reclaimed")[0]["count"] == 1
        assert (await chat.logged("turn_finished"))["attempt"] == 1
        assert [m["role"] for m in await chat.transcript()] == ["user", "assistant"]


async def test_a_finished_turn_is_never_run_again(tmp_path: Path) -> None:
    """A restart finds nothing to do."""
    async with running(tmp_path) as chat:
        await chat.ask("one")
        await chat.gateway.delivery.wait_idle()
    async with running(tmp_path) as chat:
        await chat.ask("two")
        assert len(model_of(chat).requests) == 1
        assert chat.texts() == ["re: two"]


async def test_a_resumed_turn_keeps_its_steps(tmp_path: Path) -> None:
    """What a tool did before the crash is not done again."""
    runs: list[str] = []

    async def run() -> str:
        runs.append("run")
        return "rosebud"

    model = HeldModel([ACT])
    model.hold("rosebud")
    async with running(tmp_path, agent_of(model, tools=[tool_of(run)])) as chat:
        await chat.say("question")
        await chat.until(lambda: model.waiting)
    after = ScriptedModel(["It is 42."])
    async with running(tmp_path, agent_of(after, tools=[tool_of(run)])) as chat:
        assert await chat.answers(1) == ["It is 42."]
    assert asked(after.requests[0]) == ["question", "", "rosebud"]
    assert runs == ["run"]


@pytest.mark.parametrize(
    ("effect", "seen"), [("side_effect", "outcome is unknown"), ("read", "fresh")]
)
async def test_only_harmless_tools_run_again(tmp_path: Path, effect: Effect, seen: str) -> None:
    """After a crash the model is told of a side effect of unknown outcome (invariant 11)."""
    tool = Endless()
    agent = agent_of(ScriptedModel([ACT]), tools=[tool_of(tool, effect)])
    async with running(tmp_path, agent) as chat:
        await chat.say("act")
        await tool.started.wait()

    async def again() -> str:
        return "fresh"

    after = ScriptedModel(["Not sure."])
    async with running(tmp_path, agent_of(after, tools=[tool_of(again, effect)])) as chat:
        assert await chat.answers(1) == ["Not sure."]
    assert seen in asked(after.requests[0])[-1]


OUT_OF_MEMORY = Death("out_of_memory")
"""A death that came from within."""


@pytest.fixture
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have suspects tried at once."""
    monkeypatch.setattr("gateway.storage.queue.blame.QUIET_S", 0.0)
    monkeypatch.setattr("gateway.storage.queue.blame.LONGEST_QUIET_S", 0.0)


async def crash_while_held(
    home: Path, questions: dict[str, str], held: int = 1, death: Death = OUT_OF_MEMORY
) -> None:
    """Start, ask these questions (by chat) if that was not done before, and end while they run.

    Args:
        home: PARLEY_HOME.
        questions: By chat.
        held: How many of them run at that moment.
        death: How the gateway before has ended.
    """
    model = HeldModel()
    for text in questions.values():
        model.hold(text)
    async with running(home, model, death=death) as chat:
        new = not await chat.rows(schema.inbox)
        for name, text in questions.items() if new else ():
            await chat.say(text, name)
        await until_held(chat, model, held)


@pytest.mark.usefixtures("short_trials")
async def test_deaths_that_a_turn_alone_is_to_blame_for_bury_it(tmp_path: Path) -> None:
    """Two make it a suspect, two more on trial a dead letter; the chat is told."""
    for _ in range(4):
        await crash_while_held(tmp_path, {"c1": "poison"})
    async with running(tmp_path, death=OUT_OF_MEMORY) as chat:
        assert await chat.answers(1) == [notices.GAVE_UP]
        assert await states(chat) == [("dead", "gave_up")]
        [buried] = chat.events("turn_buried")
        assert (buried["attempts"], buried["error"]) == (
            4,
            "the process died whenever it was tried",
        )
        assert await chat.ask("next") == "re: next"


@pytest.mark.usefixtures("short_trials")
@pytest.mark.parametrize("how", ["stopped", "stop_cut_off", "machine_restarted", "exception"])
async def test_a_death_that_is_no_turns_fault_costs_nothing(
    tmp_path: Path, how: DeathCause
) -> None:
    """However often it happens: the turn is answered as if it were its first attempt."""
    for _ in range(6):
        await crash_while_held(tmp_path, {"c1": "innocent"}, death=Death(how))
    async with running(tmp_path, death=Death(how)) as chat:
        assert await chat.answers(1) == ["re: innocent"]
        assert (await chat.logged("turn_finished"))["attempt"] == 1
        assert chat.events("conversations_reclaimed")[0]["suspects"] == 0


@pytest.mark.usefixtures("short_trials")
async def test_when_the_time_budget_is_used_up_deaths_from_outside_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a turn has `queue.max_attempts` attempts, like for exceptions."""
    for _ in range(3):
        await crash_while_held(tmp_path, {"c1": "unlucky"}, death=Death("machine_restarted"))
    monkeypatch.setattr(blame, "GIVE_UP_AFTER_S", 0.0)
    once = {"max_attempts": 1}
    async with running(tmp_path, death=Death("machine_restarted"), queue=once) as chat:
        assert await chat.answers(1) == [notices.GAVE_UP]
        assert chat.events("turn_buried")[0]["error"] == "it failed at every attempt"


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun before"])
async def test_what_cannot_begin_is_buried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    """The chat is told, what stands behind it is answered, and an operator can ask it again."""
    if begun:
        await crash_while_held(tmp_path, {"c1": "poison"})
    async with running(tmp_path) as chat:
        with monkeypatch.context() as broken:
            broken.setattr(sessions, "settle_base", Mock(side_effect=KeyError("bug")))
            if not begun:
                await chat.say("poison")
            assert await chat.answers(1) == [notices.NEVER_BEGAN]
        [buried] = chat.events("turn_buried")
        assert chat.adapter.shown[0].payload.endswith(f"Reference: `{buried['trace'][:8]}`")
        assert (buried["attempts"], buried["error"]) == (
            3,
            "it could not begin: an unexpected error",
        )
        [letter] = await chat.gateway.database.read(dead_letters.find_all)
        assert (letter.id, letter.text) == ("t1", "poison")
        assert await chat.ask("next") == "re: next"
        await chat.gateway.database.write(dead_letters.retry, "t1")
        chat.gateway.worker.notify(1)
        assert (await chat.answers(3))[-1] == "re: poison"


@pytest.mark.usefixtures("no_pause")
async def test_a_note_of_what_cannot_go_on_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each note is shown with *Undo*, however its turn ends."""
    await crash_while_held(tmp_path, {"c1": "poison"})
    async with running(tmp_path, at_work=False) as chat:
        values = {"scope": "telegram:u1", "target": "user", "text": "likes tea", "at": now_s()}
        await chat.execute(insert(schema.memory).values(turn_id=1, **values))
    async with running(tmp_path) as chat:
        with monkeypatch.context() as broken:
            broken.setattr(sessions, "settle_base", Mock(side_effect=KeyError("bug")))
            await chat.answers(1)
        await chat.say("next")
        await chat.until(lambda: "re: next" in chat.texts())
        line = "Remembered: `likes tea`. `/memory undo 1`"
        assert chat.texts() == [notices.NEVER_BEGAN, line, "re: next"]


@pytest.mark.usefixtures("no_pause")
async def test_what_was_stopped_and_cannot_go_on_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no dead letter, and its chat reads of one end."""
    await crash_while_held(tmp_path, {"c1": "poison"})
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("/stop")
    async with running(tmp_path) as chat:
        with monkeypatch.context() as broken:
            broken.setattr(sessions, "settle_base", Mock(side_effect=KeyError("bug")))
            await chat.until_rows(schema.turn, lambda rows: rows[0].state != "running")
        await chat.say("next")
        await chat.until(lambda: "re: next" in chat.texts())
        assert notices.NEVER_BEGAN not in chat.texts()
        assert await states(chat) == [("cancelled", "interrupted"), ("done", "final_text")]
        await chat.logged("turn_finished")
        assert chat.events("turn_finished")[0]["outcome"] == "interrupted"


@pytest.mark.usefixtures("short_trials")
async def test_what_was_stopped_after_its_last_attempt_is_stopped(tmp_path: Path) -> None:
    """The same for a turn that was to blame for every death."""
    for _ in range(4):
        await crash_while_held(tmp_path, {"c1": "poison"})
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("/stop")
    async with running(tmp_path) as chat:
        await chat.say("next")
        await chat.until(lambda: "re: next" in chat.texts())
        assert notices.GAVE_UP not in chat.texts()
        assert await states(chat) == [("cancelled", "interrupted"), ("done", "final_text")]


@pytest.mark.usefixtures("no_pause")
async def test_trouble_within_a_turn_is_no_false_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind a turn that failed twice has all its attempts to begin."""
    begin, run = TurnStarter.start, TurnRunner.run
    starts = itertools.count(1)
    failures = [OSError("once"), OSError("twice")]

    async def fail_to_begin_what_is_behind(
        starter: TurnStarter, *what: Any, **given: Any
    ) -> NextStep | None:
        if next(starts) == 4:
            raise KeyError("passing")
        return await begin(starter, *what, **given)

    async def fail_twice(turns: TurnRunner, turn: Turn) -> bool:
        if failures:
            raise failures.pop()
        if turn.id == 1:
            await chat.say("behind")
        return await run(turns, turn)

    monkeypatch.setattr(TurnStarter, "start", fail_to_begin_what_is_behind)
    monkeypatch.setattr(TurnRunner, "run", fail_twice)
    async with running(tmp_path) as chat:
        await chat.say("one")
        assert await chat.answers(2) == ["re: one", "re: behind"]


@pytest.mark.thorough
async def test_what_fails_with_nothing_behind_it_does_not_spin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all that waits is given up, its conversation is left alone until more comes."""
    async with running(tmp_path, queue={"max_attempts": 1}) as chat:
        with monkeypatch.context() as broken:
            failing = AsyncMock(side_effect=RuntimeError("can't start new thread"))
            broken.setattr(OperatorFiles, "refresh", failing)
            await chat.say("poison")
            assert await chat.answers(1) == [notices.NEVER_BEGAN]
            await chat.until(lambda: len(chat.events("turn_failed")) >= 2)
        assert await chat.ask("next") == "re: next"
        assert failing.await_count == len(chat.events("turn_failed")) == 2


async def test_progress_forgives_earlier_crashes(tmp_path: Path) -> None:
    """A turn that gets further at each attempt is no suspect."""
    results = itertools.count(1)

    async def run() -> str:
        return f"result {next(results)}"

    for n in range(1, 6):
        model = HeldModel([[tool_call("act", {}, f"call_{n}")]])
        model.hold(f"result {n}")
        async with running(tmp_path, agent_of(model, tools=[tool_of(run)])) as chat:
            if n == 1:
                await chat.say("go")
            await until_held(chat, model)
    async with running(tmp_path, ["done"]) as chat:
        assert await chat.answers(1) == ["done"]


@pytest.mark.usefixtures("short_trials")
async def test_a_suspect_holds_nobody_back(tmp_path: Path) -> None:
    """It has a place of its own: others are answered while it runs, where there is one for them."""
    for _ in range(2):
        await crash_while_held(tmp_path, {"a": "suspect"})
    last = HeldModel()
    gate = last.hold("suspect")
    async with running(
        tmp_path, last, death=OUT_OF_MEMORY, queue={"max_concurrent_turns": 1}
    ) as chat:
        await chat.until(lambda: last.waiting)
        assert [await chat.ask(f"other {n}", "b") for n in range(3)][-1] == "re: other 2"
        gate.set()
        assert await chat.answers(1, "a") == ["re: suspect"]


@pytest.mark.thorough
async def test_two_suspects_are_tried_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the process dies at the trial of one, the other is not charged."""
    monkeypatch.setattr("gateway.storage.queue.blame.QUIET_S", 0.1)
    monkeypatch.setattr("gateway.storage.queue.blame.TRIAL_SHARE", 100.0)
    for held in (2, 2, 1):
        await crash_while_held(tmp_path, {"a": "one", "b": "two"}, held)
    async with running(tmp_path, death=OUT_OF_MEMORY) as chat:
        assert sorted(row.blamed for row in await chat.rows(schema.turn)) == [0, 1]
        assert await chat.answers(1, "a") == ["re: one"]
        assert await chat.answers(1, "b") == ["re: two"]


# One of several replicas takes no more turns than it has places for.
@pytest.mark.usefixtures("sqlite_alone")
async def test_a_crash_while_waiting_for_a_place_is_not_the_turns_fault(tmp_path: Path) -> None:
    """Nor does it make a suspect of it: it did not run."""
    for _ in range(2):
        model = HeldModel()
        model.hold("busy")
        async with running(
            tmp_path, model, death=OUT_OF_MEMORY, queue={"max_concurrent_turns": 1}
        ) as chat:
            if not await chat.rows(schema.inbox):
                await chat.say("busy", "a")
                await until_held(chat, model)
                await chat.say("innocent", "b")
            await until_held(chat, model)
            await chat.until_rows(schema.inbox, lambda _: len(chat.gateway.worker._serving) == 2)
    async with running(tmp_path, death=OUT_OF_MEMORY) as chat:
        assert chat.events("conversations_reclaimed")[0]["suspects"] == 1
        assert await chat.answers(1, "b") == ["re: innocent"]


@pytest.mark.usefixtures("no_pause")
async def test_an_unexpected_exception_is_tried_again_then_buried(tmp_path: Path) -> None:
    """A bug in the model's code costs its turn and nothing else."""
    bugs: list[Step] = [KeyError("bug")] * 3
    async with running(tmp_path, [*bugs, "fine"]) as chat:
        assert await chat.ask("poison") == notices.GAVE_UP
        assert len(chat.events("turn_failed")) == 3
        assert await chat.ask("next") == "fine"
        [letter] = await chat.gateway.database.read(dead_letters.find_all)
        assert (letter.id, letter.text, letter.kind) == ("t1", "poison", "turn")


@pytest.mark.usefixtures("no_pause")
async def test_an_unexpected_exception_may_pass(tmp_path: Path) -> None:
    """The second attempt answers."""
    async with running(tmp_path, [KeyError("bug"), "fine"]) as chat:
        assert await chat.ask("one") == "fine"


async def test_a_failed_turn_waits_before_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The back-off is in the conversation's row, so that it also holds for another process."""
    monkeypatch.setattr("gateway.pipeline.worker.RETRY_AFTER_S", 30.0)
    async with running(tmp_path, [KeyError("bug"), "other"]) as chat:
        await chat.say("one", "a")
        await chat.logged("turn_failed")
        assert await chat.ask("two", "b") == "other"
        [row, _] = await chat.rows(schema.conversation)
        assert row.turn_not_before > row.created_at + 25


async def test_a_tool_that_breaks_does_not_end_the_turn(tmp_path: Path) -> None:
    """Its failure becomes a text for the model."""

    async def run() -> str:
        raise LookupError("bug")

    model = ScriptedModel([ACT, "sorry"])
    async with running(tmp_path, agent_of(model, tools=[tool_of(run)])) as chat:
        assert await chat.ask("go") == "sorry"
    assert asked(model.requests[-1])[-1] == "Error: act failed with LookupError"


# Failures of the model


FINAL: list[tuple[Callable[[], ModelError], str]] = [
    (lambda: RateLimited("429"), "overloaded"),
    (lambda: ModelUnreachable("cut"), "could not be reached"),
    (lambda: CredentialsRefused("401 key sk-1"), "refuses the key"),
    (lambda: CreditUsedUp("402 balance of sk-1"), "no credit left"),
    (lambda: ContextOverflow("413"), "too long for the model. Send /compress"),
    (lambda: ModelNotFound("404"), "does not know the model"),
    (lambda: BadRequest("400"), "refuses the request. Send /retry"),
    (lambda: ModelRefused("policy"), notices.REFUSED),
]


@pytest.mark.parametrize(
    ("failure", "told"), FINAL, ids=[it[0]().__class__.__name__ for it in FINAL]
)
async def test_the_user_is_told_why_there_is_no_answer(
    tmp_path: Path, failure: Callable[[], ModelError], told: str
) -> None:
    """The exit reason is recorded; the provider's words stay in the log."""
    outcome = "refused" if isinstance(failure(), ModelRefused) else "provider_failed"
    agent = agent_of(ScriptedModel([failure()]), retry=GIVE_UP_AT_ONCE)
    async with running(tmp_path, agent) as chat:
        answer = await chat.ask("one")
        assert told in answer
        assert str(failure()) not in answer
        finished, [admitted] = await chat.logged("turn_finished"), chat.events("message_admitted")
        assert chat.adapter.shown[0].payload.endswith(f"\n\nReference: `{finished['trace'][:8]}`")
        assert finished["trace"] == admitted["trace"]
        assert await states(chat) == [("done", outcome)]
        assert (await chat.logged("turn_finished"))["error"] == str(failure())


LONG = "The parcel of Ada Lovelace went from Rome to Oslo on 2026-05-07. " * 250


@pytest.mark.parametrize(
    ("earlier", "question", "sent", "advised"),
    [
        (["one"], "last", 1, "Send /retry"),
        (["one"], f"last {LONG}", 1, "Send /compress"),
        (["one", *(f"{n} {LONG}" for n in range(12))], "last", 2, "Send /compress"),
    ],
    ids=["small", "a large question", "a large conversation"],
)
async def test_a_large_request_that_is_refused_in_unknown_words(
    tmp_path: Path, earlier: list[str], question: str, sent: int, advised: str
) -> None:
    """A shorter one helps, if anything does; so it is also where one compaction did not do."""

    def script(request: ModelRequest) -> Step:
        refused = BadRequest("HTTP 400: E4711")
        refused.is_unexplained = True
        return refused if newest(request).startswith("last") else "fine"

    model = ScriptedModel(script)
    async with running(tmp_path, agent_of(model)) as chat:
        for text in earlier:
            assert await chat.ask(text) == "fine"
        told = await chat.ask(question)
        assert told.startswith("I could not answer: the provider refuses the request")
        assert advised in told
    assert sum(newest(request).startswith("last") for request in model.requests) == sent


async def test_trouble_is_told_once_and_the_answer_still_comes(tmp_path: Path) -> None:
    """After three failures the user hears of it; five failures later there is the answer."""
    failures: list[Step] = [ModelUnreachable("cut")] * 5
    async with running(tmp_path, [*failures, "at last"]) as chat:
        await chat.say("one")
        assert await chat.answers(2) == [notices.TROUBLE, "at last"]


class TricklingModel(ScriptedModel):
    """Tells twice of a stream that trickles before it answers."""

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        assert request.on_trickle is not None
        for _ in range(2):
            await request.on_trickle()
        return await super().complete(request, sink)


async def test_an_answer_that_trickles_is_trouble_at_once(tmp_path: Path) -> None:
    """The user hears of it once, however many calls trickle, and the answer still comes."""
    async with running(tmp_path, TricklingModel(["at last"])) as chat:
        await chat.say("one")
        assert await chat.answers(2) == [notices.TROUBLE, "at last"]


async def test_two_failures_are_no_trouble(tmp_path: Path) -> None:
    """The user does not hear of what passes by itself."""
    async with running(tmp_path, [RateLimited("429", 0.001), ModelUnreachable("x"), "ok"]) as chat:
        assert await chat.ask("one") == "ok"


async def test_an_empty_answer_is_told(tmp_path: Path) -> None:
    """It is asked once more, and then the user reads that there was nothing."""
    async with running(tmp_path, ["", " "]) as chat:
        assert await chat.ask("one") == notices.EMPTY
        assert await states(chat) == [("done", "empty")]
        assert len(model_of(chat).requests) == 2


async def test_an_answer_at_the_output_limit_says_so(tmp_path: Path) -> None:
    """The parts are joined, and the end is marked."""
    parts = [Completion(assistant_message(text), "length") for text in ("a", "b", "c", "d")]
    async with running(tmp_path, parts) as chat:
        assert await chat.ask("one") == "abcd" + notices.CUT
        assert await states(chat) == [("done", "partial")]


async def test_thinking_that_used_up_the_output_limit_is_told(tmp_path: Path) -> None:
    """After one call; the words name the setting."""
    async with running(tmp_path, [Completion(assistant_message(""), "length")] * 4) as chat:
        assert await chat.ask("one") == notices.NO_ROOM_TO_ANSWER
        assert await states(chat) == [("done", "output_exhausted")]
        assert len(model_of(chat).requests) == 1
    assert "model.max_output_tokens" in notices.NO_ROOM_TO_ANSWER


async def test_a_refusal_keeps_what_was_said(tmp_path: Path) -> None:
    """The model's words and a note that it declined."""
    script = [Completion(assistant_message("I would rather not."), "refused")]
    async with running(tmp_path, script) as chat:
        assert await chat.ask("one") == f"I would rather not.\n\n{notices.REFUSED}"


async def test_every_turn_has_one_canonical_line(tmp_path: Path) -> None:
    """It names the conversation, what the turn took, and how it ended."""
    async with running(tmp_path, [ACT, "ok"]) as chat:
        await chat.ask("one")
        line = await chat.logged("turn_finished")
        expected = {
            "conversation": 1,
            "turn": 1,
            "platform": "telegram",
            "outcome": "final_text",
            "iterations": 2,
            "tool_calls": 1,
            "model": "scripted",
            "error": None,
        }
        assert expected.items() <= line.items()
        assert line["prompt_tokens"] > 0 <= line["duration_ms"]


async def test_the_read_tool_sees_its_own_conversation_only(tmp_path: Path) -> None:
    """What another chat said is not found."""
    call = [tool_call("read_conversation", {"contains": "secret"})]
    agent = agent_of(ScriptedModel(["noted", call, "nothing there"]), tools=[read_conversation])
    async with running(tmp_path, agent) as chat:
        await chat.ask("my secret is rosebud", "a")
        await chat.ask("what is the secret?", "b")
        found = asked(model_of(chat).requests[-1])[-1]
        assert "what is the secret" in found
        assert "rosebud" not in found


async def test_a_long_output_can_be_read_in_full(tmp_path: Path) -> None:
    """The model gets its beginning and an id, and with that the rest."""

    async def run() -> str:
        return "\n".join(f"line {n}" for n in range(3000))

    again = [tool_call("read_conversation", {"output_id": "o1", "contains": "line 2999"}, "call_2")]
    model = RecordingModel([ACT, again, "done"])
    agent = agent_of(model, tools=[tool_of(run), read_conversation])
    async with running(tmp_path, agent) as chat:
        assert await chat.ask("go") == "done"
    first, second = (asked(request)[-1] for request in model.requests[1:])
    assert "[output truncated: showing the first 1,999 of 3,000 lines" in first
    assert "full output id o1" in first
    assert "line 2999" in second


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("meanwhile", [[], ["/stop"]], ids=["as it is", "after a stop"])
async def test_a_retried_dead_letter_is_answered(tmp_path: Path, meanwhile: list[str]) -> None:
    """Also where its user has sent /stop since: the operator asks anew."""
    bugs: list[Step] = [KeyError("bug")] * 3
    async with running(tmp_path, [*bugs, "better"]) as chat:
        await chat.ask("question")
        for text in meanwhile:
            await chat.ask(text)
        await chat.gateway.database.write(dead_letters.retry, "t1")
        chat.gateway.worker.notify(1)
        assert (await chat.answers(2 + len(meanwhile)))[-1] == "better"
        assert asked(model_of(chat).requests[-1]) == ["question"]
        assert await chat.gateway.database.read(dead_letters.find_all) == []


async def test_a_retry_of_a_dead_letter_by_its_user(tmp_path: Path, no_pause: None) -> None:
    """The notice says how, and it works."""
    bugs: list[Step] = [KeyError("bug")] * 3
    async with running(tmp_path, [*bugs, "better"]) as chat:
        assert "/retry" in await chat.ask("question")
        assert await chat.ask("/retry") == "better"
