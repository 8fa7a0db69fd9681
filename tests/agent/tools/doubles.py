"""The journal and the reader that tool tests run against, in memory."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from agent.messages import ChatMessage, ToolCall, text_of
from agent.models.base import Usage
from agent.ports import Effect, PastMessage, ToolStatus
from agent.tools.registry import ToolContext

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


class MemoryJournal:
    """Keeps what a turn would commit, in the order in which it is committed."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []
        self.outputs: dict[str, str] = {}
        self.changed = asyncio.Condition()

    async def record_message(self, message: ChatMessage, usage: Usage | None = None) -> None:
        self.events.append(("message", text_of(message)))

    async def start_tool(self, call: ToolCall, effect: Effect) -> None:
        await self._note("start", call["id"], effect)

    async def record_result(self, message: ChatMessage, status: ToolStatus) -> None:
        await self._note("result", message["tool_call_id"], status)

    async def store_output(self, text: str) -> str:
        output_id = f"o{len(self.outputs) + 1}"
        self.outputs[output_id] = text
        return output_id

    async def wait_for(self, *event: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: event in self.events)

    async def _note(self, *event: str) -> None:
        async with self.changed:
            self.events.append(event)
            self.changed.notify_all()


class MemoryReader:
    """A transcript and stored outputs, given in full."""

    def __init__(self, messages: Sequence[PastMessage] = (), **outputs: str) -> None:
        self.messages = messages
        self.outputs = outputs

    async def read(
        self, *, from_seq: int | None, limit: int, contains: str | None
    ) -> Sequence[PastMessage]:
        wanted = (contains or "").lower()
        found = [it for it in self.messages if wanted in it.text.lower()]
        if from_seq is None:
            return found[-limit:]
        return [it for it in found if it.seq >= from_seq][:limit]

    async def read_output(self, output_id: str) -> str | None:
        return self.outputs.get(output_id)


def context(reader: MemoryReader | None = None) -> ToolContext:
    return ToolContext("c1", reader or MemoryReader(), lambda: NOW)


def call(name: str, arguments: str = "{}", call_id: str = "call_1") -> ToolCall:
    return ToolCall(id=call_id, type="function", function={"name": name, "arguments": arguments})
