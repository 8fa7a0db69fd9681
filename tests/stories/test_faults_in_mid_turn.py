"""Faults in the middle of a turn, with both SDKs: nothing is done twice, what was said is kept."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent.errors import ModelUnreachable
from agent.messages import text_of
from agent.turn.request import Agent
from gateway.pipeline import notices
from gateway.storage import schema as tables
from tests.support.faulty_models import (
    ACT,
    ANSWER,
    KEYS,
    PROVIDERS,
    SPARE_ANSWER,
    Bench,
    Counting,
    FaultyOpenAI,
    ProviderName,
    bench,
)
from tests.support.model_server import Fault, Reply, key_of

Open = Callable[..., AbstractAsyncContextManager[Bench]]

UNREACHABLE = notices.failure_text(ModelUnreachable(""))
CUT_OFF = {"anthropic": "max_tokens", "openai": "length"}
TROUBLES: dict[str, Reply | Fault] = {
    "500": Fault(status=500),
    "cut": Reply(text="Half of an ans", trouble="cut"),
    "cut in a call": Reply(text="I will", calls=(("act", '{"a": '),), trouble="cut"),
    "garbage": Reply(text="Half of an ans", trouble="garbage"),
}

pytestmark = pytest.mark.parametrize("provider", PROVIDERS)
every_trouble = pytest.mark.parametrize("trouble", TROUBLES)


@pytest.fixture
def opened(database_file: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    return partial(bench, database_file.parent, monkeypatch)


def limited(agent: Agent) -> Agent:
    """Return the agent with one call of the model for each turn, and the last one to wrap up."""
    return replace(agent, settings=agent.settings.model_copy(update={"max_iterations": 1}))


async def results(at: Bench) -> list[str]:
    """Return what the model was told about its calls."""
    return [text_of(each) for each in await at.chat.transcript() if each["role"] == "tool"]


# In a tool loop


@every_trouble
async def test_a_fault_after_a_tool_does_not_run_it_again(
    opened: Open, provider: ProviderName, trouble: str
) -> None:
    """The request is made again with the result that is on record."""
    tool = Counting()
    async with opened(provider, tools=[tool.tool]) as at:
        at.main.script(ACT, TROUBLES[trouble])
        assert await at.ask() == [ANSWER]
        assert (tool.runs, at.actions, await results(at)) == (1, ["retry"], ["done"])
        assert at.main.requests[1].body == at.main.requests[2].body
        await at.fix()
        await at.check()


@every_trouble
async def test_a_turn_that_fails_after_a_tool_keeps_what_was_done(
    opened: Open, provider: ProviderName, trouble: str
) -> None:
    """The next message sees the call and its result; it is not run again."""
    tool = Counting()
    async with opened(provider, tools=[tool.tool]) as at:
        at.main.script(ACT, *[TROUBLES[trouble]] * 20)
        assert await at.ask() == [notices.TROUBLE, UNREACHABLE]
        assert await at.outcomes() == ["provider_failed"]
        at.main._script.clear()
        await at.fix()
        assert (tool.runs, await results(at)) == (1, ["done"])
        assert "done" in str(at.main.requests[-1].body)
        await at.check()


async def test_a_fallback_goes_on_in_the_middle_of_a_loop(
    opened: Open, provider: ProviderName
) -> None:
    """The other provider takes the calls, results and thoughts that the first one has made."""
    tool = Counting()
    async with opened(provider, fallback=True, tools=[tool.tool]) as at:
        thoughtful = replace(ACT, thinking="Let me see.", text="I will act.")
        at.main.script(thoughtful, *[Fault(status=404)] * 9)
        at.spare.script(ACT)
        if isinstance(at.main, FaultyOpenAI):
            at.main.extensions = frozenset({"reasoning_content"})
        assert await at.ask() == [SPARE_ANSWER]
        assert (tool.runs, at.calls, at.actions) == (2, (2, 2), ["next_model"])
        assert at.spare.refused == []
        at.main._script.clear()
        await at.fix()
        await at.check()


async def test_a_key_that_is_revoked_in_a_loop_is_left(
    opened: Open, provider: ProviderName
) -> None:
    """The second one goes on; later turns of the process begin with it."""
    tool = Counting()
    async with opened(provider, keys=2, tools=[tool.tool]) as at:

        def revoke(_: object) -> Reply:
            at.main.key_faults[KEYS[0]] = Fault(status=401, error="authentication_error")
            at.main.answer = None
            return ACT

        at.main.answer = revoke
        assert await at.ask() == [ANSWER]
        assert (tool.runs, at.actions) == (1, ["next_model"])
        assert await at.ask() == [ANSWER]
        used = [KEYS.index(key_of(each.headers)) for each in at.main.requests]
        assert used == [0, 0, 1, 1]
        await at.check()


async def test_calls_that_are_no_json_are_answered_with_an_error(
    opened: Open, provider: ProviderName
) -> None:
    """A side effect is not begun; the model reads what is wrong and fixes its call."""
    tool = Counting()
    async with opened(provider, tools=[tool.tool]) as at:
        at.main.script(Reply(calls=(("act", '{"what": '),)), ACT)
        assert await at.ask() == [ANSWER]
        [error, result] = await results(at)
        assert (tool.runs, result) == (1, "done")
        assert error.startswith("Error")
        assert at.main.refused == []
        await at.fix()


@pytest.mark.parametrize("arguments", ["", "```json\n{}\n```", "{ }"])
async def test_calls_that_can_be_read_are_run(
    opened: Open, provider: ProviderName, arguments: str
) -> None:
    """Nothing is guessed: they mean an object without doubt."""
    tool = Counting()
    async with opened(provider, tools=[tool.tool]) as at:
        at.main.script(Reply(calls=(("act", arguments),)))
        assert await at.ask() == [ANSWER]
        assert (tool.runs, await results(at), at.main.refused) == (1, ["done"], [])
        await at.check()


async def test_a_call_of_a_tool_that_is_not_there_is_answered(
    opened: Open, provider: ProviderName
) -> None:
    """Beside one that is."""
    tool = Counting()
    async with opened(provider, tools=[tool.tool]) as at:
        at.main.script(Reply(calls=(("fly", {}), ("act", {}))))
        assert await at.ask() == [ANSWER]
        assert sorted(text.startswith("Error") for text in await results(at)) == [False, True]
        assert (tool.runs, at.main.refused) == (1, [])
        await at.fix()
        await at.check()


# Answers in parts


@every_trouble
async def test_a_fault_between_two_parts_is_not_seen(
    opened: Open, provider: ProviderName, trouble: str
) -> None:
    """The first part is on record; the rest is asked for again."""
    async with opened(provider) as at:
        first = Reply(text="One, ", stop=CUT_OFF[provider])
        at.main.script(first, TROUBLES[trouble], Reply(text="two."))
        assert await at.ask() == ["One, two."]
        assert (at.actions, await at.outcomes()) == (["retry"], ["final_text"])
        purposes = [purpose for purpose, *_ in await at.ledger() if purpose != "lost"]
        assert purposes == ["answer", "answer"]
        await at.fix()
        await at.check()


async def test_a_turn_that_fails_between_two_parts_can_be_gone_on_from(
    opened: Open, provider: ProviderName
) -> None:
    """The transcript stays valid."""
    async with opened(provider) as at:
        at.main.script(Reply(text="One, ", stop=CUT_OFF[provider]), *[Fault(status=404)] * 9)
        [told] = await at.ask()
        assert told.startswith("One, ")
        assert "I could not answer" in told
        assert await at.outcomes() == ["provider_failed"]
        at.main._script.clear()
        await at.fix()
        await at.check()


async def test_an_answer_without_end_is_delivered_as_a_part(
    opened: Open, provider: ProviderName
) -> None:
    """Three continuations, then it is said that it ends here."""
    async with opened(provider) as at:
        parts = [Reply(text=f"{n}, ", stop=CUT_OFF[provider]) for n in range(4)]
        at.main.script(*parts)
        assert await at.ask() == [f"0, 1, 2, 3, {notices.CUT}"]
        assert (at.calls[0], await at.outcomes()) == (4, ["partial"])
        assert [purpose for purpose, *_ in await at.ledger()] == ["answer"] * 4
        await at.fix()
        await at.check()


async def test_an_empty_answer_is_asked_for_again(opened: Open, provider: ProviderName) -> None:
    """Once; both calls are booked."""
    async with opened(provider) as at:
        at.main.script(Reply(text=""))
        assert await at.ask() == [ANSWER]
        assert [purpose for purpose, *_ in await at.ledger()] == ["answer", "answer"]
        at.main.script(Reply(text=""), Reply(text=" \n"))
        assert await at.ask() == [notices.EMPTY]
        assert await at.outcomes() == ["final_text", "empty"]
        await at.fix()
        await at.check()


async def test_a_refusal_is_told(opened: Open, provider: ProviderName) -> None:
    """No retry, no other model."""
    declined = {"anthropic": "refusal", "openai": "content_filter"}
    async with opened(provider, fallback=True) as at:
        at.main.script(Reply(text="I would", stop=declined[provider]))
        [told] = await at.ask()
        assert told.endswith(notices.REFUSED)
        assert (at.calls, await at.outcomes()) == ((1, 0), ["refused"])
        await at.fix()
        await at.check()


@every_trouble
async def test_a_fault_in_the_last_call_is_tried_again(
    opened: Open, provider: ProviderName, trouble: str
) -> None:
    """The limit of a turn is reached: what was done is summed up, without tools."""
    tool = Counting()
    async with opened(provider, tools=[tool.tool], agent=limited) as at:
        at.main.script(ACT, TROUBLES[trouble], Reply(text="I acted."))
        assert await at.ask() == ["I acted."]
        assert (tool.runs, await at.outcomes()) == (1, ["max_iterations"])
        assert at.main.requests[-1].body["tool_choice"] in ({"type": "none"}, "none")
        at.main.script(Reply(text=ANSWER))
        await at.fix()
        await at.check()


# What ends a turn from outside


async def test_a_stop_in_the_stream_keeps_what_was_said(
    opened: Open, provider: ProviderName
) -> None:
    """Of the newest attempt alone; its call is closed and booked, the next turn knows the text."""
    async with opened(provider) as at:
        lost = Reply(text="Half of an ans", trouble="cut")
        at.main.script(lost, Reply(text="Once upon a time", trouble="stall"))
        at.turns += 1
        await at.chat.say("Tell me a story.")
        previews = at.chat.adapter.previews
        await at.chat.until(lambda: previews and previews[-1].text == "Once upon a time")
        await at.chat.say("/stop")
        await at.main.left.wait()
        told = await at.chat.answers(2)
        assert set(told) == {"Stopped.", notices.stopped_text("Once upon a time")}
        assert await at.outcomes() == ["interrupted"]
        purpose, read, written = (await at.ledger())[-1]
        assert purpose == "lost"
        assert 1 <= written <= 10
        assert read > 10
        await at.fix()
        assert "Once upon a time" in str(at.main.requests[-1].body)
        await at.check()


async def test_a_stop_in_a_wait_ends_it(opened: Open, provider: ProviderName) -> None:
    """No further call is made."""
    async with opened(provider) as at:
        at.clock.holds = True
        at.main.broken = Fault(status=429, headers={"retry-after": "50"})
        at.turns += 1
        await at.chat.say("Tell me a story.")
        await at.clock.held.wait()
        assert await at.chat.answers(1) == [notices.TROUBLE]
        assert await at.chat.ask("/stop") == "Stopped."
        await at.chat.logged("turn_finished")
        assert (at.calls, await at.outcomes()) == ((1, 0), ["interrupted"])
        await at.fix()
        await at.check()


async def test_a_budget_that_is_used_up_is_told_before_the_call(
    opened: Open, provider: ProviderName
) -> None:
    """The first call spends it all; no request is made for the second one, nothing is booked."""
    tool = Counting()
    budget = {"daily_usd": 0.002}
    async with opened(provider, tools=[tool.tool], budget=budget) as at:
        usage = {"input_tokens": 5_000, "prompt_tokens": 5_000}
        at.main.script(replace(ACT, usage=usage))
        [told] = await at.ask()
        assert told.startswith("Today's budget is used up")
        assert (at.calls, tool.runs) == ((1, 0), 1)
        assert await at.outcomes() == ["spend_limit"]
        assert [read for _, read, _ in await at.ledger()] == [5_000]
        [told] = await at.ask()
        assert told.startswith("Today's budget is used up")
        assert at.calls == (1, 0)
        await at.check()


async def test_half_a_call_in_the_transcript_is_never_sent(
    opened: Open, provider: ProviderName
) -> None:
    """Orphans on record, by whatever bug: the strict server would refuse them."""
    tool = Counting()
    async with opened(provider, tools=[tool.tool]) as at:
        at.main.script(ACT)
        await at.ask()
        asked = tables.message.c.role == "assistant"
        first = tables.message.c.seq == 2
        await at.chat.execute(tables.message.delete().where(asked, first))
        # Whoever changes the past has to expect that the prefix moves.
        await at.chat.execute(tables.session.update().values(prefix=None))
        at.main.moves_allowed = True
        assert await at.ask() == [ANSWER]
        assert (at.main.refused, at.actions) == ([], [])
