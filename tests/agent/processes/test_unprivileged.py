"""Commands of an ordinary user, whom the kernel refuses more than the root of a container."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from agent.processes import confinement
from agent.processes.supervisor import CommandOrder, Report
from tests.support.bombs import FORKS

NOBODY = 65534
AS_NOBODY = f"""
import os
from agent.processes import supervisor
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
supervisor.main()
"""
"""A small process that has read the code before it becomes that user, to whom it may be closed."""
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="all other tests run as an ordinary user then"),
    pytest.mark.skipif(confinement.why_not() is not None, reason="no confinement here"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A workspace of that user; pytest's own directories are closed to him."""
    found = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(found, NOBODY, NOBODY)
    yield found
    shutil.rmtree(found)


def run(folder: Path, command: str) -> tuple[Report, str]:
    """Have a supervisor that is this user run a command."""
    order = CommandOrder(
        command=command,
        shell=shutil.which("bash") or "/bin/sh",
        directory=str(folder),
        environment={"PATH": os.defpath, "HOME": str(folder)},
        confine=True,
        network=False,
        readable=[],
        timeout_s=10,
        output_bytes=2_000,
        tail_bytes=1_000,
        max_processes=30,
        memory_bytes=100_000_000,
        disk_bytes=200_000,
    )
    started = [sys.executable, "-c", AS_NOBODY]
    with subprocess.Popen(started, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        process.stdin.flush()
        _group, report, output = process.stdout.read().split(b"\n", 2)
    return Report(**json.loads(report)), output.decode(errors="replace")


def test_a_command_runs_and_is_confined(folder: Path) -> None:
    """Nothing of this needs root."""
    command = (
        "id -u; echo x > f; chmod +x f; nice -n 1 cat f; ulimit -n 20; mkdir -p a/b; rm -r a;"
        f" prlimit --pid {os.getpid()} --core=0 2>/dev/null || echo 1; cat /etc/shadow 2>/dev/null"
        " || echo 2; touch /tmp/x 2>/dev/null || echo 3; kill -0 $PPID 2>/dev/null || echo 4"
    )
    report, output = run(folder, command)
    assert (report.ended, report.code, report.problem) == ("exit", 0, "")
    assert output.split() == [str(NOBODY), "x", "1", "2", "3", "4"]


FILL = "mkdir d; cd d; for i in 1 2; do head -c 150000 /dev/zero > $i; done"


@pytest.mark.parametrize(
    ("ended", "command"),
    [
        ("processes", FORKS),
        ("disk", f"{FILL}; exec sleep 100"),
        ("disk", f"{FILL}; chmod 000 .; exec sleep 100"),
        ("disk", f"{FILL}; chmod 400 .; exec sleep 100"),
    ],
)
def test_limits_hold(folder: Path, ended: str, command: str) -> None:
    """Nothing hides in a directory that its owner has closed."""
    assert run(folder, command)[0].ended == ended
