"""The connection to one MCP server: kept while the gateway runs, made again when it was lost.

A server's results become text for the model here.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import structlog
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    Implementation,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agent.errors import ToolError
from agent.settings import McpServerSettings
from agent.tools.mcp import transports
from agent.tools.mcp.listing import MAX_TOOLS
from agent.tools.mcp.transports import Watched

log = structlog.get_logger()

LONGEST_PAUSE_S = 60.0
"""Longest wait before the next attempt to connect."""
STABLE_S = 60.0
"""A connection that held this long begins its back-off anew."""
MAX_PAGES = 20
"""How many pages of a listing are read: they may be empty, and so without an end."""
_ERROR_CHARS = 2_000
_SESSION_GONE = "Session terminated"


class Connection:
    """The connection to one server.

    Args:
        name: Of the server in the settings.
        server: How it is reached.
        on_listed: Gets the definitions of its tools each time it was connected; in a thread.

    Attributes:
        tried: Set once it is connected, or known that it is not to be had now.
        problem: Why it is not connected; None while it is.
        said: The end of what a program wrote to stderr that did not come so far as to answer.
    """

    def __init__(
        self, name: str, server: McpServerSettings, on_listed: Callable[[list[Any]], None]
    ) -> None:
        self.name = name
        self.tried = asyncio.Event()
        self.problem: str | None = "not connected yet"
        self.said = ""
        self._server = server
        self._on_listed = on_listed
        self._client: Client | None = None
        self._lost = asyncio.Event()
        self._has_changed = False

    async def run(self) -> None:
        """Keep the connection until cancelled; its failures stay here."""
        failures = 0
        while True:
            began = time.monotonic()
            tail = transports.Tail()
            try:
                await self._connect(tail)
                reason = "the connection has ended"
            except Exception as exc:  # noqa: BLE001 - whatever a server does ends here
                reason = reason_of(exc)
            # Once it was connected, what it writes may hold what people said.
            self.said = "" if self.problem is None else tail.text.strip()
            self.problem = reason
            self.tried.set()
            log.warning("mcp_lost", server=self.name, reason=self.problem, said=self.said)
            failures = 1 if time.monotonic() - began > STABLE_S else failures + 1
            await asyncio.sleep(min(2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S))

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Have the server run a tool; a cancellation is passed on to it.

        Raises:
            ToolError: What the server says went wrong, or that it is not there.
        """
        client = self._client
        if client is None:
            raise ToolError(f"the MCP server {self.name} is not connected now; try again later")
        try:
            result = await client.call_tool(tool, arguments)
        except MCPError as exc:
            raise self._refusal(exc) from exc
        except (ValidationError, RuntimeError) as exc:
            # What it quotes of the answer is of no use to anybody.
            raise ToolError(f"the MCP server {self.name} answered with what is no result") from exc
        text = text_of(result)
        if result.is_error:
            raise ToolError(text)
        return text

    def _refusal(self, error: MCPError) -> ToolError:
        if error.code == CONNECTION_CLOSED or error.message == _SESSION_GONE:
            self._lost.set()
            return ToolError(
                f"the connection to the MCP server {self.name} was lost; what the call has done"
                " by then is not known"
            )
        return ToolError(f"the MCP server {self.name}: {error.message[:_ERROR_CHARS]}")

    async def _connect(self, tail: transports.Tail) -> None:
        """Connect, list the tools, and return when the connection is lost."""
        self._lost.clear()
        self._has_changed = False
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._server.start_timeout_s):
                streams = await stack.enter_async_context(self._streams(tail))
                watched = Watched(streams[0], self._lost.set)
                client = await stack.enter_async_context(self._session(watched, streams[1]))
                await _list(client)
            # What a server wrote is checked where it keeps nobody waiting.
            await asyncio.to_thread(self._on_listed, watched.listed)
            self._client, self.problem = client, None
            stack.callback(self._forget)
            took_ms = round((time.monotonic() - began) * 1000)
            log.info("mcp_connected", server=self.name, tools=len(watched.listed), ms=took_ms)
            self.tried.set()
            await self._follow(client)
            await self._lost.wait()

    def _streams(self, tail: transports.Tail) -> Any:
        if self._server.command is not None:
            return transports.over_pipes(self.name, self._server, tail)
        return transports.over_http(self._server)

    def _session(self, read: Watched, write: Any) -> Client:
        return Client(
            _open(read, write),
            message_handler=self._on_message,
            client_info=Implementation(name="parley", version="1"),
            cache=None,
        )

    def _forget(self) -> None:
        self._client = None

    async def _on_message(self, message: Any) -> None:
        # Once for each connection: a server may say so without end.
        if isinstance(message, ToolListChangedNotification) and not self._has_changed:
            self._has_changed = True
            log.warning("mcp_list_changed", server=self.name)

    async def _follow(self, client: Client) -> None:
        """Ask for changes of the list to be told; older servers do that without being asked."""
        tools = client.server_capabilities.tools
        asks = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        if not asks or tools is None or not tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    # It comes as a message as well.
                    continue
        except (MCPError, SubscriptionLost, TimeoutError) as exc:
            log.debug("mcp_changes_not_followed", server=self.name, reason=str(exc))


@asynccontextmanager
async def _open(read: Watched, write: Any) -> AsyncIterator[Any]:
    """Hand over streams that are closed by whoever opened them."""
    yield read, write


async def _list(client: Client) -> None:
    """Ask for all pages of the list of tools; `Watched` takes what comes."""
    cursor = None
    seen = 0
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        cursor, seen = page.next_cursor, seen + len(page.tools)
        if not cursor or seen > MAX_TOOLS:
            return


def reason_of(error: BaseException) -> str:
    """Return what a failure is about; groups of the SDK's tasks hold it inside."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300].rstrip(": ")


def text_of(result: CallToolResult) -> str:
    """Return all parts of a result; what is no text is named.

    Structured content stands below them as JSON, unless a part says the same.
    """
    parts = [_part(part) for part in result.content]
    if result.structured_content is not None and not _says(result.structured_content, parts):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts) or "(no content)"


def _part(part: Any) -> str:
    match part:
        case TextContent():
            return part.text
        case ImageContent() | AudioContent():
            return f"[{part.type}: {part.mime_type}, {_size(part.data)}]"
        case ResourceLink():
            return f"[resource: {part.name}, {part.uri}]"
        case EmbeddedResource(resource=BlobResourceContents() as blob):
            return f"[resource: {blob.uri}, {blob.mime_type or 'binary'}, {_size(blob.blob)}]"
        case EmbeddedResource(resource=TextResourceContents() as text):
            return f"[resource: {text.uri}]\n{text.text}"
        case _:
            return f"[{getattr(part, 'type', 'unknown')}]"


def _size(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


def _says(value: Any, parts: list[str]) -> bool:
    """Whether a part says the same, as older clients need it; the SDK wraps what is no object."""
    inner = value["result"] if isinstance(value, dict) and value.keys() == {"result"} else value
    for part in parts:
        try:
            said = json.loads(part)
        except (ValueError, RecursionError):
            said = part
        if said in (value, inner) or part == inner:
            return True
    return False
