"""`run_turn` from the newest user message to its answer, with a model that plays a script."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime

import pytest

from agent.context.meter import TokenMeter
from agent.context.planner import Planner
from agent.context_compressor import ContextCompressor
from agent.context_engine import Limits
from agent.errors import (
    BadRequest,
    ContextOverflow,
    ModelError,
    ModelUnreachable,
    RateLimited,
    SpendLimitReached,
)
from agent.messages import (
    ChatMessage,
    ToolCall,
    Usage,
    assistant_message,
    open_calls,
    tool_message,
    user_message,
)
from agent.models.base import Completion, ModelRequest, StopReason
from agent.models.recovery import Recovery, Rests, RetryPolicy
from agent.ports import Decision, Effect, JournaledEffect, ModelCall, Origin, StepMark, ToolStatus
from agent.settings import AgentSettings, CachingSettings
from agent.tokens import estimate_messages
from agent.tools import policy
from agent.tools.context import ToolContext
from agent.tools.gate import ApprovalRules
from agent.tools.registry import Arguments, Tool, ToolRegistry
from agent.turn.loop import (
    MAX_CONTINUATIONS,
    OUTCOME_UNKNOWN,
    WRAP_UP,
    TurnResult,
    TurnState,
    run_turn,
)
from agent.turn.request import CONTINUE, Agent, Images, TurnPorts, partial_text
from agent.view.view import Entry, Summary, View, ViewPlan, render
from gateway.errors import LeaseLost, TurnCancelled
from tests.agent.tools.doubles import MemoryCompactions, MemoryReader, NoLimits
from tests.support.conversations import faults
from tests.support.model_server import SinkSpy
from tests.support.scripted_model import Cut, Script, ScriptedModel, Step, tool_call

SYSTEM_TEXT = "You are a test."
SYSTEM = ChatMessage(role="system", content=SYSTEM_TEXT)
EVERYTHING = ViewPlan()
EARLIER = [user_message("earlier"), assistant_message("answered")]
QUESTION = user_message("What is up?")
USAGE = Usage(10, 5)


class WhatArguments(Arguments):
    what: str = ""


class Journal:
    """Keeps the transcript of the turn, as the database would, in memory."""

    def __init__(self, own: list[ChatMessage]) -> None:
        self.own = own
        self.calls: list[ModelCall | None] = []
        self.booked: list[ModelCall] = []
        self.in_flight: ModelCall | None = None
        self.started: list[tuple[str, Effect]] = []
        self.statuses: dict[str, ToolStatus] = {}
        self.failure: Exception | None = None

    async def record_message(self, message: ChatMessage, call: ModelCall | None = None) -> int:
        self.calls.append(call)
        return self._append(message)

    async def book(self, calls: Sequence[ModelCall]) -> None:
        self.booked += calls

    def begin_call(self, call: ModelCall | None) -> None:
        self.in_flight = call

    async def start_tool(
        self, call: ToolCall, effect: JournaledEffect, decision: Decision | None = None
    ) -> None:
        self._check()
        self.started.append((call["id"], effect))

    async def record_result(
        self,
        message: ChatMessage,
        status: ToolStatus,
        origins: Collection[Origin] = (),
        marks: Collection[StepMark] = (),
    ) -> int:
        self.statuses[message["tool_call_id"]] = status
        return self._append(message)

    async def store_output(self, text: str) -> str:
        return "o1"

    def _append(self, message: ChatMessage) -> int:
        self._check()
        self.own.append(message)
        return len(EARLIER) + len(self.own)

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


class Bench:
    """One turn: a script, two tools, the journal, and what was shown."""

    def __init__(
        self, *steps: Step, script: Script = (), max_iterations: int = 90, window: int = 200_000
    ) -> None:
        self.model = ScriptedModel(script or steps)
        self.models: list[ScriptedModel] = [self.model]
        self.caching = CachingSettings()
        self.rests = Rests()
        self.images = Images()
        self.approval = ApprovalRules(policy.build_table("never"))
        self.sink = SinkSpy()
        self.journal = Journal([QUESTION])
        self.ran: list[str] = []
        self.troubles: list[ModelError] = []
        self.settings = AgentSettings(max_iterations=max_iterations)
        tools = [
            Tool("look", "Looks.", "read", WhatArguments, self._tool("look")),
            Tool("send", "Sends.", "side_effect", WhatArguments, self._tool("send")),
        ]
        self.toolbox = ToolRegistry(tools)
        self.compactions = MemoryCompactions()
        self.planner = Planner(
            ContextCompressor(Limits(window), {}),
            TokenMeter("scripted", self.toolbox.schemas),
            self.compactions,
            "s1",
        )
        self.view = View(SYSTEM_TEXT, EVERYTHING, [])
        self.shown = ""
        self.spending = NoLimits()

    async def run(
        self, own: list[ChatMessage] | None = None, *unknown: str, plan: ViewPlan = EVERYTHING
    ) -> TurnResult:
        """Run the turn, resumed where `own` holds more than its question."""
        own = own or [QUESTION]
        self.journal.own = list(own)
        entries = [Entry(n, message) for n, message in enumerate([*EARLIER, *own], start=1)]
        self.view = View(SYSTEM_TEXT, plan, entries)
        state = TurnState(self.view, list(own), frozenset(unknown))
        agent = Agent(
            self.models,
            self.toolbox,
            self.settings,
            Recovery(RetryPolicy(retry_for_s=5, backoff_s=(0,)), self.rests),
            max_output_tokens=77,
            approval=self.approval,
            caching=self.caching,
            images=self.images,
        )
        context = ToolContext("c1", MemoryReader(), lambda: datetime.now(UTC))

        async def tools() -> ToolContext:
            return context

        ports = TurnPorts(
            self.journal, self.planner, self.sink, tools, self.spending, self._on_trouble, "c1"
        )
        return await run_turn(state, agent, ports)

    def sent(self, call: int = -1) -> list[ChatMessage]:
        """Return the messages of a request."""
        return self.model.requests[call].messages

    def _tool(self, name: str) -> Callable[..., Awaitable[str]]:
        async def run(_: ToolContext, arguments: WhatArguments) -> str:
            self.ran.append(f"{name} {arguments.what}")
            return f"{name} saw {arguments.what}{self.shown}"

        return run

    async def _on_trouble(self, error: ModelError) -> None:
        self.troubles.append(error)


def look(*ids: str, name: str = "look") -> list[ToolCall]:
    return [tool_call(name, {"what": call_id}, call_id) for call_id in ids]


def asked(calls: list[ToolCall]) -> ChatMessage:
    return ChatMessage(role="assistant", content=None, tool_calls=calls)


def seen(call_id: str, name: str = "look") -> ChatMessage:
    return tool_message(call_id, name, f"{name} saw {call_id}")


def ended(text: str, reason: StopReason) -> Completion:
    return Completion(assistant_message(text), reason, USAGE, "scripted-2")


def cut(text: str) -> Completion:
    return ended(text, "length")


def go_on() -> ChatMessage:
    return user_message(CONTINUE, synthetic=True)


async def test_a_question_is_answered() -> None:
    """The answer comes back with the call that made it, and is left to the caller to record."""
    bench = Bench(ended("Hello!", "stop"))
    result = await bench.run()
    assert result == TurnResult("final_text", assistant_message("Hello!"), "Hello!", result.call)
    call = result.call
    assert (call.usage, call.reported_name, call.purpose) == (USAGE, "scripted-2", "answer")
    assert (call.ratio, call.cost_usd) == (bench.planner.meter.ratio, 0)
    assert bench.journal.own == [QUESTION]
    assert bench.sink.text == "Hello!"


async def test_a_request_holds_the_view_and_the_limits() -> None:
    """System prompt, earlier messages, the question; all tools, in their order."""
    bench = Bench("Hello!")
    await bench.run()
    (request,) = bench.model.requests
    assert request.messages == [SYSTEM, *EARLIER, QUESTION]
    assert [tool.name for tool in request.tools] == ["look", "send"]
    assert (request.allow_tools, request.max_output_tokens) == (True, 77)
    assert request.conversation == "c1"


async def test_a_tool_is_called_and_its_result_read() -> None:
    """Call and result are recorded before the model is asked again."""
    bench = Bench(look("a"), "It is fine.")
    result = await bench.run()
    assert result.text == "It is fine."
    assert bench.journal.own == [QUESTION, asked(look("a")), seen("a")]
    assert bench.journal.started == [("a", "read")]
    assert bench.journal.statuses == {"a": "ok"}
    assert bench.sent() == [SYSTEM, *EARLIER, QUESTION, asked(look("a")), seen("a")]


async def test_calls_of_one_message_come_back_in_their_order() -> None:
    """Whatever finished first, the model sees results in the order of its calls."""
    bench = Bench(look("a", "b", "c"), "Done.")
    await bench.run()
    assert bench.sent()[-3:] == [seen("a"), seen("b"), seen("c")]
    assert sorted(bench.ran) == ["look a", "look b", "look c"]


async def test_a_failing_tool_does_not_end_the_turn() -> None:
    """The model reads what went wrong."""
    bench = Bench([tool_call("nothing", {}, "a")], "I cannot.")
    assert (await bench.run()).text == "I cannot."
    assert bench.journal.statuses == {"a": "error"}
    assert "there is no tool" in str(bench.sent()[-1])


async def test_requests_only_grow() -> None:
    """Each request begins with the bytes of the one before it (prompt caches)."""
    bench = Bench(look("a", "b"), cut("One, "), look("c"), "two.")
    await bench.run()
    for before, after in zip(bench.model.requests, bench.model.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.tools == before.tools


async def test_the_view_equals_what_the_transcript_renders() -> None:
    """The next turn, which reads the transcript, sends the same bytes again."""
    bench = Bench(look("a", "b"), cut("One, "), "two.")
    await bench.run()
    stored = enumerate([*EARLIER, *bench.journal.own], start=1)
    assert bench.sent() == [SYSTEM, *render(ViewPlan(), stored)]


async def test_every_call_begins_with_an_empty_preview() -> None:
    """What was shown beside a tool call is not part of the answer."""
    said = Completion({**asked(look("a")), "content": "Let me see."}, "tool_calls")
    bench = Bench(said, "It is fine.")
    await bench.run()
    assert bench.sink.text == "It is fine."


async def test_what_is_recorded_is_no_longer_on_its_way() -> None:
    """Who stops a turn while its tools run gets no second copy of the text beside the call."""
    said = Completion({**asked(look("a")), "content": "Let me see."}, "tool_calls")
    bench = Bench(said, RateLimited("later", 99))
    with pytest.raises(RateLimited):
        await bench.run()
    assert bench.sink.text == ""


@pytest.mark.parametrize("said", ["", "\n\n"])
async def test_thinking_that_used_up_the_limit_is_not_paid_again(said: str) -> None:
    """The next call would think as long; the person hears why there is no answer."""
    bench = Bench(cut(said), "never asked")
    result = await bench.run()
    assert (result.outcome, result.message) == ("output_exhausted", None)
    assert len(bench.model.requests) == 1
    assert bench.journal.own == [QUESTION]


async def test_a_continued_answer_that_ends_in_thinking_stays_as_it_is() -> None:
    """What was said before is an answer, if a cut one."""
    bench = Bench(cut("One, "), cut(""), "never asked")
    result = await bench.run()
    assert (result.outcome, result.text, len(bench.model.requests)) == ("partial", "One, ", 2)


async def test_usage_of_each_step_is_recorded() -> None:
    """Intermediate calls are paid for too."""
    bench = Bench(cut("One, "), "two.")
    await bench.run()
    (step, request) = bench.journal.calls
    assert step is not None
    assert (step.usage, step.estimated, request) == (USAGE, False, None)


async def test_a_call_without_a_report_is_counted_by_parley() -> None:
    """It is booked with an estimate, which the meter learns nothing from."""
    bench = Bench(Completion(assistant_message("Hello!"), "stop"))
    call = (await bench.run()).call
    assert call.usage is not None
    assert call.usage.input_tokens > 0
    assert (call.estimated, call.ratio, call.prefix) == (True, None, None)


async def test_an_empty_answer_is_paid_for() -> None:
    """It makes no message, so that it is booked by itself."""
    bench = Bench(ended("", "stop"), "Hello!")
    await bench.run()
    assert [call.usage for call in bench.journal.booked] == [USAGE]


async def test_a_cut_answer_is_paid_for_as_far_as_it_was_reported() -> None:
    """The provider bills what it read and wrote until then."""
    error = ModelUnreachable("cut")
    error.usage = Usage(100, 3)
    bench = Bench(Cut("Half", error), "Whole.")
    await bench.run()
    (lost,) = bench.journal.booked
    assert (lost.usage, lost.purpose, lost.estimated) == (Usage(100, 3), "lost", True)


async def test_a_call_under_way_is_known_until_it_is_over() -> None:
    """A turn that is cancelled in it books what it cost at least."""
    bench = Bench(script=lambda _: asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await bench.run()
    assert bench.journal.in_flight is not None
    assert bench.journal.in_flight.purpose == "lost"


async def test_an_answer_is_under_way_until_it_is_on_record() -> None:
    """Whoever cuts the turn off by then books the call with what it really cost."""
    bench = Bench(ended("Hello!", "stop"))
    result = await bench.run()
    assert bench.journal.in_flight is not None
    assert bench.journal.in_flight.id == result.call.id
    assert (bench.journal.in_flight.purpose, bench.journal.in_flight.usage) == ("lost", USAGE)


async def test_a_budget_is_asked_before_every_call() -> None:
    """With what the call costs at least; a refusal ends the turn before the model is called."""
    bench = Bench(look("a"), "Done.")
    await bench.run()
    assert bench.spending.forecasts == [0, 0]
    bench = Bench("never said")
    bench.spending.failure = SpendLimitReached("sender", 2.0, datetime.now(UTC))
    with pytest.raises(SpendLimitReached):
        await bench.run()
    assert bench.model.requests == []


async def test_a_turn_has_a_budget_of_tokens() -> None:
    """Beside the number of calls; when it is used up one last call says what is left."""
    bench = Bench(Completion(asked(look("a")), "tool_calls", USAGE), "So far: a.")
    bench.settings = AgentSettings(max_turn_tokens=15)
    result = await bench.run()
    assert (result.outcome, result.text) == ("budget_exhausted", "So far: a.")
    assert bench.ran == ["look a"]


async def test_a_turn_has_a_budget_of_time() -> None:
    """Likewise; what is asked for then is what was done."""
    bench = Bench("Nothing yet.")
    bench.settings = AgentSettings(max_turn_s=1e-9)
    result = await bench.run()
    assert (result.outcome, result.text) == ("budget_exhausted", "Nothing yet.")
    assert bench.model.requests[-1].messages[-1] == user_message(WRAP_UP, synthetic=True)


async def test_a_summary_that_was_asked_for_is_given_after_a_crash() -> None:
    """The budget of the attempt before is used up; what it asked for is still owed."""
    own = [QUESTION, asked(look("a")), seen("a"), user_message(WRAP_UP, synthetic=True)]
    result = await (bench := Bench("So far: a.")).run(own)
    assert (result.outcome, result.text) == ("budget_exhausted", "So far: a.")
    assert bench.model.requests[-1].allow_tools is False


async def test_an_open_reading_group_is_completed() -> None:
    """After a crash, what only reads runs again; what has a result does not."""
    own = [QUESTION, asked(look("a", "b", "c")), seen("b")]
    bench = Bench("Done.")
    await bench.run(own)
    assert sorted(bench.ran) == ["look a", "look c"]
    assert open_calls(bench.journal.own) == []
    assert len(bench.model.requests) == 1


async def test_a_completed_group_keeps_the_order_of_its_calls() -> None:
    """The first request after a crash has the bytes that every later one will have."""
    own = [QUESTION, asked(look("a", "b", "c")), seen("b")]
    bench = Bench("Done.")
    await bench.run(own, "c")
    stored = enumerate([*EARLIER, *bench.journal.own], start=1)
    assert bench.sent() == [SYSTEM, *render(ViewPlan(), stored)]


async def test_a_side_effect_of_unknown_outcome_is_reported_and_not_run() -> None:
    """The model is told that nobody knows what became of it."""
    own = [QUESTION, asked(look("a", name="send"))]
    bench = Bench("I will check.")
    await bench.run(own, "a")
    assert bench.ran == []
    assert bench.journal.statuses == {"a": "unknown"}
    assert bench.sent()[-1] == tool_message("a", "send", OUTCOME_UNKNOWN)


async def test_a_side_effect_that_was_never_started_is_run() -> None:
    """A crash between the model's answer and the first tool leaves nothing in doubt."""
    bench = Bench("Sent.")
    await bench.run([QUESTION, asked(look("a", name="send"))])
    assert bench.ran == ["send a"]


async def test_a_resumed_turn_does_not_repeat_its_model_calls() -> None:
    """What is recorded is not asked for again."""
    own = [QUESTION, asked(look("a")), seen("a")]
    bench = Bench("Done.")
    result = await bench.run(own)
    assert result.text == "Done."
    assert bench.sent() == [SYSTEM, *EARLIER, *own]
    assert bench.journal.own == own


async def test_a_long_answer_is_continued() -> None:
    """The parts are recorded, asked for by a synthetic message, and read as one text."""
    bench = Bench(cut("One, "), cut("two, "), "three.")
    result = await bench.run()
    assert (result.outcome, result.text) == ("final_text", "One, two, three.")
    assert result.message == assistant_message("three.")
    assert bench.journal.own == [
        QUESTION,
        assistant_message("One, "),
        go_on(),
        assistant_message("two, "),
        go_on(),
    ]


async def test_an_endless_answer_is_partial() -> None:
    """After three continuations the text ends where it is."""
    bench = Bench(*(cut(f"{n} ") for n in range(MAX_CONTINUATIONS + 1)))
    result = await bench.run()
    assert (result.outcome, result.text) == ("partial", "0 1 2 3 ")
    assert len(bench.model.requests) == 4


@pytest.mark.parametrize("text", ["ha ha ha", ""])
async def test_an_answer_that_was_left_ends_the_turn(text: str) -> None:
    """Neither continued nor asked for again: the next one would not end either."""
    bench = Bench(ended(text, "endless"))
    result = await bench.run()
    assert (result.outcome, result.text) == ("endless", text)


@pytest.mark.parametrize("recorded", [1, 2, 3])
async def test_a_continuation_goes_on_after_a_crash(recorded: int) -> None:
    """Parts that were recorded count, as text and towards the limit."""
    own = [QUESTION]
    for n in range(recorded):
        own += [assistant_message(f"{n} "), go_on()]
    bench = Bench(*(cut(f"{n} ") for n in range(recorded, MAX_CONTINUATIONS + 1)))
    result = await bench.run(own)
    assert (result.outcome, result.text) == ("partial", "0 1 2 3 ")


async def test_a_crash_between_a_part_and_its_request_loses_no_text() -> None:
    """The part stands in the transcript; the answer that follows is read behind it."""
    bench = Bench("two.")
    result = await bench.run([QUESTION, assistant_message("One, ")])
    assert result.text == "One, two."
    assert bench.sent()[-1] == go_on()


async def test_continuations_of_earlier_turns_do_not_count() -> None:
    """Only this turn's messages make up its answer."""
    bench = Bench("Fresh.")
    earlier = [QUESTION, assistant_message("Old "), go_on(), assistant_message("end"), QUESTION]
    entries = [Entry(n, message) for n, message in enumerate(earlier, start=1)]
    state = TurnState(View(SYSTEM_TEXT, EVERYTHING, entries), [QUESTION])
    assert (state.iterations, state.continuations, partial_text(state.own)) == (0, 0, "")
    assert (await bench.run()).text == "Fresh."


async def test_an_empty_answer_is_asked_for_again() -> None:
    """Nothing of the empty answer is recorded."""
    bench = Bench("", "Here I am.")
    result = await bench.run()
    assert (result.outcome, result.text) == ("final_text", "Here I am.")
    assert bench.sent(0) == bench.sent(1)
    assert bench.journal.own == [QUESTION]


@pytest.mark.parametrize("nothing", ["", " \n"])
async def test_two_empty_answers_end_the_turn(nothing: str) -> None:
    """Then there is nothing to record: providers refuse blank messages."""
    bench = Bench(nothing, nothing)
    result = await bench.run()
    assert (result.outcome, result.message) == ("empty", None)
    assert len(bench.model.requests) == 2


async def test_an_empty_end_of_a_continued_answer_is_fine() -> None:
    """The parts before it are the answer."""
    bench = Bench(cut("All of it."), "")
    result = await bench.run()
    assert (result.outcome, result.text, result.message) == ("final_text", "All of it.", None)


async def test_the_last_call_is_for_a_summary_without_tools() -> None:
    """When the budget is spent, the model is told so; tools stay listed but are forbidden."""
    bench = Bench(look("a"), look("b"), "So far: a and b.", max_iterations=2)
    result = await bench.run()
    assert (result.outcome, result.text) == ("max_iterations", "So far: a and b.")
    assert bench.model.requests[-1].allow_tools is False
    assert bench.model.requests[-1].tools == bench.model.requests[0].tools
    assert bench.sent()[-1] == user_message(WRAP_UP, synthetic=True)
    assert bench.journal.own[-1] == user_message(WRAP_UP, synthetic=True)


async def test_calls_in_the_last_answer_are_taken_out() -> None:
    """A call that is never answered must not stay in the transcript."""
    disobedient = Completion({**asked(look("b")), "content": "I must look."}, "tool_calls")
    bench = Bench(look("a"), disobedient, max_iterations=1)
    result = await bench.run()
    assert (result.outcome, result.message) == ("max_iterations", assistant_message("I must look."))
    assert bench.ran == ["look a"]


async def test_a_last_answer_of_calls_alone_is_empty() -> None:
    """Nothing is recorded of it."""
    result = await Bench(look("a"), look("b"), max_iterations=1).run()
    assert (result.outcome, result.message, result.text) == ("empty", None, "")


async def test_iterations_before_a_crash_count() -> None:
    """A turn cannot have its budget twice."""
    own = [QUESTION, asked(look("a")), seen("a"), asked(look("b")), seen("b")]
    bench = Bench("So far.", max_iterations=2)
    assert (await bench.run(own)).outcome == "max_iterations"


async def test_a_crash_during_the_summary_asks_for_it_once() -> None:
    """The request for a summary that is recorded is not recorded again."""
    own = [QUESTION, asked(look("a")), seen("a"), user_message(WRAP_UP, synthetic=True)]
    bench = Bench("So far.", max_iterations=1)
    assert (await bench.run(own)).outcome == "max_iterations"
    assert bench.journal.own == own


async def test_a_refusal_ends_the_turn() -> None:
    """With what the provider said, if anything; it is not asked again."""
    result = await Bench(ended("I'd rather not.", "refused")).run()
    assert (result.outcome, result.text) == ("refused", "I'd rather not.")
    silent = await Bench(ended("", "refused")).run()
    assert (silent.outcome, silent.message) == ("refused", None)


async def test_a_failed_attempt_starts_the_preview_over() -> None:
    """What the broken answer showed is not part of the next one; the user's side is told."""
    bench = Bench(Cut("Half an ans", ModelUnreachable("cut")), "Whole.")
    assert (await bench.run()).text == "Whole."
    assert bench.sink.text == "Whole."
    assert [type(trouble) for trouble in bench.troubles] == [ModelUnreachable]


@pytest.mark.parametrize("error", [BadRequest("malformed"), RateLimited("later", 99)])
async def test_a_model_error_ends_the_turn_and_keeps_its_steps(error: ModelError) -> None:
    """What was recorded before stays, so that the turn can be resumed."""
    bench = Bench(look("a"), error)
    with pytest.raises(type(error)):
        await bench.run()
    assert bench.journal.own == [QUESTION, asked(look("a")), seen("a")]


@pytest.mark.parametrize("failure", [LeaseLost("gone"), TurnCancelled("stopped")])
async def test_a_lost_lease_ends_the_turn_at_the_next_step(failure: Exception) -> None:
    """No tool runs and no model is asked for a conversation that has another owner."""
    bench = Bench(look("a"))
    bench.journal.failure = failure
    with pytest.raises(type(failure)):
        await bench.run()
    assert bench.ran == []
    assert len(bench.model.requests) == 1


async def test_a_lease_that_is_lost_while_a_tool_runs_ends_the_turn() -> None:
    """The journal's error arrives as itself and not in a group."""
    bench = Bench("never")
    bench.journal.failure = LeaseLost("gone")
    with pytest.raises(LeaseLost):
        await bench.run([QUESTION, asked(look("a", "b"))])
    assert bench.model.requests == []


# Views that grow too large

SMALL_WINDOW = 24_000
STEPS = 60


def stepping(request: ModelRequest) -> Step:
    """Look sixty times, whatever of it is still in view, then answer."""
    step = next(steps_of(request))
    return look(f"step-{step}") if step < STEPS else "Looked at it all."


def steps_of(request: ModelRequest) -> Iterator[int]:
    """Yield how many steps were made, by the newest call in the request."""
    for message in reversed(request.messages):
        for call in message.get("tool_calls", ()):
            yield int(call["id"].removeprefix("step-")) + 1
    yield 0


def long_loop() -> Bench:
    bench = Bench(script=stepping, window=SMALL_WINDOW)
    bench.shown = " and much more:" + " data-4711" * 300
    return bench


async def test_a_long_turn_is_compacted_inside_of_itself() -> None:
    """One user message and sixty steps with large results: all of it is one turn."""
    bench = long_loop()
    result = await bench.run()
    assert (result.outcome, result.text) == ("final_text", "Looked at it all.")
    assert bench.ran == [f"look step-{n}" for n in range(STEPS)]
    assert len(bench.compactions.committed) >= 3
    assert {done.trigger for done in bench.compactions.committed} == {"threshold"}


async def test_every_request_of_a_long_turn_is_valid_and_fits() -> None:
    """No half group, the user's question word for word, never more than the window."""
    bench = long_loop()
    await bench.run()
    for request in bench.model.requests:
        assert faults(request.messages) == []
        assert QUESTION in request.messages
        assert estimate_messages(request.messages) < SMALL_WINDOW


async def test_a_long_turn_keeps_its_whole_transcript() -> None:
    """A compaction changes the view and nothing else; the next turn sees the same bytes."""
    bench = long_loop()
    await bench.run()
    assert len(bench.journal.own) == 1 + 2 * STEPS
    stored = enumerate([*EARLIER, *bench.journal.own], start=1)
    plan = bench.compactions.committed[-1].plan
    assert bench.sent() == View(SYSTEM_TEXT, plan, [Entry(*pair) for pair in stored]).messages


async def test_the_floor_of_a_long_turn_does_not_rise() -> None:
    """The last compaction goes about as far down as the first one."""
    bench = long_loop()
    await bench.run()
    floors = [done.tokens_after for done in bench.compactions.committed]
    assert max(floors) <= 0.3 * SMALL_WINDOW


def long_history() -> list[ChatMessage]:
    """Return own messages that fill a third of the small window."""
    calls = [f"c{n}" for n in range(30)]
    groups = [[asked(look(each)), tool_message(each, "look", "word " * 110)] for each in calls]
    return [QUESTION, *(message for group in groups for message in group)]


async def test_a_refused_request_is_compacted_and_made_again() -> None:
    """The window is smaller than believed; the answer comes all the same."""
    bench = Bench(ContextOverflow("too long"), "There.", window=SMALL_WINDOW)
    result = await bench.run(long_history())
    assert result.text == "There."
    assert [done.trigger for done in bench.compactions.committed] == ["overflow"]
    refused, made = (estimate_messages(request.messages) for request in bench.model.requests)
    assert made <= refused / 2
    assert faults(bench.sent()) == []


async def test_a_request_that_stays_refused_is_given_up() -> None:
    """After three compactions, each of which made it smaller."""
    bench = Bench(*[ContextOverflow("too long")] * 4, window=SMALL_WINDOW)
    with pytest.raises(ContextOverflow):
        await bench.run(long_history())
    sizes = [estimate_messages(request.messages) for request in bench.model.requests]
    assert len(sizes) == 4
    assert sizes == sorted(set(sizes), reverse=True)


async def test_a_refused_request_that_cannot_shrink_is_given_up_at_once() -> None:
    """Nothing could be left out of it."""
    bench = Bench(ContextOverflow("too long"))
    with pytest.raises(ContextOverflow):
        await bench.run()
    assert len(bench.model.requests) == 1


async def test_retries_after_an_overflow_are_one_iteration() -> None:
    """The budget of steps is for answers."""
    bench = Bench(ContextOverflow("too long"), "There.", window=SMALL_WINDOW, max_iterations=31)
    assert (await bench.run(long_history())).outcome == "final_text"


async def test_iterations_count_although_their_messages_left_the_view() -> None:
    """A turn that was compacted and then interrupted has no second budget."""
    own = long_history()
    plan = ViewPlan(head_upto=3, summaries=(Summary("what was", 4, 62),), tail_from=63)
    bench = Bench("So far.", max_iterations=30)
    assert (await bench.run(own, plan=plan)).outcome == "max_iterations"
    assert len(bench.model.requests[0].messages) == 6


async def test_an_open_group_behind_a_summary_is_completed() -> None:
    """Its results stand behind it, under the plan in force."""
    own = [*long_history(), asked(look("x", "y")), seen("y")]
    plan = ViewPlan(head_upto=3, summaries=(Summary("what was", 4, 63),), tail_from=64)
    bench = Bench("Done.")
    await bench.run(own, plan=plan)
    assert bench.sent()[-3:] == [asked(look("x", "y")), seen("x"), seen("y")]
    assert faults(bench.sent()) == []


async def test_an_answer_is_continued_across_a_compaction() -> None:
    """Its parts are read as one text, whether the model still sees all of them or not."""
    part = "part " * 1_000
    unreported = Completion(assistant_message(part), "length")
    bench = Bench(*[unreported] * 3, "end.", window=9_000)
    result = await bench.run()
    assert (result.outcome, result.text) == ("final_text", f"{part * 3}end.")
    assert bench.compactions.committed
    assert bench.sent()[-1] == go_on()
    assert all(faults(request.messages) == [] for request in bench.model.requests)


async def test_what_the_meter_learned_is_recorded_with_each_answer() -> None:
    """The next turn begins with it."""
    reported = Completion(asked(look("a")), "tool_calls", Usage(5_000, 5))
    bench = Bench(reported, "Done.")
    bench.shown = " data" * 2_000
    result = await bench.run([user_message("word " * 1_000)])
    (step,) = bench.journal.calls
    assert step is not None
    assert step.ratio is not None
    assert step.ratio > 1
    assert result.call.ratio == bench.planner.meter.ratio


async def test_a_group_without_results_is_mended_before_it_is_sent() -> None:
    """Whatever the records hold, a provider takes the request."""
    own = [asked(look("lost")), QUESTION]
    bench = Bench("Done.")
    await bench.run(own)
    assert faults(bench.sent()) == []
    assert bench.sent()[-1] == QUESTION
