"""Turns that wait for a person, as people see them: approvals, questions, stops, restarts."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from adapters.errors import SendDelayed
from adapters.messages import Attachment
from agent.messages import Usage, assistant_message, text_of
from agent.models.base import Completion, ModelRequest
from agent.settings import AgentSettings
from agent.tools import gate, policy
from agent.tools.builtin.people import NOBODY_ANSWERED, clarify, delegate_task
from agent.tools.context import ToolContext
from agent.tools.gate import ApprovalRules
from agent.tools.policy import ApprovalMode
from agent.tools.registry import Arguments, Tool
from agent.turn.request import Agent
from gateway.access.policy import Access, Owners
from gateway.agent_ports import questions as inquiries
from gateway.agent_ports.questions import ONE_AT_A_TIME, Inquiries, TurnPeople
from gateway.app import _repeated
from gateway.commands import approvals
from gateway.commands.new import NEW_TEXT
from gateway.errors import StorageUnavailable
from gateway.settings.tree import AccessSettings
from gateway.signals import Wakeups
from gateway.storage import schema
from gateway.storage.conversation import questions, turn_journal
from tests.gateway.http.test_server import HERE, history_of
from tests.support.gateway import (
    HeldModel,
    RecordingModel,
    Running,
    agent_of,
    fail_once,
    message,
    newest_question,
    running,
    serving,
)
from tests.support.recording_adapter import RecordingAdapter
from tests.support.renderers import PLATFORMS, Platform
from tests.support.scripted_model import Step, tool_call
from tests.support.shown_text import bare

GUEST: dict[str, Any] = {"sender": "u2", "sender_name": "Gus"}
MEMBER: dict[str, Any] = {"sender": "u3", "sender_name": "Mem"}
GROUP: dict[str, Any] = {"chat_kind": "group"}
SHARED: dict[str, Any] = {"sessions": {"groups": "shared"}, "access": {"telegram": ["u3"]}}
SAID = (False, False, 0)
ONCE, CONVERSATION, DENY = "/approve 1 once", "/approve 1 conversation", "/deny 1"


class What(Arguments):
    """For a tool that is told what to do."""

    text: str = ""
    to: str = ""


class Acting:
    """A tool with a side effect; `done` is what it did."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def tool(self, name: str = "act", **changes: Any) -> Tool:
        async def act(_context: ToolContext, arguments: What) -> str:
            self.done.append(arguments.text)
            return f"did {arguments.text}"

        return Tool(name, "Acts.", "side_effect", What, act, **changes)


_ids = itertools.count(1)


def calling(*calls: tuple[str, dict[str, Any]]) -> Callable[[ModelRequest], Step]:
    """Return a script that makes these calls for each question, then says what came of them."""

    def script(request: ModelRequest) -> Step:
        newest = request.messages[-1]
        if newest["role"] != "tool":
            return [tool_call(name, values, f"c{next(_ids)}") for name, values in calls]
        results: list[str] = []
        for said in reversed(request.messages):
            if said["role"] != "tool":
                break
            results.append(text_of(said))
        return " | ".join(reversed(results))

    return script


def acting(
    acts: Acting, *what: str, approval: ApprovalMode = "side_effects", **changes: Any
) -> Agent:
    """Return an agent that acts once for each word, and asks before."""
    script = calling(*(("act", {"text": word, "to": "us"}) for word in what or ("it",)))
    return agent_of(RecordingModel(script), tools=[acts.tool(**changes)], approval=approval)


def asking(*choices: str) -> Agent:
    """Return an agent that asks a question."""
    values: dict[str, Any] = {"question": "Which?"} | ({"choices": choices} if choices else {})
    return agent_of(RecordingModel(calling(("clarify", values))), tools=[clarify])


def quiet() -> RecordingAdapter:
    """Return a platform without previews: whether one is shown in time is a matter of chance."""
    return RecordingAdapter(previews=False)


def running_quietly(home: Path, agent: Agent, **options: Any) -> Any:
    """Run a gateway on such a platform."""
    return running(home, agent, adapter=quiet(), **options)


def buttons(chat: Running, n: int = -1) -> list[str]:
    """Return the texts of the buttons below a message."""
    return [choice.text for choice in chat.adapter.shown[n].choices]


async def inquiry_states(chat: Running) -> list[tuple[str, str | None, str | None]]:
    """Return state, answer and who gave it, of all inquiries."""
    rows = await chat.rows(schema.inquiry)
    return [(row.state, row.answer, row.answered_by) for row in rows]


WEB_OWNER = replace(
    message("", "console", platform="web", sender="web"), authenticated=True, dedupe_key=""
)


@pytest.mark.parametrize(("said", "done"), [("once", ["it"]), ("deny", [])])
async def test_an_owner_answers_in_the_console(tmp_path: Path, said: str, done: list[str]) -> None:
    """The turn goes on, its chat is told, and it is on record by whom; once."""
    acts = Acting()
    async with running_quietly(tmp_path, acting(acts)) as chat:
        await chat.ask("act", **GROUP)
        [waiting] = await chat.gateway.database.read(questions.waiting)
        assert (waiting.platform, waiting.chat, waiting.senders) == (
            *("telegram", "c1"),
            ("telegram:u1",),
        )
        assert "it" in waiting.question.text
        for settled in (1, 0):
            outcome = await chat.gateway.intake.answer_as_owner(WEB_OWNER, 1, said)
            assert len(outcome.settled) == settled
        assert outcome.text == approvals.OVER["answered"]
        await chat.logged("turn_finished")
        assert acts.done == done
        texts = await chat.answers(3)
        assert texts[1].startswith("An owner has answered. ")
        assert await inquiry_states(chat) == [("answered", said, "web:web")]
        assert await chat.gateway.database.read(questions.waiting) == []


async def test_an_owner_answers_a_question_in_the_console(tmp_path: Path) -> None:
    """In words; the turn holds them from then on, and its chat reads who has answered."""
    async with running_quietly(tmp_path, asking("red", "blue")) as chat:
        await chat.ask("which?")
        await chat.gateway.intake.answer_as_owner(WEB_OWNER, 1, "2")
        texts = await chat.answers(3)
        assert texts[1] == "An owner has answered my question: `blue`"
        assert "blue" in texts[2]
        unknown = await chat.gateway.intake.answer_as_owner(WEB_OWNER, 99, "x")
        assert unknown.text == approvals.NOT_HERE


async def test_a_side_effect_waits_for_its_approval(tmp_path: Path) -> None:
    """The question shows tool and arguments with three buttons; a press lets it run once."""
    acts = Acting()
    async with running_quietly(tmp_path, acting(acts)) as chat:
        question = await chat.ask("go")
        assert "`act`" in question
        assert '"text": "it"' in question
        await chat.logged("turn_suspended")
        assert acts.done == []
        assert buttons(chat) == [ONCE, CONVERSATION, DENY]
        await chat.say(ONCE)
        assert (await chat.answers(3))[1:] == ["Approved, this once: `act` (1).", "did it"]
        assert acts.done == ["it"]
        assert await inquiry_states(chat) == [("answered", "once", "telegram:u1")]
        assert chat.events("tool_approved")[0]["scope"] == "once"
        [turn] = await chat.rows(schema.turn)
        assert (turn.state, turn.attempt) == ("done", 1)


@asynccontextmanager
async def asked(
    home: Path, agent: Agent, first: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Running]:
    """Run a gateway in which a turn waits for the answer to its first question."""
    async with running_quietly(home, agent, **sections) as chat:
        await chat.ask("go", **(first or {}))
        await chat.logged("turn_suspended")
        # Else the next process may show the question once more.
        await chat.gateway.delivery.wait_idle()
        yield chat


@asynccontextmanager
async def sweeping(chat: Running, *, is_due: bool = True) -> AsyncIterator[None]:
    """Let the time of all that waits be over, and the sweep run."""
    if is_due:
        await chat.execute(update(schema.inquiry).values(expires_at=1.0))
    gateway = chat.gateway
    wakeups = Wakeups()
    wakeups.ready.listen(gateway.worker.wake)
    wakeups.outbox.listen(gateway.delivery.notify)
    renderers = {key: each.render for key, each in gateway.platforms.adapters.items()}
    owners = Owners(Access(AccessSettings()), renderers)
    waiting = Inquiries(gateway.database, owners, 86_400.0, wakeups)
    async with asyncio.TaskGroup() as tasks:
        sweep = tasks.create_task(_repeated("inquiries", waiting.sweep, inquiries.SWEEP_S)())
        yield
        sweep.cancel()


async def test_the_turn_goes_on_below_its_answer(tmp_path: Path) -> None:
    """What it says after an answer belongs to that, in the order in which it is shown."""
    async with asked(tmp_path, asking()) as chat:
        await chat.say("blue")
        assert (await chat.answers(2))[1] == "The answer: blue"
        rows = await chat.rows(schema.outbox)
        assert [row.inbox_seq for row in rows] == [1, 2]


async def test_what_waited_meanwhile_is_answered_below(tmp_path: Path) -> None:
    """In the order of the turns, wherever the messages stand; so is what becomes of a question."""
    async with asked(tmp_path, acting(Acting())) as chat:
        await chat.say("second")
        await chat.say(ONCE)
        await chat.logged("turn_suspended", 2)
        async with sweeping(chat):
            await chat.answers(7)
        shown = [item for item in await history_of(chat).items(HERE) if not item.over]
        said = [item.markdown.partition("\n")[0] for item in shown]
        assert said[said.index(ONCE) + 1 : -1] == [
            "Approved, this once: `act` (1).",
            "did it",
            "May I run `act`?",
            "Nobody answered in time: `act` is not run.",
        ]
        assert "was not run" in said[-1]


async def test_what_the_web_chat_is_told_of_questions(tmp_path: Path) -> None:
    """That an answer was taken is no answer yet; that a question is over names it."""
    async with asked(tmp_path, acting(Acting())) as chat:
        await chat.say(ONCE)
        await chat.answers(3)
        await chat.ask("again")
        async with sweeping(chat):
            await chat.answers(6)
        items = await history_of(chat).items(HERE)
        told = [(it.notice, it.taken, it.over) for it in items if it.outbox_seq]
        answered, expired = (True, False, 1), (True, False, 2)
        assert told[:4] == [SAID, (True, True, 0), answered, SAID]
        assert told[4:] == [SAID, expired, SAID, SAID]


@pytest.mark.parametrize(
    ("end", "note"),
    [
        ("/stop", "stopped"),
        ("expiry", "not answered in time"),
        ("/deny 1", "denied"),
        ("/approve 1", "approved"),
        ("blue", "answered"),
        ("/new", "stopped"),
    ],
)
async def test_whatever_ends_a_question_takes_its_buttons_off(
    tmp_path: Path, end: str, note: str
) -> None:
    """Once; that is no message of the chat."""
    agent = asking("red", "green") if end == "blue" else acting(Acting())
    async with asked(tmp_path, agent) as chat:
        question = chat.adapter.shown[0].payload
        async with sweeping(chat, is_due=end == "expiry"):
            if end != "expiry":
                await chat.say(end)
            await chat.until(lambda: chat.adapter.withdrawn and chat.events("turn_finished"))
        await chat.gateway.delivery.wait_idle()
        [off] = chat.adapter.withdrawn
        assert (off.message_ref, off.payload, off.note) == ("m1", question, note)
        told = [it.markdown for it in await history_of(chat).items(HERE) if it.over]
        assert told == [note]
        assert {row.state for row in await chat.rows(schema.outbox)} == {"sent"}


async def test_a_press_takes_off_what_others_ask(tmp_path: Path) -> None:
    """Its own buttons its platform takes off; what it settles beside that was not pressed."""
    async with asked(tmp_path, acting(Acting(), "a", "b")) as chat:
        await chat.answers(2)
        await chat.say(CONVERSATION, pressed=True)
        await chat.until(lambda: chat.adapter.withdrawn)
        assert [off.message_ref for off in chat.adapter.withdrawn] == ["m2"]


async def test_a_newer_message_takes_the_buttons_off(tmp_path: Path) -> None:
    """Those of the turn that it replaces."""
    async with asked(tmp_path, acting(Acting()), queue={"mode": "interrupt"}) as chat:
        await chat.say("again")
        await chat.until(lambda: chat.adapter.withdrawn and len(chat.adapter.shown) > 1)
        assert [off.note for off in chat.adapter.withdrawn] == ["stopped"]


async def test_what_is_said_behind_new_is_no_answer(tmp_path: Path) -> None:
    """A new beginning waits for nobody: the question is dropped, and the words begin afresh."""
    script = calling(("clarify", {"question": "Which?"}))
    model = RecordingModel(
        lambda request: script(request) if newest_question(request) == "go" else "Lima"
    )
    async with asked(tmp_path, agent_of(model, tools=[clarify])) as chat:
        await chat.say("/new")
        await chat.say("What is the capital of Peru?")
        assert (await chat.answers(3))[1:] == [NEW_TEXT, "Lima"]
        assert [text_of(m) for m in model.requests[-1].messages[1:]] == [
            "What is the capital of Peru?"
        ]
        assert await inquiry_states(chat) == [("cancelled", None, None)]


async def test_a_question_that_was_never_shown_has_no_buttons_to_take_off(tmp_path: Path) -> None:
    """It is dropped, and nothing is changed at the platform."""
    adapter = quiet()
    adapter.failures["c1"].append(SendDelayed("flood", 3600))
    async with running(tmp_path, acting(Acting()), adapter=adapter) as chat:
        await chat.say("go")
        await chat.logged("turn_suspended")
        await chat.logged("send_delayed")
        await chat.say("/stop")
        await chat.logged("turn_finished")
    async with running(tmp_path, acting(Acting()), adapter=quiet()) as chat:
        await chat.logged("buttons_left")
        assert chat.texts() == ["Stopped."]
        assert not chat.adapter.withdrawn


async def test_two_owners_answer_at_the_same_time(tmp_path: Path) -> None:
    """One of them decides, a button or words alike; the other is told that it is answered."""
    acts = Acting()
    shared = {
        "sessions": {"groups": "shared"},
        "access": {"owners": ["telegram:u1", "telegram:u3"]},
    }
    async with asked(tmp_path, acting(acts), GROUP, **shared) as chat:
        press = chat.say(DENY, **GROUP | MEMBER, pressed=True)
        typed = chat.say("/approve 1", **GROUP)
        verdicts = [(await each).answer for each in asyncio.as_completed([press, typed])]
        assert sorted(map(str, verdicts)) == ["accepted", "over"]
        await chat.logged("turn_finished")
        [(state, answer, by)] = await inquiry_states(chat)
        assert (state, by) == ("answered", "telegram:u3" if answer == "deny" else "telegram:u1")
        assert acts.done == ([] if answer == "deny" else ["it"])


async def test_a_button_of_an_older_question_decides_nothing(tmp_path: Path) -> None:
    """The one that waits now is not meant by it."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        await chat.say(DENY, pressed=True)
        await chat.logged("turn_finished")
        await chat.ask("again")
        await chat.logged("turn_suspended", 2)
        late = await chat.say(ONCE, pressed=True)
        assert (late.answer, late.over) == ("over", "answered")
        assert [state for state, *_ in await inquiry_states(chat)] == ["answered", "pending"]
        assert acts.done == []


async def test_a_press_gets_no_message(tmp_path: Path) -> None:
    """Its platform shows what became of it; who is too late is told how the question ended."""
    async with asked(tmp_path, acting(Acting())) as chat:
        taken = await chat.say(ONCE, dedupe_key="press", pressed=True)
        again = await chat.say(ONCE, dedupe_key="press", pressed=True)
        assert (taken.answer, taken.told) == ("accepted", "Approved, this once: `act` (1).")
        assert (again.outcome, again.answer) == ("duplicate", "accepted")
        late = await chat.say(DENY, pressed=True)
        assert (late.answer, late.over) == ("over", "answered")
        assert (await chat.answers(2))[1:] == ["did it"]


@pytest.mark.parametrize("end", ["stopped", "not answered in time"])
async def test_a_press_on_a_question_that_is_over(tmp_path: Path, end: str) -> None:
    """It says how the question ended."""
    async with asked(tmp_path, acting(Acting())) as chat:
        if end == "stopped":
            await chat.ask("/stop")
        else:
            await chat.execute(update(schema.inquiry).values(expires_at=1.0))
        late = await chat.say(ONCE, pressed=True)
        assert (late.answer, late.over) == ("over", end)


async def test_a_press_in_anothers_conversation_begins_none(tmp_path: Path) -> None:
    """It is noted where the question was asked, and refused; also when it comes again."""
    access = {"access": {"telegram": ["u3", "u4"]}}
    other = GROUP | {"sender": "u4", "dedupe_key": "press", "pressed": True}
    async with asked(tmp_path, acting(Acting()), GROUP | MEMBER, **access) as chat:
        refused = await chat.say(ONCE, **other)
        assert (refused.answer, refused.told) == ("refused", approvals.NOT_YOURS)
        assert (await chat.say(ONCE, **other)).answer == "refused"
        assert len(await chat.rows(schema.conversation)) == 1


async def test_what_is_denied_does_not_run(tmp_path: Path) -> None:
    """The model is told, and goes on."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        await chat.say("/deny")
        answers = await chat.answers(3)
        assert answers[1] == "Denied: `act` (1) is not run."
        assert answers[2] == f"Error: act was not run: a person {gate.DENIED}."
        assert acts.done == []
        assert chat.events("tool_denied")[0]["by"] == "telegram:u1"


async def test_nobody_answers_an_approval(tmp_path: Path) -> None:
    """It counts as denied, and the chat is told; a press is too late even before the sweep."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        await chat.execute(update(schema.inquiry).values(expires_at=1.0))
        assert await chat.ask(ONCE) == approvals.TOO_LATE
        async with sweeping(chat):
            answers = await chat.answers(4)
        assert answers[2] == "Nobody answered in time: `act` is not run."
        assert answers[3] == f"Error: act was not run: {gate.EXPIRED}."
        assert acts.done == []
        assert chat.events("inquiry_expired")[0]["kind"] == "approval"
        assert await chat.ask(ONCE) == approvals.TOO_LATE


async def test_the_sweep_outlives_a_failing_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again a little later."""
    monkeypatch.setattr("gateway.agent_ports.questions.SWEEP_S", 0.0)
    failures = deque([StorageUnavailable("full")])

    def failing(conn: Any) -> list[Any]:
        if failures:
            raise failures.popleft()
        return due(conn)

    due = questions.overdue
    monkeypatch.setattr(questions, "overdue", failing)
    async with asked(tmp_path, asking()) as chat, sweeping(chat):
        assert (await chat.logged("work_failed"))["work"] == "inquiries"
        assert NOBODY_ANSWERED in await chat.answers(3)


async def test_an_approval_for_the_conversation_holds_until_it_begins_anew(tmp_path: Path) -> None:
    """Each call has its row all the same; after `/new` somebody is asked again."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        await chat.ask(CONVERSATION)
        await chat.answers(3)
        assert await chat.ask("again") == "did it"
        by = ("answered", "conversation", "telegram:u1")
        assert await inquiry_states(chat) == [by, by]
        assert len(chat.events("tool_approved")) == 2
        assert "`act`" in await chat.ask("/new and again")
        assert acts.done == ["it", "it"]


async def test_an_approval_for_the_conversation_settles_all_calls_of_the_tool(
    tmp_path: Path,
) -> None:
    """Several calls of one message are asked one by one, and run once all are decided."""
    acts = Acting()
    async with running_quietly(tmp_path, acting(acts, "a", "b", "c")) as chat:
        await chat.say("go")
        await chat.answers(3)
        await chat.logged("turn_suspended")
        assert "number: 1 (`act`), 2 (`act`), 3 (`act`)" in await chat.ask("/approve")
        await chat.ask("/deny 2")
        assert acts.done == []
        await chat.say("/approve 1 conversation")
        answers = await chat.answers(8)
        assert answers[5] == "I am still waiting for an answer to 1 (`act`), 3 (`act`)."
        assert answers[-1].count("did") == 2
        # Calls that run side by side may be asked in any order.
        asked = (await chat.rows(schema.inquiry))[1].question
        assert sorted(acts.done) == [word for word in "abc" if f'"{word}"' not in asked]


async def test_a_members_approval_settles_nothing_that_is_for_owners(tmp_path: Path) -> None:
    """A call that is like the approved one may be asked of owners: of a child, by another row."""
    acts = Acting()
    async with asked(tmp_path, acting(acts, "a", "b"), GROUP, **SHARED) as chat:
        await chat.answers(2)
        of_owners = update(schema.inquiry).where(schema.inquiry.c.id == 2).values(for_owners=True)
        await chat.execute(of_owners)
        await chat.say(CONVERSATION, **GROUP | MEMBER)
        assert [state for state, *_ in await inquiry_states(chat)] == ["answered", "pending"]
        assert acts.done == []


async def test_a_members_earlier_yes_counts_no_more_where_owners_decide(tmp_path: Path) -> None:
    """Who approves was changed; what was allowed for the conversation is asked anew."""
    acts = Acting()
    async with asked(tmp_path, acting(acts), GROUP | MEMBER, **SHARED) as chat:
        await chat.say(CONVERSATION, **GROUP | MEMBER)
        await chat.until(lambda: "did it" in chat.texts())
        await chat.gateway.delivery.wait_idle()
    by_owners = ApprovalRules(policy.build_table("side_effects", by_owners=True))
    agent = acting(acts)
    agent = replace(agent, approval=by_owners)
    async with running_quietly(tmp_path, agent, **SHARED) as chat:
        told = await chat.ask("go", **GROUP | MEMBER)
        assert "May I run `act`?" in told
        assert acts.done == ["it"]


async def test_an_approval_for_the_conversation_is_for_one_tool(tmp_path: Path) -> None:
    """Another tool that waits beside it still needs its own."""
    acts, sends = Acting(), Acting()
    script = calling(("act", {"text": "x"}), ("send", {"text": "y"}))
    tools = [acts.tool(), sends.tool("send")]
    agent = agent_of(RecordingModel(script), tools=tools, approval="side_effects")
    async with running_quietly(tmp_path, agent) as chat:
        await chat.say("go")
        await chat.answers(2)
        await chat.logged("turn_suspended")
        waiting = {row.tool: row.id for row in await chat.rows(schema.inquiry)}
        await chat.say(f"/approve {waiting['act']} conversation")
        assert f"still waiting for an answer to {waiting['send']}" in (await chat.answers(4))[-1]
        assert [state for state, *_ in await inquiry_states(chat)].count("pending") == 1
        assert sends.done == []


async def test_calls_that_do_not_wait_are_done(tmp_path: Path) -> None:
    """Their results are kept while another call of the message waits; none runs twice."""
    acts, looks = Acting(), Acting()
    look = replace(looks.tool("look"), effect="read")
    script = calling(("act", {"text": "x"}), ("look", {"text": "y"}))
    agent = agent_of(RecordingModel(script), tools=[acts.tool(), look], approval="side_effects")
    async with asked(tmp_path, agent) as chat:
        assert [m["content"] for m in await chat.transcript() if m["role"] == "tool"] == ["did y"]
        await chat.ask("/approve")
        assert (await chat.answers(3))[-1] == "did x | did y"
        assert (acts.done, looks.done) == (["x"], ["y"])


async def test_messages_wait_behind_an_approval(tmp_path: Path) -> None:
    """Their sender is told once; the conversation holds no place meanwhile."""
    async with asked(tmp_path, acting(Acting())) as chat:
        assert not (await chat.say("and this")).silent
        assert "waits" in (await chat.answers(2))[1]
        assert (await chat.say("and that")).silent
        status = await chat.ask("/status")
        assert (
            "waiting for an answer: `/approve 1` or `/deny 1` for `act`, 2 messages queued"
            in status
        )
        await chat.until_rows(schema.conversation, lambda rows: rows[0].owner is None)
        await chat.ask(DENY)
        await chat.until(lambda: len(chat.events("turn_finished")) == 1)


async def test_stop_cancels_the_wait_and_the_turn(tmp_path: Path) -> None:
    """The call gets a result, an old button says that it is over, the next question is answered."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        assert await chat.ask("/stop") == "Stopped."
        await chat.logged("turn_finished")
        assert text_of((await chat.transcript())[-1]) == turn_journal.CANCELLED
        assert await chat.ask(ONCE) == approvals.OVER["cancelled"]
        assert acts.done == []
        assert "`act`" in await chat.ask("again")


async def test_a_newer_message_replaces_a_turn_that_waits(tmp_path: Path) -> None:
    """Where the queue is told to interrupt."""
    acts = Acting()
    async with asked(tmp_path, acting(acts), queue={"mode": "interrupt"}) as chat:
        await chat.say("rather this")
        await chat.until_rows(schema.inquiry, lambda rows: len(rows) == 2)
        assert [state for state, *_ in await inquiry_states(chat)] == ["cancelled", "pending"]


async def test_an_answer_is_taken_once(tmp_path: Path) -> None:
    """A second press, a duplicate of the first, and what was never asked change nothing."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        await chat.say(ONCE, dedupe_key="press")
        assert (await chat.say(ONCE, dedupe_key="press")).outcome == "duplicate"
        await chat.answers(3)
        assert await chat.ask(DENY) == approvals.OVER["answered"]
        assert await chat.ask("/approve 99") == approvals.NOT_HERE
        assert await chat.ask("/approve") == approvals.NONE_WAITS["approval"]
        assert await chat.ask("/answer hello") == approvals.NONE_WAITS["clarify"]
        assert acts.done == ["it"]


@pytest.mark.parametrize("said", ["/approve 1\nonce", "/approve 1\t once", "/approve\n1  once"])
async def test_any_space_stands_behind_the_number(tmp_path: Path, said: str) -> None:
    """A line break, too, ends the number of a question."""
    async with asked(tmp_path, acting(Acting())) as chat:
        assert await chat.ask(said) == "Approved, this once: `act` (1)."


async def test_an_answer_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    """Nothing is approved by mistake; a file beside a command is not read."""
    async with asked(tmp_path, acting(Acting())) as chat:
        assert await chat.ask("/approve 1 forever") == approvals.HOW_TO_APPROVE
        assert await chat.ask("/answer 1 yes") == approvals.OTHER_KIND["approval"]
        file = Attachment(name="a.txt", kind="file", ref="f")
        assert "not read" in await chat.ask("/approve 1 never", attachments=(file,))
        assert [state for state, *_ in await inquiry_states(chat)] == ["pending"]


@pytest.mark.parametrize(
    ("who", "where", "told"),
    [
        (GUEST, "c1", approvals.MAY_NOT_APPROVE),
        (MEMBER, "c2", approvals.NOT_HERE),
        (MEMBER, "c1", "Approved, this once: `act` (1)."),
    ],
    ids=["guest", "elsewhere", "member"],
)
async def test_who_may_approve_in_a_shared_group(
    tmp_path: Path, who: dict[str, Any], where: str, told: str
) -> None:
    """People who were let in, in the chat in which it was asked."""
    acts = Acting()
    async with asked(tmp_path, acting(acts), GROUP, **SHARED) as chat:
        assert await chat.ask(ONCE, where, **GROUP | who) == told
        state = "answered" if "this once" in told else "pending"
        assert (await inquiry_states(chat))[0][0] == state


async def test_what_reaches_everybody_is_for_owners(tmp_path: Path) -> None:
    """A member neither has it run nor approves it, and once a member speaks it is refused."""
    acts = Acting()
    script = calling(("skill_manage", {"text": "it"}))
    tools = [acts.tool("skill_manage")]
    agent = agent_of(RecordingModel(script), tools=tools, approval="side_effects")
    async with asked(tmp_path, agent, GROUP, **SHARED) as chat:
        assert await chat.ask(ONCE, **GROUP | MEMBER) == approvals.ONLY_OWNERS_APPROVE
        await chat.ask(ONCE, **GROUP)
        await chat.until(lambda: "did it" in chat.texts())
        assert "not allowed here (default.skills-members)" in await chat.ask(
            "once more", **GROUP | MEMBER
        )
        assert "not allowed here (default.skills-members)" in await chat.ask("go on", **GROUP)
        assert acts.done == ["it"]


async def test_what_is_too_long_to_be_shown_runs_with_a_standing_approval(tmp_path: Path) -> None:
    """Without one nobody is asked, and the model reads why."""
    acts = Acting()
    words = iter(["x" * gate.MAX_SHOWN_CHARS, "short", "y" * gate.MAX_SHOWN_CHARS])

    def script(request: ModelRequest) -> Step:
        if request.messages[-1]["role"] == "tool":
            return text_of(request.messages[-1])[:120]
        return [tool_call("act", {"text": next(words), "to": "us"}, f"c{next(_ids)}")]

    agent = agent_of(RecordingModel(script), tools=[acts.tool()], approval="side_effects")
    async with running_quietly(tmp_path, agent) as chat:
        assert "too long to be shown" in await chat.ask("go")
        assert "`act`" in await chat.ask("go")
        await chat.ask(CONVERSATION)
        await chat.until(lambda: "did short" in chat.texts())
        assert (await chat.ask("go")).startswith("did yyy")
        assert [len(what) for what in acts.done] == [5, gate.MAX_SHOWN_CHARS]


@pytest.mark.parametrize(
    ("who", "told"),
    [
        ({"sender": "u3"}, "Denied: `act` (1) is not run."),
        ({"sender": "u1"}, "Denied: `act` (1) is not run."),
        ({"sender": "u4"}, approvals.NOT_YOURS),
        ({"sender": "u2"}, approvals.NOT_YOURS),
    ],
    ids=["its own", "owner", "another member", "guest"],
)
async def test_who_may_answer_in_a_conversation_of_one(
    tmp_path: Path, who: dict[str, Any], told: str
) -> None:
    """Only whose conversation it is, and an owner; though all write in the same group."""
    access = {"access": {"telegram": ["u3", "u4"]}}
    async with asked(tmp_path, acting(Acting()), GROUP | MEMBER, **access) as chat:
        assert await chat.ask(DENY, **GROUP | who) == told


@pytest.mark.parametrize(
    "said", ["/answer 1 2", "/answer 1\n2", "/answer 2", "/answer green", "green"]
)
async def test_a_question_is_answered(tmp_path: Path, said: str) -> None:
    """With a button, by hand, or in plain words; the turn goes on with what was said."""
    async with asked(tmp_path, asking("red", "green")) as chat:
        assert [(choice.label, choice.text) for choice in chat.adapter.shown[0].choices] == [
            ("red", "/answer 1 1"),
            ("green", "/answer 1 2"),
        ]
        await chat.say(said)
        await chat.until(lambda: "The answer: green" in chat.texts())
        assert await inquiry_states(chat) == [("answered", "green", "telegram:u1")]
        assert chat.events("question_answered")[0]["inquiry"] == 1


async def test_one_question_is_asked_at_a_time(tmp_path: Path) -> None:
    """A second one in the same message is not asked: plain words answer the one that is open."""
    two = [("clarify", {"question": "Size?"}), ("clarify", {"question": "Colour?"})]
    agent = agent_of(RecordingModel(calling(*two)), tools=[clarify])
    async with asked(tmp_path, agent) as chat:
        await chat.say("large")
        # Both run at once: on a server with several connections either may be the one that asks.
        told = ["The answer: large", f"Error: {ONE_AT_A_TIME}"]
        either = {" | ".join(told), " | ".join(reversed(told))}
        await chat.until(lambda: either & {*chat.texts()})
        assert await inquiry_states(chat) == [("answered", "large", "telegram:u1")]


async def test_a_message_that_waits_is_told_all_numbers(tmp_path: Path) -> None:
    """Where several calls wait for an approval."""
    async with asked(tmp_path, acting(Acting(), "this", "that")) as chat:
        await chat.until_rows(schema.inquiry, lambda rows: len(rows) == 2)
        await chat.say("hello?")
        await chat.until(lambda: any("1 (`act`), 2 (`act`)" in text for text in chat.texts()))
        assert [state for state, *_ in await inquiry_states(chat)] == ["pending", "pending"]


async def test_a_plain_answer_is_acknowledged(tmp_path: Path) -> None:
    """By its mark: it gets no reply of its own."""
    async with serving(tmp_path, asking(), adapter=quiet()) as gateway:
        chat = gateway.chat
        await chat.ask("go")
        await chat.say("blue", message_ref="m9")
        await chat.until(lambda: ("m9", "answered") in chat.adapter.marks)
        assert (await chat.answers(2))[1] == "The answer: blue"


async def test_an_edited_answer_is_not_offered_to_be_answered(tmp_path: Path) -> None:
    """The question was not the person's; the next turn knows the new wording."""
    async with running(tmp_path, asking(), adapter=quiet()) as chat:
        await chat.ask("go")
        await chat.say("blue", message_ref="m9")
        await chat.answers(2)
        assert (await chat.say("green", message_ref="m9", kind="edit")).outcome == "updated"
        assert len(await chat.rows(schema.outbox)) == 2


async def test_what_is_no_plain_answer_waits(tmp_path: Path) -> None:
    """A file, a command: they are for the next turn; an empty answer is no answer."""
    async with asked(tmp_path, asking()) as chat:
        file = Attachment(name="a.txt", kind="file", content=b"x")
        assert "waits" in await chat.ask("look", attachments=(file,))
        assert (await chat.say("/compress")).outcome == "queued"
        assert await chat.ask("/answer") == approvals.SAY_MORE
        assert await chat.ask("/approve 1") == approvals.OTHER_KIND["clarify"]
        assert "question 1" in await chat.ask("/status")
        assert [state for state, *_ in await inquiry_states(chat)] == ["pending"]


async def test_a_guest_does_not_answer_for_those_who_may_act(tmp_path: Path) -> None:
    """Their words wait for a turn of their own, in which nothing may be done."""
    async with asked(tmp_path, asking(), GROUP, **SHARED) as chat:
        assert "waits" in await chat.ask("me first", **GROUP | GUEST)
        assert await chat.ask("/answer 1 x", **GROUP | GUEST) == approvals.NOT_YOURS
        await chat.say("blue", **GROUP | MEMBER)
        await chat.until(lambda: "The answer: blue" in chat.texts())
        assert (await chat.rows(schema.turn))[0].senders == '["telegram:u1","telegram:u3"]'


async def test_a_guests_own_turn_is_answered_by_the_guest(tmp_path: Path) -> None:
    """They need not be let in for that."""
    async with asked(tmp_path, asking(), GROUP | GUEST, **SHARED) as chat:
        await chat.say("blue", **GROUP | GUEST)
        await chat.until(lambda: "The answer: blue" in chat.texts())
        assert [state for state, *_ in await inquiry_states(chat)] == ["answered"]


@pytest.mark.parametrize("answered", [False, True], ids=["waits", "answered"])
async def test_a_wait_survives_a_restart(tmp_path: Path, answered: bool) -> None:
    """Whether the answer came before it or after it, the call runs once."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        pass
    if answered:
        async with running_quietly(tmp_path, acting(acts), at_work=False) as chat:
            await chat.say(ONCE)
    async with running_quietly(tmp_path, acting(acts)) as chat:
        if not answered:
            await chat.say(ONCE)
        assert (await chat.answers(2))[-1] == "did it"
        assert acts.done == ["it"]
        [turn] = await chat.rows(schema.turn)
        assert (turn.state, turn.attempt) == ("done", 1)


@pytest.mark.parametrize("end", ["denied", "expired"])
async def test_a_no_holds_whatever_the_mode_is_by_now(tmp_path: Path, end: str) -> None:
    """For the call that was asked about, after a restart; other calls go by the mode of now."""
    acts = Acting()
    async with asked(tmp_path, acting(acts)) as chat:
        pass
    async with running_quietly(tmp_path, acting(acts), at_work=False) as chat:
        if end == "denied":
            await chat.say(DENY)
        else:
            async with sweeping(chat):
                await chat.logged("inquiry_expired")
    async with running_quietly(tmp_path, acting(acts, approval="never")) as chat:
        await chat.logged("turn_finished")
        assert acts.done == []
        await chat.say("again")
        await chat.until(lambda: "did it" in chat.texts())
        assert acts.done == ["it"]


async def test_the_preview_of_a_turn_that_waits_stays_where_it_is(tmp_path: Path) -> None:
    """It becomes a message of its own above the question; the answer comes below."""

    def script(request: ModelRequest) -> Step:
        if request.messages[-1]["role"] == "tool":
            return "done"
        message = assistant_message("Let me see. ")
        message["tool_calls"] = [tool_call("act", {"text": "it"})]
        return Completion(message, "tool_calls", None, "scripted")

    agent = agent_of(HeldModel(script, begun="Let me"), tools=[Acting().tool()], approval="always")
    model = agent.models[0]
    assert isinstance(model, HeldModel)
    go = model.hold("go")
    async with running(tmp_path, agent) as chat:
        await chat.say("go")
        await chat.until(lambda: chat.adapter.previews)
        go.set()
        await chat.logged("turn_suspended")
        assert (await chat.rows(schema.turn))[0].preview_ref is None
        await chat.ask(ONCE)
        await chat.until(lambda: "done" in chat.texts())
        replaced = [sent.payload for sent in chat.adapter.shown if sent.preview_ref == "p1"]
        assert [text.partition("\n")[0].strip() for text in replaced] == ["Let me see."]


async def test_what_a_child_asks_is_asked_in_the_chat_of_its_parent(tmp_path: Path) -> None:
    """Both wait, and both go on when it is answered, after a restart too."""
    acts = Acting()
    task = calling(("delegate_task", {"task": "do it"}))
    child = calling(("act", {"text": "it"}))

    def script(request: ModelRequest) -> Step:
        return (child if newest_question(request) == "do it" else task)(request)

    def agent() -> Agent:
        tools = [delegate_task, acts.tool()]
        return agent_of(RecordingModel(script), tools=tools, approval="side_effects")

    async with asked(tmp_path, agent()) as chat:
        assert buttons(chat) == [ONCE, CONVERSATION, DENY]
        await chat.until_rows(schema.conversation, lambda rows: rows[0].owner is None)
    async with running_quietly(tmp_path, agent()) as chat:
        await chat.say(ONCE)
        assert "did it" in (await chat.answers(2))[-1]
        assert acts.done == ["it"]
        assert [row.state for row in await chat.rows(schema.turn)] == ["done", "done"]
        assert {row.attempt for row in await chat.rows(schema.turn)} == {1}


async def test_a_question_that_could_not_be_stored_is_asked_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt ends, and the next one asks; the model never hears of it."""
    fail_once(monkeypatch, TurnPeople, "_ask")
    async with running_quietly(tmp_path, asking()) as chat:
        assert "Which?" in await chat.ask("go")
        await chat.logged("turn_suspended")
        await chat.say("this one")
        assert (await chat.answers(2))[1:] == ["The answer: this one"]


async def test_each_question_of_a_child_keeps_the_preview_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them stays behind as if a tool still ran."""
    monkeypatch.setattr("gateway.pipeline.preview.SHOW_AGAIN_S", 0.01)
    steps = iter((
        [tool_call("delegate_task", {"task": "do it"}, "d1")],
        [tool_call("act", {"text": "one"}, "x1")],
        [tool_call("act", {"text": "two"}, "x2")],
        "child done",
        "parent done",
    ))
    model = HeldModel(lambda _request: next(steps))
    gates = [model.hold("do it"), model.hold("did one")]
    tools = [delegate_task, Acting().tool()]
    async with running(tmp_path, agent_of(model, tools=tools, approval="side_effects")) as chat:
        await chat.say("go")
        for n, gate in enumerate(gates, start=1):
            await chat.until(partial(has_begun, chat, n))
            gate.set()
            await chat.logged("turn_suspended", n)
            await chat.say(f"/approve {n} once")
        await chat.until(lambda: "parent done" in chat.texts())
        assert begun(chat) == {sent.preview_ref for sent in chat.adapter.shown if sent.preview_ref}


def has_begun(chat: Running, count: int) -> bool:
    """Whether so many previews have begun."""
    return len(begun(chat)) == count


def begun(chat: Running) -> set[str]:
    """Return the ids of the messages that previews have begun."""
    return {f"p{n}" for n, each in enumerate(chat.adapter.previews, start=1) if not each.ref}


async def test_a_turn_that_waited_has_used_its_tokens(tmp_path: Path) -> None:
    """The limit is the turn's, however often it waits."""
    acts = Acting()

    def script(request: ModelRequest) -> Completion:
        message = assistant_message("" if request.allow_tools else "no more")
        if request.allow_tools:
            message["tool_calls"] = [tool_call("act", {}, f"x{next(_ids)}")]
        usage = Usage(input_tokens=1000, output_tokens=100)
        return Completion(
            message, "tool_calls" if request.allow_tools else "stop", usage, "scripted"
        )

    agent = agent_of(RecordingModel(script), tools=[acts.tool()], approval="side_effects")
    agent = replace(agent, settings=AgentSettings(max_turn_tokens=2000))
    async with running_quietly(tmp_path, agent) as chat:
        await chat.say("go")
        for n in (1, 2):
            await chat.logged("turn_suspended", n)
            await chat.say(f"/approve {n} once")
        assert (await chat.logged("turn_finished"))["outcome"] == "budget_exhausted"


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: platform.name)
async def test_how_to_approve_is_said_as_people_say_it(tmp_path: Path, platform: Platform) -> None:
    """On each platform, with what has to be typed whole; of owners where they alone may."""
    async with asked(tmp_path, acting(Acting())) as chat:
        [sent] = chat.adapter.shown
        shown = "".join(map(platform.read, platform.render(sent.payload)))
        assert bare(shown) == bare(
            'May I run act? {"text": "it", "to": "us"} To approve, reply /approve 1 (this call'
            " only) or /approve 1 conversation (similar calls in this conversation, too). To"
            " refuse, reply /deny 1. If nobody approves it within 60 minutes, I will not run it."
        )
