"""The summary model as engines ask it: from a thread, within one time limit, with fallbacks."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.context import summary_model
from agent.context.summary_model import Summariser, SummaryCalls
from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
    SummaryFailed,
    SummaryOverflow,
)
from agent.messages import ChatMessage, Usage, assistant_message, user_message
from agent.models.base import Completion, ModelRequest, StopReason
from agent.models.catalog import ModelFacts, Prices
from agent.ports import ModelCall
from agent.tokens import estimate_messages
from tests.agent.tools.doubles import HangingModel, MemoryParts, PassingTime, RetryClock
from tests.support.scripted_model import Cut, ScriptedModel, Step

LIMIT_S = 10.0


AT_ONCE = RetryClock().timing


def asking(*models: ScriptedModel, timeout_s: float | None = None) -> SummaryCalls:
    return Summariser(models, LIMIT_S, **AT_ONCE).calls(timeout_s)


def impatient(*models: ScriptedModel, limit_s: float = LIMIT_S) -> Summariser:
    """Return a summariser whose time is over once the last model, which hangs, was asked."""
    last = models[-1]
    assert isinstance(last, HangingModel)
    return Summariser(models, limit_s, **PassingTime(last).timing, **AT_ONCE)


def failing(error: Exception, name: str = "failing") -> ScriptedModel:
    return ScriptedModel(lambda _request: error, name=name)


async def ask(calls: SummaryCalls, prompt: str = "Sum up.") -> str:
    """Ask as an engine does, from a thread of its own."""
    return await asyncio.to_thread(calls, prompt, 300)


async def failure_of(*models: ScriptedModel) -> SummaryFailed:
    calls = asking(*models)
    with pytest.raises(SummaryFailed) as caught:
        await ask(calls)
    assert calls.failure is caught.value
    return caught.value


async def test_an_answer_comes_back_with_the_name_of_its_model() -> None:
    """The prompt is one message of the user, and the limit is handed on."""
    model = ScriptedModel([Completion(assistant_message("In short."), "stop", None, "small-2")])
    calls = asking(model)
    assert await ask(calls, "Sum up.") == "In short."
    assert (calls.model, calls.failure) == ("small-2", None)
    (request,) = model.requests
    assert request.messages == [user_message("Sum up.")]
    assert (request.max_output_tokens, request.tools) == (300, ())


async def test_a_model_without_a_reported_name_is_called_by_its_own() -> None:
    """The row of a compaction always tells who wrote its summary."""
    calls = asking(ScriptedModel([Completion(assistant_message("In short."), "stop")]))
    await ask(calls)
    assert calls.model == "scripted"


async def test_configured_secrets_neither_leave_nor_come_back() -> None:
    """Whatever the model makes of a key that it saw elsewhere."""
    model = ScriptedModel(["The key is hunter2."])
    calls = Summariser([model], LIMIT_S, lambda text: text.replace("hunter2", "***")).calls()
    assert await ask(calls, "hunter2 opens it") == "The key is ***."
    assert model.requests[0].messages == [user_message("*** opens it")]


@pytest.mark.parametrize(
    "error",
    [
        ModelNotFound("404"),
        ModelUnreachable("503"),
        CredentialsRefused("401"),
        RateLimited("429"),
        BadRequest("400"),
    ],
)
async def test_the_next_model_is_asked_where_one_is_of_no_use(error: ModelError) -> None:
    """An auxiliary model that is gone falls back to the main one."""
    main = ScriptedModel(["In short."])
    calls = asking(failing(error), main)
    assert await ask(calls) == "In short."
    assert calls.failure is None


async def test_an_answer_that_breaks_in_the_middle_falls_back_too() -> None:
    """What was streamed before is not part of the next model's answer."""
    cut = ScriptedModel(lambda _request: Cut("half", ModelUnreachable("cut")), name="cut")
    assert await ask(asking(cut, ScriptedModel(["Whole."]))) == "Whole."
    assert len(cut.requests) == 2


async def test_what_passes_by_itself_is_waited_for() -> None:
    """Once, for half a second at most; then the model answers, and nobody else is asked."""
    small, main = ScriptedModel([RateLimited("429"), "In short."], name="small"), ScriptedModel([])
    passing = RetryClock()
    calls = Summariser([small, main], LIMIT_S, **passing.timing).calls()
    assert (await ask(calls), calls.model) == ("In short.", "small")
    assert passing.slept == [0.5]


async def test_the_next_key_of_a_model_is_asked_before_another_model() -> None:
    """Without a wait: limits are counted for each key."""
    first, second = failing(RateLimited("429"), "small"), ScriptedModel(["In short."], name="small")
    main, passing = ScriptedModel([]), RetryClock()
    calls = Summariser([first, second, main], LIMIT_S, **passing.timing).calls()
    assert await ask(calls) == "In short."
    assert (passing.slept, main.requests) == ([], [])


async def test_a_model_that_was_given_up_rests_for_the_next_part() -> None:
    """What comes next is asked of who answered."""
    gone, main = failing(ModelUnreachable("down")), ScriptedModel(["One.", "Two."])
    calls = asking(gone, main)
    assert [await ask(calls), await ask(calls)] == ["One.", "Two."]
    assert len(gone.requests) == 2


async def test_nobody_waits_long_for_a_model_that_fails() -> None:
    """Some seconds with all retries: the extractor can do it as well."""
    passing = RetryClock()
    calls = Summariser([failing(ModelUnreachable("down"))], 60.0, **passing.timing).calls()
    assert await failure_in(calls) is not None
    assert 0 < sum(passing.slept) <= 8


async def test_a_refusal_is_the_extractors_case() -> None:
    """The main model is not loaded with what another attempt may not fix."""
    main, error = ScriptedModel(["In short."]), ModelRefused("no")
    failure = await failure_of(failing(error), main)
    assert type(error).__name__ in str(failure)
    assert failure.__cause__ is error
    assert main.requests == []


@pytest.mark.parametrize(
    ("error", "cooldown_s"),
    [
        (ModelUnreachable("down"), 60),
        (ModelNotFound("gone"), 600),
        (CredentialsRefused("no"), 600),
        (RateLimited("busy"), 60),
        (RateLimited("busy", 5), 60),
        (RateLimited("busy", 120), 120),
        (RateLimited("busy", 86_400), 600),
        (BadRequest("malformed"), 60),
    ],
)
async def test_a_failure_says_how_long_not_to_ask_again(
    error: ModelError, cooldown_s: float
) -> None:
    """Passing trouble 60 s, no provider 600 s; a provider's wish between the two is followed."""
    assert (await failure_of(failing(error))).cooldown_s == cooldown_s


async def test_the_last_of_several_models_decides_how_long() -> None:
    """As long as one of them may come back, 60 s are enough."""
    both = await failure_of(failing(ModelNotFound("gone")), failing(ModelUnreachable("down"), "b"))
    assert both.cooldown_s == 60


async def test_without_any_model_there_is_no_provider() -> None:
    """Asked all the same, it fails like every other call."""
    assert (await failure_of()).cooldown_s == 600


@pytest.mark.parametrize("reason", ["length", "refused", "tool_calls", "endless"])
async def test_an_answer_that_did_not_end_by_itself_is_no_summary(reason: StopReason) -> None:
    """Cut, refused, or something else than text; who fills its room is left alone for longer."""
    answer = Completion(assistant_message("## Goal\nhalf a"), reason)
    failure = await failure_of(ScriptedModel([answer]))
    assert repr(reason) in str(failure)
    assert failure.cooldown_s == (600 if reason == "length" else 60)


async def test_answers_that_are_too_long_are_told_once_with_what_they_cost() -> None:
    """Those that are cut, and those that the provider cut, which are lost."""
    prices = Prices(1.0, cache_write_5m=1.25, cache_write_1h=2.0, cache_read=0.1, output=5.0)
    lost = Completion(assistant_message("half a"), "length", Usage(1_000, 300), "wordy")
    told = Completion(assistant_message("All."), "stop", Usage(2_000, 400), "wordy")
    model = ScriptedModel([told, told, lost])
    model.facts = replace(model.facts, prices=prices)
    calls = asking(model)
    for _ in range(2):
        await ask(calls)
        calls.note_cut(500, 200)
    with pytest.raises(SummaryFailed):
        await ask(calls)
    with capture_logs() as log:
        calls.close()
        calls.close()
    (line,) = [line for line in log if line["event"] == "summary_too_long"]
    assert (line["model"], line["answers"], line["log_level"]) == ("wordy", 3, "warning")
    assert (line["tokens"], line["kept_tokens"]) == (1_300, 400)
    assert line["cost_usd"] == pytest.approx((5_000 + 5 * 1_100) / 1e6)


@pytest.mark.parametrize("text", ["", " \n\t"])
async def test_an_empty_answer_is_no_summary(text: str) -> None:
    """Whatever stop reason it came with."""
    assert "empty" in str(await failure_of(ScriptedModel([text])))


async def test_a_failure_stays_known_after_a_later_answer() -> None:
    """One part that failed is why the whole summary was not used."""
    calls = asking(ScriptedModel(["", "In short."]))
    with pytest.raises(SummaryFailed):
        await ask(calls)
    assert await ask(calls) == "In short."
    assert calls.failure is not None


async def test_all_calls_share_one_time_limit() -> None:
    """When it is used up the model is not asked any more."""
    model = HangingModel()
    calls = impatient(model).calls()
    for _ in range(2):
        with pytest.raises(SummaryFailed) as caught:
            await ask(calls)
        assert caught.value.cooldown_s == 60
    assert len(model.requests) == 1
    await model.ended.wait()


async def test_the_next_model_has_only_what_is_left_of_the_time() -> None:
    """A fallback does not begin the limit anew."""
    calls = impatient(failing(ModelUnreachable("down")), HangingModel()).calls()
    async with asyncio.timeout(LIMIT_S / 2):
        with pytest.raises(SummaryFailed, match="too long"):
            await ask(calls)


async def test_nobody_gets_more_time_than_is_configured() -> None:
    """Hygiene's limit shortens the configured one and never lengthens it."""
    calls = impatient(HangingModel(), limit_s=5).calls(3600)
    assert 4 < calls.left_s <= 5
    async with asyncio.timeout(LIMIT_S / 2):
        with pytest.raises(SummaryFailed, match="too long"):
            await ask(calls)


async def test_closing_ends_a_call_that_hangs() -> None:
    """The turn is over: the connection is closed and the engine's thread goes on at once."""
    model = HangingModel()
    calls = asking(model)
    async with asyncio.timeout(LIMIT_S / 2), asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(failure_in(calls))
        await model.arrived.wait()
        calls.close()
    assert isinstance(asked.result(), SummaryFailed)
    await model.ended.wait()


async def test_closed_calls_ask_nobody() -> None:
    """An engine that goes on after its turn has ended gets no further answer."""
    model = ScriptedModel(["In short."])
    calls = asking(model)
    calls.close()
    assert isinstance(await failure_in(calls), SummaryFailed)
    assert model.requests == []


async def test_a_call_that_begins_while_it_is_closed_ends_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the look at the flag and the request there is no gap."""
    model = HangingModel()
    calls = asking(model)
    begin = asyncio.run_coroutine_threadsafe

    def closed_meanwhile(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
        calls.close()
        return begin(work, loop)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", closed_meanwhile)
    async with asyncio.timeout(LIMIT_S / 2):
        assert isinstance(await failure_in(calls), SummaryFailed)


async def failure_in(calls: SummaryCalls, prompt: str = "Sum up.") -> SummaryFailed | None:
    try:
        await ask(calls, prompt)
    except SummaryFailed as exc:
        return exc
    return None


def test_the_window_is_that_of_the_model_that_is_asked_next() -> None:
    """One that rests, or has no room for orders and an answer, is not."""
    small, tiny, main = (
        ScriptedModel([], context_length=tokens, name=f"m{tokens}")
        for tokens in (8_000, 2_000, 200_000)
    )
    summariser = Summariser([tiny, small, main], LIMIT_S)
    assert summariser.window_tokens == 8_000
    summariser.rests.rest(small, 60)
    assert summariser.window_tokens == 200_000
    assert Summariser([], LIMIT_S).window_tokens == 0


# Windows


class Small(ScriptedModel):
    """Refuses what is larger than its window, as servers do; its table believes in 128K.

    Attributes:
        answers: What is said to prompts that fit.
    """

    def __init__(self, real_tokens: int, *, tells: bool, name: str = "small") -> None:
        super().__init__(self._play, context_length=128_000, name=name)
        self.real_tokens = real_tokens
        self.tells = tells
        self.refused: list[int] = []

    def _play(self, request: ModelRequest) -> Step:
        size = estimate_messages(request.messages, self.name) + request.max_output_tokens
        if size <= self.real_tokens:
            return "In short."
        self.refused.append(size)
        error = ContextOverflow("too large")
        error.window_tokens = self.real_tokens if self.tells else None
        return error


LONG = "word " * 12_000


async def overflow_of(calls: SummaryCalls, prompt: str = LONG) -> int:
    """Return the window that is told where a prompt was too large."""
    with pytest.raises(SummaryOverflow) as caught:
        await ask(calls, prompt)
    return caught.value.window_tokens


async def test_a_refusal_tells_the_window() -> None:
    """Of all keys of the model."""
    model, second = (
        Small(8_192, tells=True),
        ScriptedModel([], context_length=128_000, name="small"),
    )
    calls = Summariser([model, second], LIMIT_S).calls()
    assert await overflow_of(calls) == 8_192
    assert calls.window_of(second) == calls.window_tokens == 8_192
    # A turn that the same model answers goes by what is believed.
    assert model.context_length == 128_000
    assert (calls.failure, calls.spent) == (None, [])
    assert await ask(calls) == "In short."


async def test_what_a_refusal_has_shown_is_known_to_all_summarisers() -> None:
    """As long as the same window is believed in; of no other model."""
    model = Small(8_192, tells=True)
    await overflow_of(Summariser([model], LIMIT_S).calls())
    again = Summariser([model], LIMIT_S)
    assert again.window_of(model) == 8_192
    assert again.window_of(ScriptedModel([], context_length=32_768, name="small")) == 32_768
    assert again.window_of(ScriptedModel([], context_length=128_000, name="other")) == 128_000


async def test_without_a_number_the_window_is_found_in_a_few_steps() -> None:
    """Each is a share of what was refused; nobody bills a refusal."""
    model = Small(8_192, tells=False)
    calls = asking(model)
    while len(model.refused) < 6:
        try:
            await ask(calls, "word " * int(calls.window_tokens * 0.25))
        except SummaryOverflow:
            continue
        break
    assert 3_500 <= calls.window_tokens <= 16_000
    assert len(model.refused) <= 4


async def test_a_model_that_counts_more_gets_less_than_its_window() -> None:
    """It refuses what Parley takes for small enough: its window is not what was wrong."""
    model = Small(8_192, tells=True)
    model.context_length = 8_192
    assert await overflow_of(asking(model)) == int(8_192 * 0.7)


async def test_a_window_that_is_too_small_leads_to_the_next_model() -> None:
    """Orders and an answer would fill it; the main model's window is told instead."""
    model, main = Small(2_048, tells=True), ScriptedModel(["In short."], context_length=64_000)
    calls = asking(model, main)
    assert await overflow_of(calls) == 64_000
    assert await ask(calls) == "In short."
    assert len(model.requests) == 1


async def test_a_model_that_always_refuses_is_left_for_the_next_one() -> None:
    """After six refusals, whatever it says."""
    error = ContextOverflow("too large")
    error.window_tokens = 100_000
    model = failing(error)
    model.context_length = 10**9
    calls = asking(model, ScriptedModel(["In short."]))
    windows = [await overflow_of(calls, "Sum up.") for _ in range(6)]
    assert windows[-1] == 200_000
    assert await ask(calls) == "In short."


async def test_where_no_window_will_do_there_is_no_summary() -> None:
    """The extractor is asked, and for ten minutes nobody else."""
    failure = await failure_in(asking(Small(2_048, tells=True)), LONG)
    assert failure is not None
    assert failure.cooldown_s == 600


async def test_a_fallback_with_a_smaller_window_gets_smaller_parts() -> None:
    """Nothing is sent to it that cannot fit."""
    gone, small = failing(ModelNotFound("404")), ScriptedModel(["In short."], context_length=8_192)
    calls = asking(gone, small)
    assert await overflow_of(calls) == 8_192
    assert small.requests == []
    assert await ask(calls) == "In short."


# Parts


async def test_a_part_is_kept_with_what_it_cost() -> None:
    """At once: a process that is killed has paid for it, and finds it again."""
    store = MemoryParts()
    calls = Summariser([priced(said(Usage(1_000)))], LIMIT_S).calls(parts=store)
    assert await asyncio.to_thread(calls.find, "k1") is None
    text = await ask(calls)
    await asyncio.to_thread(calls.keep, "k1", text)
    assert (store.texts, [call.purpose for call in store.booked]) == ({"k1": text}, ["summary"])
    assert (calls.spent, calls.has_parts) == ([], True)
    again = Summariser([ScriptedModel([])], LIMIT_S).calls(parts=store)
    assert await asyncio.to_thread(again.find, "k1") == text


async def test_without_a_store_no_part_is_kept() -> None:
    """A library has none."""
    calls = asking(ScriptedModel([]))
    await asyncio.to_thread(calls.keep, "k1", "text")
    assert await asyncio.to_thread(calls.find, "k1") is None
    assert not calls.has_parts


async def test_ahead_of_need_there_is_time_for_many_parts() -> None:
    """Each has the limit for itself."""
    summariser = Summariser([ScriptedModel([])], LIMIT_S)
    assert summariser.calls().left_s <= LIMIT_S
    assert summariser.ahead(MemoryParts()).left_s > 9 * LIMIT_S


# What it costs

PRICED = ModelFacts("scripted", prices=Prices(2.0, 2.5, 4.0, 0.2, 10.0))


def priced(*steps: Step) -> ScriptedModel:
    return ScriptedModel(steps, facts=PRICED)


def said(usage: Usage | None, cost_usd: float | None = None) -> Completion:
    return Completion(assistant_message("In short."), "stop", usage, "small-2", cost_usd)


def booked(calls: SummaryCalls) -> ModelCall:
    (call,) = calls.spent
    return call


async def test_an_answer_is_booked_with_what_it_cost() -> None:
    """Under the name of the settings, by which prices go."""
    calls = asking(priced(said(Usage(input_tokens=1_000_000, output_tokens=10_000))))
    await ask(calls)
    call = booked(calls)
    assert (call.provider, call.model, call.reported_name) == ("scripted", "scripted", "small-2")
    assert (call.purpose, call.estimated) == ("summary", False)
    assert call.cost_usd == pytest.approx(2.1)


async def test_the_providers_own_figure_counts() -> None:
    """A router knows what it charges."""
    calls = asking(priced(said(Usage(input_tokens=1_000_000), cost_usd=0.5)))
    await ask(calls)
    assert booked(calls).cost_usd == 0.5


async def test_without_a_report_it_is_estimated() -> None:
    """And marked as such."""
    calls = asking(priced(said(None)))
    await ask(calls)
    call = booked(calls)
    assert (call.purpose, call.estimated, call.reported_name) == ("summary", True, "small-2")
    assert call.usage is not None
    assert min(call.usage.input_tokens, call.usage.output_tokens, call.cost_usd or 0) > 0


async def test_an_answer_that_is_no_summary_was_paid_for_all_the_same() -> None:
    """The failure is the caller's; the bill is not."""
    calls = asking(priced(""))
    with pytest.raises(SummaryFailed):
        await ask(calls)
    assert booked(calls).purpose == "summary"


async def test_a_prompt_is_counted_only_where_its_call_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the provider reports need not be estimated, and most calls come back with a report."""
    counted: list[int] = []

    def counting(messages: list[ChatMessage], model: str) -> int:
        counted.append(len(messages))
        return estimate_messages(messages, model)

    monkeypatch.setattr(summary_model, "estimate_messages", counting)
    answer = Completion(assistant_message("In short."), "stop", Usage(900, 7))
    calls = asking(ScriptedModel([answer, Cut("half", ModelRefused("cut"))]))
    await ask(calls)
    assert (counted, len(calls.spent)) == ([], 1)
    with pytest.raises(SummaryFailed):
        await ask(calls)
    assert counted == [1]


async def test_a_failed_call_is_lost_where_the_provider_had_reported_something() -> None:
    """A stream that is cut is billed; the fallback is billed too."""
    cut = BadRequest("cut")
    cut.usage = Usage(input_tokens=500)
    calls = asking(priced(Cut("half", cut)), priced("Whole."))
    await ask(calls)
    assert [call.purpose for call in calls.spent] == ["lost", "summary"]
    assert calls.spent[0].usage == cut.usage


async def test_a_failed_call_that_had_begun_to_answer_is_lost_as_expected() -> None:
    """Many report at the end alone: the prompt by Parley's count, and what had been streamed."""
    cut = ModelRefused("cut")
    cut.written_tokens = 40
    model = priced(Cut("half", cut))
    calls = asking(model)
    with pytest.raises(SummaryFailed):
        await ask(calls)
    call = booked(calls)
    expected = estimate_messages(model.requests[0].messages, model.name)
    assert (call.purpose, call.usage) == ("lost", Usage(expected, 40))


async def test_a_call_that_was_refused_costs_nothing() -> None:
    """Nobody bills an error."""
    calls = asking(priced(ModelRefused("no")))
    with pytest.raises(SummaryFailed):
        await ask(calls)
    assert calls.spent == []


async def test_a_call_that_took_too_long_is_estimated_as_lost() -> None:
    """The provider has read the prompt by then."""
    calls = impatient(HangingModel()).calls()
    with pytest.raises(SummaryFailed):
        await ask(calls)
    call = booked(calls)
    assert (call.purpose, call.estimated) == ("lost", True)
    assert call.usage is not None
    assert call.usage.input_tokens > 0


async def test_closing_has_a_call_that_is_cut_off_booked_at_once() -> None:
    """Whoever closes books next; the engine's thread may take its time."""
    model = HangingModel()
    calls = asking(model)
    async with asyncio.timeout(LIMIT_S / 2), asyncio.TaskGroup() as tasks:
        tasks.create_task(failure_in(calls))
        await model.arrived.wait()
        calls.close()
        assert booked(calls).purpose == "lost"
        calls.close()
    assert len(calls.spent) == 1


async def test_what_is_left_of_the_time_is_told() -> None:
    """A compaction that waits for something else waits no longer."""
    assert 0 < asking(timeout_s=5).left_s <= 5
    assert asking(timeout_s=0).left_s == 0
