"""Tools of MCP servers, through the official SDK."""

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from agent.settings import McpServerSettings, SandboxSettings
from agent.tools.registry import ServedTools


def mcp_tools(
    servers: Mapping[str, McpServerSettings],
    home: Path,
    sandbox: SandboxSettings,
    agreed: Collection[str] = (),
) -> AbstractAsyncContextManager[ServedTools]:
    """Return what `servers.mcp_tools` does; the SDK is imported with the first call."""
    # The SDK takes longer to import than the rest of the agent, and most gateways have no server.
    from agent.tools.mcp import servers as connecting

    return connecting.mcp_tools(servers, home, sandbox, agreed)
