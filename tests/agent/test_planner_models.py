"""The planner and the models: fallbacks with other windows, repairs, caches that have died."""

import asyncio

import pytest
from structlog.testing import capture_logs

from agent.context.planner import NO_BUDGET, Planner
from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest, Limits, Trigger
from agent.errors import ModelUnreachable
from agent.messages import ChatMessage, Usage, assistant_message
from agent.models.base import Completion
from agent.models.catalog import ModelFacts, Prices
from agent.ports import PlannerState
from agent.view.view import Entry, View, ViewPlan
from gateway.errors import LeaseLost
from tests.agent.context.test_planner import (
    GOOD,
    THRESHOLD,
    WINDOW,
    Answer,
    Engine,
    dropping,
    long_view,
    nothing,
    planner_of,
    reported,
    store_of,
    view_of,
)
from tests.agent.tools.doubles import HangingModel, NoLimits
from tests.support.scripted_model import ScriptedModel, Step

PRICED = ModelFacts("scripted", prices=Prices(1e6, 1.25e6, 2e6, 0.1e6, 5e6))
"""A dollar for a token that is read."""


def model(name: str = "scripted", window: int = WINDOW) -> ScriptedModel:
    return ScriptedModel([], name=name, context_length=window)


async def fitted(tokens: int, *models: ScriptedModel) -> tuple[Planner, Engine]:
    """Return planner and engine after a view of so many tokens was made for these models."""
    planner = planner_of(engine := Engine(dropping(2)))
    view = view_of()
    reported(planner, view, tokens)
    for each in models:
        await planner.fit(view, each)
    return planner, engine


async def test_the_main_model_changes_nothing() -> None:
    """Its limits are what the engine has."""
    _, engine = await fitted(THRESHOLD + 1, model())
    assert (engine.requests, engine.limits) == ([], Limits(WINDOW))


@pytest.mark.parametrize(("tokens", "fires"), [(8_499, False), (8_500, True)])
async def test_a_smaller_fallback_is_compacted_for_first(tokens: int, fires: bool) -> None:
    """At 85 % of its own window, where that is less than the main model's threshold."""
    _, engine = await fitted(tokens, model(), model("small", 10_000))
    assert engine.triggers == (["fallback"] if fires else [])
    assert engine.limits.context_length == 10_000


async def test_a_slightly_smaller_fallback_keeps_the_threshold() -> None:
    """What the main model may hold stays in the view: it may be back with the next turn."""
    _, engine = await fitted(THRESHOLD - 1, model(), model("small", 15_000))
    assert (engine.requests, engine.limits.threshold_tokens) == ([], THRESHOLD)


async def test_a_larger_fallback_keeps_the_limits() -> None:
    """It takes whatever the main model takes."""
    _, engine = await fitted(THRESHOLD - 1, model(), model("large", 1_000_000))
    assert (engine.requests, engine.limits) == ([], Limits(WINDOW))


async def test_another_model_has_another_meter() -> None:
    """The report stays, as the best that is known; what was learned is about the other one."""
    planner, _ = await fitted(5_000, model(), model("other"))
    assert (planner.meter.model, planner.meter.ratio) == ("other", 1.0)
    assert planner.meter.report is not None


async def test_another_key_keeps_the_meter() -> None:
    """It is the same model."""
    planner = planner_of(Engine(nothing))
    meter = planner.meter
    await planner.fit(view_of(), model())
    await planner.fit(view_of(), model())
    assert planner.meter is meter


@pytest.mark.parametrize("threshold", [0.5, 0.7])
async def test_a_window_that_shrank_keeps_the_share(threshold: float) -> None:
    """It is the main model's own: 50 % of what is left, where a fallback would get 85 %."""
    main = model()
    engine = Engine(nothing)
    engine.limits = Limits(WINDOW, threshold)
    planner = planner_of(engine)
    view = view_of()
    reported(planner, view, 100)
    main.context_length = 10_000
    await planner.fit(view, main)
    assert engine.limits == Limits(10_000, threshold)


@pytest.mark.parametrize(("tokens", "fires"), [(4_999, False), (5_000, True)])
async def test_a_window_that_shrank_is_compacted_for_at_its_threshold(
    tokens: int, fires: bool
) -> None:
    """And not one token before."""
    planner = planner_of(engine := Engine(dropping(2)))
    view = view_of()
    reported(planner, view, tokens)
    await planner.fit(view, model(window=10_000))
    assert bool(engine.requests) is fires


async def test_a_window_that_shrank_is_compacted_for() -> None:
    """An account without the long window learns of it in the middle of a turn."""
    main = model()
    planner = planner_of(engine := Engine(dropping(2)))
    view = view_of()
    reported(planner, view, 9_000)
    await planner.fit(view, main)
    main.context_length = 10_000
    await planner.fit(view, main)
    assert engine.triggers == ["fallback"]


async def test_switched_off_compression_is_not_forced() -> None:
    """Only what the provider enforces is left."""
    planner = planner_of(engine := Engine(dropping(2)), enabled=False)
    view = view_of()
    reported(planner, view, THRESHOLD)
    await planner.fit(view, model("small", 5_000))
    assert engine.requests == []


# Summaries cost money


def compressor(*steps: Step, spending: NoLimits | None = None) -> Planner:
    """Return a planner whose summaries are written by a model with this script."""
    writer = ScriptedModel(steps, facts=PRICED)
    return planner_of(ContextCompressor(Limits(WINDOW), {}), writer, spending=spending)


def billed(planner: Planner) -> list[tuple[str, float | None]]:
    """Return what the calls of the summary model were booked as."""
    return [(call.purpose, call.cost_usd) for call in store_of(planner).booked]


SPENT = Usage(input_tokens=70, output_tokens=5)
WRITTEN = Completion(assistant_message(GOOD), "stop", SPENT)


async def test_a_summary_is_booked() -> None:
    """With what its model reported, as the summary that it is."""
    planner = compressor(WRITTEN, spending=NoLimits())
    await planner.compact(long_view(), "threshold")
    assert billed(planner) == [("summary", 70 + 5 * 5)]


@pytest.mark.parametrize("trigger", ["threshold", "manual", "hygiene"])
async def test_no_summary_is_asked_for_where_a_budget_is_used_up(trigger: Trigger) -> None:
    """The extractor writes it, whoever asked; the row says why."""
    planner = compressor(spending=NoLimits(used_up=True))
    done = await planner.compact(long_view(), trigger)
    assert done is not None
    assert (done.level, done.failure, done.summary_model) == ("extract", NO_BUDGET, None)
    assert (billed(planner), planner.state) == ([], PlannerState())


def asking(then: Answer, *prompts: str) -> Answer:
    """Return what asks the summary model first."""

    def answer(request: CompressionRequest) -> Compressed | None:
        assert request.summarise is not None
        for prompt in prompts:
            request.summarise(prompt, 100)
        return then(request)

    return answer


def broken(_: CompressionRequest) -> None:
    raise LookupError("a bug of the engine")


async def test_a_summary_that_led_to_nothing_is_booked() -> None:
    """The provider bills every call, used or not."""
    writer = ScriptedModel([WRITTEN, WRITTEN], facts=PRICED)
    planner = planner_of(Engine(asking(nothing, "one", "two")), writer)
    assert await planner.compact(view_of(), "manual") is None
    assert billed(planner) == [("summary", 95)] * 2


async def test_a_summary_of_an_engine_that_breaks_is_booked() -> None:
    """Its error goes on."""
    writer = ScriptedModel([WRITTEN], facts=PRICED)
    planner = planner_of(Engine(asking(broken, "one")), writer)
    with pytest.raises(LookupError):
        await planner.compact(view_of(), "manual")
    assert billed(planner) == [("summary", 95)]


async def test_a_summary_that_failed_is_booked_as_lost() -> None:
    """With what the provider had reported by then; it is asked twice."""
    cut = ModelUnreachable("cut")
    cut.usage = SPENT
    planner = compressor(cut, cut)
    await planner.compact(long_view(), "threshold")
    assert billed(planner) == [("lost", 95)] * 2


async def test_a_summary_of_a_compaction_that_is_not_committed_is_booked() -> None:
    """The lease is lost, the money is gone."""
    planner = compressor(WRITTEN)
    store_of(planner).failure = LeaseLost("gone")
    with pytest.raises(LeaseLost):
        await planner.compact(long_view(), "threshold")
    assert billed(planner) == [("summary", 95)]


async def test_a_summary_that_is_cut_off_with_its_turn_is_booked() -> None:
    """As lost: what it read is billed, estimated by Parley's own count."""
    writer = HangingModel()
    planner = planner_of(ContextCompressor(Limits(WINDOW), {}), writer)
    compacting = asyncio.create_task(planner.compact(long_view(), "threshold"))
    await writer.arrived.wait()
    compacting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compacting
    [lost] = store_of(planner).booked
    assert (lost.purpose, lost.estimated) == ("lost", True)
    assert lost.usage is not None
    assert lost.usage.input_tokens > 1_000


def thoughtful() -> View:
    signed = {"anthropic": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    answer = ChatMessage(role="assistant", content="4", opaque=signed)
    entries = [*view_of(2).entries, Entry(3, answer), Entry(4, view_of(1).entries[0].message)]
    return View("You are a test.", ViewPlan(), entries)


async def test_a_repair_leaves_out_what_the_model_thought() -> None:
    """It is a split of its own, so that later requests and restarts show the same."""
    planner = planner_of(engine := Engine(nothing))
    view = thoughtful()
    with capture_logs() as logs:
        assert await planner.repair(view)
    assert not any("opaque" in message for message in view.messages)
    (made,) = store_of(planner).committed
    assert (made.trigger, made.plan.thinking_from, engine.requests) == ("repair", 5, [])
    assert (planner.watch.moving, planner.session_id) == ("compaction:repair", "s2")
    assert [line["event"] for line in logs] == ["context_compressed"]


async def test_a_second_repair_finds_nothing() -> None:
    """What is not shown is no reason for trouble."""
    planner, view = planner_of(Engine(nothing)), thoughtful()
    await planner.repair(view)
    assert not await planner.repair(view)
    assert not await planner_of(Engine(nothing)).repair(view_of())


async def test_a_compaction_tells_the_watch() -> None:
    """The next request begins otherwise, and nobody has to wonder why."""
    planner = planner_of(ContextCompressor(Limits(WINDOW), {}))
    await planner.compact(long_view(), "manual")
    assert planner.watch.moving == "compaction:manual"
