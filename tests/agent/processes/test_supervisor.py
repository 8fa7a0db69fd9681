"""What the supervisor keeps and reads; test_terminal.py runs it."""

import io
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.processes import confinement, descent, supervisor
from agent.processes.supervisor import BoundedOutput
from agent.processes.walls import Walls


@given(st.lists(st.binary(max_size=30)), st.integers(0, 40), st.integers(0, 40), st.integers(1, 50))
def test_the_output_kept_is_its_beginning_and_its_end(
    parts: list[bytes], head: int, tail: int, chunk: int
) -> None:
    """Whatever its parts; never more than there is room for, and all of it where that is enough."""
    output = BoundedOutput(head, tail)
    supervisor.CHUNK_BYTES, usual = chunk, supervisor.CHUNK_BYTES
    try:
        for part in parts:
            output.add(part)
            assert len(output.head) + len(output.tail) <= head + tail + chunk + 30
    finally:
        supervisor.CHUNK_BYTES = usual
    whole = b"".join(parts)
    beginning, end = output.kept()
    assert beginning == whole[:head]
    assert end == (whole[head:][-tail:] if tail else b"")
    assert output.size == len(whole)


def test_an_order_that_never_comes_ends_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parley was killed before it could say what to run."""
    monkeypatch.setattr(os, "read", lambda *_: b"")
    with pytest.raises(SystemExit):
        supervisor.main()


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
    supervisor._say(b"12345678", b"9")
    assert written.getvalue() == b"123456789"


def test_a_group_that_is_gone_is_no_trouble() -> None:
    """Killing it twice does nothing."""
    with subprocess.Popen(["sleep", "99"], start_new_session=True) as child:
        descent.kill_group(child.pid)
        assert child.wait() == -signal.SIGKILL
    descent.kill_group(child.pid)


ORDER = supervisor.CommandOrder(  # noqa: S604 - the name of a field
    command="true",
    shell="/bin/sh",
    directory="/",
    environment={},
    walls=Walls("landlock", "/"),
    timeout_s=1.5,
    output_bytes=10,
    tail_bytes=5,
    max_processes=5,
    memory_bytes=1_000,
    disk_bytes=500,
)


def free(monkeypatch: pytest.MonkeyPatch, *free_bytes: int) -> None:
    """Have the disk tell of so much free space, one after another."""
    told = iter(free_bytes)
    monkeypatch.setattr(supervisor, "_free_bytes", lambda _: next(told))


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
    held = supervisor.Supervisor(replace(ORDER, disk_bytes=disk_bytes))
    monkeypatch.setattr(held._workspace, "used_bytes", lambda: 0)
    assert held._takes_too_much(held._started + 0.01) is too_much


def test_a_directory_is_measured_sooner_while_the_disk_fills_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And never where it is full already: there is nothing to be found."""
    free(monkeypatch, *[10**10, 10**10, 10**10 - 501, 10**10])
    held = supervisor.Supervisor(ORDER)
    monkeypatch.setattr(held._workspace, "used_bytes", lambda: 501)
    assert not held._takes_too_much(held._started + 0.9)
    assert held._takes_too_much(held._started + 0.06)
    full = supervisor.Supervisor(replace(ORDER, disk_bytes=0))
    monkeypatch.setattr(supervisor, "_free_bytes", lambda _: 10**10)
    assert not full._takes_too_much(full._started + 9)


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (confinement.ConfinementError("no Landlock"), b"unconfined:no Landlock"),
        (OSError(2, "No such file"), b"failed:[Errno 2] No such file"),
        (ValueError("embedded null byte"), b"failed:embedded null byte"),
    ],
)
def test_what_keeps_a_shell_from_starting_is_told(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, told: bytes
) -> None:
    """The process ends then; it never goes on as a copy of the supervisor."""
    written: list[bytes] = []

    def prepare(*_: Any) -> None:
        raise failure

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(supervisor, "_prepare", prepare)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(os, "write", lambda _, text: written.append(text))
    with pytest.raises(Ended, match="127"):
        supervisor._become(ORDER, 1, 2, 3)
    assert written == [told]


def test_a_shell_is_prepared_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of its own first; held and confined last, when all that needs more is done."""
    done: list[str] = []

    def note(name: str) -> Any:
        return lambda *_, **__: done.append(name)

    for name in ("setsid", "umask", "dup2", "chdir"):
        monkeypatch.setattr(os, name, note(name))
    monkeypatch.setattr(os, "open", lambda *_: 9)
    monkeypatch.setattr(descent, "die_with_parent", note("bind"))
    monkeypatch.setattr(signal, "signal", note("signal"))
    monkeypatch.setattr(supervisor, "_limit", note("limit"))
    monkeypatch.setattr(confinement, "hold_in_group", note("hold"))
    monkeypatch.setattr(confinement, "confine", note("confine"))
    monkeypatch.setattr(os, "write", note("told"))
    supervisor._prepare(ORDER, 1, 2, 3)
    assert done[0] == "setsid"
    assert done[-4:] == ["limit", "hold", "confine", "told"]


def test_the_kernels_limits_never_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that hold for Parley itself stay."""
    limits: dict[int, tuple[int, int]] = {}
    hard = {resource.RLIMIT_NPROC: 2, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (0, hard.get(kind, 10**9)))
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr("builtins.open", lambda *_: io.StringIO())
    supervisor._limit(ORDER, 700)
    assert limits[resource.RLIMIT_NPROC] == (2, 2)
    assert limits[resource.RLIMIT_DATA] == (1_000, 1_000)
    assert limits[resource.RLIMIT_FSIZE] == (500, 500)
    assert limits[resource.RLIMIT_CPU] == (3, 3)
