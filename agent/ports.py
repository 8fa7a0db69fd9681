"""What the agent needs from whoever runs it. The gateway implements these on its database."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agent.messages import ChatMessage, ToolCall
from agent.models.base import Usage

Effect = Literal["read", "idempotent", "side_effect"]
ToolStatus = Literal["ok", "partial", "error", "unknown", "cancelled"]


class TurnJournal(Protocol):
    """The durable record of one turn. Every call is committed when it returns.

    All raise `LeaseLost` (gateway/errors.py) when another worker has taken the conversation over;
    the turn must then be dropped.
    """

    async def record_message(self, message: ChatMessage, usage: Usage | None = None) -> None:
        """Append an intermediate message of this turn: an assistant step or a synthetic request."""
        ...

    async def start_tool(self, call: ToolCall, effect: Effect) -> None:
        """Note the intent to run a tool, before it runs."""
        ...

    async def record_result(self, message: ChatMessage, status: ToolStatus) -> None:
        """Append a tool's result and end its journal entry."""
        ...

    async def store_output(self, text: str) -> str:
        """Store a tool's full output; return the id under which it can be read again."""
        ...


@dataclass(frozen=True, slots=True)
class PastMessage:
    """A message of the transcript as a tool shows it; `at` is an ISO 8601 time in UTC."""

    seq: int
    role: str
    text: str
    at: str


class ConversationReader(Protocol):
    """Read access to the transcript of the one conversation that a turn belongs to."""

    async def read(
        self, *, from_seq: int | None, limit: int, contains: str | None
    ) -> Sequence[PastMessage]:
        """Return messages in order of `seq`, at most `limit` (1 to 200).

        Args:
            from_seq: First position to return; None for the newest ones.
            limit: Most messages to return.
            contains: Only messages whose text holds this, letter case ignored.
        """
        ...

    async def read_output(self, output_id: str) -> str | None:
        """Return a stored tool output of this conversation; None if there is none."""
        ...
