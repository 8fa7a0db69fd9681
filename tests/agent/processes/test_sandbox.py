"""Which backend is chosen, and what is said about the others."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.processes import sandbox
from agent.processes.sandbox import choose, why_not_bwrap, why_off
from agent.processes.walls import Sandbox
from agent.settings import SandboxSettings, ToolSettings
from agent.tools.catalog import builtin_tools


@pytest.fixture(autouse=True)
def tried_anew() -> Iterator[None]:
    """Whether bubblewrap works is found out once in a process."""
    why_not_bwrap.cache_clear()
    yield
    why_not_bwrap.cache_clear()


def backends(monkeypatch: pytest.MonkeyPatch, **reasons: str | None) -> None:
    """Have the backends hold, or not for these reasons."""
    monkeypatch.setattr(sandbox, "ORDER", tuple(reasons))
    monkeypatch.setattr(sandbox, "why_not", lambda name: reasons[name])


@pytest.mark.parametrize(
    ("bwrap", "landlock", "chosen", "others"),
    [
        (None, None, "bwrap", {"landlock": "bwrap is used"}),
        ("no namespaces", None, "landlock", {"bwrap": "no namespaces"}),
        (None, "no Landlock", "bwrap", {"landlock": "bwrap is used"}),
    ],
)
def test_the_first_that_works_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    bwrap: str | None,
    landlock: str | None,
    chosen: str,
    others: dict[str, str],
) -> None:
    """The others have a reason each."""
    backends(monkeypatch, bwrap=bwrap, landlock=landlock)
    found = choose(SandboxSettings())
    assert isinstance(found, Sandbox)
    assert (found.backend, dict(found.others)) == (chosen, others)


def test_a_wanted_one_is_not_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator has named it; what it lacks is said."""
    backends(monkeypatch, bwrap="no namespaces", landlock=None)
    assert choose(SandboxSettings(backend="bwrap")) == "bwrap: no namespaces"
    found = choose(SandboxSettings(backend="landlock"))
    assert isinstance(found, Sandbox)
    assert found.others["bwrap"] == "tools.sandbox.backend is landlock"


def test_where_none_works_each_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error at the start lists the reason of each backend."""
    backends(monkeypatch, bwrap="no namespaces", landlock="no Landlock")
    assert choose(SandboxSettings()) == "bwrap: no namespaces; landlock: no Landlock"


def test_the_choice_names_the_reason_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without walls nothing is tried."""
    backends(monkeypatch, bwrap="no namespaces", landlock=None)
    found = choose(SandboxSettings())
    assert isinstance(found, Sandbox)
    assert (found.backend, found.others) == ("landlock", {"bwrap": "no namespaces"})
    assert choose(SandboxSettings(backend="none")) == Sandbox("none", "", {})


def test_a_machine_without_bubblewrap_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name of the package."""
    monkeypatch.setattr(sandbox, "_tool", lambda: "")
    assert "package is called bubblewrap" in str(why_not_bwrap())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "No permissions"),
        ("exit 0", "it did not start a program"),
    ],
)
def test_a_bubblewrap_that_does_not_work_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, reason: str
) -> None:
    """It is tried: what it says is the reason."""
    tool = tmp_path / "bwrap"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sandbox, "_tool", lambda: str(tool))
    assert reason in str(why_not_bwrap())


def test_a_bubblewrap_that_hangs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start does not wait for it for ever."""

    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("bwrap", 20)

    monkeypatch.setattr(sandbox, "_tool", lambda: "/usr/bin/bwrap")
    monkeypatch.setattr(subprocess, "run", hang)
    assert "timed out" in str(why_not_bwrap())


@pytest.mark.parametrize(
    ("enabled", "options", "is_off"),
    [
        (("terminal",), {}, True),
        (("read_file",), {}, True),
        (("todo", "fetch_url"), {}, False),
        (("terminal",), {"terminal": {"confine": False}}, False),
        (("terminal",), {"sandbox": {"backend": "none"}}, False),
    ],
)
def test_where_no_wall_works_commands_and_file_tools_are_off(
    monkeypatch: pytest.MonkeyPatch, enabled: tuple[str, ...], options: dict[str, Any], is_off: bool
) -> None:
    """Unless the operator allows them without walls; one line names reasons and remedies."""
    backends(monkeypatch, bwrap="no namespaces", landlock="no Landlock")
    tools = ToolSettings.model_validate({"enabled": enabled, **options})
    line = why_off(tools)
    assert bool(line) is is_off
    if is_off:
        assert "bwrap: no namespaces; landlock: no Landlock" in line
        assert "tools.terminal.confine" in line
        assert builtin_tools(tools).schemas == ()
    backends(monkeypatch, bwrap="no namespaces", landlock=None)
    assert why_off(tools) == ""
