"""The keeper of a program, alone; tests of the terminal, MCP and crashes have it behind Parley."""

import errno
import io
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.processes import confinement, descent
from agent.processes import keeper as module_under_test
from agent.processes.helpers import program
from agent.processes.keeper import (
    BoundedOutput,
    CommandLimits,
    HeldCommand,
    ProgramOrder,
    StartAnswer,
)
from agent.processes.walls import Walls
from agent.processes.workspace import Workspace

LIMIT_S = 30


@dataclass
class Kept:
    """A keeper; `output` is what its program writes."""

    process: subprocess.Popen[bytes]
    lifeline: socket.socket
    output: IO[bytes]

    def order(self, *command: str) -> StartAnswer:
        order = ProgramOrder(
            [*command], Walls("none", ""), {"PATH": "/usr/bin:/bin"}, ends_within_s=0.05
        )
        self.lifeline.sendall(json.dumps(asdict(order)).encode() + b"\n")
        with self.lifeline.makefile() as answers:
            return StartAnswer(**json.loads(answers.readline()))

    def line(self) -> str:
        return self.output.readline().decode().strip()

    def is_silent(self) -> bool:
        """Wait for the end of the last process that could write."""
        return select.select([self.output], [], [], LIMIT_S)[0] != [] and not self.line()


@contextmanager
def keeper() -> Iterator[Kept]:
    lifeline, far_end = socket.socketpair()
    command = [*program("agent.processes.keeper"), str(far_end.fileno())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[far_end.fileno()]
    ) as process:
        far_end.close()
        with lifeline:
            assert process.stdout is not None
            yield Kept(process, lifeline, process.stdout)


def test_what_keeps_a_program_from_starting_is_told() -> None:
    """With the file that it is about; there is nothing to keep then."""
    with keeper() as kept:
        assert kept.order("/no/such/program") == StartAnswer(None, errno.ENOENT, "/no/such/program")
        assert kept.process.wait(LIMIT_S) == 0


def test_an_order_that_never_comes_ends_the_keeper() -> None:
    """Parley was killed before it could say what to run."""
    with keeper() as kept:
        kept.lifeline.close()
        assert kept.process.wait(LIMIT_S) == 1


def test_the_end_of_the_lifeline_ends_all_of_it() -> None:
    """And nothing else does. The program ignores SIGTERM, a child has left its session."""
    with keeper() as kept:
        kept.order("sh", "-c", "trap '' TERM; setsid sleep 300 & echo here; sleep 300; sleep 300")
        assert kept.line() == "here"
        kept.process.terminate()
        kept.lifeline.close()
        assert kept.is_silent()
        assert kept.process.wait(LIMIT_S) == 0


def test_a_program_dies_with_its_keeper() -> None:
    """By itself, where something has killed that."""
    with keeper() as kept:
        kept.order("sh", "-c", "echo here; exec sleep 300")
        assert kept.line() == "here"
        kept.process.kill()
        assert kept.process.wait(LIMIT_S) == -signal.SIGKILL
        assert kept.is_silent()


@pytest.mark.timeout(LIMIT_S)
def test_dead_orphans_do_not_pile_up() -> None:
    """They come to the keeper, which takes leave of them while the program runs."""
    with keeper() as kept:
        kept.order("sh", "-c", "(true & echo $!); exec sleep 300")
        orphan = int(kept.line())
        while psutil.pid_exists(orphan) and kept.process.poll() is None:
            time.sleep(0.005)
        assert kept.process.poll() is None


@pytest.mark.timeout(LIMIT_S)
def test_dead_orphans_do_not_pile_up_behind_a_dead_program() -> None:
    """It may leave in its place what goes on to serve."""
    is_dead = "grep -q ' Z ' /proc/$$/stat"
    serve = f"until {is_dead}; do :; done; while (sleep 0.01 & echo $!); do :; done"
    with keeper() as kept:
        kept.order("sh", "-c", f"({serve}) &")
        orphans = [int(kept.line())]
        while all(map(psutil.pid_exists, orphans)):
            orphans.append(int(kept.line()))
        kept.lifeline.close()
        assert kept.process.wait(LIMIT_S) == 0


@given(st.lists(st.binary(max_size=30)), st.integers(0, 40), st.integers(0, 40), st.integers(1, 50))
def test_the_output_kept_is_its_beginning_and_its_end(
    parts: list[bytes], head: int, tail: int, chunk: int
) -> None:
    """Whatever its parts; never more than there is room for, and all of it where that is enough."""
    output = BoundedOutput(head, tail)
    module_under_test.CHUNK_BYTES, usual = chunk, module_under_test.CHUNK_BYTES
    try:
        for part in parts:
            output.add(part)
            assert len(output.head) + len(output.tail) <= head + tail + chunk + 30
    finally:
        module_under_test.CHUNK_BYTES = usual
    whole = b"".join(parts)
    beginning, end = output.kept()
    assert beginning == whole[:head]
    assert end == (whole[head:][-tail:] if tail else b"")
    assert output.size == len(whole)


@pytest.mark.parametrize(
    "line",
    [
        b"7 (sh) S 3 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 4 0 1 100 25 0",
        b"7 (a) Z 1 ) x) S 3 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 4 0 1 100 25 0",
    ],
)
def test_a_process_is_read_whatever_its_name(line: bytes) -> None:
    """A command names its processes as it likes."""
    found = descent._parsed(7, line)
    assert (found.parent, found.dead, found.threads) == (3, False, 4)
    assert found.memory_bytes == 25 * os.sysconf("SC_PAGE_SIZE")


def test_descendants_are_found_and_killed() -> None:
    """Children and theirs; the dead are not counted."""
    script = (
        "import subprocess; p = subprocess.Popen(['sleep', '99']);"
        " print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.read(1) + child.stdout.readline())
        assert [each.pid for each in descent.descendants(child.pid)] == [grandchild]
        assert descent.kill_descendants(child.pid) == 1
        child.wait()
        descent.kill_group(child.pid)
    assert descent.kill_descendants(child.pid) == 0


def test_where_there_is_no_proc_nothing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the group alone is killed; what ends while it is read is passed over."""
    monkeypatch.setattr(descent, "_PROC", str(tmp_path))
    (tmp_path / "12").mkdir()
    assert descent.descendants(1) == []
    monkeypatch.setattr(descent, "_PROC", str(tmp_path / "no"))
    assert descent.descendants(1) == []


def test_a_process_that_ends_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line is empty."""

    def gone(*_: Any) -> bytes:
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(os, "read", gone)
    assert descent._stat(str(os.getpid())) == b""


def test_all_is_written_whatever_a_pipe_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe takes a part only."""
    written = io.BytesIO()
    monkeypatch.setattr(os, "write", lambda _, part: written.write(bytes(part[:3])))
    module_under_test._write(1, b"12345678")
    assert written.getvalue() == b"12345678"


def test_a_group_that_is_gone_is_no_trouble() -> None:
    """Killing it twice does nothing."""
    with subprocess.Popen(["sleep", "99"], start_new_session=True) as child:
        descent.kill_group(child.pid)
        assert child.wait() == -signal.SIGKILL
    descent.kill_group(child.pid)


LIMITS = CommandLimits(
    timeout_s=1.5,
    output_bytes=10,
    tail_bytes=5,
    max_processes=5,
    memory_bytes=1_000,
    disk_bytes=500,
)
WALLS = Walls("landlock", "/")


def free(monkeypatch: pytest.MonkeyPatch, *free_bytes: int) -> None:
    """Have the disk tell of so much free space, one after another."""
    told = iter(free_bytes)
    monkeypatch.setattr(module_under_test, "_free_bytes", lambda _: next(told))


@pytest.mark.parametrize(
    ("before", "now", "disk_bytes", "too_much"),
    [
        (10**10, 10**10 - 500_000_400, 500, False),
        (10**10, 10**10 - 500_000_501, 500, True),
        (10**10, 10**10 - 500_000_001, 0, True),
        (10**8, 4 * 10**7, 10**9, True),
        (10**8, 6 * 10**7, 10**9, False),
        (0, 0, 500, False),
        (10**8, 10**10, 500, False),
    ],
)
def test_the_disk_may_lose_so_much_while_a_command_runs(
    monkeypatch: pytest.MonkeyPatch, before: int, now: int, disk_bytes: int, *, too_much: bool
) -> None:
    """The workspace and a margin, but at most half of what was free; deleted files count too."""
    free(monkeypatch, before, now)
    held = HeldCommand(WALLS, replace(LIMITS, disk_bytes=disk_bytes))
    monkeypatch.setattr(Workspace, "used_bytes", lambda _: 0)
    assert held.takes_too_much(held._started + 0.01) is too_much


def test_a_directory_is_measured_sooner_while_the_disk_fills_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And never where it is full already: there is nothing to be found."""
    free(monkeypatch, *[10**10, 10**10, 10**10 - 501, 10**10])
    held = HeldCommand(WALLS, LIMITS)
    monkeypatch.setattr(Workspace, "used_bytes", lambda _: 501)
    assert not held.takes_too_much(held._started + 0.9)
    assert held.takes_too_much(held._started + 0.06)
    full = HeldCommand(WALLS, replace(LIMITS, disk_bytes=0))
    monkeypatch.setattr(module_under_test, "_free_bytes", lambda _: 10**10)
    assert not full.takes_too_much(full._started + 9)


def test_a_command_is_prepared_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held and confined last, when all that needs more is done."""
    done: list[str] = []
    for module, name in (
        (descent, "die_with_parent"),
        (module_under_test, "_limit"),
        (confinement, "hold_in_group"),
        (confinement, "confine"),
    ):
        monkeypatch.setattr(module, name, lambda *_, name=name, **__: done.append(name))
    module_under_test._prepare(ProgramOrder([], WALLS, {}, limits=LIMITS), 1)
    assert done == ["die_with_parent", "_limit", "hold_in_group", "confine"]


def test_what_keeps_a_program_from_being_confined_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends then: it never goes on as a copy of the keeper."""
    told, telling = os.pipe()

    def refuse(*_: Any, **__: Any) -> None:
        raise confinement.ConfinementError("no Landlock")

    monkeypatch.setattr(descent, "die_with_parent", lambda: None)
    monkeypatch.setattr(confinement, "confine", refuse)
    with pytest.raises(confinement.ConfinementError):
        module_under_test._prepare(ProgramOrder([], WALLS, {}), telling)
    assert os.read(told, 100) == b"no Landlock"
    for handle in (told, telling):
        os.close(handle)


def test_the_kernels_limits_never_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that hold for Parley itself stay."""
    limits: dict[int, tuple[int, int]] = {}
    hard = {resource.RLIMIT_NPROC: 2, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (0, hard.get(kind, 10**9)))
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr("builtins.open", lambda *_: io.StringIO())
    module_under_test._limit(LIMITS)
    assert limits[resource.RLIMIT_NPROC] == (2, 2)
    assert limits[resource.RLIMIT_DATA] == (1_000, 1_000)
    assert limits[resource.RLIMIT_FSIZE] == (500, 500)
    assert limits[resource.RLIMIT_CPU] == (3, 3)
