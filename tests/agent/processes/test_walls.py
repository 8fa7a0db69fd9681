"""What is asked of a backend; tests/security shows what it does."""

import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from agent.processes import walls
from agent.processes.confinement import ConfinementError
from agent.processes.walls import STARTED, Walls, bwrap, launch


def pairs(command: list[str], option: str) -> list[str]:
    """Return what stands behind each occurrence of an option."""
    return [command[at + 1] for at, each in enumerate(command) if each == option]


def test_bubblewrap_is_asked_for_all_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the system's programs and what the walls name are there; the workspace comes last."""
    monkeypatch.setattr(walls, "of_this_python", lambda: ["/home/ann/python/lib"])
    command = bwrap(Walls("bwrap", "/w/1", "/bin/bwrap", ["/opt/tools"], ["/srv/notes", "/w/1"]))
    assert command[0] == "/bin/bwrap"
    kinds = {"user", "pid", "net", "ipc", "uts"}
    assert {f"--unshare-{kind}" for kind in kinds} <= set(command)
    assert {"--die-with-parent", "--cap-drop"} <= set(command)
    assert "--share-net" not in command
    readable = pairs(command, "--ro-bind-try")
    assert readable[-2:] == ["/home/ann/python/lib", "/opt/tools"]
    assert not [path for path in readable if path.startswith(("/proc", "/var", "/run", "/root"))]
    assert pairs(command, "--bind") == ["/srv/notes", "/w/1"]
    assert command[-5:] == ["--remount-ro", "/", "--chdir", "/w/1", "--"]


def test_with_the_network_there_is_no_namespace_of_it() -> None:
    """All other namespaces remain."""
    without, given = (set(bwrap(Walls("bwrap", "/w", network=each))) for each in (False, True))
    assert without - given == {"--unshare-net"}
    assert not given - without


def test_nothing_is_named_twice() -> None:
    """Walls may name this process's Python, too."""
    python = walls.of_this_python()
    readable = ["/opt/bin/tool", "/opt", *python]
    named = pairs(bwrap(Walls("bwrap", "/w", readable=readable)), "--ro-bind-try")
    assert "/opt/bin/tool" not in named
    assert len(named) == len(set(named))
    assert {"/usr", "/opt"} <= set(named)


def test_without_another_program_the_command_is_the_programs_own() -> None:
    """Landlock stands up in the process itself."""
    for backend in ("landlock", "none"):
        started = launch(Walls(backend, "/w"), ["sh", "-c", "x"], {}, 9)  # type: ignore[arg-type]
        assert started == (["sh", "-c", "x"], ())


def test_the_order_goes_through_memory(tmp_path: Path) -> None:
    """Other users see arguments, not that; the last step reads it there."""
    wanted = Walls("bwrap", str(tmp_path), "bwrap")
    command, (letter, _) = launch(wanted, ["sh", "-c", "secret"], {"A": "b"}, 9)
    assert not [argument for argument in command if "secret" in argument]
    assert command[-2:] == [str(letter), "9"]
    order = walls._read(letter)
    assert (order["program"], order["environment"]) == (["sh", "-c", "secret"], {"A": "b"})
    assert Walls(**order["walls"]).directory == str(tmp_path)


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ConfinementError("no filter"), b"unconfined:no filter"),
        (FileNotFoundError(2, "No such file"), b"failed:[Errno 2] No such file"),
    ],
)
def test_the_last_step_tells_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, told: bytes
) -> None:
    """Nothing is run then."""
    reading, writing = os.pipe()
    _, (letter, _) = launch(Walls("bwrap", "/w"), ["x"], {}, writing)

    def refuse(_: Walls) -> None:
        raise failure

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(walls, "confine", refuse)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "argv", ["-c", str(letter), str(writing)])
    with pytest.raises(Ended, match="127"):
        walls.main()
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        assert said.read() == told


def test_the_last_step_becomes_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confined, and told so before."""
    done: list[object] = []
    monkeypatch.setattr(walls, "confine", done.append)
    monkeypatch.setattr(os, "write", lambda _, text: done.append(text))
    monkeypatch.setattr(os, "execvpe", lambda *program: done.append(program))
    wanted = Walls("bwrap", "/w")
    order = {"walls": asdict(wanted), "program": ["x", "y"]}
    walls.become({**order, "environment": {"A": "b"}}, 9)
    assert done == [wanted, STARTED, ("x", ["x", "y"], {"A": "b"})]


def test_only_landlock_stands_up_before_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bubblewrap could not mount any more behind it."""
    confined: list[str] = []
    monkeypatch.setattr(walls, "confine", lambda wanted: confined.append(wanted.backend))
    for backend in ("bwrap", "landlock", "none"):
        walls.raise_walls(Walls(backend, "/w"))  # type: ignore[arg-type]
    assert confined == ["landlock"]
