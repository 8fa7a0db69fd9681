"""What plugins have offered: one registry for each plugin, and the context engines by name.

Engines are known to the whole process, since `context.engine` names one of them: those that are
built in, and those that a program or a plugin has registered.

An engine that takes a list of messages and returns a shorter one is adapted: what agrees with the
given list at its beginning and end is head and tail of a plan, what is between is the text of its
summary. The plan is checked like any other (agent/plugins/checks.py).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any, ClassVar, cast

from typing_extensions import override

from agent.context.phases.boundaries import assemble, fitting, starts_before
from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Limits
from agent.engines.lcm.engine import LcmEngine
from agent.engines.rounds import RoundsEngine
from agent.errors import PluginRefused
from agent.messages import ChatMessage, ToolSchema, text_of
from agent.plugins.checks import ResultRefused
from agent.plugins.contracts import HOOKS, Hook, HookName, MemoryProvider
from agent.plugins.finding import NAME, NAME_RULE
from agent.tools.registry import Tool
from agent.usage import Usage
from agent.view.view import render

BUILT_IN: dict[str, type[ContextEngine]] = {
    each.name: each for each in (ContextCompressor, RoundsEngine, LcmEngine)
}
"""The engines that come with Parley; `parley engines list` shows the first line of each class."""
DEFAULT = "compressor"
"""The engine that takes over wherever another one cannot be used."""
registered: dict[str, type[ContextEngine]] = {}
"""What `register_context_engine` was given, by name."""
GIVEN = ("role", "content", "tool_calls", "tool_call_id", "name")
"""What an engine sees of a message: what OpenAI's API knows."""
STATE = dict.fromkeys(
    ("last_prompt_tokens", "last_completion_tokens", "last_total_tokens", "compression_count"), 0
) | {"protect_first_n": 3, "protect_last_n": 6}
"""What Hermes' base class gives its engines, before anything is known."""
LEFT_OUT = "(left out by the engine, without a summary)"


def register_context_engine(engine: type[ContextEngine]) -> type[ContextEngine]:
    """Make an engine known to this process under its `name`; returns it, as a decorator.

    It is used when `context.engine` names it. A later class of the same name replaces it.

    Raises:
        PluginRefused: It is no usable engine, or its name is that of the default.
    """
    made = usable_engine(engine)
    registered[made.name] = made
    return engine


def usable_engine(engine: type[ContextEngine]) -> type[ContextEngine]:
    """Return an engine that may be registered.

    Raises:
        PluginRefused: It is no usable engine, or its name is that of the default.
    """
    name = getattr(engine, "name", None)
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise PluginRefused(f"{name!r} cannot be the name of an engine: {NAME_RULE}")
    if name == DEFAULT:
        # What replaces a broken engine must be known to work.
        raise PluginRefused(f"{name!r} is the name of the built-in engine")
    return engine_class(engine, name)


def engine_class(offered: Any, name: str) -> type[ContextEngine]:
    """Return what a plugin offers under a name, if it can be an engine.

    One that takes and returns lists of messages, as Hermes' do, is adapted (`ListEngine`).

    Raises:
        PluginRefused: It cannot.
    """
    if takes_lists(offered):
        return adapted(offered, name)
    if not (isinstance(offered, type) and issubclass(offered, ContextEngine)):
        raise PluginRefused(f"{offered!r} is not a class derived from ContextEngine")
    if inspect.isabstract(offered):
        missing = ", ".join(sorted(offered.__abstractmethods__))
        raise PluginRefused(f"{offered.__name__} does not define {missing}")
    if getattr(offered, "name", None) != name:
        raise PluginRefused(f"{offered.__name__} must have the class attribute name = {name!r}")
    return offered


def takes_lists(offered: Any) -> bool:
    """Whether an engine, or its class, takes lists: its first argument is called `messages`."""
    try:
        names = [name for name in inspect.signature(offered.compress).parameters if name != "self"]
    except (AttributeError, TypeError, ValueError):
        return False
    return names[:1] == ["messages"]


def adapted(offered: Any, name: str) -> type[ContextEngine]:
    """Make an engine class of this name that runs the one that is offered.

    Args:
        offered: A class, which is made for each turn; or an object, of which each turn gets a copy:
            turns of different people run at the same time.
    """
    members = {"name": name, "offered": staticmethod(lambda: offered), "__doc__": offered.__doc__}
    return cast("type[ContextEngine]", type(f"Adapted{name.title()}", (ListEngine,), members))


@dataclass(slots=True)
class PluginRegistry:
    """What a plugin's `register(registry)` gets; keeps what it offers, unchecked.

    Attributes:
        options: A copy of `plugins.options.<name>`; an engine's are those that it is made with.
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
        """Offer a memory provider; it is made with the plugin's options."""
        self.providers.append(provider)

    def register_hook(self, name: HookName, hook: Hook) -> None:
        """Have a function called.

        Raises:
            PluginRefused: There is no such hook: one that is never called would protect nothing.
        """
        if name not in HOOKS:
            raise PluginRefused(f"there is no hook {name!r}, only {', '.join(HOOKS)}")
        if not callable(hook):
            raise PluginRefused(f"the hook {name} is no function: {hook!r}")
        self.hooks.setdefault(name, []).append(hook)

    def register_context_engine(self, engine: type[ContextEngine]) -> None:
        """Offer a context engine; it is used where `context.engine` names it."""
        self.engines.append(engine)

    def offered(self) -> dict[str, list[str]]:
        """Return the names of all that was offered, by the kinds of plugin.yaml."""
        named = {
            "tools": self.tools,
            "memory_providers": self.providers,
            "context_engines": self.engines,
        }
        names = {kind: [str(getattr(each, "name", "?")) for each in named[kind]] for kind in named}
        return names | {"hooks": list(self.hooks)}


class ListEngine(ContextEngine):
    """Runs an engine of lists during one turn; `offered` returns it or its class."""

    offered: ClassVar[Callable[[], Any]]

    def __init__(self, limits: Limits, options: Mapping[str, Any]) -> None:
        """Make the engine with those of the options that its constructor takes."""
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
        """Return the plan that shows the engine's list, or None if it left nothing out."""
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
            raise ResultRefused("it returned a list with something that is no message")
        return _compressed(request, given, returned)

    @override
    def update_from_response(self, usage: Usage) -> None:
        """Report the usage in the words of Hermes."""
        super().update_from_response(usage)
        told = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.output_tokens}
        told["total_tokens"] = sum(told.values())
        self._own("update_from_response", bool)(asdict(usage) | told)

    @override
    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        """Return the engine's tools, bare or in OpenAI's envelope."""
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
        """Return a method of the engine; the default for none, or for ours with other state."""
        found = getattr(self._inner, method, default)
        is_ours = getattr(found, "__func__", None) is getattr(ContextEngine, method)
        return default if is_ours else found


def _called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function with those of the named arguments that it takes."""
    known = inspect.signature(function).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    return function(*arguments, **{k: v for k, v in named.items() if takes_all or k in known})


def _is_message(message: Any) -> bool:
    is_map = isinstance(message, dict) and isinstance(message.get("role"), str)
    return is_map and isinstance(message.get("content"), str | list | None)


def _compressed(
    request: CompressionRequest, given: list[ChatMessage], returned: list[ChatMessage]
) -> Compressed | None:
    """Make a plan of head and tail that came back, and a summary of what stands between."""
    plan, entries = request.plan, request.entries
    cut, earlier = sum(e.seq <= plan.head_upto for e in entries), len(given) - len(entries)
    # A summary parts head and tail: what was cut before stays cut.
    tail = _agreeing(given[cut + earlier if earlier else 0 :][::-1], returned[::-1])
    head = _agreeing(given[: cut if earlier else len(given) - tail], returned[: -tail or None])
    between = returned[head : len(returned) - tail]
    # More is kept where no role of a summary fits.
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
    """Count the messages that are the same, from the first ones on; a result may be shortened."""
    pairs = zip(map(_key, given), map(_key, returned), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _key(message: ChatMessage) -> tuple[Any, ...]:
    calls = [call.get("id") for call in message.get("tool_calls") or ()]
    return message["role"], message.get("tool_call_id") or calls or text_of(message)
