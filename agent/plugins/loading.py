"""Loads the plugins that `plugins.enabled` names; nothing of any other is ever imported."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import structlog

from agent.errors import PluginRefused
from agent.plugins.active import LoadedPlugin, Plugins, report_skipped
from agent.plugins.contracts import HOOKS, Hook, HookName, MemoryProvider, PluginRegistry
from agent.plugins.engines.checks import as_plain
from agent.plugins.engines.registry import register_context_engine
from agent.plugins.finding import (
    GROUPS,
    PLUGINS,
    entry_points,
    may_guard,
    problem_of,
    provided_by,
    shelf_of,
)
from agent.plugins.folders import NAME, NAME_RULE, Folder, find_folder, imported
from agent.plugins.supervision import Caller
from agent.plugins.tools import hosted, tool_problem
from agent.settings import PluginSettings
from agent.tools.registry import Tool

log = structlog.get_logger()

MAX_PROMPT_CHARS = 2_000
"""Of what one memory provider puts into every system prompt."""


def load_plugins(settings: PluginSettings, home: Path) -> Plugins:
    """Load what `plugins.enabled` names; what cannot be loaded is logged and left out.

    Args:
        settings: `plugins`.
        home: PARLEY_HOME.
    """
    loaded: list[LoadedPlugin] = []
    missing: list[str] = []
    for name in dict.fromkeys(settings.enabled):
        found = _tried(name, settings, home)
        if isinstance(found, LoadedPlugin):
            loaded.append(found)
            _report_loaded(found)
            continue
        is_guard = may_guard(home, name)
        missing += [name] if is_guard else []
        log.error(
            "plugin_unavailable",
            plugin=name,
            reason=str(found),
            tools_refused=is_guard,
            exc_info=found.__cause__,
        )
    return Plugins(tuple(loaded), tuple(missing))


def _report_loaded(plugin: LoadedPlugin) -> None:
    log.info(
        "plugin_loaded",
        plugin=plugin.name,
        tools=[tool.name for tool in plugin.tools],
        memory_providers=[provider.name for provider in plugin.providers],
        hooks=list(plugin.hooks),
    )


def _tried(name: str, settings: PluginSettings, home: Path) -> LoadedPlugin | PluginRefused:
    try:
        return _load(name, settings, home)
    except PluginRefused as exc:
        return exc


def _load(name: str, settings: PluginSettings, home: Path) -> LoadedPlugin:
    """Run a plugin's code, and take what it offers.

    Raises:
        PluginRefused: It cannot be loaded; nothing of it is active.
    """
    if not NAME.fullmatch(name):
        raise PluginRefused(f"{name!r} is no name of a plugin: {NAME_RULE}")
    registry = PluginRegistry(name, settings.options_of(name))
    if folder := find_folder(shelf_of(home), name):
        _register_folder(folder, registry, home)
    elif points := entry_points().get(name):
        for point in points:
            _guarded(f"the entry point {point.value}", _register_point, point, registry)
    else:
        raise PluginRefused(f"there is neither {home / PLUGINS / name} nor an entry point {name!r}")
    caller = Caller(name, settings.timeout_s)
    plugin: LoadedPlugin = _guarded("taking what it offers", _accepted, registry, caller)
    return plugin


def _register_folder(folder: Folder, registry: PluginRegistry, home: Path) -> None:
    if problem := problem_of(folder):
        raise PluginRefused(problem)
    module = imported(shelf_of(home), folder)
    register = getattr(module, "register", None)
    if register is None:
        raise PluginRefused("it has no function register(registry)")
    _guarded("its register()", register, registry)
    if told := provided_by(folder):
        _require_told(registry, told)


def _register_point(point: metadata.EntryPoint, registry: PluginRegistry) -> None:
    """Take what an entry point names: tools, a provider's class, or what holds hooks."""
    value = point.load()
    kind = GROUPS[point.group]
    if kind == "memory_providers":
        registry.register_memory_provider(value)
    elif kind == "tools":
        offered = value(registry.options) if callable(value) else value
        registry.tools += [offered] if isinstance(offered, Tool) else list(offered)
    else:
        holder = value(registry.options) if isinstance(value, type) else value
        hooks: dict[HookName, Any] = {
            name: hook for name in HOOKS if (hook := getattr(holder, name, None))
        }
        if not hooks:
            raise PluginRefused(f"{point.value} has none of {', '.join(HOOKS)}")
        for name, hook in hooks.items():
            registry.register_hook(name, hook)


def _guarded(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except PluginRefused:
        raise
    except (Exception, SystemExit) as exc:
        raise PluginRefused(f"{what} failed: {type(exc).__name__}: {exc}") from exc


def _accepted(registry: PluginRegistry, caller: Caller) -> LoadedPlugin:
    """Check what was offered; a tool that is no use is left out, anything else must be right."""
    providers = [_provider(each, registry) for each in registry.providers]
    offered = [*registry.tools, *(tool for each in providers for tool in each.tools())]
    prompts = [str(each.prompt()).strip()[:MAX_PROMPT_CHARS] for each in providers]
    hooks: dict[HookName, tuple[Hook, ...]] = {}
    for name, hook in registry.hooks:
        hooks[name] = (*hooks.get(name, ()), hook)
    plugin = LoadedPlugin(
        name=registry.name,
        caller=caller,
        tools=tuple(_usable(registry.name, offered, caller)),
        providers=tuple(providers),
        hooks=hooks,
        prompt="\n\n".join(filter(None, prompts)),
    )
    for engine in registry.engines:
        register_context_engine(engine)
    return plugin


def _provider(offered: Any, registry: PluginRegistry) -> MemoryProvider:
    if not (isinstance(offered, type) and issubclass(offered, MemoryProvider)):
        raise PluginRefused(f"{offered!r} is not a class derived from MemoryProvider")
    if not isinstance(getattr(offered, "name", None), str):
        raise PluginRefused(f"{offered.__name__} has no class attribute name")
    return offered(as_plain(dict(registry.options)))


def _usable(plugin: str, offered: Sequence[Any], caller: Caller) -> Iterator[Tool]:
    for tool in offered:
        if problem := tool_problem(tool):
            report_skipped(plugin, str(getattr(tool, "name", tool))[:64], problem)
        else:
            yield hosted(tool, caller)


def _require_told(registry: PluginRegistry, told: Mapping[str, list[str]]) -> None:
    """Check that a plugin offers only what it says it does: operators read that, not its code."""
    offered: dict[str, list[Any]] = {
        "tools": [getattr(each, "name", "?") for each in registry.tools],
        "memory_providers": [getattr(each, "name", "?") for each in registry.providers],
        "hooks": [name for name, _ in registry.hooks],
        "context_engines": [getattr(each, "name", "?") for each in registry.engines],
    }
    for kind, names in offered.items():
        if more := sorted({str(name) for name in names} - {*told.get(kind, ())}):
            raise PluginRefused(f"its plugin.yaml does not name {kind}: {', '.join(more)}")
