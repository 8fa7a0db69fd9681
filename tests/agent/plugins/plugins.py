"""Plugins for tests: folders in a data directory, installed packages, and what is active."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.plugins import loading
from agent.plugins.contracts import Hook, HookName
from agent.plugins.registry import LoadedPlugin, Plugins
from agent.plugins.supervision import Caller
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool

BOMB = "raise AssertionError('this must not run')\n"


def write_plugin(home: Path, name: str, source: str = BOMB, about: str | None = None) -> Path:
    """Write a plugin of one file, and its plugin.yaml; return its folder."""
    folder = home / loading.PLUGINS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(source)
    if about is not None:
        (folder / "plugin.yaml").write_text(about)
    for path in (home / loading.PLUGINS, folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def install(
    monkeypatch: pytest.MonkeyPatch, group: str = loading.GROUP, **points: Callable[[], Any]
) -> None:
    """Have packages be installed: a name and what loading its entry point does."""
    dist = SimpleNamespace(metadata=SimpleNamespace(json={"summary": "From a package."}))
    known = [
        SimpleNamespace(name=name, group=group, value=f"pkg:{name}", load=load, dist=dist)
        for name, load in points.items()
    ]

    def entry_points(group: str, name: str | None = None) -> list[SimpleNamespace]:
        return [each for each in known if each.group == group and name in {None, each.name}]

    found = SimpleNamespace(entry_points=entry_points, EntryPoint=object)
    monkeypatch.setattr(loading, "metadata", found)


def active(name: str = "mine", limit_s: float = 10, **hooks: Hook) -> LoadedPlugin:
    """Return a plugin that has these hooks."""
    named: dict[HookName, tuple[Hook, ...]] = {hook: (fn,) for hook, fn in hooks.items()}  # type: ignore[misc]
    return LoadedPlugin(name, Caller(name, limit_s), hooks=named)


def plugins(*loaded: LoadedPlugin) -> Plugins:
    """Return them as all that is active."""
    return Plugins(loaded)


class NoArguments(Arguments):
    """None."""


def tool(run: Callable[[ToolContext, NoArguments], Any], **changes: Any) -> Tool:
    """Return a tool that reads."""
    values: dict[str, Any] = {"name": "weather", "description": "Tells.", "effect": "read"}
    return Tool(arguments=NoArguments, run=run, **(values | changes))
