"""All configured MCP servers: their connections and their tools.

The list of tools is built once at start-up: requests must start with the same bytes while the
gateway runs. A server that is unavailable then keeps the tools of its last start; new tools are
used after the next start. Lost connections are re-established. This module converts results to
text.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import structlog
from mcp import Client, MCPError
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
)
from pydantic import ValidationError
from typing_extensions import override

from agent.errors import ToolError
from agent.network import in_words
from agent.settings import McpServerSettings, SandboxSettings
from agent.tools.context import ToolContext
from agent.tools.mcp import transports
from agent.tools.mcp.listing import MAX_TOOLS, build_listing
from agent.tools.mcp.transports import FOLDER, Quarters, Watched
from agent.tools.registry import ServedTool, ServedTools, ServerState, Tool
from agent.tools.truncate import end_of

log = structlog.get_logger()

AUTO = SandboxSettings()
LONGEST_PAUSE_S = 60.0
"""Longest wait in seconds before the next attempt to connect."""
STABLE_S = 60.0
"""A connection that lasted this many seconds resets its back-off."""
MAX_PAGES = 20
"""Most pages of a listing that are read: empty pages might never end."""
_ERROR_CHARS = 2_000
_SAID_CHARS = 500
_SESSION_GONE = "Session terminated"
_WALLS = (
    "; it runs behind walls: `tools.mcp.{0}.network`, `.readable` and `.writable` give it more,"
    " `.confined: false` takes them away"
)


@asynccontextmanager
async def mcp_tools(
    servers: Mapping[str, McpServerSettings],
    home: Path,
    sandbox: SandboxSettings = AUTO,
    agreed: Collection[str] = (),
) -> AsyncIterator[ServedTools]:
    """Connect to each enabled server once, yield their tools in a fixed order, and stay connected.

    `agreed` are the digests of texts that an owner approved (`agent.tools.registry.HeldTool`).
    """
    quarters = Quarters(sandbox, home)
    known = [
        Server(name, servers[name], quarters)
        # Sorted by name: requests must start with the same bytes after every start.
        for name in sorted(servers)
        if servers[name].enabled
    ]
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each.run(), name=f"mcp {each.name}") for each in known]
            for each in known:
                await each.settle()
            yield _StartedTools.of(known, agreed)
            for task in running:
                task.cancel()
    except BaseExceptionGroup as failures:
        # The caller distinguishes errors by class.
        raise failures.exceptions[0] from failures


class _StartedTools(ServedTools):
    started: Sequence["Server"] = ()

    @classmethod
    def of(cls, started: Sequence["Server"], agreed: Collection[str]) -> "_StartedTools":
        """Return the tools that need no approval; of two with the same name the first wins."""
        tools: dict[str, Tool] = {}
        for server in started:
            for served in server.listing.tools:
                held, called, name = served.held, served.name, served.server_name
                if held and held.digest not in agreed:
                    log.warning("mcp_tool_held", server=server.name, tool=name, reason=held.why)
                elif called in tools:
                    reason = f"another server's tool is called {called}"
                    log.warning("mcp_tool_skipped", server=server.name, tool=name, reason=reason)
                else:
                    tools[called] = server.tool(served)
        made = cls(tools.values())
        made.started = started
        return made

    @override
    def states(self) -> Sequence[ServerState]:
        return [each.state() for each in self.started]

    @override
    def agreeing(self, agreed: Collection[str], /) -> ServedTools:
        return self.of(self.started, agreed)


class Server:
    """One server: its connection and its tools.

    Attributes:
        listing: The tools in use; fixed by `settle`.
        tried: Set after the first attempt to connect.
        problem: Reason why it is not connected; None while it is.
        said: The last stderr output of a program that never answered.
    """

    def __init__(self, name: str, settings: McpServerSettings, quarters: Quarters) -> None:
        self.name = name
        self.listing = ServerState(name)
        self.tried = asyncio.Event()
        self.problem: str | None = "not connected yet"
        self.said = ""
        self._settings = settings
        self._quarters = quarters
        self._memory = quarters.home / FOLDER / f"{name}.json"
        self._definitions: list[Any] | None = None
        self._settled = False
        self._client: Client | None = None
        self._lost = asyncio.Event()
        self._unanswered = ""
        # Limits the number of pieces: together they are longer than the part shown.
        self._stderr = deque[str](maxlen=_SAID_CHARS)

    async def settle(self) -> None:
        """Wait for the first attempt to connect, then fix the tools until the next start."""
        await self.tried.wait()
        definitions, remembered = self._definitions, False
        if definitions is None:
            definitions = await asyncio.to_thread(self._recall)
            remembered = bool(definitions)
        else:
            await asyncio.to_thread(self._remember, definitions)
        listing = await asyncio.to_thread(self._listed, definitions)
        self.listing = replace(listing, remembered=remembered, is_confined=self._is_confined)
        self._settled = True
        for tool, reason in listing.skipped:
            log.warning("mcp_tool_skipped", server=self.name, tool=tool, reason=reason)
        if removed := sum(each.removed for each in listing.tools):
            log.warning("mcp_text_removed", server=self.name, spans=removed)

    def state(self) -> ServerState:
        """Return the current state."""
        return replace(self.listing, problem=self.problem, said=self.said)

    @property
    def _is_confined(self) -> bool | None:
        if self._settings.command is None:
            return None
        return self._settings.confined is not False and self._quarters.sandbox.backend != "none"

    def tool(self, served: ServedTool) -> Tool:
        """Convert a served tool to one that the agent can run."""
        return Tool(
            name=served.name,
            description=served.description,
            effect=served.effect,
            arguments=served.schema,
            run=partial(self._run, served.server_name),
            timeout_s=self._settings.timeout_s,
            restricted=True,
        )

    async def _run(self, tool: str, context: ToolContext, arguments: dict[str, Any]) -> str:
        # Errors are the server's text as well.
        context.rights.read.note("server", self.name)
        return await self.call(tool, arguments)

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Run a tool on the server; its error becomes a `ToolError`; forward cancellation."""
        client = self._client
        if client is None:
            why = f"the MCP server {self.name} is not connected now; try again later"
            raise ToolError(f"{why} ({self.problem})")
        self._unanswered = tool
        try:
            result = await client.call_tool(tool, arguments)
        except MCPError as exc:
            raise self._refusal(exc) from exc
        except (ValidationError, RuntimeError) as exc:
            self._unanswered = ""
            # Without the quotes around the answer.
            raise ToolError(f"the MCP server {self.name} answered with an unusable result") from exc
        self._unanswered = ""
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
        self._unanswered = ""
        return ToolError(f"the MCP server {self.name}: {error.message[:_ERROR_CHARS]}")

    async def run(self) -> None:
        """Keep the connection open until cancelled; handle its failures here."""
        failures = 0
        while True:
            began = time.monotonic()
            self._stderr.clear()
            try:
                await self._connect()
                reason = "the connection has ended"
            except Exception as exc:  # noqa: BLE001 - every failure of a server ends here
                reason = in_words(exc, quoted=True)
            self.said = ""
            # After a connection, stderr may contain people's messages.
            if self.problem is not None:
                self.said = end_of("".join(self._stderr), _SAID_CHARS).strip()
                reason += _WALLS.format(self.name) if self._is_confined else ""
            self.problem = reason
            self.tried.set()
            tool = self._unanswered
            log.warning("mcp_lost", server=self.name, tool=tool, reason=reason, said=self.said)
            failures = 1 if time.monotonic() - began > STABLE_S else failures + 1
            await asyncio.sleep(min(2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S))

    async def _connect(self) -> None:
        """Connect, list the tools, and return when the connection is lost."""
        self._lost.clear()
        self._unanswered = ""
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._settings.start_timeout_s):
                streams = transports.over_http(self._settings)
                if self._settings.command is not None:
                    streams = transports.over_pipes(
                        self.name, self._settings, self._quarters, self._stderr
                    )
                read, write = await stack.enter_async_context(streams)
                watched = Watched(read, self._lost.set)
                client = await stack.enter_async_context(
                    Client(
                        # The exit stack closes them.
                        nullcontext((watched, write)),
                        client_info=Implementation(name="parley", version="1"),
                        cache=None,
                    )
                )
                await _list(client)
            self._definitions = watched.listed
            if self._settled:
                # On a thread: the checks can be slow.
                listing = await asyncio.to_thread(self._listed, watched.listed)
                if listing.tools != self.listing.tools:
                    log.warning("mcp_list_changed", server=self.name)
            took_ms = round((time.monotonic() - began) * 1000)
            log.info("mcp_connected", server=self.name, tools=len(watched.listed), ms=took_ms)
            self._client, self.problem = client, None
            self.tried.set()
            try:
                await self._lost.wait()
            finally:
                self._client = None

    def _listed(self, definitions: list[Any]) -> ServerState:
        of = self._settings
        return build_listing(self.name, definitions, of.tools, of.read_only)

    def _recall(self) -> list[Any]:
        try:
            found = orjson.loads(self._memory.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, orjson.JSONDecodeError) as exc:
            log.warning("mcp_memory_unusable", server=self.name, error=str(exc))
            return []
        return found if isinstance(found, list) else []

    def _remember(self, definitions: list[Any]) -> None:
        """Store the listing atomically; without it the next start depends on the server."""
        kept = ("name", "description", "inputSchema")
        stored = [
            {key: each.get(key) for key in kept} if isinstance(each, dict) else None
            for each in definitions
        ]
        new = self._memory.with_suffix(".new")
        try:
            self._memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_bytes(orjson.dumps(stored))
            new.replace(self._memory)
        except (OSError, TypeError) as exc:
            log.warning("mcp_memory_unusable", server=self.name, error=str(exc))


async def _list(client: Client) -> None:
    """Request all pages of the tool list, which `Watched` collects."""
    cursor, seen = None, 0
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        cursor, seen = page.next_cursor, seen + len(page.tools)
        if not cursor or seen > MAX_TOOLS:
            return


def text_of(result: CallToolResult) -> str:
    """Return all parts of a result, and structured content as JSON unless a part repeats it."""
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
    """Return whether a part repeats a value for older clients; the SDK wraps all but objects."""
    inner = value["result"] if isinstance(value, dict) and value.keys() == {"result"} else value
    for part in parts:
        try:
            said = json.loads(part)
        except (ValueError, RecursionError):
            said = part
        if said in (value, inner) or part == inner:
            return True
    return False
