"""What comes from a server, looked at before the SDK does (step 6).

The SDK refuses a listing as a whole where one tool in it is malformed, checks results by patterns
that a server wrote, and does not tell when a connection has ended while nothing is asked.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from agent.tools.mcp.listing import MAX_DEFINITIONS, misfit

MAX_MESSAGE_BYTES = 8_000_000
"""Longest message of a server; a longer one ends the connection, or fails the call."""
MAX_PARTS = 1_000
"""Of a result: the SDK takes seconds for those of a message that is nothing but parts."""

Incoming: TypeAlias = SessionMessage | Exception


class Watched:
    """The messages of a server; implements the SDK's ReadStream.

    Args:
        stream: What is watched; closed with this.
        on_end: Called when nothing will come any more.

    Attributes:
        listed: The definitions of tools that have come, as they came, up to `MAX_DEFINITIONS`.
    """

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end
        self.listed: list[Any] = []

    @property
    def last_context(self) -> Any:
        """The context in which the newest message was sent; the SDK goes on in it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Incoming:
        """Return the next message, without what the SDK stumbles over or takes long for."""
        try:
            message: Incoming = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._on_end()
            raise
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            self._look_at(message.message.result)
        return message

    def _look_at(self, result: dict[str, Any]) -> None:
        if isinstance(result.get("tools"), list):
            came = result["tools"][: MAX_DEFINITIONS - len(self.listed)]
            self.listed += came
            result["tools"] = [_bare(tool) for tool in came if _is_sound(tool)]
        parts = result.get("content")
        if isinstance(parts, list) and len(parts) > MAX_PARTS:
            mark = f"[{len(parts) - MAX_PARTS:,} more parts left out]"
            result["content"] = [*parts[:MAX_PARTS], {"type": "text", "text": mark}]

    async def aclose(self) -> None:
        """Close what is watched."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def _is_sound(tool: Any) -> bool:
    named = isinstance(tool, dict) and isinstance(tool.get("name"), str)
    return named and misfit(tool.get("inputSchema")) is None


def _bare(tool: dict[str, Any]) -> dict[str, Any]:
    """Return what the SDK needs to call a tool: its name, and which arguments become headers."""
    properties = tool["inputSchema"].get("properties")
    properties = properties if isinstance(properties, dict) else {}
    sections = {name: each for name, each in properties.items() if isinstance(each, dict)}
    return {"name": tool["name"], "inputSchema": {"type": "object", "properties": sections}}
