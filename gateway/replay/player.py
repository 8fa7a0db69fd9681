"""Replays recordings in a gateway without HTTP, with simulated model and platform, and reports.

Intake, queue, worker, loop and outbox are those of `parley run`. A replay has no pauses; only the
simulated prompt cache ages. `NullAdapter` is also the benchmarks' platform.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from typing_extensions import override

from adapters.errors import FetchRejected
from adapters.messages import Address, Attachment, InboundMessage, Outgoing, Receipt, Withdrawal
from agent.messages import storable, text_of
from agent.models.catalog import DEFAULT_NAMES, ModelFacts, facts_of
from agent.models.recovery import Recovery, RetryPolicy
from agent.money.costs import UNKNOWN, cost_usd, format_usd
from agent.turn.request import Agent
from gateway.app import Gateway, assembled
from gateway.pipeline import notices
from gateway.replay.recordings import Bill, RecordedModel, RecordedTools, Recording
from gateway.settings.tree import Settings
from gateway.storage.conversation import compactions, conversations
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.conversation.sessions import age
from gateway.storage.migrations import open_database
from gateway.storage.reports import usage
from gateway.storage.reports.usage import Figures
from gateway.supervision.accounts import UnbuiltAdapter
from gateway.wiring import accounts_of

NOTICES = frozenset({notices.TROUBLE, notices.HYGIENE, *notices.CONTEXT.values()})
"""Notices that may precede an answer."""

DEFAULT_WINDOW_TOKENS = 200_000


def window_of(settings: Settings) -> int:
    """Return the simulated context length in tokens."""
    return settings.model.context_length or DEFAULT_WINDOW_TOKENS


def facts_in(settings: Settings) -> ModelFacts:
    """Return prices and cache rules of the configured model, by default of a Claude model."""
    name = settings.model.name or DEFAULT_NAMES["anthropic"]
    return replace(facts_of(name, settings.model.facts), name=name)


@asynccontextmanager
async def playing(
    settings: Settings, recordings: Sequence[Recording], gap_s: float = 0.0
) -> AsyncIterator["Player"]:
    """Run a gateway without HTTP in `settings.home`, whose model replays the recordings."""
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
        # A recorded turn may have more steps than configured.
        settings=settings.agent.model_copy(update={"max_iterations": steps + 1}),
        recovery=Recovery(RetryPolicy()),
        max_output_tokens=settings.model.max_output_tokens,
        caching=settings.prompt_caching,
    )


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a conversation; `problem` is None if every message got its answer."""

    name: str
    messages: int
    took: Figures
    compactions: Sequence[CompactionRow]
    bill: Bill
    duration_s: float
    problem: str | None


@dataclass(frozen=True, slots=True)
class Player:
    """Plays the user and compares the answers."""

    gateway: Gateway
    model: RecordedModel
    answers: asyncio.Queue[str]
    gap_s: float

    async def play(self, number: int, recording: Recording) -> Replayed:
        """Send each user message once the previous one is answered."""
        started = time.monotonic()
        problem = None
        conversation_id = 0
        for n, exchange in enumerate(recording.exchanges):
            if n > 0:
                # Backdate the conversation, since the gateway uses the real clock.
                await self.gateway.database.write(age, conversation_id, self.gap_s)
            message = _inbound(f"{number}", n + 1, exchange.user)
            (admission,) = await self.gateway.intake.accept([message])
            conversation_id = admission.conversation or 0
            # No await since the commit, so the worker has not started.
            self.model.play(str(conversation_id), recording, n, self.gap_s)
            # One message at a time, since two waiting messages would become one unrecorded turn.
            while (answer := await self.answers.get()) in NOTICES:
                continue
            if answer != text_of(exchange.steps[-1]):
                # Later problems mostly follow from the first.
                problem = problem or f"message {n + 1} was answered with {answer[:60]!r}"
        read = self.gateway.database.read
        return Replayed(
            duration_s=time.monotonic() - started,
            # A file name may not be UTF-8.
            name=storable(recording.name),
            messages=await read(conversations.message_head, conversation_id),
            took=(await read(usage.report, conversation_id, 0)).whole,
            compactions=await read(compactions.of_conversation, conversation_id),
            bill=self.model.bill(str(conversation_id)),
            problem=problem,
        )


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
    """Shows nothing and calls `on_send` with every message."""

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
        """Do nothing: there are no buttons."""

    @override
    async def fetch(self, _address: Address, attachment: Attachment, _limit_bytes: int) -> bytes:
        raise FetchRejected(f"{attachment.name} is nowhere")

    @override
    async def find_preview(self, *_: Any) -> None:
        """Return None: there are no previews."""


NOTHING = "-"
MOST_SHOWN = 20
"""Most bills to list; for more conversations only the sum is shown."""


def show(results: Sequence[Replayed], facts: ModelFacts, console: Console) -> None:
    """Print the results, compactions and bills of the conversations."""
    console.print(_conversations(results))
    if any(result.compactions for result in results):
        console.print()
        console.print(_compactions(results))
    console.print()
    console.print(_bills(results, facts))
    console.print(prices_text(facts), markup=False, highlight=False, soft_wrap=True)
    console.print()


def _conversations(results: Sequence[Replayed]) -> Table:
    numbers = ("messages", "turns", "tool calls", "tokens in", "tokens out", "compactions")
    table = _table("conversation", (*numbers, "seconds"), "answered")
    for result in results:
        took, usage = result.took, result.took.spent.usage
        tokens = (usage.prompt_tokens, usage.output_tokens)
        counts = (result.messages, took.turns, took.tool_calls, *tokens)
        cells = (result.name, *(f"{each:,}" for each in (*counts, len(result.compactions))))
        table.add_row(*map(Text, (*cells, f"{result.duration_s:.1f}", result.problem or "all")))
    return table


def _compactions(results: Sequence[Replayed]) -> Table:
    numbers = ("tokens before", "after", "reported", "messages", "ms")
    table = _table("compactions of", numbers, "trigger", "level", "summary by")
    for result in results:
        for row in result.compactions:
            table.add_row(*map(Text, (result.name, *_compaction_cells(row))))
    return table


def _compaction_cells(row: CompactionRow) -> Iterator[str]:
    yield f"{row.tokens_before:,}"
    yield f"{row.tokens_after:,}"
    reported = row.tokens_after_reported
    yield NOTHING if reported is None else f"{reported:,}"
    yield f"{row.messages_before:,} → {row.messages_after:,}"
    yield f"{row.duration_ms:,}"
    yield row.trigger
    yield row.level
    yield NOTHING if row.retained_share is None else row.summary_model or "extractor"


def _bills(results: Sequence[Replayed], facts: ModelFacts) -> Table:
    """List the bills of a few conversations, and the total."""
    numbers = ("requests", "prompt tokens", "read", "written", "plain", "hits")
    table = _table("what it would have cost", (*numbers, "billed ÷ minimum", "cost"))
    if len(results) <= MOST_SHOWN:
        for result in results:
            table.add_row(Text(result.name), *_bill_cells(result.bill, facts))
    if len(results) > 1:
        total = reduce(add, (result.bill for result in results))
        table.add_row("all conversations", *_bill_cells(total, facts))
    return table


def _bill_cells(bill: Bill, facts: ModelFacts) -> tuple[str, ...]:
    usage, prices = bill.tally.billed, facts.prices
    written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
    # Without prices, use the ratio of tokens.
    ratio = bill.tally.ratio(prices) if prices and prices.input else bill.tally.ratio()
    counts = (bill.requests, usage.prompt_tokens, usage.cache_read_tokens, written)
    return (
        *(f"{count:,}" for count in (*counts, usage.input_tokens)),
        f"{bill.tally.hit_ratio:.3f}",
        f"{ratio:.3f}",
        format_usd(cost_usd(usage, prices), estimated=True),
    )


def prices_text(facts: ModelFacts) -> str:
    """Describe a model's prices with their source."""
    prices = facts.prices
    if prices is None:
        return f"{facts.name}: {UNKNOWN}"
    kinds = ("input", "cache_write_5m", "cache_write_1h", "cache_read", "output")
    listed = ", ".join(f"{kind.replace('_', ' ')} {getattr(prices, kind):g}" for kind in kinds)
    return f"{facts.name}, $ per million tokens: {listed}; source: {facts.source}"


def _table(first: str, numbers: Iterable[str], *others: str) -> Table:
    right = [Column(name, justify="right") for name in numbers]
    return Table(Column(first, no_wrap=True), *right, *others, box=None, pad_edge=False)
