"""Which plugins there are, without running any of their code.

A plugin is a folder `plugins/<name>/` in PARLEY_HOME, or a name under which installed packages have
entry points; the folder is looked for first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from agent.plugins.folders import NAME, NAME_RULE, Folder, Shelf, find_folder, find_folders

PLUGINS = Path("plugins")
"""Where plugins lie below PARLEY_HOME; engines have a folder of their own in it."""
GROUPS = {
    "parley.tools": "tools",
    "parley.memory_providers": "memory_providers",
    "parley.hooks": "hooks",
}
"""Entry points, and what they offer."""
KINDS = ("tools", "memory_providers", "hooks", "context_engines")
"""What `provides` in a plugin.yaml may list by name."""


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
    found = [
        PluginInfo(each.name, "folder", each.description, tuple(_told(each)), problem_of(each))
        for each in find_folders(shelf_of(home))
    ]
    folders = {info.name for info in found}
    for name, points in sorted(entry_points().items()):
        problem = f"{name!r} is no name of a plugin: {NAME_RULE}"
        if name in folders:
            problem = "a plugin's folder has its name"
        elif NAME.fullmatch(name):
            problem = ""
        kinds = tuple(GROUPS[point.group] for point in points)
        found.append(PluginInfo(name, "entry point", _about(points), kinds, problem or None))
    return found


def may_guard(home: Path, name: str) -> bool:
    """Whether a plugin that is not loaded may have been there to forbid calls of tools."""
    folder = find_folder(shelf_of(home), name) if NAME.fullmatch(name) else None
    if folder is not None:
        told = provided_by(folder) if problem_of(folder) is None else {}
        return not told or "pre_tool_call" in told.get("hooks", ())
    points = entry_points().get(name)
    return points is None or any(GROUPS[point.group] == "hooks" for point in points)


def problem_of(folder: Folder) -> str | None:
    """Return why a folder is not loaded: it is not safe, or its plugin.yaml is wrong."""
    if folder.problem:
        return folder.problem
    provides = folder.about.get("provides", {})
    is_map = isinstance(provides, dict) and all(
        kind in KINDS and isinstance(names, list) for kind, names in provides.items()
    )
    return None if is_map else f"`provides` in its plugin.yaml must be lists of {', '.join(KINDS)}"


def provided_by(folder: Folder) -> Mapping[str, list[str]]:
    """Return what a sound plugin.yaml says that its plugin offers, names by kind."""
    provides = folder.about.get("provides", {})
    return {kind: [str(name) for name in names] for kind, names in provides.items()}


def _told(folder: Folder) -> Iterator[str]:
    if problem_of(folder) is None:
        for kind, names in provided_by(folder).items():
            yield f"{kind}: {', '.join(names)}"


def shelf_of(home: Path) -> Shelf:
    """Return where the plugins of a data directory lie."""
    return Shelf(
        home / PLUGINS,
        guarded=(),
        what="a plugin",
        sources=("__init__.py", "plugin.py"),
        module_prefix="parley_plugin_",
        reserved=frozenset({"context_engine"}),
    )


def entry_points() -> dict[str, list[metadata.EntryPoint]]:
    """Return the entry points of installed packages by the name of their plugin."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for group in GROUPS:
        for point in metadata.entry_points(group=group):
            found.setdefault(point.name, []).append(point)
    return found


def _about(points: Sequence[metadata.EntryPoint]) -> str:
    dist = points[0].dist
    return "" if dist is None else str(dist.metadata.json.get("summary", ""))
