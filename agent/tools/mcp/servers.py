"""All MCP servers of the settings: their connections, and the tools that they add.

The list of tools is made once, at the start: requests must begin with the same bytes while the
gateway runs. A server that is not there then is taken to offer what it did last; what it offers
anew is used from the next start on.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import structlog

from agent.settings import McpServerSettings
from agent.tools.context import ToolContext
from agent.tools.mcp.connection import Connection
from agent.tools.mcp.listing import Listing, Offered, SchemaArguments, Skipped, listing_of
from agent.tools.registry import Tool

log = structlog.get_logger()

FOLDER = "mcp"
"""Below PARLEY_HOME: what each server offered last."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What became of one server at the start; for `parley mcp list`.

    Attributes:
        problem: Why it is not connected; None if it is.
        said: The end of what a program that is not connected said to stderr.
        remembered: Whether its tools are those of an earlier start.
    """

    name: str
    problem: str | None
    said: str
    remembered: bool
    listing: Listing


@asynccontextmanager
async def mcp_tools(
    servers: Mapping[str, McpServerSettings], home: Path
) -> AsyncIterator[tuple[Tool, ...]]:
    """Connect to the enabled servers, yield their tools, and stay connected while the body runs.

    Args:
        servers: By name.
        home: PARLEY_HOME.

    Yields:
        In a fixed order. Every server was tried once by then, for `start_timeout_s` at most.
    """
    async with connected(servers, home) as started:
        yield tuple(_distinct(started).values())


@asynccontextmanager
async def connected(
    servers: Mapping[str, McpServerSettings], home: Path
) -> AsyncIterator[list["Server"]]:
    """Run the connections of the enabled servers while the body runs; all were tried once."""
    known = [
        Server(name, servers[name], home / FOLDER / f"{name}.json")
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


def _distinct(servers: Iterable["Server"]) -> dict[str, Tool]:
    """Return the tools of all servers by name; the first of a name has it."""
    tools: dict[str, Tool] = {}
    for server in servers:
        for offered in server.listing.tools:
            if offered.name in tools:
                reason = f"another server's tool is called {offered.name}"
                _tell_skipped(server.name, Skipped(offered.server_name, reason))
            else:
                tools[offered.name] = server.tool(offered)
    return tools


class Server:
    """One server and its tools.

    Args:
        name: In the settings.
        server: Its settings.
        memory: The file that holds what it offered last.

    Attributes:
        listing: What is in use; fixed once it is settled.
    """

    def __init__(self, name: str, server: McpServerSettings, memory: Path) -> None:
        self.name = name
        self.listing = Listing()
        self.connection = Connection(name, server, self._on_listed)
        self._server = server
        self._memory = memory
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

    def report(self) -> ServerReport:
        """Return what became of it."""
        problem, said = self.connection.problem, self.connection.said
        return ServerReport(self.name, problem, said, self._remembered, self.listing)

    def tool(self, offered: Offered) -> Tool:
        """Return a tool as the agent runs it."""
        return Tool(
            name=offered.name,
            description=offered.description,
            effect="read" if offered.server_name in self._server.read_only else "side_effect",
            arguments=SchemaArguments(offered.schema),
            run=partial(self._run, offered.server_name),
            timeout_s=self._server.timeout_s,
            restricted=True,
        )

    async def _run(self, tool: str, _context: ToolContext, arguments: dict[str, Any]) -> str:
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


def _kept(definition: Any) -> Any:
    if not isinstance(definition, dict):
        return None
    return {key: definition.get(key) for key in ("name", "description", "inputSchema")}


def _tell_skipped(server: str, skipped: Skipped) -> None:
    log.warning("mcp_tool_skipped", server=server, tool=skipped.server_name, reason=skipped.reason)
