"""What plugins have offered: one registry for each plugin, and the context engines by name.

Engines are known to the whole process, since `context.engine` names one of them: those that are
built in, and those that a program or a plugin has registered.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from agent.context_compressor import ContextCompressor
from agent.context_engine import ContextEngine
from agent.engines.lcm.engine import LcmEngine
from agent.engines.rounds import RoundsEngine
from agent.errors import PluginRefused
from agent.plugins.contracts import HOOKS, Hook, HookName, MemoryProvider
from agent.plugins.finding import NAME, NAME_RULE
from agent.plugins.list_engines import ListEngine
from agent.tools.registry import Tool

BUILT_IN: dict[str, type[ContextEngine]] = {
    each.name: each for each in (ContextCompressor, RoundsEngine, LcmEngine)
}
"""The engines that come with Parley; `parley engines list` shows the first line of each class."""
DEFAULT = "compressor"
"""The engine that takes over wherever another one cannot be used."""
registered: dict[str, type[ContextEngine]] = {}
"""What `register_context_engine` was given, by name."""


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

    One that takes and returns lists of messages is adapted (agent/plugins/list_engines.py).

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
