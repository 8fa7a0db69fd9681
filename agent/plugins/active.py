"""The plugins that are active (`Plugins`), and what their hooks do in one turn (`TurnHooks`)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import structlog

from agent.plugins.contracts import Hook, HookName, MemoryProvider
from agent.plugins.supervision import Caller, PluginFailed
from agent.prompt.system import SourcedText
from agent.tools.context import ToolContext, ToolOutcome
from agent.tools.registry import Tool

log = structlog.get_logger()

MAX_VETO_CHARS = 1_000
"""Longest reason of a veto that the model reads."""


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin that is active.

    Attributes:
        tools: Supervised, as they are put into the registry.
        prompt: What its memory providers say in the system prompt; may be empty.
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
            # A copy for each: a hook that changes its event must not mislead the next one.
            await self.caller.ask(name, hook, deepcopy(dict(event)))
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

    def external(self) -> tuple[SourcedText, ...]:
        """Return what memory providers put into the system prompt; the same until the next start.

        Each text comes with the name of its plugin. None was scanned for threats yet.
        """
        return tuple(
            SourcedText(f"memory {plugin.name}", plugin.prompt)
            for plugin in self.loaded
            if plugin.prompt
        )

    def having(self, hook: HookName) -> list[LoadedPlugin]:
        """Return the plugins that have a hook."""
        return [each for each in self.loaded if hook in each.hooks]

    def tools(self, taken: Collection[str]) -> list[Tool]:
        """Return the tools of all plugins; log and leave out a tool with a name that is taken."""
        found: dict[str, Tool] = {}
        for plugin in self.loaded:
            for tool in plugin.tools:
                if tool.name in taken or tool.name in found:
                    report_skipped(plugin.name, tool.name, "another tool has its name")
                else:
                    found[tool.name] = tool
        return [*found.values()]


@dataclass(frozen=True, slots=True)
class TurnHooks:
    """`agent.tools.context.Hooks` of one turn: the hooks of all plugins around its tool calls.

    Plugins are called in the order of `plugins.enabled`.

    A plugin that fails is left out for the rest of the turn. If it has a `pre_tool_call`, it may be
    there to forbid something: then every guarded tool is refused from there on. The same holds for
    a plugin that is enabled and could not be loaded.

    Attributes:
        guarded: Whether a tool is only for senders who may act (`ToolRegistry.restricted`).
        left_out: Names of the plugins that have failed.
    """

    plugins: Plugins
    guarded: Callable[[str], bool]
    left_out: set[str] = field(default_factory=set)

    async def before(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> str | None:
        """Return why the call must not run; None where it may."""
        # What is missing may be the very plugin that would have said no.
        if self.plugins.missing_guards and self.guarded(name):
            return _closed(name, self.plugins.missing_guards)
        for plugin in self.plugins.having("pre_tool_call"):
            event = _event(name, arguments, context)
            for said in await self._call(plugin, "pre_tool_call", event):
                if isinstance(said, str):
                    reason = said.strip()[:MAX_VETO_CHARS] or "no reason was given"
                    return f"the plugin {plugin.name} does not allow this call: {reason}"
                if said is not None:
                    # False may be meant as a veto, and True too.
                    wrong = TypeError(f"it returned {type(said).__name__}, not a text or None")
                    plugin.caller.failed("pre_tool_call", wrong)
                    self.left_out.add(plugin.name)
            # What it might have forbidden must not run unasked.
            if plugin.name in self.left_out and self.guarded(name):
                return _closed(name, [plugin.name])
        return None

    async def after(
        self,
        name: str,
        arguments: Mapping[str, Any],
        outcome: ToolOutcome,
        context: ToolContext,
    ) -> None:
        """Tell what became of a call."""
        became = {"status": outcome.status, "result": outcome.text}
        for plugin in self.plugins.having("post_tool_call"):
            event = _event(name, arguments, context) | became
            await self._call(plugin, "post_tool_call", event)

    async def _call(
        self, plugin: LoadedPlugin, hook: HookName, event: Mapping[str, Any]
    ) -> list[Any]:
        """Call its hooks; an empty list if one fails, or if the plugin is left out by now."""
        if plugin.name in self.left_out:
            return []
        try:
            return await plugin.call_hooks(hook, event)
        except PluginFailed:
            self.left_out.add(plugin.name)
            return []


def _event(name: str, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
    return {
        "tool": name,
        "arguments": dict(arguments),
        "conversation": context.conversation,
        "call_id": context.call_id,
        "may_act": context.may_act,
    }


def _closed(name: str, plugins: Sequence[str]) -> str:
    return (
        f"{name} cannot be used now: {', '.join(plugins)}, which must be asked before, cannot"
        " answer; an operator finds the reason in the log. Do not try it again in this turn."
    )


def report_skipped(plugin: str, tool: str, reason: str) -> None:
    """Log that a tool of a plugin is not offered to models."""
    log.warning("plugin_tool_skipped", plugin=plugin, tool=tool, reason=reason)
