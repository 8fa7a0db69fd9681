"""The tools of MCP servers, where any is configured: else the SDK (60 MB) is not imported."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from importlib import import_module

from agent.tools.registry import Tool
from gateway.settings import Settings


def open_tools(settings: Settings) -> AbstractAsyncContextManager[Sequence[Tool]]:
    """Return what connects to the enabled servers, and yields their tools while it is open.

    Entering takes as long as the slowest server needs, `start_timeout_s` at most.
    """
    if not any(server.enabled for server in settings.tools.mcp.values()):
        return nullcontext(())
    opened: AbstractAsyncContextManager[Sequence[Tool]] = import_module(
        "agent.tools.mcp.servers"
    ).mcp_tools(settings.tools.mcp, settings.home)
    return opened
