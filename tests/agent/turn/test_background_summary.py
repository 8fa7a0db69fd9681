"""Summaries written ahead: how they begin and end."""

import asyncio

import pytest

from agent.context.meter import TokenMeter
from agent.context.summary_model import Summariser, SummaryCalls
from agent.context_engine import CompressionRequest, Limits
from agent.errors import SummaryFailed
from agent.messages import ChatMessage
from agent.turn.background_summary import prepare
from agent.view.view import Entry, Summary, View, ViewPlan
from tests.agent.tools.doubles import HangingModel
from tests.support.scripted_model import ScriptedModel

LIMITS = Limits(20_000, protect_last_n=4)


def said(n: int) -> ChatMessage:
    text = f"message {n} " + "word " * 80
    return ChatMessage(role="user" if n % 2 else "assistant", content=text)


def view_of(count: int = 66) -> View:
    entries = [Entry(n, said(n)) for n in range(1, count + 1)]
    return View("You are a test.", ViewPlan(), entries)


def calls_of(*models: ScriptedModel) -> SummaryCalls:
    return Summariser(models, 10.0).calls()


async def written(view: View, calls: SummaryCalls) -> Summary | None:
    return await prepare(view, TokenMeter("scripted"), LIMITS, calls)


async def test_a_short_view_has_nothing_to_prepare() -> None:
    """No model is asked."""
    view, model = view_of(4), ScriptedModel([])
    assert await written(view, calls_of(model)) is None
    assert model.requests == []


async def test_an_engine_is_told_the_days() -> None:
    """As at a compaction: what it writes without a model names them."""
    asked: list[CompressionRequest] = []

    def write(request: CompressionRequest) -> None:
        asked.append(request)

    days = ((1, "2026-03-04"),)
    await prepare(
        view_of(), TokenMeter("scripted"), LIMITS, calls_of(ScriptedModel([])), write, days
    )
    assert [request.days for request in asked] == [days]


async def test_a_preparation_that_fails_says_so() -> None:
    """The extractor's summary is not worth preparing."""
    with pytest.raises(SummaryFailed):
        await written(view_of(), calls_of(ScriptedModel([""])))


async def test_a_cancelled_preparation_ends_its_call() -> None:
    """A stop of the gateway does not wait for it; what it has cost is known."""
    model = HangingModel()
    calls = calls_of(model)
    work = asyncio.ensure_future(written(view_of(), calls))
    async with asyncio.timeout(30):
        await model.arrived.wait()
        work.cancel()
        await model.ended.wait()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [call.purpose for call in calls.spent] == ["lost"]
