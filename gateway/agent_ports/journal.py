"""The database side of one turn's ports: its records, its compactions, past messages.

`agent.ports.Archive` serves context engines, which run in threads and wait for answers from the
event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

import structlog
from sqlalchemy import Connection

from agent.context_engine import Days, Node
from agent.messages import ChatMessage, ToolCall
from agent.models.base import ChatModel
from agent.money.costs import cost_usd
from agent.ports import (
    Compaction,
    Decision,
    JournaledEffect,
    ModelCall,
    NewSegment,
    Origin,
    PartStore,
    PastMessage,
    PlannerState,
    StepMark,
    ToolStatus,
)
from agent.tokens import estimate_tokens
from agent.view.view import Entry, Summary
from gateway.agent_ports.budgets import TurnSpending
from gateway.agent_ports.search import CATCH_UP_S, Indexer
from gateway.errors import LeaseLost, StorageError, TurnCancelled
from gateway.storage.conversation import compactions, transcript, turn_journal
from gateway.storage.conversation.sessions import Session
from gateway.storage.conversation.transcript import END
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.reports import spending
from gateway.storage.search import query
from gateway.storage.search.query import SearchLimits

P = ParamSpec("P")
T = TypeVar("T")

LIMIT_S = 30.0
"""Longest wait for one read, in seconds; it usually takes milliseconds."""


class SummariesAhead(Protocol):
    """Writes summaries in the background; see `gateway.context.summaries.Preparations`."""

    def ask(self, session: Session, sender: str) -> None:
        """Request a summary of a segment, on this sender's budget."""

    async def ready(self, session_id: int) -> Summary | None:
        """Return the segment's summary, if it is ready."""


@dataclass(frozen=True, slots=True)
class ConversationArchive:
    """Read access to the records of one conversation."""

    database: Database
    conversation: int
    loop: asyncio.AbstractEventLoop
    turn_begins_at: int = END

    def bodies(self, first_seq: int, last_seq: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return stored messages of a range in order."""
        return self._read(
            transcript.load_bodies, self.conversation, first_seq, last_seq, limit=limit
        )

    def nodes(self) -> Sequence[Node]:
        """Return all nodes."""
        return self._read(compactions.nodes_of, self.conversation)

    def find(self, words: str, limit: int, before_seq: int) -> Sequence[int]:
        """Return the seqs of matching messages, best first."""
        only = SearchLimits(before=(self.conversation, before_seq))
        return self._wait(self._found(words, limit, only))

    async def _found(self, words: str, limit: int, only: SearchLimits) -> list[int]:
        """Index the newest messages within a time limit, then search."""
        with suppress(TimeoutError, StorageError):
            async with asyncio.timeout(CATCH_UP_S):
                await Indexer(self.database).catch_up([self.conversation])
        found = await self.database.search(
            query.find, [self.conversation], words, limit=limit, only=only
        )
        return [match.seq for match in found]

    def _read(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._wait(self.database.read(fn, *args, **kwargs))

    def _wait(self, reading: Coroutine[Any, Any, T]) -> T:
        # The loop would wait for itself here.
        if _is_in(self.loop):
            # Otherwise Python warns about a coroutine that was never awaited.
            reading.close()
            raise RuntimeError("the archive blocks: it is not for the event loop's own thread")
        return asyncio.run_coroutine_threadsafe(reading, self.loop).result(LIMIT_S)


def _is_in(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the calling thread runs this loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


@dataclass(slots=True)
class Journal:
    """`agent.ports.TurnJournal` and `CompactionStore`; every write is one transaction.

    All writes are fenced except `book`: calls are billed even if the turn was lost.

    Attributes:
        turn: The turn; its session changes with every compaction.
        ahead: Prepares summaries in advance; None for a child, which ends too soon.
        tell_user: Shows a notice in the chat, once per turn and kind.
        in_flight: The current call as it would be booked if cut off now.
        recorded: The messages committed since the turn was loaded, in order.
    """

    database: Database
    turn: Turn
    ahead: SummariesAhead | None
    spending: TurnSpending
    tell_user: Callable[[str], Awaitable[None]]
    in_flight: ModelCall | None = None
    recorded: list[Entry] = field(default_factory=list)

    async def record_message(self, message: ChatMessage, call: ModelCall | None = None) -> int:
        """Append an intermediate message and book the call that made it."""
        try:
            seq = await self.database.write(turn_journal.record_message, self.turn, message, call)
        except (LeaseLost, TurnCancelled):
            if call is not None:
                # Its text is dropped, but the provider bills it.
                await self.book([replace(call, purpose="lost")])
            raise
        self.recorded.append(Entry(seq, message))
        # The ledger now contains the cost of the call.
        self.spending.close()
        return seq

    async def book(self, calls: Sequence[ModelCall]) -> None:
        """Book calls without a message."""
        if calls:
            turn = self.turn
            conversation = turn.lease.conversation
            await self.database.write(spending.book, conversation, turn.id, turn.sender, calls)

    def begin_call(self, call: ModelCall | None) -> None:
        """Set the call in flight; None when it has ended."""
        self.in_flight = call

    async def start_tool(
        self, call: ToolCall, effect: JournaledEffect, decision: Decision | None = None
    ) -> None:
        """Record the intent to run a tool."""
        await self.database.write(turn_journal.start_tool, self.turn, call, effect, decision)

    async def record_result(
        self,
        message: ChatMessage,
        status: ToolStatus,
        origins: Collection[Origin] = (),
        marks: Collection[StepMark] = (),
    ) -> int:
        """Append a tool's result."""
        seq = await self.database.write(
            turn_journal.record_result, self.turn, message, status, origins, marks
        )
        self.recorded.append(Entry(seq, message))
        known = self.turn.session.origins
        if new := [origin for origin in origins if origin not in known]:
            self.turn = replace(
                self.turn, session=replace(self.turn.session, origins=(*known, *new))
            )
        return seq

    async def store_output(self, text: str) -> str:
        """Store a full output."""
        return await self.database.write(turn_journal.store_output, self.turn, text)

    async def commit(self, compaction: Compaction, state: PlannerState) -> NewSegment:
        """Store a compaction; later messages belong to the new segment."""
        session = await self.database.write(compactions.compact, self.turn, compaction, state)
        before, self.turn = self.turn.session, replace(self.turn, session=session)
        structlog.contextvars.bind_contextvars(session=session.id)
        stays = session.system_prompt == before.system_prompt
        return NewSegment(str(session.id), None if stays else session.system_prompt)

    def archive(self) -> ConversationArchive:
        """Return the conversation's archive; call this in the event loop."""
        loop = asyncio.get_running_loop()
        turn = self.turn
        return ConversationArchive(self.database, turn.lease.conversation, loop, turn.begins_at)

    def parts(self) -> PartStore:
        """Return the store of partial summaries."""
        return KeptParts(self.database, self.turn.lease.conversation, self.turn.sender)

    async def days(self, first_seq: int, last_seq: int) -> Days:
        """Return the dates of the messages in a range."""
        conversation = self.turn.lease.conversation
        return await self.database.read(transcript.days, conversation, first_seq, last_seq)

    async def prepared(self) -> Summary | None:
        """Return the summary prepared in advance, if any."""
        return await self.ahead.ready(self.turn.session.id) if self.ahead else None

    def prepare(self) -> None:
        """Request a summary in advance."""
        if self.ahead is not None:
            self.ahead.ask(self.turn.session, self.turn.sender)

    async def tell(self, what: Literal["clipped", "floor"]) -> None:
        """Notify the user."""
        await self.tell_user(what)


@dataclass(frozen=True, slots=True)
class KeptParts:
    """`agent.ports.PartStore` of one conversation; calls count against the budget of `sender`."""

    database: Database
    conversation: int
    sender: str

    async def load(self) -> Mapping[str, str]:
        """Return the stored partial summaries."""
        return await self.database.read(compactions.parts_of, self.conversation)

    async def keep(self, key: str, text: str, calls: Sequence[ModelCall]) -> None:
        """Store a partial summary and book its calls."""
        await self.database.write(
            compactions.put_part, self.conversation, key, text, calls, self.sender
        )

    async def forget(self) -> None:
        """Delete the partial summaries."""
        await self.database.write(compactions.forget_parts, self.conversation)


async def cut_off(
    call: ModelCall | None, written: str, models: Sequence[ChatModel]
) -> ModelCall | None:
    """Return the booking for a call cut off before its answer was stored."""
    if call is None or call.usage is None or not call.estimated:
        return call
    tokens = await asyncio.to_thread(estimate_tokens, written, call.model)
    usage = replace(call.usage, output_tokens=tokens)
    prices = next((each.facts.prices for each in models if each.name == call.model), None)
    return replace(call, usage=usage, cost_usd=cost_usd(usage, prices))


@dataclass(frozen=True, slots=True)
class Reader:
    """`agent.ports.ConversationReader` of one conversation."""

    database: Database
    conversation: int

    async def read(
        self, *, from_seq: int | None, limit: int, contains: str | None
    ) -> Sequence[PastMessage]:
        """Return past messages in order."""
        return await self.database.read(
            transcript.read_past,
            self.conversation,
            from_seq=from_seq,
            limit=limit,
            contains=contains,
        )

    async def read_output(self, output_id: str) -> str | None:
        """Return a stored output."""
        return await self.database.read(transcript.read_blob, self.conversation, output_id)
