"""The built-in tools by name; the gateway picks those that `tools.enabled` lists."""

from collections.abc import Sequence

from agent.tools.builtin import calculate, current_time, read_conversation, send_file
from agent.tools.registry import ToolRegistry

_MODULES = (read_conversation, current_time, calculate, send_file)
_BUILTIN = {module.TOOL.name: module.TOOL for module in _MODULES}


def builtin_tools(enabled: Sequence[str]) -> ToolRegistry:
    """Return the registry of the named tools, in that order.

    Raises:
        ValueError: A name is unknown or stands there twice; the text lists what exists.
    """
    unknown = [name for name in enabled if name not in _BUILTIN]
    if unknown:
        raise ValueError(f"unknown tools: {', '.join(unknown)}; there are {', '.join(_BUILTIN)}")
    return ToolRegistry(_BUILTIN[name] for name in enabled)
