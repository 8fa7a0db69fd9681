"""Calls a tool as the loop does."""

import json
from pathlib import Path
from typing import Any

from agent.settings import ToolSettings
from agent.tools.catalog import builtin_tools
from agent.tools.context import ToolContext, ToolOutcome
from tests.agent.tools.doubles import NOW, MemoryReader, call


async def use(workspace: Path | None, tool: str, **arguments: Any) -> ToolOutcome:
    """Run a tool with default settings."""
    return await use_with(ToolSettings(enabled=(tool,)), workspace, **arguments)


async def use_with(settings: ToolSettings, workspace: Path | None, **arguments: Any) -> ToolOutcome:
    """Run the one enabled tool."""
    context = ToolContext("c1", MemoryReader(), lambda: NOW, workspace=workspace)
    wanted = call(settings.enabled[0], json.dumps(arguments))
    return await builtin_tools(settings).execute(wanted, context)
