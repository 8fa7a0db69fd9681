"""Breakpoints as strict servers see them: at most four, and the same bytes in front of them.

A conversation of ten turns with parallel calls and thoughts, a compaction and a restart, for both
ways of marking and both lifetimes.
"""

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.models.factory import build_models
from agent.prompt_caching import KEY
from agent.settings import CachingSettings
from agent.turn.request import Agent
from agent.view.view import MARKER
from tests.support.crash_script import SUMMARY
from tests.support.faulty_models import (
    KEYS,
    Counting,
    FaultyAnthropic,
    FaultyOpenAI,
    FaultyServer,
    forget_certificates,
    settings_for,
)
from tests.support.gateway import Running, agent_of, running
from tests.support.model_server import Reply, asks_for_summary
from tests.support.thorough import products

pytestmark = pytest.mark.untraced

Body = dict[str, Any]

MOST_BREAKPOINTS = 4
TURNS = 10
COMPACTED_AFTER, RESTARTED_AFTER = 5, 7
WORDS = "The parcel of Ada Lovelace went from Rome to Oslo. " * 30
LAYOUTS: dict[str, type[FaultyServer]] = {"native": FaultyAnthropic, "envelope": FaultyOpenAI}


def script(numbers: Iterator[int], body: Body) -> Reply:
    """Call three tools at once and one more, then answer; or write a summary."""
    if asks_for_summary(body):
        return Reply(text=SUMMARY)
    done = results_at_the_end(body)
    # No provider uses the id of a call twice; the doubles make it from the arguments.
    if done == 0:
        three = tuple(("act", {"n": next(numbers)}) for _ in range(3))
        return Reply(thinking="Three at once.", text="Looking.", calls=three)
    if done == 3:
        return Reply(thinking="And one more.", calls=(("act", {"n": next(numbers)}),))
    return Reply(text="Done.")


def results_at_the_end(body: Body) -> int:
    """Return how many calls of the newest turn have a result."""
    count = 0
    for message in reversed(body["messages"]):
        parts = message["content"] if isinstance(message["content"], list) else []
        results = sum(part.get("type") == "tool_result" for part in parts)
        if message["role"] == "user" and not results:
            break
        count += results + (message["role"] == "tool")
    return count


@asynccontextmanager
async def provider(layout: str) -> AsyncIterator[FaultyServer]:
    """Run a strict server that takes breakpoints."""
    async with LAYOUTS[layout]() as server:
        server.answer = partial(script, count())
        if isinstance(server, FaultyOpenAI):
            server.extensions = frozenset({KEY, "reasoning_content"})
        yield server


def agent_on(server: FaultyServer, strategy: str, ttl: str) -> Agent:
    """Return an agent whose only model is Claude on this server."""
    if isinstance(server, FaultyAnthropic):
        settings = settings_for("anthropic", server, KEYS[:1])
    else:
        routed = {"provider": "openrouter", "name": "anthropic/claude-sonnet-5.5"}
        settings = settings_for("openai", server, KEYS[:1], **routed)
    caching = CachingSettings.model_validate({"strategy": strategy, "cache_ttl": ttl})
    made = agent_of(*build_models(settings), tools=[Counting(result=WORDS).tool])
    return replace(made, caching=caching)


async def conversation(home: Path, server: FaultyServer, strategy: str, ttl: str) -> list[Body]:
    """Have ten turns with a compaction and a restart; return the requests of the loop."""
    for turns in (range(1, RESTARTED_AFTER + 1), range(RESTARTED_AFTER + 1, TURNS + 1)):
        agent = agent_on(server, strategy, ttl)
        async with running(home, agent, compression={"protect_last_n": 2}) as chat:
            await talked(chat, turns)
            await chat.gateway.delivery.wait_idle()
            assert chat.events("model_call_failed") == []
    return [each.body for each in server.requests if not asks_for_summary(each.body)]


async def talked(chat: Running, turns: Iterable[int]) -> None:
    """Have these turns, and the compaction after one of them."""
    for n in turns:
        assert await chat.ask(f"No {n}: {WORDS}") == "Done."
        if n == COMPACTED_AFTER:
            assert "messages" in await chat.ask("/compress")


def blocks(body: Body) -> Iterator[Body]:
    """Yield what a prompt is made of, in the order in which it is cached."""
    yield from body.get("tools", [])
    yield from body.get("system", [])
    for message in body["messages"]:
        head = {name: value for name, value in message.items() if name != "content"}
        content = message["content"]
        yield head
        yield from content if isinstance(content, list) else [{"text": content, "type": "text"}]


def breakpoints(body: Body) -> list[int]:
    """Return which blocks carry one."""
    return [n for n, block in enumerate(blocks(body)) if KEY in block]


def plain(body: Body) -> list[str]:
    """Return the bytes of each block, without breakpoints."""
    found = (
        {name: value for name, value in block.items() if name != KEY} for block in blocks(body)
    )
    return [json.dumps(block) for block in found]


@pytest.fixture
def home(database_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    forget_certificates(database_file.parent, monkeypatch)
    return database_file.parent


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layout", "strategy", "ttl"), products([*LAYOUTS], ["system_and_3", "anchored"], ["5m", "1h"])
)
async def test_marked_requests_are_accepted_and_begin_as_the_one_before(
    home: Path, layout: str, strategy: str, ttl: str
) -> None:
    """Up to the last breakpoint of the request before, byte for byte; but for the compaction."""
    async with provider(layout) as server:
        bodies = await conversation(home, server, strategy, ttl)
        assert server.refused == []
    assert len(bodies) == 3 * TURNS
    moved = [
        n
        for n, (before, after) in enumerate(pairwise(bodies), start=1)
        if plain(before)[: breakpoints(before)[-1] + 1]
        != plain(after)[: breakpoints(before)[-1] + 1]
    ]
    assert moved == [3 * COMPACTED_AFTER]
    assert MARKER not in str(bodies[moved[0] - 1])
    assert all(MARKER in str(body) for body in bodies[moved[0] :])


@pytest.mark.parametrize("ttl", ["5m", "1h"])
@pytest.mark.parametrize("strategy", ["system_and_3", "anchored"])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_every_request_has_its_breakpoints(
    home: Path, layout: str, strategy: str, ttl: str
) -> None:
    """The first on the system prompt, the last near the end, none above four, all of one life.

    Behind a router `system_and_3` marks no tool result, so little is marked in a loop.
    """
    marker = {"type": "ephemeral"} | ({"ttl": "1h"} if ttl == "1h" else {})
    async with provider(layout) as server:
        agent = agent_on(server, strategy, ttl)
        async with running(home, agent) as chat:
            await talked(chat, (1, 2))
        bodies = [each.body for each in server.requests]
    for body in bodies:
        places, prompt = breakpoints(body), list(blocks(body))
        assert 1 <= len(places) <= MOST_BREAKPOINTS
        assert json.dumps(body).count(f'"{KEY}"') == len(places)
        assert {json.dumps(prompt[n][KEY]) for n in places} == {json.dumps(marker)}
        assert "You are Parley" in prompt[places[0]]["text"]
        if (layout, strategy) != ("envelope", "system_and_3"):
            assert len(places) >= 2
            assert len(prompt) - places[-1] <= 2
