"""Engine plugins in the data directory: loading one, and what can be an engine.

The registry (agent/plugins/engines/registry.py) asks here first. What lies there and whether it may
be loaded is found out by agent/plugins/folders.py; nothing of a plugin runs before `load_plugin`.
"""

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from agent.context_engine import ContextEngine
from agent.errors import PluginRefused
from agent.plugins.folders import Folder, Shelf, find_folder, find_folders, imported

PLUGINS = Path("plugins", "context_engine")
"""Where engines lie below PARLEY_HOME, one folder for each."""


def find_plugins(home: Path) -> list[Folder]:
    """Return what lies in the plugin folder, by name; runs no code of it."""
    return find_folders(_shelf(home / PLUGINS))


def find_plugin(home: Path, name: str) -> Folder | None:
    """Return the plugin of this name; None if there is no such folder. Runs no code of it.

    Args:
        home: PARLEY_HOME.
        name: Fits `agent.plugins.folders.NAME`.
    """
    return find_folder(_shelf(home / PLUGINS), name)


def load_plugin(plugin: Folder) -> type[ContextEngine]:
    """Run the plugin's code and return its engine.

    The code is loaded anew by each call, under a module name that nothing else uses.

    Raises:
        PluginRefused: It has a problem, raises, or does not offer one engine of its name.
    """
    found = _offered(imported(_shelf(plugin.folder.parent), plugin))
    if len(found) != 1:
        names = ", ".join(sorted(each.__name__ for each in found)) or "none"
        raise PluginRefused(f"it must offer exactly one engine, by register() or alone: {names}")
    return accepted(found[0], plugin.name)


def _shelf(root: Path) -> Shelf:
    return Shelf(
        root,
        guarded=(root.parent,),
        what="an engine",
        sources=("__init__.py", "engine.py"),
        module_prefix="parley_context_engine_",
    )


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
