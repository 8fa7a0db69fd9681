"""The built-in tools by name; the gateway picks those that `tools.enabled` lists."""

from collections.abc import Callable, Iterable

from agent.processes.sandbox import OF_FILES, why_off
from agent.settings import MCP_PREFIX, ToolSettings
from agent.tools.builtin.basics import CALCULATE, CURRENT_TIME
from agent.tools.builtin.history import READ_CONVERSATION, SESSION_SEARCH
from agent.tools.builtin.notebook import MEMORY, SKILL_MANAGE, SKILL_VIEW, TODO
from agent.tools.builtin.people import CLARIFY, DELEGATE_TASK, SEND_FILE
from agent.tools.registry import Tool, ToolRegistry
from agent.tools.sandbox import fetch, files, terminal

Maker = Callable[[ToolSettings], Tool]

_FIXED = {
    tool.name: tool
    for tool in (
        READ_CONVERSATION,
        CURRENT_TIME,
        CALCULATE,
        SEND_FILE,
        SKILL_VIEW,
        SKILL_MANAGE,
        TODO,
        MEMORY,
        SESSION_SEARCH,
        DELEGATE_TASK,
        CLARIFY,
        files.READ_FILE,
        files.WRITE_FILE,
        files.LIST_FILES,
        files.SEARCH_FILES,
    )
}
"""Tools that are the same whatever is set."""
_MAKERS: dict[str, Maker] = {
    "terminal": terminal.make_terminal,
    "fetch_url": fetch.make_fetch_url,
}
"""Tools that have settings of their own; made only where they are enabled."""
BUILTIN = (*_FIXED, *_MAKERS)
"""Names that no other tool may have, whether they are enabled or not."""


def builtin_tools(settings: ToolSettings, others: Iterable[Tool] = ()) -> ToolRegistry:
    """Return the registry of the enabled tools, in the order of `settings.enabled`.

    Args:
        settings: `tools`. If no wall works, the file tools and `terminal` are left out.
        others: Tools of MCP servers and plugins, which stand behind them. A name of one in
            `settings.enabled` has no effect: a server may be away, and its tools with it.

    Raises:
        ValueError: A name is unknown or stands there twice (the text lists what exists), or a tool
            cannot work on this machine as it is set.
    """
    others = tuple(others)
    foreign = {tool.name for tool in others}
    foreign |= {name for name in settings.enabled if name.startswith(MCP_PREFIX)}
    unknown = [name for name in settings.enabled if name not in {*BUILTIN, *foreign}]
    if unknown:
        raise ValueError(f"unknown tools: {', '.join(unknown)}; there are {', '.join(BUILTIN)}")
    off = OF_FILES if why_off(settings) else frozenset()
    names = [name for name in settings.enabled if name not in off | foreign]
    made = [_FIXED.get(name) or _MAKERS[name](settings) for name in names]
    return ToolRegistry([*made, *others])
