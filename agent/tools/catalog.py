"""The built-in tools by name; the gateway offers those in `tools.enabled`.

Each file in agent/tools/builtin and agent/tools/sandbox defines its tools: with `@tool`, or as an
entry of `MAKERS` for a tool with settings of its own.
"""

import pkgutil
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module

from agent.processes.sandbox import OF_FILES, why_off
from agent.settings import MCP_PREFIX, ToolSettings
from agent.tools import builtin, sandbox
from agent.tools.registry import Tool, ToolRegistry

Maker = Callable[[ToolSettings], Tool]


def _offered() -> Iterator[tuple[str, Tool | Maker]]:
    for room in (builtin, sandbox):
        for found in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            parts = vars(import_module(found.name))
            yield from ((each.name, each) for each in parts.values() if isinstance(each, Tool))
            yield from parts.get("MAKERS", {}).items()


_TOOLS = dict(_offered())
BUILTIN = tuple(sorted(_TOOLS))
"""Names reserved for built-in tools, enabled or not."""


def builtin_tools(settings: ToolSettings, others: Iterable[Tool] = ()) -> ToolRegistry:
    """Return the registry of enabled tools, in the order of `settings.enabled`, then `others`.

    Args:
        settings: The section `tools`. If confinement is unavailable, the file tools and `terminal`
            are left out.
        others: Tools of MCP servers and plugins. Their names in `settings.enabled` have no effect,
            since a server and its tools may be missing.

    Raises:
        ValueError: A name is unknown or duplicated, or a tool cannot work with its settings.
    """
    others = tuple(others)
    foreign = {tool.name for tool in others}
    foreign |= {name for name in settings.enabled if name.startswith(MCP_PREFIX)}
    unknown = [name for name in settings.enabled if name not in {*BUILTIN, *foreign}]
    if unknown:
        raise ValueError(f"unknown tools: {', '.join(unknown)}; there are {', '.join(BUILTIN)}")
    off = OF_FILES if why_off(settings) else frozenset()
    names = [name for name in settings.enabled if name not in off | foreign]
    enabled = (_TOOLS[name] for name in names)
    made = (each if isinstance(each, Tool) else each(settings) for each in enabled)
    return ToolRegistry([*made, *others], settings.output)
