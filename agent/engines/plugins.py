"""Plugins in the data directory: what lies there, whether it may be loaded, and loading it.

The registry (agent/engines/registry.py) asks here first. Nothing of a plugin runs before
`load_plugin`.
"""

import inspect
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from agent.context_engine import ContextEngine
from agent.errors import PluginRefused

PLUGINS = Path("plugins", "context_engine")
"""Where plugins lie below PARLEY_HOME, one folder for each."""
NAME = re.compile(r"[a-z0-9_-]{1,64}")
"""Names of engines; nothing in them means something to a file system or to Python's import."""
NAME_RULE = "only a-z, 0-9, _ and - are allowed"

_SOURCES = ("__init__.py", "engine.py")
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MODULE_PREFIX = "parley_context_engine_"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A folder below `PLUGINS`.

    Attributes:
        name: Of the folder, and so of the engine.
        description: From its plugin.yaml, with the version if there is one; may be empty.
        problem: Why it is not loaded; None if it may be.
    """

    name: str
    folder: Path
    description: str = ""
    problem: str | None = None


def find_plugins(home: Path) -> list[Plugin]:
    """Return what lies in the plugin folder, by name; runs no code of it."""
    root = home / PLUGINS
    if not root.is_dir():
        return []
    names = sorted(path.name for path in root.iterdir() if path.is_dir())
    return [_inspected(root, name) for name in names if not name.startswith((".", "__"))]


def find_plugin(home: Path, name: str) -> Plugin | None:
    """Return the plugin of this name; None if there is no such folder. Runs no code of it.

    Args:
        home: PARLEY_HOME.
        name: Fits `NAME`.
    """
    root = home / PLUGINS
    if not (root / name).is_dir():
        return None
    return _inspected(root, name)


def load_plugin(plugin: Plugin) -> type[ContextEngine]:
    """Run the plugin's code and return its engine.

    The code is loaded anew by each call, under a module name that nothing else uses.

    Raises:
        PluginRefused: It has a problem, raises, or does not offer one engine of its name.
    """
    if plugin.problem:
        raise PluginRefused(plugin.problem)
    found = _offered(_imported(plugin))
    if len(found) != 1:
        names = ", ".join(sorted(each.__name__ for each in found)) or "none"
        raise PluginRefused(f"it must offer exactly one engine, by register() or alone: {names}")
    return accepted(found[0], plugin.name)


def accepted(engine: Any, name: str) -> type[ContextEngine]:
    """Return what a plugin offers under a name, if it can be an engine.

    Raises:
        PluginRefused: It cannot.
    """
    if not (isinstance(engine, type) and issubclass(engine, ContextEngine)):
        raise PluginRefused(f"{engine!r} is not a class derived from ContextEngine")
    if inspect.isabstract(engine):
        missing = ", ".join(sorted(engine.__abstractmethods__))
        raise PluginRefused(f"{engine.__name__} does not define {missing}")
    if getattr(engine, "name", None) != name:
        raise PluginRefused(f"{engine.__name__} must have the class attribute name = {name!r}")
    return engine


class PluginRegistry:
    """What a plugin's `register(registry)` gets."""

    def __init__(self) -> None:
        self.engines: list[Any] = []

    def register_context_engine(self, engine: type[ContextEngine]) -> None:
        """Offer an engine."""
        self.engines.append(engine)


def _inspected(root: Path, name: str) -> Plugin:
    folder = root / name
    try:
        about = _about(folder)
        problem = next(_problems(root, folder, about), None)
    except (OSError, RuntimeError) as exc:
        # A loop of links is a RuntimeError before Python 3.13.
        return Plugin(name, folder, problem=f"cannot be read: {exc}")
    except (yaml.YAMLError, UnicodeDecodeError, TypeError) as exc:
        return Plugin(name, folder, problem=f"plugin.yaml cannot be read: {exc}")
    words = (about.get("description"), about.get("version") and f"(version {about['version']})")
    return Plugin(name, folder, " ".join(str(word) for word in words if word), problem)


def _about(folder: Path) -> dict[str, Any]:
    path = folder / "plugin.yaml"
    if not path.exists():
        return {}
    about = yaml.safe_load(path.read_text("utf-8"))
    if not isinstance(about, dict):
        raise TypeError("it must be a map with name, description and version")
    return about


def _problems(root: Path, folder: Path, about: dict[str, Any]) -> Iterator[str]:
    """Yield why a folder may not be loaded, the most basic reason first."""
    if not NAME.fullmatch(folder.name):
        yield f"{folder.name!r} is no name of an engine: {NAME_RULE}"
    if not folder.resolve().is_relative_to(root.resolve()):
        yield f"{folder} is a link that leads out of {root}"
    inside = [folder, *sorted(folder.rglob("*"))]
    for path in inside:
        if not path.resolve().is_relative_to(folder.resolve()):
            yield f"{path} is a link that leads out of {folder}"
    for path in (root.parent, root, *inside):
        if path.stat().st_mode & _OTHERS_MAY_WRITE:
            yield f"others may write to {path}, and so run code in Parley: chmod go-w {path}"
    if not any((folder / source).is_file() for source in _SOURCES):
        yield f"{folder} has neither __init__.py nor engine.py"
    if about.get("name", folder.name) != folder.name:
        yield f"its plugin.yaml calls it {about['name']!r}, its folder {folder.name!r}"


def _imported(plugin: Plugin) -> ModuleType:
    module_name = _MODULE_PREFIX + plugin.name
    source = next(plugin.folder / name for name in _SOURCES if (plugin.folder / name).is_file())
    loader = SourceFileLoader(module_name, str(source))
    spec = ModuleSpec(module_name, loader, origin=str(source), is_package=True)
    spec.has_location = True
    spec.submodule_search_locations = [str(plugin.folder)]
    module = module_from_spec(spec)
    _forget(module_name)
    sys.modules[module_name] = module
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        _forget(module_name)
        raise PluginRefused(f"importing it failed: {type(exc).__name__}: {exc}") from exc
    return module


def _forget(module_name: str) -> None:
    for name in list(sys.modules):
        if name == module_name or name.startswith(f"{module_name}."):
            del sys.modules[name]


def _offered(module: ModuleType) -> list[Any]:
    """Return what the module registers, or the engines that it defines itself."""
    register = getattr(module, "register", None)
    if register is None:
        own = (each for each in vars(module).values() if _defined_in(each, module.__name__))
        return list(dict.fromkeys(own))
    registry = PluginRegistry()
    try:
        register(registry)
    except (Exception, SystemExit) as exc:
        raise PluginRefused(f"its register() failed: {type(exc).__name__}: {exc}") from exc
    return registry.engines


def _defined_in(value: Any, module_name: str) -> bool:
    if not (isinstance(value, type) and issubclass(value, ContextEngine)):
        return False
    return value.__module__ == module_name or value.__module__.startswith(f"{module_name}.")
