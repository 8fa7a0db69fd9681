"""Kill the gateway inside every fault of a provider, restart it, ask the oracle.

The models are the real SDKs; their servers live in this process and outlive the gateway.
"""

import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from agent.context.summary import TASKS
from tests.crash.model_child import ModelSpec
from tests.support.chain_model import chain_of, has_results
from tests.support.crash import Crashes, Nursery, describe, until
from tests.support.crash_platform import LoopbackPlatform
from tests.support.crash_script import LONG
from tests.support.faulty_models import (
    KEYS,
    PROVIDERS,
    SERVERS,
    SPARE_KEY,
    FaultyServer,
    ProviderName,
    settings_for,
)
from tests.support.model_server import Fault, Reply, asks_for_summary, prompt_tokens
from tests.support.thorough import sampled

MINUTE_S = 0.5
"""Of the alerts."""

# Every scenario with both; at the desk they take turns.
even, odd = (
    pytest.mark.parametrize("provider", sampled(PROVIDERS, 2, place)) for place in range(2)
)

Body = dict[str, Any]

SILENCE = Fault(trouble="stall")
HALF = Reply(text="Half of an ans", trouble="stall")
OUT = Fault(status=404, error="not_found_error")
LATER = Fault(status=429, error="rate_limit_error", headers={"retry-after": "50"})
WINDOW = 8_000


@dataclass
class Scene:
    """A gateway's home and platform, and the providers of its two models."""

    crashes: Crashes
    provider: ProviderName
    main: FaultyServer
    spare: FaultyServer

    @property
    def platform(self) -> LoopbackPlatform:
        """Where people write."""
        return self.crashes.platform

    async def previewed(self) -> None:
        """Wait until the chat shows the beginning of an answer."""
        shown = self.platform.chats["a"]
        await self.platform.wait_for(lambda: any("Half" in each.text for each in shown))

    def after_tools(self, item: Reply | Fault) -> None:
        """Have the main server answer like this as soon as tools have run."""
        chain = self.main.answer
        assert chain is not None

        def answer(body: Body) -> Reply | Fault:
            return item if has_results(self.provider, body) else chain(body)

        self.main.answer = answer

    def fix(self) -> None:
        """Have both providers answer."""
        for provider, server in self.providers():
            server.fix()
            server.answer = chain_of(provider, self.note)

    def providers(self) -> list[tuple[ProviderName, FaultyServer]]:
        """Return both servers with what they speak."""
        other: ProviderName = PROVIDERS[1 - PROVIDERS.index(self.provider)]
        return [(self.provider, self.main), (other, self.spare)]

    def note(self, text: str) -> None:
        """Write down what a model was asked, for the oracle."""
        self.crashes._note(what="model", text=text)

    async def kill_when(self, *moments: Any) -> None:
        """Start a gateway, wait for the moments, kill it there."""
        pid = self.crashes.start()
        for moment in moments:
            await moment
        await self.crashes.kill(pid)

    def expect(self, kind: str) -> None:
        """Expect that owners are told of a model, and that it is over when it answers again."""
        self.crashes.configure(minute_s=MINUTE_S)
        self.crashes.expect(kind)

    async def recover(self) -> None:
        """Let a gateway live until all is answered; nothing may be lost or done twice."""
        self.fix()
        await self.crashes.live_until_answered()
        assert not (found := self.crashes.violations()), describe(found, self.crashes)
        assert self.booked() == self.recorded()
        assert [*self.main.refused, *self.spare.refused] == self.overflows()

    def overflows(self) -> list[str]:
        """Return the refusals that the test itself has provoked."""
        return [why for why in self.main.refused if "context length" in why or "too long" in why]

    def booked(self) -> dict[int, int]:
        """Return how many answering calls of each turn are in the ledger."""
        return self._count("SELECT turn_id, count(*) FROM ledger WHERE purpose = 'answer'")

    def recorded(self) -> dict[int, int]:
        """Return how many messages of the model each turn has."""
        return self._count("SELECT turn_id, count(*) FROM message WHERE role = 'assistant'")

    def _count(self, query: str) -> dict[int, int]:
        with closing(sqlite3.connect(self.crashes.database)) as books:
            return dict(books.execute(f"{query} GROUP BY turn_id").fetchall())


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """The process that forks gateways; it has imported everything once."""
    nursery = Nursery("tests.crash.model_child")
    yield nursery
    nursery.close()


@pytest.fixture
async def scene(
    crashes: Crashes, provider: ProviderName, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    """A main model and a fallback of the other provider; both answer."""
    other: ProviderName = PROVIDERS[1 - PROVIDERS.index(provider)]
    async with SERVERS[provider]() as main, SERVERS[other]() as spare:
        main.moves_allowed = spare.moves_allowed = True
        models = [
            settings_for(provider, main, KEYS[:1], context_length=WINDOW),
            settings_for(other, spare, [SPARE_KEY], context_length=WINDOW),
        ]
        spec = crashes.spec
        crashes.spec = ModelSpec(
            spec.home,
            spec.events,
            spec.port,
            style="edit",
            mode="followup",
            models=tuple(_plain(each) for each in models),
        )
        scene = Scene(crashes, provider, main, spare)
        scene.fix()
        yield scene


def _plain(settings: Any) -> Body:
    keys = [key.get_secret_value() for key in settings.api_keys]
    found: Body = settings.model_dump(mode="json", exclude_unset=True) | {"api_keys": keys}
    return found


@pytest.mark.thorough
@even
async def test_before_the_request(scene: Scene, provider: ProviderName) -> None:
    """The turn is on record, the provider knows nothing of it."""
    await scene.crashes.write("a", "note look")
    pid = scene.crashes.start(kill=["after commit of begin", 1])
    await scene.crashes.ended(pid)
    assert scene.main.requests == []
    await scene.recover()


@pytest.mark.thorough
@odd
async def test_after_the_request_was_received(scene: Scene, provider: ProviderName) -> None:
    """Not a byte has come back."""
    scene.main.answer = lambda _: SILENCE
    await scene.crashes.write("a", "note look")
    await scene.kill_when(scene.main.asked())
    await scene.recover()


@even
async def test_in_the_stream(scene: Scene, provider: ProviderName) -> None:
    """The chat shows half an answer; the whole one takes its place."""
    scene.main.answer = lambda _: HALF
    await scene.crashes.write("a")
    await scene.kill_when(scene.previewed())
    await scene.recover()


@pytest.mark.thorough
@odd
async def test_in_the_stream_after_tools(scene: Scene, provider: ProviderName) -> None:
    """Their effects are on record, and not repeated."""
    scene.after_tools(HALF)
    await scene.crashes.write("a", "note look put")
    await scene.kill_when(scene.previewed())
    await scene.recover()


@pytest.mark.thorough
@even
async def test_in_the_wait_before_a_retry(scene: Scene, provider: ProviderName) -> None:
    """The provider asked for 50 seconds; the next process asks at once."""
    scene.after_tools(LATER)
    scene.crashes.configure(models=scene.crashes.spec.models[:1])  # type: ignore[attr-defined]
    await scene.crashes.write("a", "note look put")
    refused = scene.platform.wait_for(lambda: scene.platform.noted("model_call_failed"))
    await scene.kill_when(refused)
    await scene.recover()


@pytest.mark.thorough
@odd
async def test_in_the_stream_of_the_fallback(scene: Scene, provider: ProviderName) -> None:
    """It has taken over in the middle of the loop."""
    scene.expect("model-failing")
    scene.after_tools(OUT)
    scene.spare.answer = lambda _: HALF
    await scene.crashes.write("a", "note look put")
    told = until(scene.crashes.raised)
    await scene.kill_when(scene.spare.asked(), scene.previewed(), told)
    await scene.recover()


@pytest.mark.thorough
@even
async def test_in_the_compaction_after_an_overflow(scene: Scene, provider: ProviderName) -> None:
    """The summary is being written; the next process learns the limit again, and answers."""
    # Of one more a summary would be written ahead, maybe before the gateway ends.
    for _ in range(3):
        await scene.crashes.write("a", LONG)
    await scene.crashes.live_until_answered()
    assert not any(asks_for_summary(each) for each in _asked(scene))
    limit = int(prompt_tokens(_asked(scene)[-1]) * 0.9)
    chain = scene.main.answer
    assert chain is not None
    scene.main.max_prompt_tokens = limit
    # By the other model: what is to be summarised does not fit within the limit either.
    scene.spare.answer = lambda body: SILENCE if asks_for_summary(body) else chain(body)
    await scene.crashes.write("a", "note look")
    await scene.kill_when(scene.spare.asked(asks_for_summary))
    scene.fix()
    scene.main.max_prompt_tokens = limit
    await scene.crashes.live_until_answered()
    # One of each process: a refused request costs nothing.
    assert len(scene.overflows()) == 2
    await scene.recover()


@pytest.mark.thorough
@odd
async def test_twice_in_a_row(scene: Scene, provider: ProviderName) -> None:
    """Inside another fault each time, behind the same tools; the third process answers."""
    scene.expect("model-failing")
    await scene.crashes.write("a", "note look put")
    scene.after_tools(HALF)
    await scene.kill_when(scene.previewed())
    scene.fix()
    scene.after_tools(OUT)
    scene.spare.answer = lambda _: SILENCE
    await scene.kill_when(scene.spare.asked(), until(scene.crashes.raised))
    await scene.recover()


@pytest.mark.thorough
@even
async def test_in_the_call_that_follows_half_a_group(scene: Scene, provider: ProviderName) -> None:
    """A side effect of unknown outcome is told to the model that takes over; it is not repeated."""
    scene.expect("model-failing")
    await scene.crashes.write("a", "note look")
    pid = scene.crashes.start(kill=["note: within its effect", 1])
    await scene.crashes.ended(pid)
    scene.after_tools(HALF)
    await scene.kill_when(scene.previewed())
    scene.fix()
    scene.after_tools(OUT)
    pid = scene.crashes.start()
    await scene.platform.wait_for(scene.crashes.all_answered)
    await until(scene.crashes.raised)
    await scene.crashes.kill(pid)
    begun = [event["call"] for event in scene.crashes.events("effect begins")]
    assert begun.count("m1-note") == 1
    assert len(scene.spare.requests) == 1
    await scene.crashes.write("a")
    await scene.recover()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("provider", "fault", "kind"),
    [
        ("anthropic", Fault(status=401, error="authentication_error"), "key-refused"),
        ("openai", Fault(status=429, error="insufficient_quota"), "money-gone"),
    ],
)
async def test_a_model_that_fails_is_told_of_once(
    scene: Scene, provider: ProviderName, fault: Fault, kind: str
) -> None:
    """In two lives, while the other one answers; it is over when it answers itself."""
    scene.expect(kind)
    for _ in range(2):
        scene.main.answer = lambda _: fault
        await scene.crashes.write("a")
        pid = scene.crashes.start()
        await scene.platform.wait_for(scene.crashes.all_answered)
        await until(scene.crashes.raised)
        await scene.crashes.looked()
        await scene.crashes.kill(pid)
    await scene.crashes.write("a")
    await scene.recover()


@pytest.mark.thorough
@even
async def test_between_the_parts_of_a_summary(scene: Scene, provider: ProviderName) -> None:
    """The part that has come is kept with its price: the next process asks for the others alone."""
    crashes, [model, *_] = scene.crashes, scene.crashes.spec.models  # type: ignore[attr-defined]
    crashes.configure(models=(model | {"context_length": 8 * SMALL},))
    for _ in range(8):
        await crashes.write("a", LONG)
    await crashes.live_until_answered()
    # Another model: all that is in view by now has to leave it.
    crashes.configure(models=(model | {"context_length": SMALL},))
    chain = scene.main.answer
    assert chain is not None

    def answer(body: Body) -> Reply | Fault:
        return SILENCE if len(parts_in([body, *_asked(scene)])) > 2 else chain(body)

    scene.main.answer = answer
    await crashes.write("a")
    await scene.kill_when(scene.main.asked(lambda _: len(parts_in(_asked(scene))) > 1))
    paid, *_ = parts_in(_asked(scene))
    before = len(scene.main.requests)
    await scene.recover()
    after = parts_in(_asked(scene)[before:])
    assert after
    assert paid not in after


SMALL = 6_000
"""A window in which what leaves the view is summarised in parts."""


def _asked(scene: Scene) -> list[Body]:
    return [each.body for each in scene.main.requests]


def parts_in(asked: list[Body]) -> list[tuple[str, ...]]:
    """Return the ids of the messages in each part of a summary that was asked for."""
    prompts = [str(body["messages"][-1]["content"]) for body in asked if asks_for_summary(body)]
    return [tuple(ID.findall(each)) for each in prompts if TASKS["part"][:60] in each]


ID = re.compile(r"(m\d+) xxx")
