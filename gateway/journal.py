"""The agent's ports on the database, for one turn: its records, its compactions, past messages."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from agent.messages import ChatMessage, ToolCall
from agent.models.base import Usage
from agent.ports import Compaction, Effect, PastMessage, PlannerState, ToolStatus
from agent.view import Summary
from gateway.storage import compactions, transcript, turns
from gateway.storage.engine import Database
from gateway.storage.lineage import Session
from gateway.storage.turns import Turn


@dataclass(slots=True)
class Journal:
    """`agent.ports.TurnJournal` and `CompactionStore`; every write is one fenced transaction.

    Attributes:
        turn: As it stands: its session changes with every compaction.
        model: Whose estimates the meter learns about.
        ask_ahead: Has a summary prepared for a segment.
        tell_user: Shows a notice in the chat, once a turn for each kind.
    """

    database: Database
    turn: Turn
    model: str
    ask_ahead: Callable[[Session], None]
    tell_user: Callable[[str], Awaitable[None]]

    async def record_message(
        self, message: ChatMessage, usage: Usage | None = None, ratio: float | None = None
    ) -> int:
        """Append an intermediate message."""
        return await self.database.write(
            turns.record_message, self.turn, message, usage, ratio, self.model
        )

    async def start_tool(self, call: ToolCall, effect: Effect) -> None:
        """Note the intent to run a tool."""
        await self.database.write(turns.start_tool, self.turn, call, effect)

    async def record_result(self, message: ChatMessage, status: ToolStatus) -> int:
        """Append a tool's result."""
        return await self.database.write(turns.record_result, self.turn, message, status)

    async def store_output(self, text: str) -> str:
        """Store a full output."""
        return await self.database.write(turns.store_output, self.turn, text)

    async def commit(self, compaction: Compaction, state: PlannerState) -> str:
        """Split the lineage; what is recorded from now on belongs to the new segment."""
        session = await self.database.write(compactions.compact, self.turn, compaction, state)
        self.turn = replace(self.turn, session=session)
        structlog.contextvars.bind_contextvars(session=session.id)
        return str(session.id)

    async def prepared(self) -> Summary | None:
        """Return the summary that was written ahead."""
        return await self.database.read(compactions.candidate, self.turn.session.id)

    def prepare(self) -> None:
        """Have one written."""
        self.ask_ahead(self.turn.session)

    async def tell(self, what: Literal["clipped", "floor"]) -> None:
        """Tell the user."""
        await self.tell_user(what)


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
