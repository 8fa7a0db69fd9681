"""What is booked of a call that failed."""

import pytest

from agent.errors import ModelError, ModelUnreachable
from agent.ports import ModelCall
from agent.usage import Usage
from tests.agent.turn.test_loop import Bench
from tests.agent.turn.test_request import bench_of, model


async def lost_by(error: ModelError) -> tuple[Bench, list[ModelCall]]:
    """Return what a call that ends so leaves behind; the next one is answered."""
    bench = bench_of(model(error, "Hi."))
    await bench.run()
    return bench, bench.journal.booked


def cut(usage: Usage | None = None, written_tokens: int = 0) -> ModelError:
    error = ModelUnreachable("cut")
    error.usage, error.written_tokens = usage, written_tokens
    return error


async def test_what_was_reported_counts() -> None:
    """It holds what was written, too."""
    _, [lost] = await lost_by(cut(Usage(10, 1), written_tokens=40))
    assert lost.usage == Usage(10, 1)


async def test_an_answer_that_had_begun_is_booked_as_expected() -> None:
    """Where nothing was reported: the prompt that was forecast, and what had been streamed."""
    bench, [lost] = await lost_by(cut(written_tokens=40))
    forecast = bench.spending.forecasts[0]
    assert lost.usage is not None
    assert lost.usage.prompt_tokens > 0
    assert (lost.usage.output_tokens, lost.purpose, lost.estimated) == (40, "lost", True)
    assert forecast is not None
    assert lost.cost_usd == pytest.approx(forecast + 40 * 5)


async def test_an_answer_that_had_not_begun_costs_nothing() -> None:
    """Nobody bills an error."""
    _, booked = await lost_by(cut())
    assert booked == []
