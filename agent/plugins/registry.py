"""The offers of plugins, the engines by name, and the active plugins with their hooks.

Engines are registered per process, since `context.engine` selects one by name: built-in engines,
and those registered by an application or a plugin.

An engine that takes a list of messages and returns a shorter one is adapted: its unchanged
beginning and end become the head and tail of a plan, the rest becomes the text of its summary.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any, ClassVar, cast

import structlog
from typing_extensions import override

from agent.context.boundaries import assemble, fitting, starts_before
from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Limits
from agent.engines.lcm.engine import LcmEngine
from agent.engines.rounds import RoundsEngine
from agent.errors import PluginRefused
from agent.messages import ChatMessage, ToolSchema, Usage, text_of
from agent.plugins.contracts import (
    HOOKS,
    NAME,
    NAME_RULE,
    Hook,
    HookName,
    MemoryProvider,
    ResultRefused,
)
from agent.plugins.supervision import Caller, PluginFailed
from agent.prompt.system import SourcedText
from agent.tools.context import ToolContext, ToolOutcome
from agent.tools.registry import Tool
from agent.view.view import render

log = structlog.get_logger()

BUILT_IN: dict[str, type[ContextEngine]] = {
    each.name: each for each in (ContextCompressor, RoundsEngine, LcmEngine)
}
"""The engines shipped with Parley; `parley engines list` shows the first line of each docstring."""
DEFAULT = "compressor"
"""The engine that replaces an unusable one."""
registered: dict[str, type[ContextEngine]] = {}
"""Registered engines by name."""
GIVEN = ("role", "content", "tool_calls", "tool_call_id", "name")
"""Keys of a message that a list engine sees: those of OpenAI's API."""
STATE = dict.fromkeys(
    ("last_prompt_tokens", "last_completion_tokens", "last_total_tokens", "compression_count"), 0
) | {"protect_first_n": 3, "protect_last_n": 6}
"""Attributes, with initial values, that Hermes' base class gives its engines."""
MAX_VETO_CHARS = 1_000
"""Longest reason of a veto shown to the model."""
LEFT_OUT = "(left out by the engine, without a summary)"


def register_context_engine(engine: type[ContextEngine]) -> type[ContextEngine]:
    """Register an engine in this process under its `name`; return it, for use as a decorator.

    A later class of the same name replaces it.

    Raises:
        PluginRefused: It is not a usable engine, or it has the name of the default.
    """
    made = usable_engine(engine)
    registered[made.name] = made
    return engine


def usable_engine(engine: type[ContextEngine]) -> type[ContextEngine]:
    """Return an engine that may be registered; otherwise raise `PluginRefused`."""
    name = getattr(engine, "name", None)
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise PluginRefused(f"{name!r} cannot be the name of an engine: {NAME_RULE}")
    if name == DEFAULT:
        # The replacement for a broken engine must be known to work.
        raise PluginRefused(f"{name!r} is the name of the built-in engine")
    return engine_class(engine, name)


def engine_class(offered: Any, name: str) -> type[ContextEngine]:
    """Return a plugin's engine of this name; adapt one that takes lists, like Hermes' engines."""
    if takes_lists(offered):
        return adapt(offered, name)
    if not (isinstance(offered, type) and issubclass(offered, ContextEngine)):
        raise PluginRefused(f"{offered!r} is not a class derived from ContextEngine")
    if inspect.isabstract(offered):
        missing = ", ".join(sorted(offered.__abstractmethods__))
        raise PluginRefused(f"{offered.__name__} does not define {missing}")
    if getattr(offered, "name", None) != name:
        raise PluginRefused(f"{offered.__name__} must have the class attribute name = {name!r}")
    return offered


def takes_lists(offered: Any) -> bool:
    """Return whether an engine or its class takes lists: its first argument is `messages`."""
    try:
        names = [name for name in inspect.signature(offered.compress).parameters if name != "self"]
    except (AttributeError, TypeError, ValueError):
        return False
    return names[:1] == ["messages"]


def adapt(offered: Any, name: str) -> type[ContextEngine]:
    """Create an engine class of this name that runs the offered one.

    Each turn gets its own object, since turns of different people run concurrently.
    """
    members = {"name": name, "offered": staticmethod(lambda: offered), "__doc__": offered.__doc__}
    return cast("type[ContextEngine]", type(f"Adapted{name.title()}", (ListEngine,), members))


@dataclass(slots=True)
class PluginRegistry:
    """Passed to a plugin's `register(registry)`; collects its offers, unchecked.

    `options` is a copy of `plugins.options.<name>`, or of an engine's own options.
    """

    name: str
    options: Mapping[str, Any]
    tools: list[Any] = field(default_factory=list)
    providers: list[Any] = field(default_factory=list)
    hooks: dict[HookName, list[Hook]] = field(default_factory=dict)
    engines: list[Any] = field(default_factory=list)

    def register_tool(self, tool: Tool) -> None:
        """Offer a tool to the model."""
        self.tools.append(tool)

    def register_memory_provider(self, provider: type[MemoryProvider]) -> None:
        """Offer a memory provider; it is created with the plugin's options."""
        self.providers.append(provider)

    def register_hook(self, name: HookName, hook: Hook) -> None:
        """Register a hook; raise `PluginRefused` for an unknown name."""
        # A hook that is never called would protect nothing.
        if name not in HOOKS:
            raise PluginRefused(f"there is no hook {name!r}, only {', '.join(HOOKS)}")
        if not callable(hook):
            raise PluginRefused(f"the hook {name} is not a function: {hook!r}")
        self.hooks.setdefault(name, []).append(hook)

    def register_context_engine(self, engine: type[ContextEngine]) -> None:
        """Offer a context engine, for use if `context.engine` names it."""
        self.engines.append(engine)

    def offered(self) -> dict[str, list[str]]:
        """Return the names of all offers, by the kinds of plugin.yaml."""
        named = {
            "tools": self.tools,
            "memory_providers": self.providers,
            "context_engines": self.engines,
        }
        names = {kind: [str(getattr(each, "name", "?")) for each in named[kind]] for kind in named}
        return names | {"hooks": list(self.hooks)}


class ListEngine(ContextEngine):
    """Runs a list engine during one turn; `offered` returns the engine or its class."""

    offered: ClassVar[Callable[[], Any]]

    def __init__(self, limits: Limits, options: Mapping[str, Any]) -> None:
        """Create the engine with the options that its constructor accepts."""
        super().__init__(limits, options)
        made = type(self).offered()
        self._inner = _called(made, **options) if isinstance(made, type) else deepcopy(made)
        for name, value in {**STATE, "threshold_percent": limits.threshold}.items():
            if not hasattr(self._inner, name):
                setattr(self._inner, name, value)
        for name in ("should_compress", "on_session_start", "on_session_reset", "handle_tool_call"):
            setattr(self, name, self._own(name, getattr(self, name)))
        self.update_model(limits)

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Return the plan that shows the engine's list, or None if the list is not shorter."""
        shown = render(request.plan, request.entries)
        given: list[Any] = [{k: v for k, v in each.items() if k in GIVEN} for each in shown]
        returned = _called(
            self._inner.compress,
            [dict(message) for message in given],
            current_tokens=request.tokens,
            focus_topic=request.focus,
            force=request.trigger in {"manual", "overflow"},
            memory_context="",
            summarise=request.summarise,
        )
        if not isinstance(returned, list) or not returned:
            raise ResultRefused(f"it returned {type(returned).__name__}, not a list of messages")
        if not all(map(_is_message, returned)):
            raise ResultRefused("it returned a list that contains something other than messages")
        return _compressed(request, given, returned)

    @override
    def update_from_response(self, usage: Usage) -> None:
        """Report the usage under Hermes' field names."""
        super().update_from_response(usage)
        told = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.output_tokens}
        told["total_tokens"] = sum(told.values())
        self._own("update_from_response", bool)(asdict(usage) | told)

    @override
    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        """Return the engine's tools, with or without OpenAI's envelope."""
        offered = [each.get("function", each) for each in self._own("get_tool_schemas", list)()]
        return tuple(
            ToolSchema(each["name"], each.get("description", ""), each.get("parameters", {}))
            for each in offered
        )

    @override
    def get_status(self) -> Mapping[str, Any]:
        return {"threshold_tokens": self._inner.threshold_tokens, **self._own("get_status", dict)()}

    @override
    def update_model(self, limits: Limits) -> None:
        """Set window and threshold, unless the engine computes its own."""
        super().update_model(limits)
        if isinstance(self._inner, ContextEngine):
            self._inner.limits, self._inner.options = limits, self.options
        for name in ("context_length", "threshold_tokens"):
            if not isinstance(getattr(type(self._inner), name, None), property):
                setattr(self._inner, name, getattr(limits, name))

    def _own(self, method: str, default: Callable[..., Any]) -> Callable[..., Any]:
        """Return the engine's own method, or `default` if it has none or only inherits ours."""
        found = getattr(self._inner, method, default)
        is_ours = getattr(found, "__func__", None) is getattr(ContextEngine, method)
        return default if is_ours else found


def _called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    known = inspect.signature(function).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    return function(*arguments, **{k: v for k, v in named.items() if takes_all or k in known})


def _is_message(message: Any) -> bool:
    is_map = isinstance(message, dict) and isinstance(message.get("role"), str)
    return is_map and isinstance(message.get("content"), str | list | None)


def _compressed(
    request: CompressionRequest, given: list[ChatMessage], returned: list[ChatMessage]
) -> Compressed | None:
    """Build a plan from the returned head and tail, and a summary of the part between."""
    plan, entries = request.plan, request.entries
    cut, earlier = sum(e.seq <= plan.head_upto for e in entries), len(given) - len(entries)
    # A summary separates head and tail: earlier cuts stay.
    tail = _agreeing(given[cut + earlier if earlier else 0 :][::-1], returned[::-1])
    head = _agreeing(given[: cut if earlier else len(given) - tail], returned[: -tail or None])
    between = returned[head : len(returned) - tail]
    # More is kept if no role of a summary alternates.
    starts = starts_before(entries, len(entries) - tail)
    found = next(fitting(entries, ((head, start, ()) for start in starts)), None)
    if found is None:
        return None
    old = given[cut : cut + earlier]
    texts = [one.text for one in plan.summaries if any(message in old for message in between)]
    texts += [text_of(message).strip() for message in between if message not in old]
    if text := "\n\n".join(filter(None, texts)):
        return Compressed(assemble(request, found, text, "model"), "summary", 0)
    return Compressed(assemble(request, found, LEFT_OUT, "pointer"), "extract", 0)


def _agreeing(given: Iterable[ChatMessage], returned: Iterable[ChatMessage]) -> int:
    """Count the equal messages at the start; a tool result may be shortened."""
    pairs = zip(map(_key, given), map(_key, returned), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _key(message: ChatMessage) -> tuple[Any, ...]:
    calls = [call.get("id") for call in message.get("tool_calls") or ()]
    return message["role"], message.get("tool_call_id") or calls or text_of(message)


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """An active plugin: its supervised tools, and its memory providers' prompt texts."""

    name: str
    caller: Caller
    tools: tuple[Tool, ...] = ()
    providers: tuple[MemoryProvider, ...] = ()
    hooks: Mapping[HookName, tuple[Hook, ...]] = field(default_factory=dict)
    prompt: str = ""

    async def call_hooks(self, name: HookName, event: Mapping[str, Any]) -> list[Any]:
        """Call the plugin's hooks of a name and return their results; stop at a failure."""
        return [
            # A copy for each: a hook that modifies its event must not affect the next one.
            await self.caller.ask(name, hook, deepcopy(dict(event)))
            for hook in self.hooks.get(name, ())
        ]


@dataclass(frozen=True, slots=True)
class Plugins:
    """The active plugins, in the order of `plugins.enabled`.

    `missing_guards` are enabled plugins that failed to load and may have a `pre_tool_call`: the
    tools that they might have blocked are refused. `missing` has the reason for each plugin that
    failed to load.
    """

    loaded: tuple[LoadedPlugin, ...] = ()
    missing_guards: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    def left_out(self) -> list[str]:
        """Return a line per plugin that failed to load, with its consequences."""
        closed = "; tools that touch the world are refused without it"
        return [
            f"plugin {name}: {reason}{closed if name in self.missing_guards else ''}"
            for name, reason in self.missing.items()
        ]

    @property
    def providers(self) -> tuple[tuple[LoadedPlugin, MemoryProvider], ...]:
        """All memory providers, each with its plugin."""
        return tuple((each, provider) for each in self.loaded for provider in each.providers)

    def external(self) -> tuple[SourcedText, ...]:
        """Return the memory providers' system prompt texts, not yet scanned for threats.

        They stay the same until the next start.
        """
        return tuple(
            SourcedText(f"memory {plugin.name}", plugin.prompt)
            for plugin in self.loaded
            if plugin.prompt
        )

    def having(self, hook: HookName) -> list[LoadedPlugin]:
        """Return the plugins that have a hook of this name."""
        return [each for each in self.loaded if hook in each.hooks]

    def tools(self, taken: Collection[str]) -> list[Tool]:
        """Return the tools of all plugins; log and skip those whose name is taken."""
        found: dict[str, Tool] = {}
        for plugin in self.loaded:
            for tool in plugin.tools:
                if tool.name in taken or tool.name in found:
                    why = "another tool has its name"
                    log.warning(
                        "plugin_tool_skipped", plugin=plugin.name, tool=tool.name, reason=why
                    )
                else:
                    found[tool.name] = tool
        return [*found.values()]


@dataclass(frozen=True, slots=True)
class TurnHooks:
    """`agent.tools.context.Hooks` of one turn: all plugins' hooks around its tool calls.

    A plugin that fails is skipped for the rest of the turn. If it has a `pre_tool_call`, it may be
    meant
    to block something: from then on every guarded tool is refused. The same applies if an enabled
        plugin
    failed to load.

    Attributes:
        guarded: Whether only senders who may act can use a tool (`ToolRegistry.restricted`).
    """

    plugins: Plugins
    guarded: Callable[[str], bool]
    left_out: set[str] = field(default_factory=set)

    async def before(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> str | None:
        """Return the reason to block the call, or None."""
        # The missing plugin may be the one that would have refused.
        if self.plugins.missing_guards and self.guarded(name):
            return _closed(name, self.plugins.missing_guards)
        for plugin in self.plugins.having("pre_tool_call"):
            event = _event(name, arguments, context)
            for said in await self._call(plugin, "pre_tool_call", event):
                if isinstance(said, str):
                    reason = said.strip()[:MAX_VETO_CHARS] or "no reason was given"
                    return f"the plugin {plugin.name} does not allow this call: {reason}"
                if said is not None:
                    # False may be meant as a veto, and True as well.
                    wrong = TypeError(f"it returned {type(said).__name__}, not a text or None")
                    plugin.caller.failed("pre_tool_call", wrong)
                    self.left_out.add(plugin.name)
            # A call that it might have blocked must not run.
            if plugin.name in self.left_out and self.guarded(name):
                return _closed(name, [plugin.name])
        return None

    async def after(
        self, name: str, arguments: Mapping[str, Any], outcome: ToolOutcome, context: ToolContext
    ) -> None:
        """Report the outcome of a call."""
        became = {"status": outcome.status, "result": outcome.text}
        for plugin in self.plugins.having("post_tool_call"):
            event = _event(name, arguments, context) | became
            await self._call(plugin, "post_tool_call", event)

    async def _call(
        self, plugin: LoadedPlugin, hook: HookName, event: Mapping[str, Any]
    ) -> list[Any]:
        """Call a plugin's hooks; return no results if one fails or failed before."""
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
