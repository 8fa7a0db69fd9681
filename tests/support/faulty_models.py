"""A running gateway with the real SDKs, against loopback providers that fail as real ones do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from typing_extensions import override

from agent.models.base import ChatModel
from agent.models.factory import build_models
from agent.models.recovery import Rests, RetryPolicy, RetryTiming, complete_with_recovery
from agent.settings import ModelSettings
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool
from agent.turn.request import Agent
from gateway.storage import schema as tables
from tests.support.anthropic_server import AnthropicServer
from tests.support.conversations import faults
from tests.support.gateway import Running, agent_of, running
from tests.support.model_server import Fault, ModelServer, Reply
from tests.support.openai_server import OpenAIServer
from tests.support.recording_adapter import Watch

ProviderName = Literal["anthropic", "openai"]
PROVIDERS: tuple[ProviderName, ...] = ("anthropic", "openai")

KEYS = ("sk-first-0123456789", "sk-second-9876543210")
SPARE_KEY = "sk-spare-5555555555"
SECRETS = (*KEYS, SPARE_KEY)
ANSWER, SPARE_ANSWER = "Fine, thank you.", "The spare model answers."
PROVIDERS_WORDS = "words of the provider"
"""What every scripted error says; no person may ever read it."""

Answer = Callable[[dict[str, Any]], Reply | Fault]


class Clock:
    """The time that recovery goes by: a wait is over at once and kept in `waits`.

    Attributes:
        holds: Whether waits do not end.
        held: Set once there is such a wait.
    """

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.holds = False
        self.held = asyncio.Event()

    def now(self) -> float:
        """Return the seconds that were waited so far."""
        return sum(self.waits)

    async def sleep(self, seconds: float) -> None:
        """Wait without taking time."""
        self.waits.append(seconds)
        if self.holds:
            self.held.set()
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)

    @property
    def timing(self) -> RetryTiming:
        """As recovery wants it; every wait is the longest that the dice allow."""
        return RetryTiming(self.now, self.sleep, lambda _low, high: high)


class FaultyServer(ModelServer):
    """A provider that answers with `ANSWER` unless a test says otherwise.

    Attributes:
        broken: What every request gets; None for the script.
        answer: Makes the answer to a request once the script is used up.
        spoken: What is said where there is neither.
        moves_allowed: Whether prefixes may move (see `AnthropicServer`).
    """

    spoken = ANSWER
    moves_allowed = False

    def __init__(self) -> None:
        super().__init__()
        self.broken: Reply | Fault | None = None
        self.answer: Answer | None = None
        self._watch = Watch()

    async def asked(self, wanted: Callable[[dict[str, Any]], object] = bool) -> None:
        """Wait until there was such a request."""
        await self._watch.until(lambda: any(wanted(each.body) for each in self.requests))

    @override
    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        self._watch.note()
        super().check(headers, body)
        if not self._script:
            self.default = self._unscripted(body)

    def _unscripted(self, body: dict[str, Any]) -> Any:
        if self.broken is not None:
            return self.broken
        return self.answer(body) if self.answer else Reply(text=self.spoken)

    def fix(self) -> None:
        """Work again."""
        self.broken = self.max_prompt_tokens = self.max_bytes = None
        self.key_faults.clear()


class FaultyAnthropic(FaultyServer, AnthropicServer):
    """Anthropic's API, broken at will."""


class FaultyOpenAI(FaultyServer, OpenAIServer):
    """An OpenAI-compatible API, broken at will."""


SERVERS: dict[ProviderName, type[FaultyServer]] = {
    "anthropic": FaultyAnthropic,
    "openai": FaultyOpenAI,
}
NAMES: dict[ProviderName, str] = {"anthropic": "claude-sonnet-5-5", "openai": "local-model"}


def settings_for(
    kind: ProviderName, server: ModelServer, keys: Sequence[str], **changes: Any
) -> ModelSettings:
    """Return settings for a model on a server; a million tokens read cost 1 dollar."""
    values = {
        "provider": kind,
        "name": NAMES[kind],
        "base_url": server.url,
        "api_keys": keys,
        "idle_timeout_s": 5,
        "facts": {"input_usd": 1, "output_usd": 2},
    }
    return ModelSettings.model_validate(values | changes)


class Which(Arguments):
    """For a tool that may be told which time it is called."""

    n: int = 0


@dataclass(slots=True)
class Counting:
    """A tool named `act` with a side effect, that counts its runs."""

    result: str = "done"
    runs: int = 0

    @property
    def tool(self) -> Tool:
        """As the registry takes it."""

        async def act(_context: ToolContext, _arguments: Which) -> str:
            self.runs += 1
            return self.result

        return Tool("act", "Acts.", "side_effect", Which, act)


ACT = Reply(calls=(("act", {}),))


@dataclass(slots=True)
class Bench:
    """A gateway, its providers, and what is true of every turn.

    Attributes:
        main: What the first model talks to.
        spare: What the fallback talks to; asked only where there is a fallback.
        clock: Of recovery.
    """

    provider: ProviderName
    chat: Running
    main: FaultyServer
    spare: FaultyServer
    clock: Clock
    models: list[ChatModel]
    turns: int = 0

    @property
    def calls(self) -> tuple[int, int]:
        """How many requests both providers got."""
        return len(self.main.requests), len(self.spare.requests)

    @property
    def actions(self) -> list[str]:
        """What was done about each failed call, in order."""
        return [line["action"] for line in self.chat.events("model_call_failed")]

    async def ask(self, text: str = "How are you?") -> list[str]:
        """Say something; return what the chat was told until the turn had ended."""
        self.turns += 1
        before = len(self.chat.texts())
        await self.chat.say(text)
        await self.chat.logged("turn_finished", self.turns)
        await self.chat.gateway.delivery.wait_idle()
        return self.chat.texts()[before:]

    async def outcomes(self) -> list[str]:
        """Return the recorded exit reason of each turn."""
        return [row.outcome for row in await self.chat.rows(tables.turn)]

    async def ledger(self) -> list[tuple[str, int, int]]:
        """Return purpose, tokens read and tokens written of each call that was booked."""
        rows = await self.chat.rows(tables.ledger)
        return [
            (
                row.purpose,
                row.input_tokens
                + row.cache_read_tokens
                + row.cache_write_5m_tokens
                + row.cache_write_1h_tokens,
                row.output_tokens,
            )
            for row in rows
        ]

    async def fix(self) -> None:
        """Have both providers work again; the next message is answered as if nothing had been."""
        self.main.fix()
        self.spare.fix()
        [answer] = await self.ask("And now?")
        assert answer in {ANSWER, SPARE_ANSWER}

    async def check(self) -> None:
        """Fail unless what has to be true after any number of turns is."""
        assert len(self.chat.events("turn_finished")) == self.turns
        assert len(await self.outcomes()) == self.turns
        assert faults(await self.chat.transcript()) == []
        shown, logged = "".join(self.chat.texts()), str(self.chat.log)
        for word in (*SECRETS, PROVIDERS_WORDS, "scripted", "<html", "HTTP"):
            assert word not in shown
        assert not [secret for secret in SECRETS if secret in logged]
        assert "<html" not in logged


def forget_certificates(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each client the certificates of the world: reading them takes longer than a test."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(home))


@asynccontextmanager
async def bench(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    provider: ProviderName,
    *,
    keys: int = 1,
    fallback: bool = False,
    tools: Sequence[Tool] = (),
    main: dict[str, Any] | None = None,
    spare: dict[str, Any] | None = None,
    agent: Callable[[Agent], Agent] = lambda agent: agent,
    **sections: dict[str, Any],
) -> AsyncIterator[Bench]:
    """Run a gateway whose models talk to loopback providers, with recovery's real policy.

    Args:
        home: PARLEY_HOME.
        monkeypatch: Of the test.
        provider: Whose SDK and protocol; a fallback uses the other one's.
        keys: How many keys the main model has.
        fallback: Whether there is a second model.
        tools: What the model may call.
        main: Changes of the main model's settings.
        spare: Changes of the fallback's.
        agent: Changes the agent.
        **sections: Settings of the gateway.
    """
    forget_certificates(home, monkeypatch)
    clock = Clock()
    timed = partial(complete_with_recovery, timing=clock.timing)
    monkeypatch.setattr("agent.turn.request.complete_with_recovery", timed)
    other: ProviderName = PROVIDERS[1 - PROVIDERS.index(provider)]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(SERVERS[provider]())
        second = await stack.enter_async_context(SERVERS[other]())
        second.spoken = SPARE_ANSWER
        line = build_models(settings_for(provider, first, KEYS[:keys], **main or {}))
        if fallback:
            line += build_models(settings_for(other, second, [SPARE_KEY], **spare or {}))
        made = agent_of(*line, tools=tools, retry=RetryPolicy())
        made = agent(replace(made, recovery=replace(made.recovery, rests=Rests(clock.now))))
        chat = await stack.enter_async_context(
            running(home, made, adapter=None, at_work=True, **sections)
        )
        yield Bench(provider, chat, first, second, clock, line)
