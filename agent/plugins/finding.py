"""Which plugins and context engines there are, without running any of their code.

A plugin is a folder in PARLEY_HOME, or a name under which installed packages have entry points; the
folder is looked for first. Context engines have a folder and a group of entry points of their own.
"""

import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import yaml

from agent.prompt.skills import load_plain

NAME = re.compile(r"[a-z0-9_-]{1,64}")
"""What a plugin and an engine may be called: such a name means nothing to a file system or to
Python's import."""
NAME_RULE = "only a-z, 0-9, _ and - are allowed"

PLUGINS = Path("plugins")
"""Where plugins lie below PARLEY_HOME, one folder for each."""
ENGINES = PLUGINS / "context_engine"
"""Where context engines lie below PARLEY_HOME, one folder for each."""
GROUP = "parley.plugins"
"""Entry points of plugins: a function `register(registry)`, or a module that has one."""
OLD_GROUPS = ("parley.tools", "parley.memory_providers", "parley.hooks")
"""Those of version 0.5, one for each kind of offer."""
ENGINE_GROUP = "parley.context_engines"
"""Entry points of context engines; the name is the engine's, the value its class."""
KINDS = ("tools", "memory_providers", "hooks", "context_engines")
"""What `provides` in a plugin.yaml may list by name."""

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Shelf:
    """A folder with one subfolder for each plugin of one kind.

    Attributes:
        what: What lies there, for texts: "a plugin" or "an engine".
        sources: Names of the file that is imported; the first one that a plugin has counts.
        module_prefix: What the names of the plugins' modules begin with; no other module's does.
        guarded: The folders above it that others must not be able to write to either.
        kinds: What `provides` in a plugin.yaml may list; empty where nobody reads it.
        reserved: Subfolders that are no plugins.
    """

    root: Path
    what: str
    sources: tuple[str, ...]
    module_prefix: str
    guarded: tuple[Path, ...] = ()
    kinds: tuple[str, ...] = ()
    reserved: frozenset[str] = frozenset()


def plugin_shelf(home: Path) -> Shelf:
    """Return the shelf of the plugins in a data directory."""
    sources = ("__init__.py", "plugin.py")
    # The engines' shelf lies in this one.
    reserved = frozenset({ENGINES.name})
    return Shelf(
        home / PLUGINS, "a plugin", sources, "parley_plugin_", kinds=KINDS, reserved=reserved
    )


def engine_shelf(home: Path) -> Shelf:
    """Return the shelf of the context engines in a data directory."""
    sources = ("__init__.py", "engine.py")
    # Whoever may write to the folder above could put another folder in the place of this one.
    guarded = (home / PLUGINS,)
    return Shelf(home / ENGINES, "an engine", sources, "parley_context_engine_", guarded=guarded)


@dataclass(frozen=True, slots=True)
class Folder:
    """A plugin's folder.

    Attributes:
        description: From its plugin.yaml, with the version if there is one; may be empty.
        problem: Why it is not loaded; None if it may be.
        provides: What plugin.yaml says that the plugin offers, names by kind; empty where it says
            nothing, or the folder has a problem.
    """

    name: str
    path: Path
    shelf: Shelf
    description: str = ""
    problem: str | None = None
    provides: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        """The file that is imported; there is one if the folder has no problem."""
        return next(self.path / name for name in self.shelf.sources if _is_in(self.path, name))


def find_folders(shelf: Shelf) -> list[Folder]:
    """Return what lies on a shelf, in order of name; runs no code of it."""
    if not shelf.root.is_dir():
        return []
    names = sorted(path.name for path in shelf.root.iterdir() if path.is_dir())
    return [
        _inspected(shelf, name)
        for name in names
        # What begins so is `.git`, `__pycache__` and the like.
        if not name.startswith((".", "__")) and name not in shelf.reserved
    ]


def find_folder(shelf: Shelf, name: str) -> Folder | None:
    """Return the plugin of this name; None if there is no such folder. Runs no code of it.

    Args:
        name: Fits `NAME`.
    """
    if name in shelf.reserved or not (shelf.root / name).is_dir():
        return None
    return _inspected(shelf, name)


def _inspected(shelf: Shelf, name: str) -> Folder:
    path = shelf.root / name
    try:
        about = _about(path)
        problem = next(_problems(shelf, path, about), None)
    except (OSError, RuntimeError) as exc:
        # A loop of links is a RuntimeError before Python 3.13.
        return Folder(name, path, shelf, problem=f"cannot be read: {exc}")
    except (yaml.YAMLError, UnicodeDecodeError, TypeError) as exc:
        return Folder(name, path, shelf, problem=f"plugin.yaml cannot be read: {exc}")
    words = (about.get("description"), about.get("version") and f"(version {about['version']})")
    description = " ".join(str(word) for word in words if word)
    told = about.get("provides", {}) if shelf.kinds and not problem else {}
    provides = {kind: [str(name) for name in names] for kind, names in told.items()}
    return Folder(name, path, shelf, description, problem, provides)


def _about(path: Path) -> dict[str, Any]:
    file = path / "plugin.yaml"
    if not file.exists():
        return {}
    about = load_plain(file.read_text("utf-8"))
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
    if shelf.kinds and not _is_map_of_lists(about.get("provides", {}), shelf.kinds):
        yield f"`provides` in its plugin.yaml must be lists of {', '.join(shelf.kinds)}"


def _is_in(folder: Path, name: str) -> bool:
    return (folder / name).is_file()


def _is_map_of_lists(provides: object, kinds: tuple[str, ...]) -> bool:
    return isinstance(provides, dict) and all(
        kind in kinds and isinstance(names, list) for kind, names in provides.items()
    )


def entry_point(name: str) -> metadata.EntryPoint | None:
    """Return the entry point of this name; of several packages the first one counts."""
    return next(iter(metadata.entry_points(group=GROUP, name=name)), None)


def is_old(name: str) -> bool:
    """Whether a package offers a plugin of this name as version 0.5 wanted it."""
    return any(metadata.entry_points(group=group, name=name) for group in OLD_GROUPS)


def summary_of(point: metadata.EntryPoint) -> str:
    """Return the description of the package that an entry point belongs to."""
    return "" if point.dist is None else str(point.dist.metadata.json.get("summary", ""))


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin that was found, without running any of its code.

    Attributes:
        offers: "hooks: pre_tool_call", …; empty where it does not say.
        problem: Why it cannot be loaded; None if it can be tried.
    """

    name: str
    source: Literal["folder", "entry point"]
    description: str = ""
    offers: tuple[str, ...] = ()
    problem: str | None = None


def available(home: Path) -> list[PluginInfo]:
    """Return every plugin, folders first; runs no code of any."""
    found: list[PluginInfo] = []
    for each in find_folders(plugin_shelf(home)):
        offers = tuple(f"{kind}: {', '.join(names)}" for kind, names in each.provides.items())
        found.append(PluginInfo(each.name, "folder", each.description, offers, each.problem))
    folders = {info.name for info in found}
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
        problem = None
        if point.name in folders:
            problem = "a plugin's folder has its name"
        elif not NAME.fullmatch(point.name):
            problem = f"{point.name!r} is no name of a plugin: {NAME_RULE}"
        found.append(PluginInfo(point.name, "entry point", summary_of(point), (), problem))
    return found


def may_guard(home: Path, name: str) -> bool:
    """Whether a plugin that is not loaded may have been there to forbid calls of tools."""
    folder = find_folder(plugin_shelf(home), name) if NAME.fullmatch(name) else None
    # A plugin that does not say what it offers may have forbidden anything.
    if folder is None or not folder.provides:
        return True
    return "pre_tool_call" in folder.provides.get("hooks", ())
