"""The planner: when a view is compacted, what holds it back, and what is told about it."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar

import pytest
from structlog.contextvars import bound_contextvars, get_contextvars
from structlog.testing import capture_logs
from typing_extensions import override

from agent.context.meter import Measure, ReportedUsage, TokenMeter
from agent.context.planner import (
    MAX_OVERFLOWS,
    MAX_PREFLIGHT_PASSES,
    PAUSED,
    CompactionRules,
    Planner,
    write_ahead,
)
from agent.context.summary_model import Summariser, SummaryCalls
from agent.context_compressor import ContextCompressor
from agent.context_engine import (
    Compressed,
    CompressionRequest,
    ContextEngine,
    Level,
    Limits,
    Trigger,
)
from agent.errors import ModelError, ModelNotFound, ModelUnreachable, SummaryFailed
from agent.messages import ChatMessage, Usage, assistant_message, user_message
from agent.ports import PlannerState
from agent.view.view import Entry, Summary, View, ViewPlan
from gateway.errors import LeaseLost
from tests.agent.tools.doubles import HangingModel, MemoryCompactions, PassingTime, RetryClock
from tests.support.conversations import faults
from tests.support.scripted_model import ScriptedModel

WINDOW = 20_000
THRESHOLD = 10_000
NOW = 1_000_000.0
LONG_WORDS = 80

GOOD = (
    "## Goal\nShip the order.\n## Constraints & Preferences\nnone\n"
    "## Progress\n### Done\n1. asked\n"
    "## Key Decisions\nnone\n## Relevant Files\nnone\n## Next Steps\nnone\n"
    "## Critical Context\nthe order has number 4711\n## Active Task\nship it"
)

Answer = Callable[[CompressionRequest], Compressed | None]


class Engine(ContextEngine):
    """Answers every request as the test says, and keeps them."""

    name: ClassVar[str] = "scripted"

    def __init__(self, answer: Answer) -> None:
        super().__init__(Limits(WINDOW), {})
        self.answer = answer
        self.requests: list[CompressionRequest] = []
        self.segments: list[str] = []

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        self.requests.append(request)
        return self.answer(request)

    @override
    def on_session_start(self, session_id: str) -> None:
        self.segments.append(f"start {session_id}")

    @override
    def on_session_end(self, session_id: str) -> None:
        self.segments.append(f"end {session_id}")

    @property
    def triggers(self) -> list[Trigger]:
        return [request.trigger for request in self.requests]


class Preparing(Engine):
    prepares: ClassVar[bool] = True


def dropping(count: int, level: Level = "prune") -> Answer:
    """Return what leaves out so many of the oldest messages each time."""

    def answer(request: CompressionRequest) -> Compressed:
        kept = request.entries[count:]
        tokens = request.fixed_tokens + sum(request.estimate(entry.message) for entry in kept)
        return Compressed(ViewPlan(tail_from=kept[0].seq), level, tokens)

    return answer


def claiming(tokens: int, level: Level = "prune") -> Answer:
    """Return the plan in force, and say that the view has so many tokens with it."""
    return lambda request: Compressed(request.plan, level, tokens)


def nothing(_: CompressionRequest) -> None:
    return None


def planner_of(
    engine: ContextEngine,
    *summary_models: ScriptedModel,
    timing: dict[str, Any] | None = None,
    enabled: bool = True,
    spending: Any = None,
    **more: Any,
) -> Planner:
    asked = Summariser(summary_models, 10.0, **(timing or RetryClock().timing))
    summariser = asked if summary_models else None
    rules = CompactionRules(enabled, summariser, spending)
    return Planner(engine, TokenMeter("scripted"), MemoryCompactions(), "s1", rules, **more)


def store_of(planner: Planner) -> MemoryCompactions:
    assert isinstance(planner.store, MemoryCompactions)
    return planner.store


def view_of(count: int = 4, words: int = 1, system: str = "You are a test.") -> View:
    """Return a view of so many messages, by turns from user and assistant."""
    entries = [Entry(n, said(n, words)) for n in range(1, count + 1)]
    return View(system, ViewPlan(), entries)


def long_view() -> View:
    """Return a view over the threshold whose newest messages fit into its target."""
    return view_of(66, LONG_WORDS)


def said(n: int, words: int = 1) -> ChatMessage:
    text = f"message {n} " + "word " * words
    return user_message(text) if n % 2 else assistant_message(text)


def reported(planner: Planner, view: View, tokens: int) -> None:
    """Have the meter know the size of the view."""
    planner.meter.report = ReportedUsage(tokens, 0, view.entries[-1].seq)


async def asked_at(tokens: int, engine: Engine, **state: float) -> list[Trigger]:
    """Return what the engine was asked for when the view had so many tokens."""
    planner = planner_of(engine, state=PlannerState(**state))  # type: ignore[arg-type]
    view = view_of()
    reported(planner, view, tokens)
    await planner.keep_within(view)
    return engine.triggers


@pytest.mark.parametrize(("tokens", "fires"), [(THRESHOLD - 1, False), (THRESHOLD, True)])
async def test_it_fires_at_the_threshold(tokens: int, fires: bool) -> None:
    """Half of the window, and not one token before."""
    assert bool(await asked_at(tokens, Engine(claiming(100)))) is fires


async def test_a_small_view_costs_nothing() -> None:
    """Neither a compaction nor a look ahead, with whatever model."""
    model = ScriptedModel([])
    planner = planner_of(Preparing(nothing), model)
    await planner.keep_within(view_of())
    assert (store_of(planner).committed, store_of(planner).asked_ahead) == ([], 0)


async def test_the_first_call_of_a_turn_is_the_preflight() -> None:
    """Later ones follow a step of the loop; the engine and the row know which."""
    planner = planner_of(engine := Engine(claiming(100)))
    view = view_of()
    for _ in range(2):
        reported(planner, view, THRESHOLD)
        await planner.keep_within(view)
    assert engine.triggers == ["preflight", "threshold"]
    assert [each.trigger for each in store_of(planner).committed] == ["preflight", "threshold"]


async def test_an_engine_may_have_a_rule_of_its_own_for_the_preflight() -> None:
    """Only the first call of a turn asks it."""

    class Eager(Engine):
        @override
        def should_compress_preflight(self, prompt_tokens: int) -> bool:
            return True

    planner = planner_of(engine := Eager(nothing))
    view = view_of()
    await planner.keep_within(view)
    await planner.keep_within(view)
    assert engine.triggers == ["preflight"]


async def test_the_preflight_has_three_passes() -> None:
    """A view that stays too large is sent all the same: the provider has the last word."""

    class Never(Engine):
        @override
        def should_compress(self, prompt_tokens: int | None = None) -> bool:
            return True

    planner = planner_of(engine := Never(dropping(10)))
    await planner.keep_within(view_of(100))
    assert len(engine.requests) == MAX_PREFLIGHT_PASSES == 3
    assert [each.messages_after for each in store_of(planner).committed] == [91, 81, 71]


async def test_the_passes_end_when_the_view_is_small_enough() -> None:
    """Each pass measures again."""
    planner = planner_of(engine := Engine(dropping(30)))
    view = view_of(50, words=220)
    await planner.keep_within(view)
    assert len(engine.requests) == 1
    assert len(view.entries) == 20


async def test_switched_off_nothing_is_compacted() -> None:
    """What the provider refuses as too large is then refused."""
    planner = planner_of(engine := Preparing(claiming(100)), ScriptedModel([]), enabled=False)
    view = view_of()
    reported(planner, view, WINDOW)
    await planner.keep_within(view)
    assert await planner.shrink(view, ScriptedModel([])) is False
    assert (engine.requests, store_of(planner).asked_ahead) == ([], 0)


async def test_a_refused_view_is_shrunk_three_times_in_a_turn() -> None:
    """The fourth time it cannot help."""
    planner = planner_of(engine := Engine(claiming(100)))
    answers = [await planner.shrink(view_of(), ScriptedModel([])) for _ in range(MAX_OVERFLOWS + 1)]
    assert answers == [True, True, True, False]
    assert engine.triggers == ["overflow"] * 3


async def test_an_overflow_is_not_held_back() -> None:
    """Anti-thrash saves money; a request that was refused saves none."""
    planner = planner_of(Engine(claiming(100)), state=PlannerState(2, WINDOW))
    assert await planner.shrink(view_of(), ScriptedModel([]))


async def test_a_view_that_cannot_be_shrunk_says_so() -> None:
    """The caller then gives up."""
    planner = planner_of(Engine(nothing))
    assert await planner.shrink(view_of(), ScriptedModel([])) is False
    assert store_of(planner).committed == []


async def test_the_plan_is_shown_and_the_report_forgotten() -> None:
    """What was reported is the size of another view."""
    planner = planner_of(Engine(dropping(30)))
    view = view_of(50)
    reported(planner, view, THRESHOLD)
    await planner.keep_within(view)
    assert view.plan == ViewPlan(tail_from=31)
    assert planner.meter.report is None
    assert (await planner.measured(view)).source == "estimated"


async def test_a_compaction_that_is_not_committed_did_not_happen() -> None:
    """View, report and state are what they were; the error goes on."""
    planner = planner_of(Engine(dropping(2)), state=PlannerState(1))
    store_of(planner).failure = LeaseLost("gone")
    view = view_of()
    reported(planner, view, THRESHOLD)
    with pytest.raises(LeaseLost):
        await planner.keep_within(view)
    assert view.plan == ViewPlan()
    assert planner.meter.report is not None
    assert (planner.state, planner.session_id) == (PlannerState(1), "s1")


async def test_the_engine_is_told_of_the_new_segment() -> None:
    """The old one ends, the new one begins, and closing ends that."""
    planner = planner_of(engine := Engine(claiming(100)))
    await planner.compact(view_of(), "manual")
    planner.close()
    assert engine.segments == ["end s1", "start s2", "end s2"]


async def test_the_engine_sees_the_view_and_what_is_asked() -> None:
    """Originals, sizes in one scale, limits, focus and date."""
    planner = planner_of(engine := Engine(nothing), ScriptedModel([], context_length=9_000))
    store_of(planner).ahead = ahead = Summary("ahead", 1, 2)
    view = view_of()
    reported(planner, view, 5_000)
    await planner.compact(view, "hygiene", focus="the order")
    (request,) = engine.requests
    assert (request.plan, request.entries) == (view.plan, tuple(view.entries))
    assert (request.tokens, request.limits) == (5_000, engine.limits)
    assert (request.focus, request.prepared, request.summary_window) == ("the order", ahead, 9_000)
    assert time.strptime(request.today, "%Y-%m-%d")


@pytest.mark.parametrize(("share", "scale"), [(None, 1), (1.5, 1.5), (9, 2), (0.1, 0.5)])
async def test_the_engine_counts_in_the_scale_of_the_report(
    share: float | None, scale: float
) -> None:
    """What was reported of the whole holds for its parts, too, within a factor of two."""
    planner = planner_of(engine := Engine(nothing))
    view = view_of(20, LONG_WORDS)
    estimated = (await planner.measured(view)).tokens
    if share is not None:
        reported(planner, view, int(share * estimated))
    await planner.compact(view, "threshold")
    (request,) = engine.requests
    parts = [request.fixed_tokens, *(request.estimate(entry.message) for entry in view.entries)]
    assert request.tokens == int((share or 1) * estimated)
    assert sum(parts) == pytest.approx(scale * estimated, rel=0.02)


async def test_a_command_does_not_get_what_was_written_ahead() -> None:
    """It was written without the topic that the user asks for."""
    planner = planner_of(engine := Preparing(nothing))
    store_of(planner).ahead = Summary("ahead", 1, 2)
    await planner.compact(view_of(), "manual", focus="the order")
    assert engine.requests[0].prepared is None


async def test_what_an_engine_logs_bears_the_ids_of_its_turn() -> None:
    """Its thread knows the conversation that was bound outside."""
    seen: list[object] = []

    def answer(_: CompressionRequest) -> None:
        seen.append(get_contextvars().get("conversation"))

    with bound_contextvars(conversation=7):
        await planner_of(Engine(answer)).compact(view_of(), "manual")
    assert seen == [7]


async def test_without_a_summary_model_there_is_none_to_ask() -> None:
    """The engine then does without."""
    planner = planner_of(engine := Engine(nothing))
    await planner.compact(view_of(), "manual")
    assert engine.requests[0].summarise is None


# Anti-thrash


def saving(share: float, fixed: int = 0) -> Answer:
    """Return what saves this share of the part that can be compacted at all."""

    def answer(request: CompressionRequest) -> Compressed:
        floor = request.fixed_tokens + request.estimate(request.entries[-2].message)
        saved = int(share * (request.tokens - floor))
        return Compressed(request.plan, "prune", request.tokens - saved)

    return answer


async def test_two_poor_savings_in_a_row_pause() -> None:
    """The second one sets the mark from which the view has to grow."""
    planner = planner_of(Engine(saving(0.09)))
    view = view_of()
    for pause in (False, True):
        reported(planner, view, THRESHOLD)
        done = await planner.compact(view, "threshold")
        assert done is not None
        assert planner.state.paused_at_tokens == (done.tokens_after if pause else 0)
    assert planner.state.poor_savings == 2


async def test_a_good_saving_between_two_poor_ones_starts_the_count_over() -> None:
    """Only a row of them means that nothing is left to be saved."""
    planner = planner_of(engine := Engine(nothing))
    view = view_of()
    for share in (0.09, 0.11, 0.09):
        engine.answer = saving(share)
        reported(planner, view, THRESHOLD)
        await planner.compact(view, "threshold")
    assert planner.state == PlannerState(1, 0)


async def test_savings_are_judged_by_what_can_be_compacted() -> None:
    """A long system prompt must not make a good saving look poor."""
    planner = planner_of(Engine(saving(0.15)))
    view = view_of(system="rule " * 9_000)
    reported(planner, view, 2 * planner.meter.fixed_tokens(view.messages[0]))
    done = await planner.compact(view, "threshold")
    assert done is not None
    assert done.tokens_before - done.tokens_after < 0.10 * done.tokens_before
    assert planner.state.poor_savings == 0


@pytest.mark.parametrize(("tokens", "fires"), [(13_199, False), (13_201, True)])
async def test_a_pause_ends_when_the_view_has_grown_by_a_tenth(tokens: int, fires: bool) -> None:
    """It decays by itself, also in a later turn: its mark is part of the state."""
    asked = await asked_at(tokens, Engine(claiming(100)), poor_savings=2, paused_at_tokens=12_000)
    assert bool(asked) is fires


@pytest.mark.parametrize(("tokens", "fires"), [(16_999, False), (17_000, True)])
async def test_close_to_the_window_nothing_is_held_back(tokens: int, fires: bool) -> None:
    """From 85 % on an overflow is nearer than the next saving."""
    asked = await asked_at(tokens, Engine(claiming(100)), poor_savings=2, paused_at_tokens=99_999)
    assert bool(asked) is fires


@pytest.mark.parametrize("trigger", ["hygiene", "manual"])
async def test_hygiene_and_manual_compactions_pass_a_pause(trigger: Trigger) -> None:
    """Both are asked for by somebody else than the loop; a good one ends the pause."""
    planner = planner_of(Engine(claiming(100)), state=PlannerState(2, 99_999))
    view = view_of()
    reported(planner, view, THRESHOLD)
    assert await planner.compact(view, trigger) is not None
    assert planner.state == PlannerState()


async def test_a_view_without_anything_to_leave_out_is_not_tried_at_every_step() -> None:
    """It pauses like a poor saving, until the view has grown."""
    planner = planner_of(engine := Engine(nothing))
    view = view_of()
    for tokens in (THRESHOLD, THRESHOLD + 999, THRESHOLD + 1_000):
        reported(planner, view, tokens)
        await planner.keep_within(view)
    assert [request.tokens for request in engine.requests] == [THRESHOLD, THRESHOLD + 1_000]


# The summary model's cooldown


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time of day, standing still."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    return NOW


async def may_ask(trigger: Trigger, not_before: float) -> bool:
    """Tell whether an engine gets the summary model for such a compaction."""
    state = PlannerState(summary_not_before=not_before)
    planner = planner_of(engine := Engine(nothing), ScriptedModel([]), state=state)
    await planner.compact(view_of(), trigger)
    return engine.requests[0].summarise is not None


@pytest.mark.parametrize("trigger", ["threshold", "preflight", "overflow"])
async def test_a_cooldown_holds_for_the_loop(trigger: Trigger, now: float) -> None:
    """Its compactions do with the extractor's summary meanwhile."""
    assert not await may_ask(trigger, now + 1)
    assert not await may_ask(trigger, now + 600)


@pytest.mark.parametrize("trigger", ["hygiene", "manual"])
async def test_a_cooldown_does_not_hold_for_hygiene_and_commands(
    trigger: Trigger, now: float
) -> None:
    """Somebody asked for it, or it is the last chance before the window."""
    assert await may_ask(trigger, now + 300)


@pytest.mark.parametrize("not_before", [0, NOW - 1, NOW])
async def test_a_cooldown_ends_by_itself(not_before: float, now: float) -> None:
    """Nobody has to clear it."""
    assert await may_ask("threshold", not_before)


async def test_a_clock_that_was_set_back_does_not_prolong_a_cooldown(now: float) -> None:
    """None lasts longer than ten minutes, so this one is from another time."""
    assert await may_ask("threshold", now + 601)


@pytest.mark.parametrize(
    ("error", "cooldown_s"), [(ModelUnreachable("down"), 60), (ModelNotFound("gone"), 600)]
)
async def test_a_failure_begins_a_cooldown(
    error: ModelError, cooldown_s: float, now: float
) -> None:
    """It is committed with the compaction, which took the extractor's summary."""
    model = ScriptedModel(lambda _request: error)
    planner = planner_of(ContextCompressor(Limits(WINDOW), {}), model)
    view = long_view()
    await planner.keep_within(view)
    (done,) = store_of(planner).committed
    assert (done.level, done.summary_model) == ("extract", None)
    assert type(error).__name__ in str(done.failure)
    assert store_of(planner).states == [PlannerState(summary_not_before=now + cooldown_s)]
    assert planner.state == store_of(planner).states[0]


async def test_a_cooldown_outlives_the_compactions_in_it(now: float) -> None:
    """One that asked nobody knows nothing new about the model."""
    state = PlannerState(summary_not_before=now + 60)
    planner = planner_of(Engine(claiming(100)), ScriptedModel([]), state=state)
    view = view_of()
    reported(planner, view, THRESHOLD)
    await planner.keep_within(view)
    assert planner.state == state


async def test_an_extract_during_a_cooldown_tells_why(now: float) -> None:
    """The row does not leave open why no model wrote it."""
    state = PlannerState(summary_not_before=now + 60)
    engine = ContextCompressor(Limits(WINDOW), {})
    planner = planner_of(engine, ScriptedModel([]), state=state)
    await planner.keep_within(long_view())
    (done,) = store_of(planner).committed
    assert (done.level, done.failure) == ("extract", PAUSED)


@pytest.mark.parametrize(
    ("engine", "models"),
    [(ContextCompressor(Limits(WINDOW), {}), 0), (Engine(claiming(100)), 1)],
)
async def test_where_no_model_is_missed_nothing_failed(
    engine: ContextEngine, models: int, now: float
) -> None:
    """There is none, or nothing was summarised."""
    state = PlannerState(summary_not_before=now + 60)
    planner = planner_of(engine, *[ScriptedModel([])] * models, state=state)
    await planner.compact(long_view(), "threshold")
    assert [done.failure for done in store_of(planner).committed] == [None]


# Looking ahead


@pytest.mark.parametrize(("tokens", "asked"), [(7_999, 0), (8_000, 1)])
async def test_from_four_fifths_on_a_summary_is_prepared(tokens: int, asked: int) -> None:
    """At the threshold it is there and nobody has to wait."""
    planner = planner_of(Preparing(nothing), ScriptedModel([]))
    view = view_of()
    reported(planner, view, tokens)
    await planner.keep_within(view)
    assert store_of(planner).asked_ahead == asked


@pytest.mark.parametrize(
    ("engine", "models", "not_before"),
    [(Engine, 1, 0.0), (Preparing, 0, 0.0), (Preparing, 1, NOW + 60)],
)
async def test_nothing_is_prepared_that_would_not_be_used(
    engine: type[Engine], models: int, not_before: float, now: float
) -> None:
    """The engine must use it, and there must be a model that may be asked."""
    state = PlannerState(summary_not_before=not_before)
    planner = planner_of(engine(nothing), *[ScriptedModel([])] * models, state=state)
    view = view_of()
    reported(planner, view, 9_000)
    await planner.keep_within(view)
    assert store_of(planner).asked_ahead == 0


async def test_what_could_not_be_prepared_is_not_paid_for_again() -> None:
    """The extractor stands in, and the row says why."""
    planner = planner_of(ContextCompressor(Limits(WINDOW), {}), asked := ScriptedModel([]))
    store_of(planner).ahead = SummaryFailed("the summary is empty")
    await planner.keep_within(long_view())
    (done,) = store_of(planner).committed
    assert (done.level, done.failure) == ("extract", "the summary is empty")
    assert asked.requests == []


@pytest.mark.parametrize(
    ("tokens", "trigger", "moved"),
    [
        (THRESHOLD, "threshold", False),
        (17_000, "threshold", True),
        (THRESHOLD, "overflow", True),
        (THRESHOLD, "manual", True),
    ],
)
async def test_a_plan_that_saves_next_to_nothing_is_not_used(
    tokens: int, trigger: Trigger, moved: bool
) -> None:
    """Of any engine: it would move the prefix for 3 %; close to the window everything counts."""
    planner = planner_of(Engine(claiming(int(tokens * 0.97))))
    view = view_of()
    reported(planner, view, tokens)
    assert (await planner.compact(view, trigger) is not None) is moved


@pytest.mark.parametrize(("tokens", "events"), [(8_499, 0), (8_500, 1)])
async def test_pressure_is_logged_once_in_a_turn(tokens: int, events: int) -> None:
    """For admins only: the model that hears of it gives up."""
    planner = planner_of(Preparing(nothing))
    view = view_of()
    reported(planner, view, tokens)
    with capture_logs() as logs:
        await planner.keep_within(view)
        await planner.keep_within(view)
    pressed = [line for line in logs if line["event"] == "context_pressure"]
    assert len(pressed) == events
    assert all(line["threshold_tokens"] == THRESHOLD for line in pressed)


async def test_pressure_is_logged_for_every_engine() -> None:
    """Whether it prepares anything or not."""
    planner = planner_of(Engine(nothing))
    view = view_of()
    reported(planner, view, 9_000)
    with capture_logs() as logs:
        await planner.keep_within(view)
    assert [line["event"] for line in logs] == ["context_pressure"]


# What is told


async def test_the_user_is_told_that_their_message_was_clipped() -> None:
    """The model sees its beginning and end only."""
    planner = planner_of(Engine(claiming(100, "clip_newest")))
    await planner.compact(view_of(), "manual")
    assert store_of(planner).told == ["clipped"]


@pytest.mark.parametrize(("after", "told"), [(THRESHOLD - 1, []), (THRESHOLD, ["floor"])])
async def test_the_user_is_told_that_the_floor_is_too_large(after: int, told: list[str]) -> None:
    """What no plan can change fills the view; the log says so too."""
    planner = planner_of(Engine(claiming(after)))
    with capture_logs() as logs:
        await planner.compact(view_of(), "manual")
    assert store_of(planner).told == told
    assert ("context_floor_reached" in [line["event"] for line in logs]) is bool(told)


async def test_a_system_prompt_over_the_threshold_is_told_too() -> None:
    """Where nothing can be left out, the view still stays above its threshold (invariant 8)."""
    planner = planner_of(ContextCompressor(Limits(WINDOW), {}))
    await planner.keep_within(view_of(system="rule " * THRESHOLD))
    assert store_of(planner).told == ["floor"]


async def test_a_compaction_leaves_one_event_with_all_its_figures() -> None:
    """The same figures as in its row."""
    model = ScriptedModel([GOOD])
    planner = planner_of(ContextCompressor(Limits(WINDOW), {}), model)
    view = long_view()
    before = len(view.messages)
    with capture_logs() as logs:
        await planner.keep_within(view)
    (done,) = store_of(planner).committed
    (line,) = [line for line in logs if line["event"] == "context_compressed"]
    figures = asdict(done)
    del figures["plan"], figures["nodes"]
    figures["rung"] = figures.pop("level")  # `level` is the log's own
    assert line == {"event": "context_compressed", "log_level": "info", **figures}
    assert (done.engine, done.level, done.summary_model) == ("compressor", "summary", "scripted")
    assert (done.messages_before, done.messages_after) == (before, len(view.messages))
    assert done.tokens_after < done.tokens_before
    assert done.retained_share is not None
    assert (done.failure, done.duration_ms >= 0) == (None, True)


async def test_a_stand_in_for_the_engine_is_named() -> None:
    """The row tells who made the plan, which need not be who was asked."""

    def answer(request: CompressionRequest) -> Compressed:
        return Compressed(request.plan, "prune", 100, engine="compressor")

    done = await planner_of(Engine(answer)).compact(view_of(), "manual")
    assert done is not None
    assert done.engine == "compressor"


async def test_the_size_after_is_what_the_meter_measures_next() -> None:
    """One scale for both."""
    planner = planner_of(ContextCompressor(Limits(WINDOW), {}))
    view = long_view()
    await planner.keep_within(view)
    (done,) = store_of(planner).committed
    measured = (await planner.measured(view)).tokens
    assert abs(done.tokens_after - measured) <= 0.02 * measured


async def test_the_cache_is_lost_behind_the_first_change() -> None:
    """The prefix that stays the same still stands in the provider's cache."""
    entry = Entry(2, said(2))

    def answer(request: CompressionRequest) -> Compressed:
        return Compressed(ViewPlan(head_upto=2, tail_from=4), "prune", 100)

    planner = planner_of(Engine(answer))
    view = view_of()
    reported(planner, view, 5_000)
    done = await planner.compact(view, "threshold")
    kept = 2 * sum(map(planner.meter.estimate, [view.messages[0], said(1), entry.message]))
    assert done is not None
    assert done.cache_tokens_lost == 5_000 - kept


# Threads


async def test_the_event_loop_goes_on_while_an_engine_computes() -> None:
    """The engine waits for the loop here: were the loop to wait for the engine, none would end."""
    computing, beaten = threading.Event(), threading.Event()

    def answer(request: CompressionRequest) -> Compressed:
        computing.set()
        assert beaten.wait(30)
        return Compressed(request.plan, "prune", 100)

    async def heartbeat() -> None:
        await asyncio.to_thread(computing.wait, 30)
        beaten.set()

    planner = planner_of(Engine(answer))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(heartbeat())
        done = tasks.create_task(planner.compact(view_of(), "manual"))
    assert done.result() is not None


@pytest.mark.parametrize("source", ["reported", "estimated"])
@pytest.mark.parametrize(("words", "in_loop"), [(1_000, True), (30_000, False)])
async def test_a_message_of_a_megabyte_is_measured_in_a_thread(
    words: int, in_loop: bool, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With or without a report: what it does not cover would hold the event loop."""
    threads: list[threading.Thread] = []
    measure = TokenMeter.measure

    def watched(meter: TokenMeter, view: View) -> Measure:
        threads.append(threading.current_thread())
        return measure(meter, view)

    monkeypatch.setattr(TokenMeter, "measure", watched)
    planner, view = planner_of(Engine(nothing)), view_of()
    if source == "reported":
        reported(planner, view, 5_000)
    view.extend([Entry(5, said(5, words))])
    assert (await planner.measured(view)).source == source
    assert (threads == [threading.main_thread()]) is in_loop


async def test_an_engine_computes_in_a_daemon_thread() -> None:
    """One that hangs holds up neither the others nor the end of the process."""
    threads: list[threading.Thread] = []

    def answer(_: CompressionRequest) -> None:
        threads.append(threading.current_thread())

    planner = planner_of(Engine(answer))
    for _ in range(2):
        await planner.compact(view_of(), "manual")
    assert all(thread.daemon for thread in threads)
    assert threads[0] is not threads[1]


async def test_a_turn_that_ends_during_a_summary_ends_the_call() -> None:
    """The provider's connection is closed, nothing is committed."""
    model = HangingModel()
    planner = planner_of(ContextCompressor(Limits(WINDOW), {}), model)
    view = long_view()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        work = tasks.create_task(planner.keep_within(view))
        await model.arrived.wait()
        work.cancel()
        await model.ended.wait()
    assert work.cancelled()
    assert (store_of(planner).committed, view.plan) == ([], ViewPlan())


async def test_a_time_limit_ends_with_the_extractors_summary() -> None:
    """Hygiene waits so long for a model and no longer."""
    model = HangingModel()
    timing = PassingTime(model).timing
    planner = planner_of(ContextCompressor(Limits(WINDOW), {}), model, timing=timing)
    view = long_view()
    done = await planner.compact(view, "hygiene", timeout_s=5)
    assert done is not None
    assert (done.level, done.failure) == ("extract", "the summary took too long")
    assert faults(view.messages) == []


# Reports, and summaries written ahead


async def test_a_report_is_noted_for_the_answer_that_follows() -> None:
    """The meter anchors at the place where the answer will stand."""
    planner = planner_of(engine := Engine(nothing))
    view = view_of()
    planner.note(Usage(input_tokens=700, cache_read_tokens=300, output_tokens=20), view)
    assert planner.meter.report == ReportedUsage(1_000, 20, upto_seq=5, model="scripted")
    assert engine.prompt_tokens == 1_000


async def test_a_prepared_summary_is_committed_without_asking_again() -> None:
    """At the threshold nobody waits for a model."""
    view = long_view()
    calls = Summariser([ScriptedModel([GOOD])], 10.0).calls()
    limits = Limits(WINDOW)
    prepare = ContextCompressor().prepare
    summary = await write_ahead(view, TokenMeter("scripted"), limits, calls, prepare)
    assert summary is not None
    assert (summary.source, summary.model) == ("model", "scripted")
    planner = planner_of(ContextCompressor(Limits(WINDOW), {}), asked := ScriptedModel([]))
    store_of(planner).ahead = summary
    view.extend([Entry(n, said(n, LONG_WORDS)) for n in range(67, 71)])
    await planner.keep_within(view)
    (done,) = store_of(planner).committed
    (shown,) = view.plan.summaries
    assert shown.text.startswith(summary.text)
    assert shown.last_seq >= summary.last_seq
    assert (asked.requests, done.summary_model) == ([], "scripted")
    assert faults(view.messages) == []


# Written ahead of need


def said_ahead(n: int) -> ChatMessage:
    text = f"message {n} " + "word " * 80
    return ChatMessage(role="user" if n % 2 else "assistant", content=text)


def talk_of(count: int = 66) -> View:
    entries = [Entry(n, said_ahead(n)) for n in range(1, count + 1)]
    return View("You are a test.", ViewPlan(), entries)


def calls_of(*models: ScriptedModel) -> SummaryCalls:
    return Summariser(models, 10.0).calls()


async def written(view: View, calls: SummaryCalls) -> Summary | None:
    limits = Limits(WINDOW, protect_last_n=4)
    prepare = ContextCompressor().prepare
    return await write_ahead(view, TokenMeter("scripted"), limits, calls, prepare)


async def test_a_short_view_has_nothing_to_prepare() -> None:
    """No model is asked."""
    view, model = talk_of(4), ScriptedModel([])
    assert await written(view, calls_of(model)) is None
    assert model.requests == []


async def test_an_engine_is_told_the_days() -> None:
    """As at a compaction: what it writes without a model names them."""
    asked: list[CompressionRequest] = []

    def write(request: CompressionRequest) -> None:
        asked.append(request)

    days = ((1, "2026-03-04"),)
    calls, limits = calls_of(ScriptedModel([])), Limits(WINDOW, protect_last_n=4)
    await write_ahead(talk_of(), TokenMeter("scripted"), limits, calls, write, days)
    assert [request.days for request in asked] == [days]


async def test_a_preparation_that_fails_says_so() -> None:
    """The extractor's summary is not worth preparing."""
    with pytest.raises(SummaryFailed):
        await written(talk_of(), calls_of(ScriptedModel([""])))


async def test_a_cancelled_preparation_ends_its_call() -> None:
    """A stop of the gateway does not wait for it; what it has cost is known."""
    model = HangingModel()
    calls = calls_of(model)
    work = asyncio.ensure_future(written(talk_of(), calls))
    async with asyncio.timeout(30):
        await model.arrived.wait()
        work.cancel()
        await model.ended.wait()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [call.purpose for call in calls.spent] == ["lost"]
