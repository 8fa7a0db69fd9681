"""Plugins in the data directory: what lies there, whether it may be loaded, and importing it.

For plugins (agent/plugins/loading.py) and for context engines (agent/plugins/engines/loading.py).
Nothing of a plugin runs before `imported`.
"""

import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from agent.errors import PluginRefused
from agent.prompt.skills import load_plain

NAME = re.compile(r"[a-z0-9_-]{1,64}")
"""Nothing in them means something to a file system or to Python's import."""
NAME_RULE = "only a-z, 0-9, _ and - are allowed"

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Shelf:
    """A folder whose subfolders are plugins of one kind.

    Attributes:
        root: The folder.
        guarded: The folders above it that nobody else may write to either.
        what: What a name is one of, for texts: "an engine".
        sources: The files of which each plugin has one, the first that is there.
        module_prefix: Modules of plugins are named so, and nothing else is.
        reserved: Subfolders that are no plugins.
    """

    root: Path
    guarded: tuple[Path, ...]
    what: str
    sources: tuple[str, ...]
    module_prefix: str
    reserved: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Folder:
    """A plugin's folder.

    Attributes:
        name: Of the folder, and so of the plugin.
        description: From its plugin.yaml, with the version if there is one; may be empty.
        problem: Why it is not loaded; None if it may be.
        about: Its plugin.yaml.
    """

    name: str
    folder: Path
    description: str = ""
    problem: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


def find_folders(shelf: Shelf) -> list[Folder]:
    """Return what lies on a shelf, by name; runs no code of it."""
    if not shelf.root.is_dir():
        return []
    names = sorted(path.name for path in shelf.root.iterdir() if path.is_dir())
    hidden = (".", "__")
    return [
        _inspected(shelf, name)
        for name in names
        if not name.startswith(hidden) and name not in shelf.reserved
    ]


def find_folder(shelf: Shelf, name: str) -> Folder | None:
    """Return the plugin of this name; None if there is no such folder. Runs no code of it.

    Args:
        shelf: Where it would lie.
        name: Fits `NAME`.
    """
    if name in shelf.reserved or not (shelf.root / name).is_dir():
        return None
    return _inspected(shelf, name)


def imported(shelf: Shelf, plugin: Folder) -> ModuleType:
    """Run the plugin's code and return its module.

    It is loaded anew by each call, under a module name that nothing else uses.

    Raises:
        PluginRefused: It has a problem, or raises.
    """
    if plugin.problem:
        raise PluginRefused(plugin.problem)
    module_name = shelf.module_prefix + plugin.name
    source = next(plugin.folder / name for name in shelf.sources if _is_in(plugin.folder, name))
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


def _inspected(shelf: Shelf, name: str) -> Folder:
    folder = shelf.root / name
    try:
        about = _about(folder)
        problem = next(_problems(shelf, folder, about), None)
    except (OSError, RuntimeError) as exc:
        # A loop of links is a RuntimeError before Python 3.13.
        return Folder(name, folder, problem=f"cannot be read: {exc}")
    except (yaml.YAMLError, UnicodeDecodeError, TypeError) as exc:
        return Folder(name, folder, problem=f"plugin.yaml cannot be read: {exc}")
    words = (about.get("description"), about.get("version") and f"(version {about['version']})")
    description = " ".join(str(word) for word in words if word)
    return Folder(name, folder, description, problem, about)


def _about(folder: Path) -> dict[str, Any]:
    path = folder / "plugin.yaml"
    if not path.exists():
        return {}
    about = load_plain(path.read_text("utf-8"))
    if not isinstance(about, dict):
        raise TypeError("it must be a map with name, description and version")
    return about


def _problems(shelf: Shelf, folder: Path, about: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a folder may not be loaded, the most basic reason first."""
    if not NAME.fullmatch(folder.name):
        yield f"{folder.name!r} is no name of {shelf.what}: {NAME_RULE}"
    if not folder.resolve().is_relative_to(shelf.root.resolve()):
        yield f"{folder} is a link that leads out of {shelf.root}"
    inside = [folder, *sorted(folder.rglob("*"))]
    for path in inside:
        if not path.resolve().is_relative_to(folder.resolve()):
            yield f"{path} is a link that leads out of {folder}"
    for path in (*shelf.guarded, shelf.root, *inside):
        if path.stat().st_mode & _OTHERS_MAY_WRITE:
            yield f"others may write to {path}, and so run code in Parley: chmod go-w {path}"
    if not any(_is_in(folder, source) for source in shelf.sources):
        yield f"{folder} has neither {' nor '.join(shelf.sources)}"
    if about.get("name", folder.name) != folder.name:
        yield f"its plugin.yaml calls it {str(about['name'])[:64]!r}, its folder {folder.name!r}"


def _is_in(folder: Path, name: str) -> bool:
    return (folder / name).is_file()
