"""What operators do on a database that has aged: the cost of each command, to others as well.

`python -m tests.bench aged=FOLDER` makes the database of the size in `Size` there once, which takes
a quarter of an hour, and uses it again; without a folder it is a hundredth of that, for a look.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.storage import maintenance
from tests.bench import beside
from tests.bench.aged_database import Size, make
from tests.bench.figures import Figure

SMALL = Size(1_000, 5_000)
COMMANDS = (
    "sessions list --json",
    "sessions list --after {middle}",
    "dead-letters list --json",
    "pair list --json",
    *(
        f"usage --since 400d --by {by}"
        for by in ("day", "sender", "conversation", "model", "outcome")
    ),
)
MOST_S, MOST_MB = 2.0, 100.0
LOOK_EVERY_S = 0.01
PARLEY = (sys.executable, "-m", "gateway.cli.main")


class Run(NamedTuple):
    """What a command took: wall and processor seconds, and the most memory in bytes."""

    wall_s: float
    cpu_s: float
    rss_bytes: int


def measure(folder: Path | None = None) -> Iterator[Figure]:
    """Yield the figures of the commands, then those of the writes beside them."""
    if folder is not None:
        yield from _measure(folder, Size())
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield from _measure(Path(temporary), SMALL)


def _measure(folder: Path, size: Size) -> Iterator[Figure]:
    home = folder / "parley"
    path = home / "parley.db"
    home.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        make(path, size)
    started = time.perf_counter()
    maintenance.upgrade(path)
    yield Figure("schema brought up to date", time.perf_counter() - started, "s")
    yield Figure("file", path.stat().st_size / 1e6, "MB")
    for command in COMMANDS:
        yield from _command(home, command.format(middle=size.conversations // 2))
    yield from asyncio.run(beside.measure(home, path, size.conversations))


def _command(home: Path, command: str) -> Iterator[Figure]:
    took = _run(home, command.split())
    yield Figure(command, took.wall_s, "s", at_most=MOST_S)
    yield Figure(f"{'':<4}of that processor time", took.cpu_s, "s")
    yield Figure(f"{'':<4}memory", took.rss_bytes / 1e6, "MB", at_most=MOST_MB)


def _run(home: Path, arguments: Sequence[str]) -> Run:
    started = time.perf_counter()
    command = [*PARLEY, "--home", str(home), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    # What wait4 says of memory counts this process too, which it was before it began.
    most, status, used = 0, 0, None
    while used is None:
        most = max(most, _memory_of(process.pid))
        done, status, found = os.wait4(process.pid, os.WNOHANG)
        used = found if done else None
        time.sleep(LOOK_EVERY_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"parley {' '.join(arguments)} ended with {process.returncode}")
    wall_s = time.perf_counter() - started
    return Run(wall_s, used.ru_utime + used.ru_stime, most)


def _memory_of(pid: int) -> int:
    """Return the most memory that a process has had, in bytes; 0 once it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
