"""`parley plugins list`: what is there, active or wrong; no code of a plugin runs."""

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.agent.plugins.plugins import install, write_plugin
from tests.support.command_line import Run


@pytest.fixture
def listed(parley: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return the lines of the list where these plugins are enabled."""
    install(monkeypatch)

    def run(*enabled: str) -> list[str]:
        names = ", ".join(f'"{name}"' for name in enabled)
        monkeypatch.setenv("PARLEY_PLUGINS__ENABLED", f"[{names}]")
        found = parley("plugins", "list")
        assert found.code == 0, found.err
        return [" ".join(line.split()) for line in found.out.splitlines()]

    return run


def test_plugins_are_listed(listed: Callable[..., list[str]], tmp_path: Path) -> None:
    """With what they say that they offer; names that nothing has are told."""
    about = "description: Watches.\nprovides: {hooks: [pre_tool_call]}\n"
    write_plugin(tmp_path, "guard", about=about)
    write_plugin(tmp_path, "other")
    write_plugin(tmp_path, "unsafe").chmod(0o777)
    head, guard, other, unsafe, *problems = listed("guard", "gaurd")
    assert head == "name source offers description"
    assert guard == "* guard folder hooks: pre_tool_call Watches."
    assert other == "other folder (does not say)"
    assert unsafe == "! unsafe folder (does not say)"
    assert problems[0].startswith("! unsafe (folder) cannot be used: others may write to")
    assert problems[1:] == ["! plugins.enabled names gaurd, which is not there"]


def test_the_list_as_json(parley: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the table and the lines below it hold."""
    install(monkeypatch)
    write_plugin(tmp_path, "guard")
    monkeypatch.setenv("PARLEY_PLUGINS__ENABLED", '["guard", "gaurd"]')
    found = orjson.loads(parley("plugins", "list", "--json").out)
    [guard] = found["plugins"]
    assert (guard["name"], guard["enabled"], guard["problem"]) == ("guard", True, None)
    assert found["missing"] == ["gaurd"]


def test_without_plugins_the_list_says_so(listed: Callable[..., list[str]], tmp_path: Path) -> None:
    """And where they would lie."""
    assert listed() == [f"there is no plugin, neither in {tmp_path / 'plugins'} nor installed"]
