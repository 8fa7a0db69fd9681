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

    def hooks_of_turn(self, guarded: Callable[[str], bool]) -> "TurnHooks | None":
        """Return the hooks of a turn that begins; None where there can be nothing to do.

        Args:
            guarded: Whether a tool is only for senders who may act (`ToolRegistry.restricted`).
        """
        is_needed = self.missing_guards or self.having("pre_tool_call")
        return TurnHooks(self, guarded) if is_needed or self.having("post_tool_call") else None


class TurnHooks:
    """`agent.tools.context.Hooks` of one turn: the hooks of all plugins around its tool calls.

    Plugins are called in the order of `plugins.enabled`.

    A plugin that fails is left out for the rest of the turn. If it has a `pre_tool_call`, it may be
    there to forbid something: then every guarded tool is refused from there on. The same holds for
    a plugin that is enabled and could not be loaded.
    """

    def __init__(self, plugins: Plugins, guarded: Callable[[str], bool]) -> None:
        """Begin a turn.

        Args:
            guarded: Whether a tool is only for senders who may act (`ToolRegistry.restricted`).
        """
        self._plugins = plugins
        self._guarded = guarded
        self._left_out: set[str] = set()

    async def before(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> str | None:
        """Return why the call must not run; None where it may."""
        # What is missing may be the very plugin that would have said no.
        if self._plugins.missing_guards and self._guarded(name):
            return _closed(name, self._plugins.missing_guards)
        event = _event(name, arguments, context)
        for plugin in self._plugins.having("pre_tool_call"):
            refused = await self._refusal(plugin, event)
            # It has failed just now: what it might have forbidden must not run unasked.
            if refused is None and plugin.name in self._left_out and self._guarded(name):
                refused = _closed(name, [plugin.name])
            if refused is not None:
                return refused
        return None

    async def after(
        self,
        name: str,
        arguments: Mapping[str, Any],
        outcome: ToolOutcome,
        context: ToolContext,
    ) -> None:
        """Tell what became of a call."""
        event = _event(name, arguments, context)
        event |= {"status": outcome.status, "result": outcome.text}
        for plugin in self._plugins.having("post_tool_call"):
            if plugin.name in self._left_out:
                continue
            try:
                await plugin.call_hooks("post_tool_call", event)
            except PluginFailed:
                self._left_out.add(plugin.name)

    async def _refusal(self, plugin: LoadedPlugin, event: dict[str, Any]) -> str | None:
        """Return why a plugin does not let a call run; None also where it cannot say."""
        if plugin.name in self._left_out:
            return None
        try:
            for found in await plugin.call_hooks("pre_tool_call", event):
                if (veto := _veto(plugin.caller, found)) is not None:
                    return veto
        except PluginFailed:
            self._left_out.add(plugin.name)
        return None


def _event(name: str, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
    return {
        "tool": name,
        "arguments": deepcopy(dict(arguments)),
        "conversation": context.conversation,
        "call_id": context.call_id,
        "may_act": context.may_act,
    }


def _veto(caller: Caller, found: object) -> str | None:
    if found is None:
        return None
    if not isinstance(found, str):
        # False may be meant as a veto, and True too.
        wrong = TypeError(f"it returned {type(found).__name__}, not a text or None")
        raise caller.failed("pre_tool_call", wrong)
    reason = found.strip()[:MAX_VETO_CHARS] or "no reason was given"
    return f"the plugin {caller.plugin} does not allow this call: {reason}"


def _closed(name: str, plugins: Sequence[str]) -> str:
    return (
        f"{name} cannot be used now: {', '.join(plugins)}, which must be asked before, cannot"
        " answer; an operator finds the reason in the log. Do not try it again in this turn."
    )


def report_skipped(plugin: str, tool: str, reason: str) -> None:
    """Log that a tool of a plugin is not offered to models."""
    log.warning("plugin_tool_skipped", plugin=plugin, tool=tool, reason=reason)
