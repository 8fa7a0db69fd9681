"""Commands behind the real keeper, as the user `nobody`: what an ordinary user can do.

Which backends this machine has, and whether it can become that user, is said here alone.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from agent.processes import confinement, keeper, sandbox
from agent.processes.keeper import CommandLimits, ProgramOrder, Report
from agent.processes.walls import Backend, Walls

NOBODY = 65534
TAKES_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
TAKES_LANDLOCK = pytest.mark.skipif(
    (WHY_NO_LANDLOCK := confinement.why_not()) is not None, reason=f"landlock: {WHY_NO_LANDLOCK}"
)
BY_NOBODY = [TAKES_ROOT, TAKES_LANDLOCK]
BECOME_NOBODY = f"""
import os
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
"""
"""A process reads the code first: to this user it may be closed."""


KEEP = f"""
import sys, types
agent = types.ModuleType("agent")
agent.__path__ = [{str(Path(keeper.__file__).parents[1])!r}]
sys.modules["agent"] = agent
from agent.processes import keeper
{BECOME_NOBODY}
keeper.main()
"""


def on_each_backend() -> pytest.MarkDecorator:
    """Return the mark of tests with a `backend`: each one available on this machine."""
    why_not: dict[Backend, str | None] = {
        "landlock": WHY_NO_LANDLOCK,
        "bwrap": sandbox.why_not_bwrap(),
    }
    found = [
        pytest.param(name, marks=pytest.mark.skipif(reason is not None, reason=f"{name}: {reason}"))
        for name, reason in why_not.items()
    ]
    return pytest.mark.parametrize("backend", found)


@contextmanager
def folder_of_nobody() -> Iterator[Path]:
    """Make a directory of that user; pytest's own directories are closed to him."""
    with tempfile.TemporaryDirectory(dir="/tmp") as found:
        os.chown(found, NOBODY, NOBODY)
        yield Path(found)


def order_for(folder: Path, command: str, backend: Backend, **changes: Any) -> ProgramOrder:
    """Return an order with small limits; what the walls have by that name is changed there."""
    walls = Walls(backend, str(folder), shutil.which("bwrap") or "", writable=[str(folder)])
    of_walls = {each.name for each in fields(Walls)} & changes.keys()
    walls = replace(walls, **{name: changes.pop(name) for name in of_walls})
    limits: dict[str, Any] = {
        "timeout_s": 30,
        "output_bytes": 2_000,
        "tail_bytes": 1_000,
        "max_processes": 30,
        "memory_bytes": 100_000_000,
        "disk_bytes": 200_000,
    }
    shell = shutil.which("bash") or "/bin/sh"
    environment = {"PATH": os.defpath, "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    return ProgramOrder(
        [shell, "-c", command], walls, environment, limits=CommandLimits(**{**limits, **changes})
    )


def run_as_nobody(
    folder: Path, command: str, backend: Backend = "landlock", **changes: Any
) -> tuple[Report, str]:
    """Have a keeper that is this user run a command; returns its report and the output."""
    order = order_for(folder, command, backend, **changes)
    lifeline, far_end = socket.socketpair()
    # One that this user may run: within bubblewrap Python is started anew.
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    with subprocess.Popen(
        [python, "-c", KEEP, str(far_end.fileno())],
        stdout=subprocess.PIPE,
        pass_fds=[far_end.fileno()],
    ) as process:
        far_end.close()
        assert process.stdout is not None
        with lifeline, lifeline.makefile() as told:
            lifeline.sendall(json.dumps(asdict(order)).encode() + b"\n")
            answer = json.loads(told.readline())
            assert answer["group"] is not None, answer
            report = Report(**json.loads(told.readline()))
            output = process.stdout.read()
    return report, output.decode(errors="replace")
