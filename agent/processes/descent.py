"""List and kill the descendants of a process (systems other than Linux report none).

Standard library only: helper processes use it without Parley's packages.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agent.errors import ToolError

_PROC = "/proc"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Make every orphaned descendant a child of this process (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Kill this process when the thread that forked it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit_self(time_limit_s: float, memory_bytes: int) -> None:
    """Have the kernel enforce this process's limits, even if Parley was killed."""
    seconds = int(time_limit_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(10)


def serve(answer: Callable[[dict[str, Any]], str], memory_bytes: int) -> None:
    """Serve one request of `helpers.ask_json` on stdin and stdout, within its limits."""
    request = json.load(sys.stdin)
    limit_self(request["time_limit_s"], memory_bytes)
    try:
        told = {"text": answer(request)}
    except ToolError as error:
        told = {"error": str(error)}
    except MemoryError:
        told = {"error": "this needs too much memory; ask for less"}
    json.dump(told, sys.stdout)


def read_order(handle: int) -> dict[str, Any]:
    """Read the order, one line of JSON; exit if none arrives."""
    line = b""
    # Unbuffered: the end of `handle` must stay unread.
    while not line.endswith(b"\n"):
        part = os.read(handle, 65_536)
        if not part:
            sys.exit(1)
        line += part
    order: dict[str, Any] = json.loads(line)
    return order


def dead_child() -> Any:
    """Return the status of a dead child without reaping it, or None if all are alive."""
    try:
        # WNOWAIT prevents the reuse of its id and its group's.
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None


@dataclass(frozen=True, slots=True)
class Process:
    """One process in the kernel's list.

    Attributes:
        threads: At least 1, even for a dead process that is not reaped.
        memory_bytes: Resident memory; a shared page counts for each process.
    """

    pid: int
    parent: int
    dead: bool
    threads: int
    memory_bytes: int


def descendants(root: int) -> list[Process]:
    """Return the living descendants of a process, parents before children."""
    children: dict[int, list[Process]] = {}
    for process in _all():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        born = children.pop(waiting.pop(), [])
        found += born
        waiting += [each.pid for each in born]
    return [each for each in found if not each.dead]


def _all() -> Iterator[Process]:
    try:
        names = os.listdir(_PROC)  # noqa: PTH208 - names are enough, and there may be thousands
    except FileNotFoundError:
        return
    for name in names:
        if name.isdecimal() and (line := _stat(name)):
            yield _parsed(int(name), line)


def _stat(pid: str) -> bytes:
    """Return a process's line in /proc, or b"" if it no longer exists."""
    try:
        handle = os.open(f"{_PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        # In a single read: a second one could show a later state.
        return os.read(handle, 4096)
    except ProcessLookupError:
        return b""
    finally:
        os.close(handle)


def _parsed(pid: int, line: bytes) -> Process:
    """Parse the fields from the third on; the name may contain blanks and parentheses.

    Source: proc_pid_stat(5).
    """
    fields = line[line.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        dead=fields[0] in {b"Z", b"X"},
        threads=int(fields[17]),
        memory_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def kill_group(group: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal a whole process group at once, so that none of it can fork meanwhile."""
    with suppress(ProcessLookupError, PermissionError):
        # It may have ended, or its remaining processes run as another user.
        os.killpg(group, number)


def kill_descendants(root: int) -> int:
    """Kill every living descendant once; return their number. Repeat until it returns 0."""
    found = descendants(root)
    for process in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
    return len(found)
