"""Find plugins and context engines, and load those named in the settings.

A plugin is a folder in PARLEY_HOME, or a name under which installed packages have entry points; the
folder takes precedence. Context engines have a separate folder and entry point group. Finding them
runs no plugin code. Only plugins in `plugins.enabled` and `context.engine` are ever imported; any
exception of their code becomes a `PluginRefused`.
"""

import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import structlog
import yaml

from agent.context_engine import ContextEngine
from agent.errors import PluginRefused
from agent.plugins.contracts import NAME, NAME_RULE, MemoryProvider, tool_problem
from agent.plugins.registry import (
    LoadedPlugin,
    PluginRegistry,
    Plugins,
    engine_class,
    register_context_engine,
    takes_lists,
    usable_engine,
)
from agent.plugins.supervision import Caller, supervised_tool
from agent.prompt.skills import load_plain
from agent.settings import PluginSettings
from agent.tools.registry import Tool

log = structlog.get_logger()

PLUGINS = Path("plugins")
"""Directory of plugins below PARLEY_HOME, one folder each."""
ENGINES = PLUGINS / "context_engine"
"""Directory of context engines below PARLEY_HOME, one folder each."""
GROUP = "parley.plugins"
"""Entry points of plugins: a function `register(registry)`, or a module that defines one."""
OLD_GROUPS = ("parley.tools", "parley.memory_providers", "parley.hooks")
"""Entry point groups of version 0.5, one per kind of offer."""
ENGINE_GROUP = "parley.context_engines"
"""Entry points of context engines: the engine's name and its class."""
OFFERS = ("tools", "memory_providers", "hooks", "context_engines")
"""Kinds of offers that `provides` in a plugin.yaml may list by name."""

Kind = Literal["plugin", "engine"]
FOLDERS: Mapping[Kind, Path] = {"plugin": PLUGINS, "engine": ENGINES}
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin or engine that was found.

    Attributes:
        source: "folder", "entry point"; for engines "plugin" (a folder), "registered", "built-in".
        description: From its plugin.yaml, with the version if given, or from its package.
        problem: Reason why it cannot be loaded; None if loading can be tried.
        provides: Offers listed in a plugin's plugin.yaml, names by kind; empty with a problem.
        file: The file to import from a folder; None if missing.
    """

    name: str
    source: str
    description: str = ""
    problem: str | None = None
    provides: Mapping[str, list[str]] = field(default_factory=dict)
    file: Path | None = None

    @property
    def offers(self) -> tuple[str, ...]:
        """The listed offers, as in "hooks: pre_tool_call"; empty if none are listed."""
        return tuple(f"{kind}: {', '.join(names)}" for kind, names in self.provides.items())


def find_folders(home: Path, kind: Kind) -> list[Found]:
    """List the folders of a kind in a data directory, sorted by name."""
    root = home / FOLDERS[kind]
    names = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    # Skip `.git`, `__pycache__` and the like.
    found = (find_folder(home, kind, name) for name in names if not name.startswith((".", "__")))
    return [folder for folder in found if folder is not None]


def find_folder(home: Path, kind: Kind, name: str) -> Found | None:
    """Return the folder of this name, or None."""
    path, source = home / FOLDERS[kind] / name, "folder" if kind == "plugin" else "plugin"
    if wrong := name_problem(kind, name):
        return Found(name, source, problem=wrong)
    # The engines' folder is inside the plugins' folder.
    if path == home / ENGINES or not path.is_dir():
        return None
    try:
        about = _about(path)
        problem = next(_problems(home, kind, path, about), None)
    except (OSError, RuntimeError) as exc:
        # A loop of links raises a RuntimeError before Python 3.13.
        return Found(name, source, problem=f"cannot be read: {exc}")
    except (yaml.YAMLError, UnicodeDecodeError, TypeError) as exc:
        return Found(name, source, problem=f"plugin.yaml cannot be read: {exc}")
    words = (about.get("description"), about.get("version") and f"(version {about['version']})")
    description = " ".join(str(word) for word in words if word)
    told = about.get("provides", {}) if kind == "plugin" and not problem else {}
    provides = {offer: [str(name) for name in names] for offer, names in told.items()}
    file = next(filter(Path.is_file, _files(kind, path)), None)
    return Found(name, source, description, problem, provides, file)


def _files(kind: Kind, folder: Path) -> tuple[Path, Path]:
    return folder / "__init__.py", folder / f"{kind}.py"


def _about(path: Path) -> dict[str, Any]:
    file = path / "plugin.yaml"
    about = load_plain(file.read_text("utf-8")) if file.exists() else {}
    if not isinstance(about, dict):
        raise TypeError("it must be a map with name, description and version")
    return about


def _problems(home: Path, kind: Kind, folder: Path, about: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why a folder may not be loaded, the most basic first."""
    root, inside = folder.parent, [folder, *sorted(folder.rglob("*"))]
    if not folder.resolve().is_relative_to(root.resolve()):
        yield f"{folder} is a link that leads out of {root}"
    for path in inside:
        if not path.resolve().is_relative_to(folder.resolve()):
            yield f"{path} is a link that leads out of {folder}"
    # A user with write access to a parent folder could replace this one.
    for path in (home / PLUGINS, root, *inside):
        if path.stat().st_mode & _OTHERS_MAY_WRITE:
            yield f"others may write to {path}, and so run code in Parley: chmod go-w {path}"
    if not any(map(Path.is_file, _files(kind, folder))):
        yield f"{folder} has neither __init__.py nor {kind}.py"
    if about.get("name", folder.name) != folder.name:
        yield f"its plugin.yaml calls it {str(about['name'])[:64]!r}, its folder {folder.name!r}"
    if kind == "plugin" and not _is_map_of_lists(about.get("provides", {})):
        yield f"`provides` in its plugin.yaml must be lists of {', '.join(OFFERS)}"


def _is_map_of_lists(provides: object) -> bool:
    return isinstance(provides, dict) and all(
        kind in OFFERS and isinstance(names, list) for kind, names in provides.items()
    )


def name_problem(kind: Kind, name: str) -> str | None:
    """Return the reason why a name is invalid for this kind, or None."""
    if NAME.fullmatch(name):
        return None
    what = "a plugin" if kind == "plugin" else "an engine"
    return f"{name!r} is no name of {what}: {NAME_RULE}"


def entry_point(group: str, name: str) -> metadata.EntryPoint | None:
    """Return the entry point of this name, from the first package if there are several."""
    return next(iter(metadata.entry_points(group=group, name=name)), None)


def find_packaged(group: str, kind: Kind) -> list[Found]:
    """List the offers of installed packages, sorted by name."""
    return [
        Found(
            point.name,
            "entry point",
            "" if point.dist is None else str(point.dist.metadata.json.get("summary", "")),
            problem=name_problem(kind, point.name),
        )
        for point in sorted(metadata.entry_points(group=group), key=lambda point: point.name)
    ]


def available(home: Path) -> list[Found]:
    """List every plugin, folders first."""
    folders, packages = find_folders(home, "plugin"), find_packaged(GROUP, "plugin")
    taken, hidden = {folder.name for folder in folders}, "a plugin's folder has its name"
    return folders + [
        replace(each, problem=hidden) if each.name in taken else each for each in packages
    ]


def _may_guard(home: Path, name: str) -> bool:
    """Return whether an unloaded plugin may have had a hook that blocks tool calls."""
    folder = find_folder(home, "plugin", name)
    # A plugin that does not list its offers may have blocked anything.
    if folder is None or not folder.provides:
        return True
    return "pre_tool_call" in folder.provides.get("hooks", ())


PLUGIN_MODULE, ENGINE_MODULE = "parley_plugin_", "parley_context_engine_"
"""Prefixes of their module names, unused by any other module."""
HOOK_S = 5.0
"""Timeout in seconds of a call to a hook or a memory provider: a turn waits for it."""
MAX_PROMPT_CHARS = 2_000
"""Longest text that a memory provider adds to every system prompt."""


def load_plugins(settings: PluginSettings, home: Path) -> Plugins:
    """Load the plugins in `plugins.enabled`; log and skip those that cannot be loaded."""
    loaded: list[LoadedPlugin] = []
    guards: list[str] = []
    missing: dict[str, str] = {}
    for name in dict.fromkeys(settings.enabled):
        try:
            loaded.append(_load(name, settings, home))
        except PluginRefused as exc:
            is_guard = _may_guard(home, name)
            guards += [name] if is_guard else []
            missing[name] = str(exc)
            log.exception(
                "plugin_unavailable",
                plugin=name,
                reason=str(exc),
                tools_refused=is_guard,
                exc_info=exc.__cause__,
            )
    return Plugins(tuple(loaded), tuple(guards), missing)


def _load(name: str, settings: PluginSettings, home: Path) -> LoadedPlugin:
    """Run a plugin's code and collect its offers; if it is refused, none of them is active."""
    registry = PluginRegistry(name, settings.options_of(name))
    provides: Mapping[str, list[str]] = {}
    if folder := find_folder(home, "plugin", name):
        module, provides = _imported(folder, PLUGIN_MODULE), folder.provides
    elif point := entry_point(GROUP, name):
        module = call_guarded(f"importing {point.value}", point.load)
    elif any(entry_point(group, name) for group in OLD_GROUPS):
        raise PluginRefused(
            f"its package has no entry point in the group {GROUP}, as version 0.6 wants it"
        )
    else:
        raise PluginRefused(f"there is neither {home / PLUGINS / name} nor an entry point {name!r}")
    if not _has_registered(module, registry):
        raise PluginRefused("it has no function register(registry)")
    for kind, names in registry.offered().items() if provides else ():
        # Operators read only the list in plugin.yaml.
        if more := sorted({*names} - {*provides.get(kind, ())}):
            raise PluginRefused(f"its plugin.yaml does not name {kind}: {', '.join(more)}")
    caller = Caller(name, HOOK_S)
    plugin: LoadedPlugin = call_guarded("taking what it offers", _accepted, registry, caller)
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

    The code registers its engine, or the module itself defines exactly one engine.
    """
    module = _imported(folder, ENGINE_MODULE)
    registry = PluginRegistry(folder.name, deepcopy(dict(options)))
    engines = registry.engines
    if not _has_registered(module, registry):
        engines = list(dict.fromkeys(own for own in vars(module).values() if _is_own(own, module)))
    if registry.tools or registry.providers or registry.hooks:
        raise PluginRefused(f"a plugin in {ENGINES} can only offer an engine")
    if len(engines) != 1:
        names = ", ".join(sorted(str(getattr(each, "__name__", each)) for each in engines))
        rule = "it must offer exactly one engine, by register() or alone"
        raise PluginRefused(f"{rule}: {names or 'none'}")
    return engine_class(engines[0], folder.name)


def _is_own(value: Any, module: ModuleType) -> bool:
    """Return whether a value is an engine defined by the module or one of its submodules."""
    if not (isinstance(value, type) and (issubclass(value, ContextEngine) or takes_lists(value))):
        return False
    return f"{value.__module__}.".startswith(f"{module.__name__}.")


def call_guarded(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a plugin's function; convert a failure to a `PluginRefused` that starts with `what`."""
    try:
        return function(*arguments)
    except PluginRefused:
        raise
    # SystemExit as well: a plugin that calls sys.exit() must not stop Parley's start-up.
    except (Exception, SystemExit) as exc:
        raise PluginRefused(f"{what} failed: {type(exc).__name__}: {exc}") from exc


def _imported(folder: Found, prefix: str) -> ModuleType:
    """Run the code of a plugin's folder, on each call again, and return its module."""
    if folder.problem or folder.file is None:
        raise PluginRefused(folder.problem or f"there is nothing to import in {folder.name}")
    module_name, source = f"{prefix}{folder.name}", str(folder.file)
    loader = SourceFileLoader(module_name, source)
    # `from . import other` searches this folder.
    spec = spec_from_file_location(
        module_name, source, loader=loader, submodule_search_locations=[str(folder.file.parent)]
    )
    module = module_from_spec(cast("ModuleSpec", spec))
    _forget(module_name)
    # Before it runs: the modules it imports look up their package here.
    sys.modules[module_name] = module
    try:
        call_guarded("importing it", loader.exec_module, module)
    except PluginRefused:
        _forget(module_name)
        raise
    return module


def _forget(module_name: str) -> None:
    for name in list(sys.modules):
        if name == module_name or name.startswith(f"{module_name}."):
            del sys.modules[name]


def _has_registered(module: Any, registry: PluginRegistry) -> bool:
    """Call a module's `register` (or the module, if it is a function) to collect its offers."""
    register = getattr(module, "register", module)
    if not callable(register):
        return False
    call_guarded("its register()", register, registry)
    return True


def _accepted(registry: PluginRegistry, caller: Caller) -> LoadedPlugin:
    """Check the offers: skip a faulty tool, raise for any other fault."""
    providers = [_provider(each, registry.options) for each in registry.providers]
    of_memories = [tool for each in providers for tool in each.tools()]
    prompts = [str(each.prompt()).strip()[:MAX_PROMPT_CHARS] for each in providers]
    plugin = LoadedPlugin(
        name=registry.name,
        caller=caller,
        tools=(*_usable(registry.tools, caller), *_usable(of_memories, caller, recalls=True)),
        providers=tuple(providers),
        hooks={name: tuple(found) for name, found in registry.hooks.items()},
        prompt="\n\n".join(filter(None, prompts)),
    )
    # Last, and only if all are valid: a refused plugin must leave no engine behind.
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
            name = str(getattr(tool, "name", tool))[:64]
            log.warning("plugin_tool_skipped", plugin=caller.plugin, tool=name, reason=problem)
        else:
            yield supervised_tool(tool, caller, recalls=recalls)
