"""The agent's ports on the database, for one turn: its records, its compactions, past messages."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import structlog

from agent.costs import cost_usd
from agent.messages import ChatMessage, ToolCall
from agent.models.base import ChatModel
from agent.ports import (
    Compaction,
    JournaledEffect,
    ModelCall,
    PastMessage,
    PlannerState,
    ToolStatus,
)
from agent.tokens import estimate_tokens
from agent.view import Summary
from gateway.archive import Archive
from gateway.errors import LeaseLost, TurnCancelled
from gateway.spending import TurnSpending
from gateway.storage import compactions, ledger, steps, transcript
from gateway.storage.engine import Database
from gateway.storage.lineage import Session
from gateway.storage.turns import Turn


class SummariesAhead(Protocol):
    """Who writes summaries in the background (gateway/preparing.py)."""

    def ask(self, session: Session, sender: str) -> None:
        """Have one written for a segment, on the budget of this sender."""
        ...

    def answered(self, session_id: int) -> None:
        """Take note that a call of the segment is on record."""
        ...

    async def ready(self, session_id: int) -> Summary | None:
        """Return the segment's summary; one that is being written is waited for."""
        ...


@dataclass(slots=True)
class Journal:
    """`agent.ports.TurnJournal` and `CompactionStore`; every write is one transaction.

    All are fenced, but for `book`: what was spent is booked also where the turn was lost.

    Attributes:
        turn: As it stands: its session changes with every compaction.
        ahead: Has summaries written ahead of need.
        spending: The budgets that the turn's calls count for.
        tell_user: Shows a notice in the chat, once a turn for each kind.
        in_flight: The call that is under way, as it would be booked if it were cut off now.
    """

    database: Database
    turn: Turn
    ahead: SummariesAhead
    spending: TurnSpending
    tell_user: Callable[[str], Awaitable[None]]
    in_flight: ModelCall | None = None

    async def record_message(self, message: ChatMessage, call: ModelCall | None = None) -> int:
        """Append an intermediate message and book the call that made it."""
        try:
            seq = await self.database.write(steps.record_message, self.turn, message, call)
        except (LeaseLost, TurnCancelled):
            if call is not None:
                # What it said is dropped; it is billed all the same.
                await self.book([replace(call, purpose="lost")])
            raise
        self.spending.close()
        if call is not None:
            self.ahead.answered(self.turn.session.id)
        return seq

    async def book(self, calls: Sequence[ModelCall]) -> None:
        """Book calls that made no message."""
        if calls:
            turn = self.turn
            conversation = turn.lease.conversation
            await self.database.write(ledger.book, conversation, turn.id, turn.sender, calls)

    def begin_call(self, call: ModelCall | None) -> None:
        """Take note of a call, or that it is over."""
        self.in_flight = call

    async def start_tool(self, call: ToolCall, effect: JournaledEffect) -> None:
        """Note the intent to run a tool."""
        await self.database.write(steps.start_tool, self.turn, call, effect)

    async def record_result(self, message: ChatMessage, status: ToolStatus) -> int:
        """Append a tool's result."""
        return await self.database.write(steps.record_result, self.turn, message, status)

    async def store_output(self, text: str) -> str:
        """Store a full output."""
        return await self.database.write(steps.store_output, self.turn, text)

    async def commit(self, compaction: Compaction, state: PlannerState) -> str:
        """Split the lineage; what is recorded from now on belongs to the new segment."""
        session = await self.database.write(compactions.compact, self.turn, compaction, state)
        self.turn = replace(self.turn, session=session)
        structlog.contextvars.bind_contextvars(session=session.id)
        return str(session.id)

    def archive(self) -> Archive:
        """Return the conversation's records; must be called in the event loop."""
        loop = asyncio.get_running_loop()
        turn = self.turn
        return Archive(self.database, turn.lease.conversation, loop, turn.begins_at)

    async def prepared(self) -> Summary | None:
        """Return the summary that was written ahead."""
        return await self.ahead.ready(self.turn.session.id)

    def prepare(self) -> None:
        """Have one written."""
        self.ahead.ask(self.turn.session, self.turn.sender)

    async def tell(self, what: Literal["clipped", "floor"]) -> None:
        """Tell the user."""
        await self.tell_user(what)


async def cut_off(
    call: ModelCall | None, written: str, models: Sequence[ChatModel]
) -> ModelCall | None:
    """Return the call that was cut off before its answer was kept, as it is booked.

    Args:
        call: As it was begun; None for none.
        written: What it had written.
        models: Their prices.
    """
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
