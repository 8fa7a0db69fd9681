"""The plugins that are active, and what they give to a turn."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from agent.engines.checks import as_plain
from agent.plugins.contracts import Hook, HookName, MemoryProvider
from agent.plugins.hooks import TurnHooks
from agent.plugins.supervision import Caller
from agent.prompt import Told
from agent.tools.registry import Tool

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin that is active.

    Attributes:
        caller: Calls its functions.
        tools: As they are put into the tool box.
    """

    name: str
    caller: Caller
    tools: tuple[Tool, ...] = ()
    providers: tuple[MemoryProvider, ...] = ()
    hooks: Mapping[HookName, tuple[Hook, ...]] = field(default_factory=dict)
    prompt: str = ""

    async def call_hooks(self, name: HookName, event: Mapping[str, Any]) -> list[Any]:
        """Call its hooks of a name, each with a copy; returns what they return.

        Raises:
            PluginFailed: One failed; those behind it are not called.
        """
        return [
            await self.caller.ask(name, hook, as_plain(dict(event)))
            for hook in self.hooks.get(name, ())
        ]


@dataclass(frozen=True, slots=True)
class Plugins:
    """All that is active, in the order of `plugins.enabled`.

    Attributes:
        missing_guards: Enabled plugins that could not be loaded and may have a `pre_tool_call`:
            tools that they may have been there to forbid are refused.
    """

    loaded: tuple[LoadedPlugin, ...] = ()
    missing_guards: tuple[str, ...] = ()

    @property
    def providers(self) -> tuple[tuple[LoadedPlugin, MemoryProvider], ...]:
        """All memory providers, each with its plugin."""
        return tuple((each, provider) for each in self.loaded for provider in each.providers)

    def external(self) -> tuple[Told, ...]:
        """Return what memory providers put into the system prompt; the same until the next start.

        Each says where it comes from; nobody has looked for threats in it.
        """
        return tuple(
            Told(f"memory {plugin.name}", plugin.prompt) for plugin in self.loaded if plugin.prompt
        )

    def having(self, hook: HookName) -> list[LoadedPlugin]:
        """Return the plugins that have a hook."""
        return [each for each in self.loaded if hook in each.hooks]

    def tools(self, taken: Collection[str]) -> list[Tool]:
        """Return the tools of all plugins; those whose names are taken are left out and logged."""
        names = set(taken)
        found: list[Tool] = []
        for plugin in self.loaded:
            for tool in plugin.tools:
                if tool.name in names:
                    report_skipped(plugin.name, tool.name, "another tool has its name")
                    continue
                names.add(tool.name)
                found.append(tool)
        return found

    def hooks_of_turn(self, guarded: Callable[[str], bool]) -> TurnHooks | None:
        """Return the hooks of a turn that begins; None where there can be nothing to do.

        Args:
            guarded: Whether a tool is only for senders who may act (`ToolBox.restricted`).
        """
        is_needed = self.missing_guards or self.having("pre_tool_call")
        return TurnHooks(self, guarded) if is_needed or self.having("post_tool_call") else None


def report_skipped(plugin: str, tool: str, reason: str) -> None:
    """Log that a tool of a plugin is not offered to models."""
    log.warning("plugin_tool_skipped", plugin=plugin, tool=tool, reason=reason)
