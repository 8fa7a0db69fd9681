"""Faults at the edges: what several things that go wrong at once must not lead to."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from agent.errors import RateLimited
from gateway.pipeline import notices
from tests.support.faulty_models import ACT, ANSWER, SPARE_ANSWER, Bench, Counting, bench
from tests.support.model_server import Fault, Reply

Open = Callable[..., AbstractAsyncContextManager[Bench]]


@pytest.fixture
def opened(database_file: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    return partial(bench, database_file.parent, monkeypatch)


async def test_call_ids_that_repeat_do_not_bar_the_fallback(opened: Open) -> None:
    """Some compatible servers number the calls of each message anew; Claude takes no id twice."""
    tool = Counting()
    async with opened("openai", tools=[tool.tool], fallback=True) as at:
        at.main.script(ACT, ACT)
        assert await at.ask() == [ANSWER]
        at.main.broken = Fault(status=404)
        assert await at.ask() == [SPARE_ANSWER]
        assert at.spare.refused == []


@pytest.mark.parametrize("status", [400, 413])
async def test_a_prompt_that_cannot_be_compacted_goes_to_a_larger_model(
    opened: Open, status: int
) -> None:
    """Nothing to leave out, but the fallback's window is large enough."""
    large = {"context_length": 900_000}
    async with opened(
        "anthropic", fallback=True, main={"context_length": 20_000}, spare=large
    ) as at:
        at.main.broken = Fault(
            status=status,
            error="invalid_request_error",
            message="prompt is too long: 3 > 2 maximum",
        )
        assert await at.ask() == [SPARE_ANSWER]


@pytest.mark.parametrize("header", [{"retry-after": "1"}, {"retry-after-ms": "5"}])
async def test_a_short_retry_after_is_not_followed_a_hundred_times(
    opened: Open, header: dict[str, str]
) -> None:
    """121 calls with 1 s, 24,000 with 5 ms: the back-off has to be the least wait."""
    async with opened("anthropic") as at:
        at.main.broken = Fault(status=429, error="rate_limit_error", headers=header)
        await at.ask()
        assert at.calls[0] <= 20


async def test_a_part_that_people_have_seen_is_not_taken_back(opened: Open) -> None:
    """The first part is on record (and was previewed); the rest cannot be had."""
    async with opened("anthropic") as at:
        at.main.script(Reply(text="One, ", stop="max_tokens"), Fault(status=404))
        [told] = await at.ask()
        assert told.startswith("One, ")


async def test_nobody_is_troubled_where_the_fallback_answers(opened: Open) -> None:
    """The third failure leads to the fallback at once, yet the chat is told to wait."""
    async with opened("anthropic", fallback=True) as at:
        at.main.broken = Fault(status=500)
        assert await at.ask() == [SPARE_ANSWER]


async def test_a_refused_long_window_is_not_called_a_long_conversation(opened: Open) -> None:
    """A request of two lines; /compress and /new would not help."""
    async with opened("anthropic", main={"context_length": 1_000_000}) as at:
        at.main.broken = Fault(
            status=429,
            error="rate_limit_error",
            message="Extra usage is required for long context requests.",
        )
        told = await at.ask()
        assert told[-1] == notices.failure_text(RateLimited("429"))
        assert "grown too long" not in "".join(told)
