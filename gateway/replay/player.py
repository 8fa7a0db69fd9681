"""The stage of a replay: a gateway without HTTP, a model and a platform that are played.

Intake, queue, worker, loop and outbox are the ones of `parley run`, also where the gateway is
stopped and started again in the middle of a turn.

A replay runs at once while a prompt cache ages: `schedule` says when each request is made. The
platform is `NullAdapter`, through which the benchmarks talk as well.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal

from typing_extensions import override

from adapters.base import UNANNOUNCED, PreviewIntent
from adapters.errors import FetchRejected
from adapters.messages import (
    Address,
    Attachment,
    InboundMessage,
    MessageRef,
    Outgoing,
    Reaction,
    Receipt,
    Withdrawal,
)
from agent.messages import storable, text_of
from agent.models.base import Completion, ModelRequest, TextSink
from agent.models.catalog import DEFAULT_NAMES, ModelFacts, facts_of
from agent.models.recovery import Recovery, RetryPolicy
from agent.settings import CachingSettings, FactsSettings
from agent.turn.state import Agent, CallRules
from gateway.app import Gateway, assembled
from gateway.pipeline import notices
from gateway.replay.recorded_model import RecordedModel, RecordedTools, RecordedWriter
from gateway.replay.recordings import RecordedExchange, Recording
from gateway.replay.report import Replayed
from gateway.settings.tree import Settings
from gateway.storage.conversation.sessions import age
from gateway.storage.migrations import open_database
from gateway.storage.queue.blame import Death
from gateway.storage.reports import timeline
from gateway.wiring import accounts_of

Gap = Literal["none", "busy", "chat", "recorded"]
"""none: no time passes. busy: 20 to 120 s between turns. chat: as busy, but every fifth pause is up
to 5 minutes, about every seventh up to 40 minutes, one in twenty up to 10 hours. recorded: as the
recording says, busy where it says nothing. Steps of a turn are 4 to 20 s apart.
Source: `timeline` of the peers' benchmark (peerbench/bench_session.py)."""

Writer = ModelFacts | Literal["main"] | None
"""Of a stage's summaries."""
STEP_S = (4.0, 20.0)
PAUSE_S = (20.0, 120.0)
CHAT_PAUSES_S = ((0.6, PAUSE_S), (0.8, (120.0, 280.0)), (0.95, (360.0, 2400.0)))
"""Up to these shares of the pauses."""
LONG_PAUSE_S = (7200.0, 36_000.0)

NOTICES = frozenset({notices.TROUBLE, notices.HYGIENE, *notices.CONTEXT.values()})
"""What may be said about a turn before its answer."""

DEFAULT_WINDOW_TOKENS = 200_000
"""Where neither an option nor the settings name one."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What is played, and how.

    Attributes:
        settings: The gateway's; its home is the replay's own.
        restart_every: The gateway is started again after so many requests; None for never.
        writer: Who writes summaries at what price; "main" for the model that is played, None for
            the extractor.
    """

    settings: Settings
    recordings: Sequence[Recording]
    gap: Gap = "recorded"
    restart_every: int | None = None
    writer: Writer = None


def window_of(settings: Settings) -> int:
    """Return the context length that is played with, in tokens."""
    return settings.model.context_length or DEFAULT_WINDOW_TOKENS


def facts_in(settings: Settings) -> ModelFacts:
    """Return prices and cache rules of the model that the settings name; else of a Claude."""
    return _named(settings.model.name or DEFAULT_NAMES["anthropic"], settings.model.facts)


def writer_in(settings: Settings) -> ModelFacts | None:
    """Return prices of the auxiliary model that would write summaries; None for the main one."""
    main, block = settings.model, settings.auxiliary.compression
    if not block.is_set:
        return None
    provider = "openai" if block.base_url else block.provider
    same = block.base_url is None and provider in {"auto", "main", main.provider}
    default = DEFAULT_NAMES.get(provider, DEFAULT_NAMES["anthropic"])
    return _named(block.model or (main.name if same else None) or default, block.facts)


def _named(name: str, overrides: FactsSettings) -> ModelFacts:
    """Return the facts of a model under the name that it has in the settings."""
    return replace(facts_of(name, overrides), name=name)


@asynccontextmanager
async def playing(stage: Stage) -> AsyncIterator["Player"]:
    """Run a gateway whose model plays the recordings, without HTTP, in `settings.home`."""
    model = _model(stage)
    answers = SentMessages()
    house = House(stage, model, answers)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(house.run(), name="gateway")
        await house.open.wait()
        yield Player(house, model, answers, stage.gap, stage.writer is not None)
        running.cancel()


def _model(stage: Stage) -> "StoppingModel":
    settings = stage.settings
    return StoppingModel(
        window_of(settings),
        facts_in(settings),
        settings.prompt_caching,
        stage.restart_every,
        writes=stage.writer == "main",
    )


class StoppingModel(RecordedModel):
    """A recorded model that has the gateway restarted now and then, in the middle of a turn.

    Attributes:
        restart: Is set when a restart is due; the request that came is billed, and its answer is
            never given.
    """

    def __init__(
        self,
        context_length: int,
        facts: ModelFacts,
        caching: CachingSettings,
        restart_every: int | None,
        *,
        writes: bool = False,
    ) -> None:
        """Answer `restart_every` requests between two restarts; None for all."""
        super().__init__(context_length, facts, caching, writes=writes)
        self.restart = asyncio.Event()
        self._restart_every = restart_every
        self._answered = 0

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        completion = await super().complete(request, sink)
        if self._answered == self._restart_every:
            self._answered = 0
            self.restart.set()
            # Never answered: the gateway is stopped in the middle of this request.
            await asyncio.Event().wait()
        self._answered += 1
        return completion


class House:
    """The gateway of a stage: open until it is closed, and opened anew for each restart.

    Attributes:
        gateway: The one that runs now; valid from `open` on.
        open: Is set when the first one runs.
    """

    gateway: Gateway

    def __init__(self, stage: Stage, model: StoppingModel, answers: "SentMessages") -> None:
        self._stage = stage
        self._model = model
        self._answers = answers
        self.open = asyncio.Event()

    async def run(self) -> None:
        """Run one gateway after the other on the same database, until cancelled."""
        while True:
            async with self._opened():
                self.open.set()
                await self._model.restart.wait()
                self._model.restart.clear()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        """Run a gateway; leaving, turns are cut off as by a stop that does not wait for them."""
        settings, adapter = self._stage.settings, NullAdapter(self._answers.put)
        async with (
            open_database(settings.home / "replay.db") as database,
            assembled(
                settings, database, self._agent(), accounts_of(adapter), death=Death("stopped")
            ) as self.gateway,
            asyncio.TaskGroup() as tasks,
        ):
            preparations = self.gateway.beside.preparations
            running = [
                tasks.create_task(self.gateway.worker.run(), name="worker"),
                tasks.create_task(self.gateway.delivery.run(), name="delivery"),
                tasks.create_task(preparations.run(), name="prepare summaries"),
            ]
            self._model.settled = preparations.wait_idle
            yield
            self.gateway.worker.stop()
            for task in running:
                task.cancel()

    def _agent(self) -> Agent:
        settings, recordings = self._stage.settings, self._stage.recordings
        steps = max((len(each.steps) for it in recordings for each in it.exchanges), default=1)
        writer = self._stage.writer
        others = [RecordedWriter(writer)] if isinstance(writer, ModelFacts) else []
        return Agent(
            models=[self._model, *others],
            tools=RecordedTools(self._model, recordings),
            # Else the loop would end a recorded turn that has more steps than the settings allow.
            settings=settings.agent.model_copy(update={"max_iterations": steps + 1}),
            calls=CallRules(settings.tools.output),
            recovery=Recovery(RetryPolicy()),
            max_output_tokens=settings.model.max_output_tokens,
            caching=settings.prompt_caching,
        )


class SentMessages:
    """What the null platform was given, by conversation, in order."""

    def __init__(self) -> None:
        self._queues: dict[int, asyncio.Queue[str]] = {}

    def put(self, message: Outgoing) -> None:
        """Take a message that is being sent."""
        self._of(message.conversation).put_nowait(message.payload)

    async def next(self, conversation_id: int) -> str:
        """Wait for the conversation's next message."""
        return await self._of(conversation_id).get()

    def _of(self, conversation_id: int) -> asyncio.Queue[str]:
        return self._queues.setdefault(conversation_id, asyncio.Queue())


@dataclass(frozen=True, slots=True)
class Player:
    """Plays the user's side and compares what comes back."""

    house: House
    model: RecordedModel
    answers: SentMessages
    gap: Gap
    has_writer: bool = False

    async def play(self, number: int, recording: Recording) -> Replayed:
        """Send each user message once the one before is answered."""
        started = time.monotonic()
        times = schedule(recording, self.gap)
        problem = None
        conversation_id = 0
        for n, exchange in enumerate(recording.exchanges):
            if n > 0:
                await self._pass(conversation_id, times[n][0] - times[n - 1][-1])
            message = _inbound(f"{number}", n + 1, exchange.user)
            (admission,) = await self.house.gateway.intake.accept([message])
            conversation_id = admission.conversation or 0
            # The worker cannot have begun: nothing was awaited since the commit.
            self.model.play(str(conversation_id), recording, n, times[n])
            # One message at a time: two that wait together would become one turn, which is not
            # recorded.
            answer = await self._answer(conversation_id)
            if answer != text_of(exchange.steps[-1]):
                # The first one is told: what comes after it mostly follows from it.
                problem = problem or f"message {n + 1} was answered with {answer[:60]!r}"
        return await self._replayed(recording, conversation_id, started, problem)

    async def _pass(self, conversation_id: int, gap_s: float) -> None:
        """Let time pass for the gateway too, which goes by the clock of this machine."""
        if gap_s > 0:
            await self.house.gateway.database.write(age, conversation_id, gap_s)

    async def _replayed(
        self, recording: Recording, conversation_id: int, started: float, problem: str | None
    ) -> Replayed:
        duration_s = time.monotonic() - started
        read = self.house.gateway.database.read
        return Replayed(
            # A file's name may hold bytes that are no UTF-8.
            name=storable(recording.name),
            work=await read(timeline.work, conversation_id),
            timeline=await read(timeline.timeline, conversation_id),
            billed=self.model.billed(str(conversation_id)),
            duration_s=duration_s,
            problem=problem,
            summaries=await read(timeline.summaries, conversation_id) if self.has_writer else None,
        )

    async def _answer(self, conversation_id: int) -> str:
        """Return the next message that is no notice about the turn."""
        while (text := await self.answers.next(conversation_id)) in NOTICES:
            continue
        return text


def _inbound(chat: str, n: int, text: str) -> InboundMessage:
    return InboundMessage(
        address=Address("null", "default", chat),
        chat_kind="dm",
        sender="replay",
        sender_name="Replay",
        text=text,
        dedupe_key=f"{chat}:{n}",
        raw="{}",
        authenticated=True,
    )


def schedule(recording: Recording, gap: Gap) -> list[tuple[float, ...]]:
    """Return, for each exchange, when each of its assistant messages is asked for.

    Returns:
        Seconds on a clock of the conversation's own, never falling. The same recording has the
        same times in every replay.
    """
    # By its name, so that a comparison of two settings compares the same pauses.
    clock = _Clock(gap, random.Random(recording.name))  # noqa: S311 - made-up pauses, no secret
    return [tuple(clock.times(exchange)) for exchange in recording.exchanges]


class _Clock:
    def __init__(self, gap: Gap, chance: random.Random) -> None:
        self._gap = gap
        self._chance = chance
        self._now_s = 0.0

    def times(self, exchange: RecordedExchange) -> Iterator[float]:
        """Yield the times of an exchange's answers."""
        answers = sum(step["role"] == "assistant" for step in exchange.steps)
        if self._gap == "recorded" and exchange.asked_at:
            for at in exchange.asked_at:
                self._now_s = max(self._now_s, at)
                yield self._now_s
            return
        for number in range(answers):
            self._now_s += self._step_s() if number else self._pause_s()
            yield self._now_s

    def _step_s(self) -> float:
        return 0.0 if self._gap == "none" else self._chance.uniform(*STEP_S)

    def _pause_s(self) -> float:
        if self._gap == "none":
            return 0.0
        if self._gap != "chat":
            return self._chance.uniform(*PAUSE_S)
        place = self._chance.random()
        limits = next((limits for share, limits in CHAT_PAUSES_S if place < share), LONG_PAUSE_S)
        return self._chance.uniform(*limits)


class NullAdapter:
    """Shows nothing and tells its caller what would be shown.

    Args:
        on_send: Called with every message that is sent, at the moment it is.
    """

    platform = "null"
    account = "default"
    idempotent_sends = True
    preview_interval_s = 0.0
    connected = True
    pool = None
    is_exclusive = False

    def __init__(self, on_send: Callable[[Outgoing], None]) -> None:
        self.receivers = (self,)
        self._on_send = on_send

    async def run(self) -> None:
        """Receive nothing, until cancelled."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Nothing to give back."""

    def render(self, markdown: str) -> list[str]:
        """Return the text as the only payload; there is no limit."""
        return [markdown]

    async def send(self, message: Outgoing) -> Receipt:
        """Hand the message to the caller."""
        self._on_send(message)
        return Receipt(f"{message.conversation}:{message.seq}")

    async def withdraw(self, _withdrawal: Withdrawal) -> None:
        """There are no buttons."""

    async def fetch(self, _address: Address, attachment: Attachment, _limit_bytes: int) -> bytes:
        """There is nothing to fetch from."""
        raise FetchRejected(f"{attachment.name} is nowhere")

    async def preview(
        self,
        _question: MessageRef,
        _text: str,
        _ref: str | None,
        *,
        grows: bool = True,  # noqa: ARG002
        intent: PreviewIntent = UNANNOUNCED,  # noqa: ARG002
    ) -> str | None:
        """Show no preview."""
        return None

    async def find_preview(
        self, _question: MessageRef, _nonce: str, _others: frozenset[str]
    ) -> str | None:
        """There is none."""
        return None

    async def show_working(self, _question: MessageRef) -> None:
        """Show nothing."""

    async def acknowledge(self, _question: MessageRef, _mark: Reaction) -> None:
        """Show nothing."""
