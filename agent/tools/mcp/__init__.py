"""Tools of MCP servers, through the official SDK."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from agent.settings import McpServerSettings, SandboxSettings
from agent.tools.registry import Tool


@dataclass(frozen=True, slots=True)
class ServerState:
    """How a server stands at a moment.

    Attributes:
        problem: Why it is not connected; None if it is.
        said: The end of what a program that is not connected said to stderr.
        remembered: Whether its tools are those of an earlier start.
        tools: (name, effect, description) of those in use.
        skipped: (name, reason) of those that are left out.
    """

    name: str
    problem: str | None
    said: str
    remembered: bool
    tools: Sequence[tuple[str, str, str]] = ()
    skipped: Sequence[tuple[str, str]] = ()


class ServedTools(tuple[Tool, ...]):
    """The tools of servers, beside how those stand at any time (`states`)."""

    states: Callable[[], Sequence[ServerState]] = staticmethod(tuple)


NO_SERVERS = ServedTools()


def mcp_tools(
    servers: Mapping[str, McpServerSettings], home: Path, sandbox: SandboxSettings
) -> AbstractAsyncContextManager[ServedTools]:
    """Return what `servers.mcp_tools` does; the SDK is imported with the first call."""
    # The SDK takes longer to import than the rest of the agent, and most gateways have no server.
    from agent.tools.mcp import servers as connecting

    return connecting.mcp_tools(servers, home, sandbox)
