"""Commands of an ordinary user, whom the kernel refuses more than the root of a container."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bombs import FORKS
from tests.support.confined import (
    BY_NOBODY,
    NOBODY,
    folder_of_nobody,
    run_as_nobody,
)

pytestmark = BY_NOBODY


@pytest.fixture
def folder() -> Iterator[Path]:
    """A workspace of that user."""
    with folder_of_nobody() as found:
        yield found


def test_a_command_runs_and_is_confined(folder: Path) -> None:
    """Nothing of this needs root."""
    command = (
        "id -u; echo x > f; chmod +x f; nice -n 1 cat f; ulimit -n 20; mkdir -p a/b; rm -r a;"
        f" prlimit --pid {os.getpid()} --core=0 2>/dev/null || echo 1; cat /etc/shadow 2>/dev/null"
        " || echo 2; touch /tmp/x 2>/dev/null || echo 3; kill -0 $PPID 2>/dev/null || echo 4"
    )
    report, output = run_as_nobody(folder, command)
    assert (report.ended, report.code, report.problem) == ("exit", 0, "")
    assert output.split() == [str(NOBODY), "x", "1", "2", "3", "4"]


FILL = "mkdir d; cd d; for i in 1 2; do head -c 150000 /dev/zero > $i; done"


@pytest.mark.thorough
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
    assert run_as_nobody(folder, command)[0].ended == ended
