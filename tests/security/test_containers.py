"""Containers of a real podman, beside what each backend is put through in test_escapes.py."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.confined import (
    BECOME_NOBODY,
    NOBODY,
    TAKES_ROOT,
    engine,
    folder_of_nobody,
    run_as_nobody,
    why_no_podman,
)

WHY_NOT = why_no_podman()
pytestmark = [TAKES_ROOT, pytest.mark.skipif(WHY_NOT is not None, reason=f"container: {WHY_NOT}")]
CHOOSE = f"""
import json, sys
from agent.processes import sandbox
from agent.settings import SandboxSettings
{BECOME_NOBODY}
sandbox.PATH = {{path!r}}
print(json.dumps(sandbox.report(SandboxSettings(backend="container", image=sys.argv[1]))))
"""


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A directory of `nobody`."""
    with folder_of_nobody() as found:
        yield found


def containers() -> list[str]:
    """Return the names of all that there are, those included that have ended."""
    return engine().ask("ps", "--all", "--format", "{{.Names}}").stdout.decode().split()


@pytest.mark.parametrize(
    ("command", "ended"),
    [("exit 3", "exit"), ("trap '' TERM; sleep 1000", "timeout"), ("sleep 1000 & exit 0", "exit")],
)
def test_no_container_is_left(workspace: Path, command: str, ended: str) -> None:
    """Each would hold disk, whatever the command's limit of that."""
    limit_s = 6 if ended == "timeout" else 60
    report, _ = run_as_nobody(workspace, command, "container", timeout_s=limit_s)
    assert report.ended == ended
    assert containers() == []


def test_the_engines_own_memory_is_not_the_commands(workspace: Path) -> None:
    """Podman has more. Files belong to Parley's user, and the command's words alone come."""
    report, output = run_as_nobody(
        workspace, "sleep 1; id -u > f; cat f", "container", memory_bytes=20_000_000
    )
    assert (report.ended, report.code, output) == ("exit", 0, f"{NOBODY}\n")
    assert (workspace / "f").stat().st_uid == NOBODY


def test_its_memory_is_limited(workspace: Path) -> None:
    """Also where control groups do not do it."""
    eats = "python3 -IS -c 'x = bytearray(b\"1\" * 60_000_000); import time; time.sleep(100)'"
    report, _ = run_as_nobody(workspace, eats, "container", memory_bytes=40_000_000)
    assert report.ended in {"memory", "signal", "exit"}
    assert (report.ended, report.code) != ("exit", 0)


@pytest.mark.parametrize(
    ("image", "said"),
    [(None, "container holds, without a network"), ("localhost/none:1", "image not known")],
)
def test_whether_one_runs_is_tried(image: str | None, said: str) -> None:
    """An engine that answers may run nothing."""
    code = CHOOSE.format(path=str(Path(engine().tool).parent))
    started = [sys.executable, "-c", code, image or engine().image]
    done = subprocess.run(
        started, env=engine().environment(), capture_output=True, check=True, text=True
    )
    assert said in json.loads(done.stdout)[0]
