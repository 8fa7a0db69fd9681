"""The beginnings of requests in a gateway: what may be said about them, and what must not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.messages import ChatMessage, Usage
from agent.models.base import Completion, report_stale_thinking
from agent.models.catalog import ModelFacts, Prices
from agent.tools.registry import Tool
from agent.turn.request import Agent
from gateway.agent_ports.budgets import Budgets
from tests.support.faulty_models import Counting
from tests.support.gateway import RecordingModel, agent_of, running
from tests.support.long_chats import SUMMARY, is_summary
from tests.support.scripted_model import Step, tool_call

DOLLAR_A_TOKEN = Prices(1.0, 1.25, 2.0, 0.1, 5.0)
"""US dollars for a million; a thousandth of a cent for ten tokens that are read."""
FACTS = ModelFacts("claude", min_cache_tokens=10, prices=DOLLAR_A_TOKEN)
SIGNED = {"anthropic": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}


def said(text: str, usage: Usage, *, thought: bool = False) -> Completion:
    message = ChatMessage(role="assistant", content=text)
    if thought:
        message["opaque"] = SIGNED
    return Completion(message, "stop", usage)


def called(usage: Usage) -> Completion:
    call = tool_call("act", {})
    message = ChatMessage(role="assistant", content=None, tool_calls=[call])
    return Completion(message, "tool_calls", usage)


def agent_with_one_call(*steps: Step, tool: Tool | None = None) -> Agent:
    """Return an agent that wraps up after one call of a Claude-like model with this script."""
    model = RecordingModel(steps, facts=FACTS, cache_layout="native")
    agent = agent_of(model, tools=[tool or Counting().tool])
    return replace(agent, settings=agent.settings.model_copy(update={"max_iterations": 1}))


@pytest.fixture
def forecasts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What each call was expected to cost at least, in order."""
    seen: list[float] = []
    hold = Budgets.hold

    async def watched(budgets: Budgets, sender: str, usd: float | None) -> Callable[[], None]:
        assert usd is not None
        seen.append(usd)
        return await hold(budgets, sender, usd)

    monkeypatch.setattr(Budgets, "hold", watched)
    return seen


async def test_a_last_call_leaves_nothing_to_be_missed(
    tmp_path: Path, forecasts: list[float]
) -> None:
    """The next turn reads what the call before it has left: no warning, and no forecast too low."""
    agent = agent_with_one_call(
        called(Usage(cache_write_5m_tokens=50_000)),
        said("I acted.", Usage(cache_write_5m_tokens=60_000)),
        said("Hi.", Usage(cache_read_tokens=50_000, cache_write_5m_tokens=11_000)),
    )
    async with running(tmp_path, agent) as chat:
        assert await chat.ask("one") == "I acted."
        assert await chat.ask("two") == "Hi."
        assert chat.events("cache_missed") == []
        assert chat.events("cache_prefix_moved") == []
    read, written = 50_000 * 0.1, 10_000 * 1.25
    assert forecasts[2] * 1e6 == pytest.approx(read + written, rel=0.05)


async def test_a_miss_after_a_last_call_is_still_seen(tmp_path: Path) -> None:
    """What the call before it had left is gone."""
    agent = agent_with_one_call(
        called(Usage(cache_write_5m_tokens=50_000)),
        said("I acted.", Usage(cache_write_5m_tokens=60_000)),
        said("Hi.", Usage(cache_write_5m_tokens=61_000)),
    )
    async with running(tmp_path, agent) as chat:
        await chat.ask("one")
        await chat.ask("two")
        [line] = chat.events("cache_missed")
        assert (line["expected_tokens"], line["read_tokens"]) == (50_000, 0)


@pytest.fixture
def _production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stale thinking is logged here, as in production, and the turn goes on."""
    monkeypatch.setattr("agent.models.base.report_stale_thinking", report_stale_thinking)


@pytest.mark.usefixtures("_production")
@pytest.mark.parametrize("steps", [0, 1], ids=["an answer", "a step and an answer"])
async def test_a_retry_keeps_the_thinking_that_stands_before_it(tmp_path: Path, steps: int) -> None:
    """Nothing before it has changed: it is neither left out nor reported as stale."""
    one, two, three = (said(text, Usage(100, 5), thought=True) for text in ("one", "two", "three"))
    script = [one, *[called(Usage(100, 5))] * steps, two, three]
    model = RecordingModel(script, cache_layout="native")
    async with running(tmp_path, agent_of(model, tools=[Counting().tool])) as chat:
        for text in ("a", "b", "/retry"):
            await chat.ask(text)
        assert chat.events("stale_thinking_sent") == []
    sent = [message.get("opaque") for message in model.requests[-1].messages]
    assert sent == [None, None, SIGNED, None]


@pytest.mark.usefixtures("_production")
async def test_thinking_of_a_last_call_behind_a_compaction_is_in_order(tmp_path: Path) -> None:
    """The view was compacted for the last call; what that thought is bound to what it was given."""
    agent = agent_with_one_call(tool=Counting("word " * 9_000).tool)
    steps = [
        called(Usage(15_000)),
        said("I acted.", Usage(9_000), thought=True),
        said("Hi.", Usage(9_100)),
    ]

    def script(request: Any) -> Step:
        return SUMMARY if is_summary(request) else steps.pop(0)

    model = RecordingModel(script, facts=FACTS, cache_layout="native", context_length=20_000)
    agent = replace(agent, models=[model])
    async with running(tmp_path, agent, compression={"protect_last_n": 1}) as chat:
        assert await chat.ask("one") == "I acted."
        assert len(chat.events("context_compressed")) == 1
        assert await chat.ask("two") == "Hi."
        assert SIGNED in [message.get("opaque") for message in model.requests[-1].messages]
        assert chat.events("stale_thinking_sent") == []
