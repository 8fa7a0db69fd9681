"""The stage of a replay: a gateway without HTTP, a model and a platform that are played.

Intake, queue, worker, loop and outbox are the ones of `parley run`.

A replay runs at once, while a prompt cache ages by the pauses that are played. The platform is
`NullAdapter`, through which the benchmarks talk as well.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from adapters.errors import FetchRejected
from adapters.messages import (
    Address,
    Attachment,
    InboundMessage,
    Outgoing,
    Receipt,
    Withdrawal,
)
from agent.messages import storable, text_of
from agent.models.catalog import DEFAULT_NAMES, ModelFacts, facts_of
from agent.models.recovery import Recovery, RetryPolicy
from agent.turn.state import Agent, CallRules
from gateway.app import Gateway, assembled
from gateway.pipeline import notices
from gateway.replay.recorded_model import RecordedModel, RecordedTools
from gateway.replay.recordings import Recording
from gateway.replay.report import Replayed
from gateway.settings.tree import Settings
from gateway.storage.conversation import compactions, conversations
from gateway.storage.conversation.sessions import age
from gateway.storage.migrations import open_database
from gateway.storage.reports import usage
from gateway.supervision.accounts import UnbuiltAdapter
from gateway.wiring import accounts_of

NOTICES = frozenset({notices.TROUBLE, notices.HYGIENE, *notices.CONTEXT.values()})
"""What may be said about a turn before its answer."""

DEFAULT_WINDOW_TOKENS = 200_000
"""Where neither an option nor the settings name one."""


def window_of(settings: Settings) -> int:
    """Return the context length that is played with, in tokens."""
    return settings.model.context_length or DEFAULT_WINDOW_TOKENS


def facts_in(settings: Settings) -> ModelFacts:
    """Return prices and cache rules of the model that the settings name; else of a Claude."""
    name = settings.model.name or DEFAULT_NAMES["anthropic"]
    return replace(facts_of(name, settings.model.facts), name=name)


@asynccontextmanager
async def playing(
    settings: Settings, recordings: Sequence[Recording], gap_s: float = 0.0
) -> AsyncIterator["Player"]:
    """Run a gateway whose model plays the recordings, without HTTP, in `settings.home`."""
    model = RecordedModel(window_of(settings), facts_in(settings))
    answers: asyncio.Queue[str] = asyncio.Queue()
    accounts = accounts_of(NullAdapter(lambda message: answers.put_nowait(message.payload)))
    async with (
        open_database(settings.home / "replay.db") as database,
        assembled(settings, database, _agent(settings, model, recordings), accounts) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        running = [
            tasks.create_task(gateway.worker.run(), name="worker"),
            tasks.create_task(gateway.delivery.run(), name="delivery"),
        ]
        yield Player(gateway, model, answers, gap_s)
        gateway.worker.stop()
        for task in running:
            task.cancel()


def _agent(settings: Settings, model: RecordedModel, recordings: Sequence[Recording]) -> Agent:
    steps = max((len(each.steps) for it in recordings for each in it.exchanges), default=1)
    return Agent(
        models=[model],
        tools=RecordedTools(model, recordings),
        # Else the loop would end a recorded turn that has more steps than the settings allow.
        settings=settings.agent.model_copy(update={"max_iterations": steps + 1}),
        calls=CallRules(settings.tools.output),
        recovery=Recovery(RetryPolicy()),
        max_output_tokens=settings.model.max_output_tokens,
        caching=settings.prompt_caching,
    )


@dataclass(frozen=True, slots=True)
class Player:
    """Plays the user's side and compares what comes back."""

    gateway: Gateway
    model: RecordedModel
    answers: asyncio.Queue[str]
    gap_s: float

    async def play(self, number: int, recording: Recording) -> Replayed:
        """Send each user message once the one before is answered."""
        started = time.monotonic()
        problem = None
        conversation_id = 0
        for n, exchange in enumerate(recording.exchanges):
            if n > 0:
                # Time passes for the gateway too, which uses the clock of this machine.
                await self.gateway.database.write(age, conversation_id, self.gap_s)
            message = _inbound(f"{number}", n + 1, exchange.user)
            (admission,) = await self.gateway.intake.accept([message])
            conversation_id = admission.conversation or 0
            # The worker cannot have begun: nothing was awaited since the commit.
            self.model.play(str(conversation_id), recording, n, self.gap_s)
            # One message at a time: two that wait together would become one turn, which is not
            # recorded.
            answer = await self._answer()
            if answer != text_of(exchange.steps[-1]):
                # The first one is told: what comes after it mostly follows from it.
                problem = problem or f"message {n + 1} was answered with {answer[:60]!r}"
        read = self.gateway.database.read
        return Replayed(
            duration_s=time.monotonic() - started,
            # A file's name may hold bytes that are no UTF-8.
            name=storable(recording.name),
            messages=await read(conversations.message_head, conversation_id),
            took=(await read(usage.report, conversation_id, 0)).whole,
            compactions=await read(compactions.of_conversation, conversation_id),
            bill=self.model.bill(str(conversation_id)),
            problem=problem,
        )

    async def _answer(self) -> str:
        """Return the next message that is no notice about the turn."""
        while (text := await self.answers.get()) in NOTICES:
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


class NullAdapter(UnbuiltAdapter):
    """Shows nothing and tells its caller what would be shown.

    Args:
        on_send: Called with every message that is sent, at the moment it is.
    """

    idempotent_sends = True
    connected = True

    def __init__(self, on_send: Callable[[Outgoing], None]) -> None:
        super().__init__("null", "default", lambda markdown: [markdown], "there is no platform")
        self._on_send = on_send

    @override
    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    @override
    async def send(self, message: Outgoing) -> Receipt:
        self._on_send(message)
        return Receipt(f"{message.conversation}:{message.seq}")

    @override
    async def withdraw(self, _withdrawal: Withdrawal) -> None:
        """There are no buttons."""

    @override
    async def fetch(self, _address: Address, attachment: Attachment, _limit_bytes: int) -> bytes:
        raise FetchRejected(f"{attachment.name} is nowhere")

    @override
    async def find_preview(self, *_: Any) -> None:
        """There is none."""
