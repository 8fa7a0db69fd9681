"""`agent.tools.services.Hooks` of one turn: what plugins do before and after a call of a tool."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.engines.checks import as_plain
from agent.plugins.supervision import Caller, PluginFailed

if TYPE_CHECKING:
    from agent.plugins.active import LoadedPlugin, Plugins
    from agent.tools.registry import ToolContext, ToolOutcome

MAX_VETO_CHARS = 1_000


class TurnHooks:
    """Asks the hooks of all plugins, in the order of `plugins.enabled`; one object for each turn.

    A plugin that fails is left out for the rest of the turn. Where it has a `pre_tool_call`, it may
    be there to forbid something: then the turn gets no guarded tool any more. The same holds for
    one that is enabled and could not be loaded.
    """

    def __init__(self, plugins: "Plugins", guarded: Callable[[str], bool]) -> None:
        """Begin a turn.

        Args:
            plugins: All that are active.
            guarded: Whether a tool is only for senders who may act (`ToolBox.restricted`).
        """
        self._plugins = plugins
        self._guarded = guarded
        self._left_out: set[str] = set()

    async def before(
        self, name: str, arguments: Mapping[str, Any], context: "ToolContext"
    ) -> str | None:
        """Return why the call must not run; None where it may."""
        if self._plugins.missing_guards and self._guarded(name):
            return _closed(name, self._plugins.missing_guards)
        event = _event(name, arguments, context)
        for plugin in self._plugins.having("pre_tool_call"):
            refused = await self._refusal(plugin, event)
            if refused is None and plugin.name in self._left_out and self._guarded(name):
                refused = _closed(name, [plugin.name])
            if refused is not None:
                return refused
        return None

    async def after(
        self,
        name: str,
        arguments: Mapping[str, Any],
        outcome: "ToolOutcome",
        context: "ToolContext",
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

    async def _refusal(self, plugin: "LoadedPlugin", event: dict[str, Any]) -> str | None:
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


def _event(name: str, arguments: Mapping[str, Any], context: "ToolContext") -> dict[str, Any]:
    return {
        "tool": name,
        "arguments": as_plain(dict(arguments)),
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
