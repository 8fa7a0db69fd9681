"""Containers: what the engine is told, and whether it is asked at all. No engine runs here."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.processes import sandbox
from agent.processes import walls as walls_module
from agent.processes.confinement import ConfinementError
from agent.processes.sandbox import choose, why_not_container
from agent.processes.walls import Container, Walls, container, launch
from agent.settings import SandboxSettings, TerminalSettings, ToolSettings
from tests.agent.tools.sandbox.calling import use_with
from tests.support import fake_podman
from tests.support.fake_podman import IMAGE

WANTED = Container(IMAGE, "parley-0123456789abcdef", 30, 50_000_000, 1_000)


def walls(tool: str, **changes: Any) -> Walls:
    """Return walls of a container."""
    closed = Walls("container", "/w/1", tool, ["/opt/tools"], ["/w/1"], container=WANTED)
    return replace(closed, **changes)


@pytest.fixture(autouse=True)
def _control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of today: podman limits memory and processes of a whole container."""
    monkeypatch.setattr(walls_module, "_CONTROL_GROUPS_2", tmp_path)


def test_a_container_is_closed_on_all_sides() -> None:
    """No network, no image from elsewhere, nothing to write but the workspace; as this user."""
    command = container(walls("/usr/bin/podman"), WANTED, ["/bin/sh", "-c", "x"], {"A": "b c"})
    assert command == [
        *("/usr/bin/podman", "run", "--rm", "--interactive", "--name=parley-0123456789abcdef"),
        *("--pull=never", "--network=none", "--read-only", "--cap-drop=ALL"),
        *("--security-opt=no-new-privileges", "--stop-timeout=0"),
        *("--userns=keep-id", "--read-only-tmpfs=false"),
        *("--ulimit=fsize=1000:1000", "--ulimit=nproc=542:542"),
        *("--pids-limit=30", "--memory=50000000"),
        "--mount=type=bind,source=/opt/tools,target=/opt/tools,readonly",
        "--mount=type=bind,source=/w/1,target=/w/1",
        *("--env=A", "--workdir=/w/1", "--entrypoint=/bin/sh", IMAGE, "-c", "x"),
    ]


def test_docker_has_no_options_of_podman() -> None:
    """In a rootless docker root is this user already."""
    command = container(walls("/usr/bin/docker"), WANTED, ["/bin/sh"], {})
    assert not {"--userns=keep-id", "--read-only-tmpfs=false"} & {*command}
    assert {"--network=none", "--read-only", "--cap-drop=ALL"} <= {*command}


def test_a_full_workspace_lets_no_file_grow_and_programs_may_have_no_limits() -> None:
    """Those of MCP servers live as long as the gateway."""
    full = container(walls("podman", growing=False), WANTED, ["sh"], {})
    assert "--ulimit=fsize=0:0" in full
    free = container(walls("podman"), Container(IMAGE, "n"), ["sh"], {})
    assert not [each for each in free if each.startswith(("--ulimit", "--memory", "--pids"))]


def test_podman_is_not_asked_for_what_it_ignores(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would say so in each command's output; docker's service may be where they hold."""
    monkeypatch.setattr(walls_module, "_CONTROL_GROUPS_2", Path("/nowhere"))
    old = container(walls("/usr/bin/podman"), WANTED, ["sh"], {})
    assert not [each for each in old if each.startswith(("--memory", "--pids"))]
    assert "--ulimit=nproc=542:542" in old
    assert "--memory=50000000" in container(walls("/usr/bin/docker"), WANTED, ["sh"], {})


def test_a_path_that_would_be_read_as_an_option_is_refused() -> None:
    """`,readonly=false` behind a name would be one."""
    with pytest.raises(ConfinementError, match="a comma is in it"):
        container(walls("podman", readable=["/opt/a,b"]), WANTED, ["sh"], {})


def test_the_engine_finds_what_is_this_users() -> None:
    """The environment of the command is not the engine's."""
    own = {"HOME": "/w/1", "LD_PRELOAD": "/w/1/x.so", "API_KEY": "a secret"}
    started = launch(walls("/usr/bin/podman"), ["/bin/sh"], own, 9)
    assert started.environment["HOME"] != "/w/1"
    assert {"--env=HOME=/w/1", "--env=LD_PRELOAD=/w/1/x.so"} < {*started.command}
    assert started.environment.keys() >= {"PATH", "DOCKER_HOST"}
    assert "LD_PRELOAD" not in started.environment


def test_a_place_that_is_not_there_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service without a login has no /run/user/…, and podman fails where that is named."""
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    assert "XDG_RUNTIME_DIR" not in walls_module.engine_environment()


def test_no_variable_stands_among_the_arguments() -> None:
    """Every user of the machine sees those; the engine takes the value from its environment."""
    started = launch(walls("/usr/bin/podman"), ["/bin/sh"], {"API_KEY": "a secret"}, 9)
    assert "a secret" not in " ".join(started.command)
    assert "--env=API_KEY" in started.command
    assert started.environment["API_KEY"] == "a secret"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A strict podman on the path of Parley's helpers; returns its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = Path(fake_podman.__file__).read_text().split("\n", 1)[1]
    (folder / "podman").write_text(f"#!{sys.executable}\n{script}")
    (folder / "podman").chmod(0o755)
    monkeypatch.setattr(sandbox, "PATH", str(folder))
    return folder


def calls(engine: Path) -> list[list[str]]:
    """Return what the engine was asked."""
    return [json.loads(line) for line in (engine / "calls").read_text().splitlines()]


def test_an_engine_that_is_rootless_and_has_the_image_is_chosen(engine: Path) -> None:
    """The smallest program is run in it; programs in it have no network."""
    found = choose(SandboxSettings(backend="container", image=IMAGE))
    assert (found.backend, found.tool) == ("container", str(engine / "podman"))
    assert "no network" in found.no_network
    assert [call[0] for call in calls(engine)] == ["info", "run"]


def test_why_there_is_no_container(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason says what would have to be done."""
    assert why_not_container(None) == "tools.sandbox.image names no image"
    assert "runs no container of other:1: Error: other:1: image not known" in str(
        why_not_container("other:1")
    )
    (engine / "podman").write_text("#!/bin/sh\necho false\n")
    assert "is not rootless" in str(why_not_container(IMAGE))
    (engine / "podman").write_text("#!/bin/sh\necho Cannot connect; exit 1\n")
    assert "does not answer: Cannot connect" in str(why_not_container(IMAGE))
    (engine / "podman").write_text("no program")
    assert "does not answer" in str(why_not_container(IMAGE))
    monkeypatch.setattr(sandbox, "PATH", "/nowhere")
    assert why_not_container(IMAGE) == "there is neither podman nor docker"


async def test_a_command_runs_in_a_container(engine: Path, tmp_path: Path) -> None:
    """Started as a strict podman wants it, and ended by its name."""
    settings = ToolSettings(
        enabled=("terminal",),
        sandbox=SandboxSettings(backend="container", image=IMAGE),
        terminal=TerminalSettings(allow_root=True),
    )
    outcome = await use_with(settings, tmp_path / "ws", command="pwd; echo $HOME; exit 3")
    workspace = str(tmp_path / "ws")
    assert outcome.text == f"{workspace}\n{workspace}\n[exit code 3]"
    run, ended = calls(engine)[-2:]
    name = next(each for each in run if each.startswith("--name=")).removeprefix("--name=")
    assert (run[0], ended) == ("run", ["rm", "--force", name])
