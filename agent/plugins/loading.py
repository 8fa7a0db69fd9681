"""Loads the plugins that `plugins.enabled` names, and the engine that `context.engine` names.

Code of other plugins is never imported. Whatever a plugin's code raises becomes a `PluginRefused`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import structlog

from agent.context_engine import ContextEngine
from agent.errors import PluginRefused
from agent.plugins.active import LoadedPlugin, Plugins, report_skipped
from agent.plugins.checks import tool_problem
from agent.plugins.contracts import MemoryProvider
from agent.plugins.finding import (
    ENGINES,
    GROUP,
    OLD_GROUPS,
    PLUGINS,
    Found,
    entry_point,
    find_folder,
    may_guard,
)
from agent.plugins.registry import (
    PluginRegistry,
    engine_class,
    register_context_engine,
    takes_lists,
    usable_engine,
)
from agent.plugins.supervision import Caller, supervised_tool
from agent.settings import PluginSettings
from agent.tools.registry import Tool

log = structlog.get_logger()

PLUGIN_MODULE, ENGINE_MODULE = "parley_plugin_", "parley_context_engine_"
"""What the names of their modules begin with; no other module's does."""
HOOK_S = 5.0
"""Seconds for one call of a hook or a memory provider: a turn waits for it."""
MAX_PROMPT_CHARS = 2_000
"""Longest text that one memory provider puts into every system prompt."""


def load_plugins(settings: PluginSettings, home: Path) -> Plugins:
    """Load what `plugins.enabled` names; what cannot be loaded is logged and left out."""
    loaded: list[LoadedPlugin] = []
    missing: list[str] = []
    for name in dict.fromkeys(settings.enabled):
        try:
            loaded.append(_load(name, settings, home))
        except PluginRefused as exc:
            is_guard = may_guard(home, name)
            missing += [name] if is_guard else []
            log.exception(
                "plugin_unavailable",
                plugin=name,
                reason=str(exc),
                tools_refused=is_guard,
                exc_info=exc.__cause__,
            )
    return Plugins(tuple(loaded), tuple(missing))


def _load(name: str, settings: PluginSettings, home: Path) -> LoadedPlugin:
    """Run a plugin's code, and take what it offers.

    Raises:
        PluginRefused: It cannot be loaded; nothing of it is active.
    """
    registry = PluginRegistry(name, settings.options_of(name))
    provides: Mapping[str, list[str]] = {}
    if folder := find_folder(home, "plugin", name):
        module, provides = imported(folder, PLUGIN_MODULE), folder.provides
    elif point := entry_point(GROUP, name):
        module = guarded(f"importing {point.value}", point.load)
    elif any(entry_point(group, name) for group in OLD_GROUPS):
        raise PluginRefused(
            f"its package has no entry point in the group {GROUP}, as version 0.6 wants it"
        )
    else:
        raise PluginRefused(f"there is neither {home / PLUGINS / name} nor an entry point {name!r}")
    if not has_registered(module, registry):
        raise PluginRefused("it has no function register(registry)")
    for kind, names in registry.offered().items() if provides else ():
        # Operators read only what plugin.yaml says.
        if more := sorted({*names} - {*provides.get(kind, ())}):
            raise PluginRefused(f"its plugin.yaml does not name {kind}: {', '.join(more)}")
    caller = Caller(name, HOOK_S)
    plugin: LoadedPlugin = guarded("taking what it offers", _accepted, registry, caller)
    log.info(
        "plugin_loaded",
        plugin=plugin.name,
        tools=[tool.name for tool in plugin.tools],
        memory_providers=[provider.name for provider in plugin.providers],
        hooks=list(plugin.hooks),
    )
    return plugin


def load_engine(folder: Found, options: Mapping[str, Any]) -> type[ContextEngine]:
    """Run the code of an engine's folder and return its engine.

    It registers its engine, or defines it: then it is the only one that the module itself defines.

    Raises:
        PluginRefused: It has a problem, raises, or does not offer one engine of its name.
    """
    module = imported(folder, ENGINE_MODULE)
    registry = PluginRegistry(folder.name, deepcopy(dict(options)))
    engines = registry.engines
    if not has_registered(module, registry):
        engines = list(dict.fromkeys(own for own in vars(module).values() if _is_own(own, module)))
    if registry.tools or registry.providers or registry.hooks:
        raise PluginRefused(f"what lies in {ENGINES} can offer an engine alone")
    if len(engines) != 1:
        names = ", ".join(sorted(str(getattr(each, "__name__", each)) for each in engines))
        rule = "it must offer exactly one engine, by register() or alone"
        raise PluginRefused(f"{rule}: {names or 'none'}")
    return engine_class(engines[0], folder.name)


def _is_own(value: Any, module: ModuleType) -> bool:
    """Whether a value is an engine that the module, or one below it, defines."""
    if not (isinstance(value, type) and (issubclass(value, ContextEngine) or takes_lists(value))):
        return False
    return f"{value.__module__}.".startswith(f"{module.__name__}.")


def guarded(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a plugin; returns what it returns.

    Raises:
        PluginRefused: It raised; the text begins with `what`, which says what was tried.
    """
    try:
        return function(*arguments)
    except PluginRefused:
        raise
    # SystemExit too: a plugin that calls sys.exit() must not end Parley's start.
    except (Exception, SystemExit) as exc:
        raise PluginRefused(f"{what} failed: {type(exc).__name__}: {exc}") from exc


def imported(folder: Found, prefix: str) -> ModuleType:
    """Run the code of a plugin's folder and return its module.

    It is loaded anew by each call, under a module name that nothing else uses.

    Raises:
        PluginRefused: The folder has a problem, or its code raises.
    """
    if folder.problem or folder.file is None:
        raise PluginRefused(folder.problem or f"there is nothing to import in {folder.name}")
    module_name, source = f"{prefix}{folder.name}", str(folder.file)
    loader = SourceFileLoader(module_name, source)
    # `from . import other` looks in the folder.
    spec = spec_from_file_location(
        module_name, source, loader=loader, submodule_search_locations=[str(folder.file.parent)]
    )
    module = module_from_spec(cast("ModuleSpec", spec))
    _forget(module_name)
    # Before it runs: the modules that it imports look for their package here.
    sys.modules[module_name] = module
    try:
        guarded("importing it", loader.exec_module, module)
    except PluginRefused:
        _forget(module_name)
        raise
    return module


def _forget(module_name: str) -> None:
    for name in list(sys.modules):
        if name == module_name or name.startswith(f"{module_name}."):
            del sys.modules[name]


def has_registered(module: Any, registry: PluginRegistry) -> bool:
    """Have a module, or its function itself, register what it offers; False if it has none.

    Raises:
        PluginRefused: Its function raises.
    """
    register = getattr(module, "register", module)
    if not callable(register):
        return False
    guarded("its register()", register, registry)
    return True


def _accepted(registry: PluginRegistry, caller: Caller) -> LoadedPlugin:
    """Check what was offered: a tool that is wrong is left out, all else that is wrong raises."""
    providers = [_provider(each, registry.options) for each in registry.providers]
    of_memories = [tool for each in providers for tool in each.tools()]
    prompts = [str(each.prompt()).strip()[:MAX_PROMPT_CHARS] for each in providers]
    plugin = LoadedPlugin(
        name=registry.name,
        caller=caller,
        tools=(
            *_usable(registry.tools, caller),
            *_usable(of_memories, caller, recalls=True),
        ),
        providers=tuple(providers),
        hooks={name: tuple(found) for name, found in registry.hooks.items()},
        prompt="\n\n".join(filter(None, prompts)),
    )
    # Last, and only where all of them can be: a plugin that is refused leaves no engine behind.
    for engine in [usable_engine(each) for each in registry.engines]:
        register_context_engine(engine)
    return plugin


def _provider(offered: Any, options: Mapping[str, Any]) -> MemoryProvider:
    if not (isinstance(offered, type) and issubclass(offered, MemoryProvider)):
        raise PluginRefused(f"{offered!r} is not a class derived from MemoryProvider")
    if not isinstance(getattr(offered, "name", None), str):
        raise PluginRefused(f"{offered.__name__} has no class attribute name")
    return offered(deepcopy(dict(options)))


def _usable(offered: Sequence[Any], caller: Caller, *, recalls: bool = False) -> Iterator[Tool]:
    for tool in offered:
        if problem := tool_problem(tool):
            report_skipped(caller.plugin, str(getattr(tool, "name", tool))[:64], problem)
        else:
            yield supervised_tool(tool, caller, recalls=recalls)
