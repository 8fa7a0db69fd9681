"""All MCP servers of the settings: their connections, and the tools that they add.

The list of tools is made once, at the start: requests must begin with the same bytes while the
gateway runs. A server that is not there then is taken to offer what it did last; what it offers
anew is used from the next start on. A connection is kept while the gateway runs, and made again
when it was lost; results become text for the model here.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import orjson
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
from typing_extensions import override

from agent.errors import ToolError
from agent.network import in_words
from agent.settings import McpServerSettings, SandboxSettings
from agent.tools.context import ToolContext
from agent.tools.mcp import transports
from agent.tools.mcp.failures import remedy_of
from agent.tools.mcp.listing import (
    MAX_TOOLS,
    Listing,
    Offered,
    Skipped,
    listing_of,
)
from agent.tools.mcp.quarters import Quarters
from agent.tools.mcp.transports import Watched
from agent.tools.registry import HeldTool, ServedTools, ServerState, Tool

log = structlog.get_logger()

AUTO = SandboxSettings()
FOLDER = "mcp"
"""Below PARLEY_HOME: what each server offered last."""
LONGEST_PAUSE_S = 60.0
"""Longest wait before the next attempt to connect."""
STABLE_S = 60.0
"""A connection that held this long begins its back-off anew."""
MAX_PAGES = 20
"""How many pages of a listing are read: they may be empty, and so without an end."""
_ERROR_CHARS = 2_000
_SESSION_GONE = "Session terminated"


@asynccontextmanager
async def mcp_tools(
    servers: Mapping[str, McpServerSettings],
    home: Path,
    sandbox: SandboxSettings = AUTO,
    agreed: Collection[str] = (),
) -> AsyncIterator[ServedTools]:
    """Connect to the enabled servers, yield their tools, and stay connected while the body runs.

    Args:
        agreed: Digests of texts that an owner approved (`agent.tools.registry.HeldTool`).

    Yields:
        In a fixed order. Every server was tried once by then, for `start_timeout_s` at most.
    """
    async with connected(servers, home, sandbox) as started:
        yield _StartedTools(_distinct(started, agreed).values(), started)


class _StartedTools(ServedTools):
    """The tools of started servers."""

    def __new__(cls, tools: Iterable[Tool], _started: Sequence["Server"]) -> Self:
        return super().__new__(cls, tools)

    def __init__(self, _tools: Iterable[Tool], started: Sequence["Server"]) -> None:
        self._started = started

    @override
    def states(self) -> Sequence[ServerState]:
        return [each.state() for each in self._started]

    @override
    def agreeing(self, agreed: Collection[str], /) -> ServedTools:
        return _StartedTools(_distinct(self._started, agreed).values(), self._started)


@asynccontextmanager
async def connected(
    servers: Mapping[str, McpServerSettings],
    home: Path,
    sandbox: SandboxSettings = AUTO,
) -> AsyncIterator[list["Server"]]:
    """Run the connections of the enabled servers while the body runs; all were tried once."""
    quarters = Quarters(sandbox, home, home / FOLDER)
    known = [
        Server(name, servers[name], quarters)
        # By name: requests must begin with the same bytes at every start.
        for name in sorted(servers)
        if servers[name].enabled
    ]
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(each.connection.run(), name=f"mcp {each.name}") for each in known
            ]
            for each in known:
                await each.settle()
            yield known
            for task in running:
                task.cancel()
    except BaseExceptionGroup as failures:
        # The caller tells errors apart by their class.
        raise failures.exceptions[0] from failures


def _distinct(servers: Iterable["Server"], agreed: Collection[str]) -> dict[str, Tool]:
    """Return the tools of all servers by name; the first of a name has it."""
    tools: dict[str, Tool] = {}
    for server in servers:
        for offered in server.listing.tools:
            if offered.orders and offered.digest not in agreed:
                why = "; ".join(offered.orders)
                log.warning(
                    "mcp_tool_held", server=server.name, tool=offered.server_name, reason=why
                )
            elif offered.name in tools:
                reason = f"another server's tool is called {offered.name}"
                _tell_skipped(server.name, Skipped(offered.server_name, reason))
            else:
                tools[offered.name] = server.tool(offered)
    return tools


class Server:
    """One server and its tools.

    Args:
        quarters: Where its program lives; what it offered last lies beside that.

    Attributes:
        listing: What is in use; fixed once it is settled.
    """

    def __init__(self, name: str, server: McpServerSettings, quarters: Quarters) -> None:
        self.name = name
        self.listing = Listing()
        self.connection = Connection(name, server, quarters, self._on_listed)
        self._server = server
        self._quarters = quarters
        self._memory = quarters.folder / f"{name}.json"
        self._definitions: list[Any] | None = None
        self._settled = False
        self._remembered = False

    async def settle(self) -> None:
        """Decide, once the server was tried, which tools there are until the next start."""
        await self.connection.tried.wait()
        definitions = self._definitions
        if definitions is None:
            definitions = await asyncio.to_thread(self._recall)
            self._remembered = bool(definitions)
        else:
            await asyncio.to_thread(self._remember, definitions)
        self.listing = await asyncio.to_thread(self._listing, definitions)
        self._settled = True
        for skipped in self.listing.skipped:
            _tell_skipped(self.name, skipped)
        if removed := sum(each.removed for each in self.listing.tools):
            log.warning("mcp_text_removed", server=self.name, spans=removed)

    def state(self) -> ServerState:
        """Return its connection and its tools as they are now."""
        tools = self.listing.tools
        return ServerState(
            *(self.name, self.connection.problem, self.connection.said, self._remembered),
            [
                (each.name, self._effect(each), each.description)
                for each in tools
                if not each.orders
            ],
            [(each.server_name, each.reason) for each in self.listing.skipped],
            [held(self.name, each) for each in tools if each.orders],
            self._is_confined,
        )

    @property
    def _is_confined(self) -> bool | None:
        has_walls = self._quarters.sandbox.backend != "none"
        is_kept = self._server.confined is not False and has_walls
        return None if self._server.command is None else is_kept

    def _effect(self, offered: Offered) -> Literal["read", "side_effect"]:
        return "read" if offered.server_name in self._server.read_only else "side_effect"

    def tool(self, offered: Offered) -> Tool:
        """Return a tool as the agent runs it."""
        return Tool(
            name=offered.name,
            description=offered.description,
            effect=self._effect(offered),
            arguments=offered.schema,
            run=partial(self._run, offered.server_name),
            timeout_s=self._server.timeout_s,
            restricted=True,
        )

    async def _run(self, tool: str, context: ToolContext, arguments: dict[str, Any]) -> str:
        # Its errors are a server's words as well.
        context.rights.read.note("server", self.name)
        return await self.connection.call(tool, arguments)

    def _on_listed(self, definitions: list[Any]) -> None:
        self._definitions = definitions
        if self._settled and self._listing(definitions).tools != self.listing.tools:
            log.warning("mcp_list_changed", server=self.name)

    def _listing(self, definitions: list[Any]) -> Listing:
        return listing_of(self.name, definitions, self._server.tools)

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
        """Store what is offered, in one step; without it the next start needs the server."""
        new = self._memory.with_suffix(".new")
        try:
            self._memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_bytes(orjson.dumps([_kept(each) for each in definitions]))
            new.replace(self._memory)
        except (OSError, TypeError) as exc:
            log.warning("mcp_memory_unusable", server=self.name, error=str(exc))


def held(server: str, offered: Offered) -> HeldTool:
    """Return the held tool about which an owner is asked."""
    why = "; ".join(offered.orders)
    return HeldTool(offered.digest, server, offered.server_name, why, offered.text)


def _kept(definition: Any) -> Any:
    if not isinstance(definition, dict):
        return None
    return {key: definition.get(key) for key in ("name", "description", "inputSchema")}


def _tell_skipped(server: str, skipped: Skipped) -> None:
    log.warning("mcp_tool_skipped", server=server, tool=skipped.server_name, reason=skipped.reason)


class Connection:
    """The connection to one server.

    Args:
        on_listed: Gets the definitions of its tools each time it was connected; in a thread.

    Attributes:
        tried: Set once it is connected, or known that it is not to be had now.
        problem: Why it is not connected; None while it is.
        said: The end of what a program wrote to stderr that did not come so far as to answer.
    """

    def __init__(
        self,
        name: str,
        server: McpServerSettings,
        quarters: Quarters,
        on_listed: Callable[[list[Any]], None],
    ) -> None:
        self.name = name
        self.tried = asyncio.Event()
        self.problem: str | None = "not connected yet"
        self.said = ""
        self._server = server
        self._quarters = quarters
        self._on_listed = on_listed
        self._client: Client | None = None
        self._lost = asyncio.Event()
        self._unanswered = ""
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
                reason = in_words(exc, quoted=True)
            # Once it was connected, what it writes may hold what people said.
            self.said = "" if self.problem is None else tail.text.strip()
            if self.problem is not None:
                remedy = remedy_of(self.name, self._server, reason, tail.kept)
                reason = f"{reason}: {remedy}" if remedy else reason
            self.problem = reason
            self.tried.set()
            tool = self._unanswered
            log.warning("mcp_lost", server=self.name, tool=tool, reason=reason, said=self.said)
            failures = 1 if time.monotonic() - began > STABLE_S else failures + 1
            await asyncio.sleep(min(2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S))

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Have the server run a tool; a cancellation is passed on to it.

        Raises:
            ToolError: What the server says went wrong, or that it is not there.
        """
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
            # What it quotes of the answer is of no use to anybody.
            raise ToolError(f"the MCP server {self.name} answered with what is no result") from exc
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

    async def _connect(self, tail: transports.Tail) -> None:
        """Connect, list the tools, and return when the connection is lost."""
        self._lost.clear()
        self._has_changed, self._unanswered = False, ""
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
            return transports.over_pipes(self.name, self._server, self._quarters, tail)
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
