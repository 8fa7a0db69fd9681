"""Which plugins and context engines there are, without running any of their code.

A plugin is a folder in PARLEY_HOME, or a name under which installed packages have entry points; the
folder is looked for first. Context engines have a folder and a group of entry points of their own.
"""

import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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
OFFERS = ("tools", "memory_providers", "hooks", "context_engines")
"""What `provides` in a plugin.yaml may list by name."""

Kind = Literal["plugin", "engine"]
FOLDERS: Mapping[Kind, Path] = {"plugin": PLUGINS, "engine": ENGINES}
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin or an engine that was found, without running any of its code.

    Attributes:
        source: "folder", "entry point"; of engines "plugin" (a folder), "registered", "built-in".
        description: From its plugin.yaml, with the version if there is one, or from its package;
            may be empty.
        problem: Why it cannot be loaded; None if it can be tried.
        provides: What a plugin's plugin.yaml says that it offers, names by kind; empty where it
            says nothing, or there is a problem.
        file: What is imported of a folder; None where it has no such file, and of all others.
    """

    name: str
    source: str
    description: str = ""
    problem: str | None = None
    provides: Mapping[str, list[str]] = field(default_factory=dict)
    file: Path | None = None

    @property
    def offers(self) -> tuple[str, ...]:
        """What it provides, as in "hooks: pre_tool_call"; empty if it does not say."""
        return tuple(f"{kind}: {', '.join(names)}" for kind, names in self.provides.items())


def find_folders(home: Path, kind: Kind) -> list[Found]:
    """Return the folders of a kind in a data directory, in order of name; runs no code of them."""
    root = home / FOLDERS[kind]
    names = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    # What begins so is `.git`, `__pycache__` and the like.
    found = (find_folder(home, kind, name) for name in names if not name.startswith((".", "__")))
    return [folder for folder in found if folder is not None]


def find_folder(home: Path, kind: Kind, name: str) -> Found | None:
    """Return the folder of this name, or None if there is none. Runs no code of it."""
    path, source = home / FOLDERS[kind] / name, "folder" if kind == "plugin" else "plugin"
    if wrong := name_problem(kind, name):
        return Found(name, source, problem=wrong)
    # The engines' own folder lies among those of plugins.
    if path == home / ENGINES or not path.is_dir():
        return None
    try:
        about = _about(path)
        problem = next(_problems(home, kind, path, about), None)
    except (OSError, RuntimeError) as exc:
        # A loop of links is a RuntimeError before Python 3.13.
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
    """Yield why a folder may not be loaded, the most basic reason first."""
    root, inside = folder.parent, [folder, *sorted(folder.rglob("*"))]
    if not folder.resolve().is_relative_to(root.resolve()):
        yield f"{folder} is a link that leads out of {root}"
    for path in inside:
        if not path.resolve().is_relative_to(folder.resolve()):
            yield f"{path} is a link that leads out of {folder}"
    # Whoever may write to a folder above could put another folder in the place of this one.
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
    """Return why nothing of this kind can have a name; None if it can."""
    if NAME.fullmatch(name):
        return None
    what = "a plugin" if kind == "plugin" else "an engine"
    return f"{name!r} is no name of {what}: {NAME_RULE}"


def entry_point(group: str, name: str) -> metadata.EntryPoint | None:
    """Return the entry point of this name; of several packages the first one counts."""
    return next(iter(metadata.entry_points(group=group, name=name)), None)


def packaged(group: str, kind: Kind) -> list[Found]:
    """Return what installed packages offer, in order of name; runs no code of theirs."""
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
    """Return every plugin, folders first; runs no code of any."""
    folders, packages = find_folders(home, "plugin"), packaged(GROUP, "plugin")
    taken, hidden = {folder.name for folder in folders}, "a plugin's folder has its name"
    return folders + [
        replace(each, problem=hidden) if each.name in taken else each for each in packages
    ]


def may_guard(home: Path, name: str) -> bool:
    """Whether a plugin that is not loaded may have been there to forbid calls of tools."""
    folder = find_folder(home, "plugin", name)
    # A plugin that does not say what it offers may have forbidden anything.
    if folder is None or not folder.provides:
        return True
    return "pre_tool_call" in folder.provides.get("hooks", ())
