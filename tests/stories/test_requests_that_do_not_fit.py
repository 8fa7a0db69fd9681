"""Faults that have to do with what a request holds: its size, its thoughts, its summaries."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.errors import ContextOverflow
from agent.models.refusals import STANDARD_WINDOW_TOKENS
from agent.view.view import MARKER
from gateway.pipeline import notices
from gateway.storage import schema as tables
from tests.support.crash_script import SUMMARY
from tests.support.faulty_models import (
    ACT,
    ANSWER,
    PROVIDERS,
    SPARE_ANSWER,
    Bench,
    Counting,
    ProviderName,
    bench,
)
from tests.support.model_server import Fault, Reply, asks_for_summary, prompt_tokens

pytestmark = pytest.mark.untraced

Open = Callable[..., AbstractAsyncContextManager[Bench]]

TOO_LONG = notices.failure_text(ContextOverflow(""))
FILLER = "The parcel of Ada Lovelace went from Rome to Oslo on 2026-05-07. " * 40
ROOMY: dict[str, Any] = {"context_length": 20_000}
SHORT_TAIL = {"protect_last_n": 2}

LIMITS = ("max_prompt_tokens", "max_bytes")
SUMMARY_FAULTS: dict[str, Reply | Fault] = {
    "500": Fault(status=500),
    "401": Fault(status=401, error="authentication_error"),
    "429": Fault(status=429, error="rate_limit_error", headers={"retry-after": "3600"}),
    "HTML": Fault(status=502, html="<html><body>Bad Gateway</body></html>"),
    "too long": Fault(
        status=400, error="invalid_request_error", message="prompt is too long: 9 > 8 maximum"
    ),
    "overloaded in the stream": Reply(text="## Goal", error="overloaded_error"),
    "cut": Reply(text="## Goal", trouble="cut"),
    "garbage": Reply(text="## Goal", trouble="garbage"),
    "empty": Reply(text=""),
}
every_provider = pytest.mark.parametrize("provider", PROVIDERS)


@pytest.fixture
def opened(database_file: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    return partial(bench, database_file.parent, monkeypatch, compression=SHORT_TAIL)


def with_summaries(body: dict[str, Any]) -> Reply:
    """Answer what is asked, also where that is a summary."""
    return Reply(text=SUMMARY if asks_for_summary(body) else ANSWER)


async def chatted(at: Bench, messages: int) -> None:
    """Say so many long messages."""
    at.main.answer = with_summaries
    for n in range(messages):
        assert await at.ask(FILLER.replace("parcel", f"parcel {n}")) == [ANSWER]


async def triggers(at: Bench) -> list[str]:
    """Return why there were compactions, in order."""
    return [row.trigger for row in await at.chat.rows(tables.compaction)]


async def compacted_for_overflow(at: Bench) -> None:
    """Fail unless each refusal led to one compaction, of which there may be three."""
    assert at.actions in [["compress"] * n for n in (1, 2, 3)]
    assert await triggers(at) == ["overflow"] * len(at.actions)


def size_of(body: dict[str, Any], unit: str) -> int:
    """Return the size of a request, in the unit of a limit."""
    tokens = prompt_tokens(body)
    return tokens if unit == "max_prompt_tokens" else tokens * 4


# Too long


@every_provider
@pytest.mark.parametrize("limit", LIMITS)
async def test_a_prompt_that_is_too_long_is_compacted_until_it_fits(
    opened: Open, provider: ProviderName, limit: str
) -> None:
    """The provider's own limit decides, in tokens (400) or bytes (413); the question is kept."""
    async with opened(provider, main=ROOMY) as at:
        await chatted(at, 8)
        setattr(at.main, limit, int(size_of(at.main.requests[-1].body, limit) * 0.5))
        assert await at.ask("What is the parcel's way?") == [ANSWER]
        assert at.clock.waits == []
        await compacted_for_overflow(at)
        last = str(at.main.requests[-1].body["messages"])
        assert MARKER in last
        assert "What is the parcel's way?" in last
        assert (await at.outcomes())[-1] == "final_text"
        await at.fix()
        await at.check()


@every_provider
async def test_a_prompt_that_never_fits_is_given_up_in_bounded_steps(
    opened: Open, provider: ProviderName
) -> None:
    """Three compactions at the most; the chat is told that the conversation is too long."""
    async with opened(provider, main=ROOMY) as at:
        await chatted(at, 6)
        before = at.calls[0]
        at.main.max_prompt_tokens = 10
        assert TOO_LONG in await at.ask()
        assert set(at.actions) == {"compress"}
        assert 1 <= len(await triggers(at)) <= 3
        assert at.calls[0] - before <= 8
        assert (await at.outcomes())[-1] == "provider_failed"
        await at.fix()
        await at.check()


@every_provider
async def test_a_prompt_that_is_too_long_in_a_loop_runs_no_tool_again(
    opened: Open, provider: ProviderName
) -> None:
    """A large result is refused: what was before it is compacted."""
    tool = Counting()
    async with opened(provider, main=ROOMY, tools=[tool.tool]) as at:
        await chatted(at, 8)
        limit = int(prompt_tokens(at.main.requests[-1].body) * 0.5)

        def act(_: dict[str, Any]) -> Reply:
            at.main.max_prompt_tokens, at.main.answer = limit, with_summaries
            return ACT

        at.main.answer = act
        assert await at.ask() == [ANSWER]
        assert tool.runs == 1
        await compacted_for_overflow(at)
        await at.fix()
        await at.check()


@every_provider
async def test_a_fallback_with_a_small_window_gets_a_view_that_fits(
    opened: Open, provider: ProviderName
) -> None:
    """It is compacted for before the call; the small model never refuses it."""
    async with opened(provider, fallback=True, main=ROOMY, spare={"context_length": 5_000}) as at:
        await chatted(at, 9)
        at.main.answer = None
        at.main.broken = Fault(status=404, error="not_found_error")
        at.spare.max_prompt_tokens = 5_000
        assert await at.ask() == [SPARE_ANSWER]
        assert (at.spare.refused, await triggers(at)) == ([], ["fallback"])
        await at.fix()
        await at.check()


LONG_CONTEXT = {
    "429": Fault(
        status=429,
        error="rate_limit_error",
        message="Extra usage is required for long context requests.",
    ),
    "400": Fault(
        status=400,
        error="invalid_request_error",
        message="The long context beta is not yet available for this subscription.",
    ),
}


@pytest.mark.parametrize("fault", LONG_CONTEXT)
async def test_a_long_window_that_is_not_for_the_account_is_given_up(
    opened: Open, fault: str
) -> None:
    """No wait and no other key: the standard window from now on, for the whole process."""
    async with opened("anthropic", keys=2, main={"context_length": 1_000_000}) as at:
        at.main.script(LONG_CONTEXT[fault])
        assert await at.ask() == [ANSWER]
        assert (at.actions, at.clock.waits) == (["compress"], [])
        assert at.models[0].context_length == STANDARD_WINDOW_TOKENS
        await at.fix()
        assert at.actions == ["compress"]
        await at.check()


# Thoughts


async def test_thoughts_that_are_refused_are_left_out(opened: Open) -> None:
    """The strict server refuses a signature: one repair, the tool is not run again."""
    tool = Counting()
    async with opened("anthropic", tools=[tool.tool]) as at:
        at.main.moves_allowed = True
        forged = {"signature": "not what was signed"}
        at.main.script(Reply(thinking="Let me see.", calls=ACT.calls, extra=forged))
        assert await at.ask() == [ANSWER]
        assert at.actions == ["repair"]
        assert at.main.refused == ["Invalid `signature` in `thinking` block"]
        assert (tool.runs, await triggers(at)) == (1, ["repair"])
        await at.fix()
        assert len(at.main.refused) == 1
        await at.check()


async def test_thoughts_are_sent_back_as_they_came(opened: Open) -> None:
    """Signed by the server, and accepted by it in each later request."""
    tool = Counting()
    async with opened("anthropic", tools=[tool.tool]) as at:
        at.main.script(Reply(thinking="Let me see.", calls=ACT.calls))
        assert await at.ask() == [ANSWER]
        await at.fix()
        assert "Let me see." in str(at.main.requests[-1].body)
        assert (at.actions, at.main.refused) == ([], [])
        await at.check()


@every_provider
async def test_a_request_that_stays_malformed_is_repaired_once(
    opened: Open, provider: ProviderName
) -> None:
    """Then the fallback has its turn."""
    tool = Counting()
    async with opened(provider, fallback=True, tools=[tool.tool]) as at:
        at.main.moves_allowed = at.spare.moves_allowed = True
        at.main.script(Reply(thinking="Let me see.", calls=ACT.calls))
        refusal = "messages.1: `thinking` blocks cannot be modified"
        at.main.answer = lambda _: Fault(status=400, error="invalid_request_error", message=refusal)
        assert await at.ask() == [SPARE_ANSWER]
        assert at.actions == ["repair", "next_model"]
        assert tool.runs == 1
        at.main.answer = None
        await at.fix()
        await at.check()


# Summaries


@pytest.mark.thorough
@every_provider
@pytest.mark.parametrize("fault", SUMMARY_FAULTS)
async def test_a_summary_that_fails_is_replaced_by_an_extract(
    opened: Open, provider: ProviderName, fault: str
) -> None:
    """The person waits for no retry and loses nothing that the extract keeps."""
    async with opened(provider, main=ROOMY) as at:
        await chatted(at, 6)
        before = at.calls[0]
        at.main.answer = lambda _: SUMMARY_FAULTS[fault]
        [told] = await at.ask("/compress")
        assert "<html" not in told
        at.main.answer = with_summaries
        [row] = await at.chat.rows(tables.compaction)
        assert (row.trigger, row.summary_model) == ("manual", None)
        assert row.failure
        assert 1 <= at.calls[0] - before <= 2
        await at.fix()
        assert MARKER in str(at.main.requests[-1].body)
        summaries = [call for call in await at.ledger() if call[0] == "summary"]
        assert len(summaries) == (fault in {"empty"}) * (at.calls[0] - before - 1)
        await at.check()


@every_provider
async def test_a_summary_that_fails_after_an_overflow_does_not_cost_the_answer(
    opened: Open, provider: ProviderName
) -> None:
    """Both at once: the extract is what the retry shows."""
    async with opened(provider, main=ROOMY) as at:
        await chatted(at, 10)
        at.main.max_prompt_tokens = int(prompt_tokens(at.main.requests[-1].body) * 0.5)

        def answer(body: dict[str, Any]) -> Reply:
            cut = Reply(text="## Goal", trouble="cut")
            return cut if asks_for_summary(body) else Reply(text=ANSWER)

        at.main.answer = answer
        assert await at.ask() == [ANSWER]
        assert any(asks_for_summary(each.body) for each in at.main.requests)
        # What is retried is the summary.
        assert at.actions[0] == "compress"
        assert await triggers(at) == ["overflow"] * at.actions.count("compress")
        await at.fix()
        await at.check()
