"""The process that holds one command of the tool `terminal`, and ends with all that it started.

It runs between Parley and the command: Parley may be killed at any moment, and the command may do
what it likes. The end of stdin means that nobody waits for the command any more: Parley was killed,
or the turn was stopped. Then, at the end of the command, and where a limit is broken, the command's
process group and every descendant are killed, also those in a session of their own.

In: one line of JSON (`CommandOrder`). Out: a line with the process group as soon as there is one,
then a line with a `Report`, then what is kept of the output. It runs on the standard library only.
"""

import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from agent.errors import ToolError
from agent.processes import confinement, descent
from agent.processes.walls import (
    SPARE_PROCESSES,
    STARTED,
    Launch,
    Walls,
    launch,
    raise_walls,
)
from agent.processes.workspace import Workspace

Ended = Literal["exit", "signal", "timeout", "processes", "memory", "disk", "unconfined", "failed"]

CHUNK_BYTES = 65_536
_LIFELINE = 0
"""Stdin: readable at its end only, when Parley is gone, or waits no more."""
LOOK_EVERY_S = 0.05
"""How often the descendants are counted at most; looking takes a twentieth of the time at most."""
MEASURE_EVERY_S = 1.0
"""The same for the size of the directory; as often as the rest while the disk fills up."""
SPARE_DISK_BYTES = 500_000_000
"""How much more than the directory may hold the disk may lose meanwhile: others write too."""
END_WITHIN_S = 5.0
"""How long killed descendants may take to be gone."""
MAX_FILES = 256
"""Files that each process of a command may have open."""
NICENESS = 10


@dataclass(frozen=True, slots=True)
class CommandOrder:
    """What is to be run, and its limits; all that comes from Parley.

    Attributes:
        tail_bytes: Of `output_bytes`, how many are kept for the end of the output.
        disk_bytes: Of the whole directory, and of one file; 0: nothing can be written, since the
            directory is full already.
    """

    command: str
    shell: str
    directory: str
    environment: dict[str, str]
    walls: Walls
    timeout_s: float
    output_bytes: int
    tail_bytes: int
    max_processes: int
    memory_bytes: int
    disk_bytes: int


@dataclass(slots=True)
class Report:
    """How it ended; `code` is the exit code or the signal's number.

    Attributes:
        head_bytes: What is kept of the beginning; the rest of what is kept is the end.
        left_behind: Processes that were killed when the command itself had ended.
    """

    ended: Ended = "failed"
    code: int = 0
    output_bytes: int = 0
    head_bytes: int = 0
    left_behind: int = 0
    duration_s: float = 0.0
    problem: str = ""


@dataclass(slots=True)
class BoundedOutput:
    """The beginning and the end of what a command writes, in bounded memory."""

    head_room: int
    tail_room: int
    size: int = 0
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add(self, part: bytes) -> None:
        """Take the next part."""
        self.size += len(part)
        room = self.head_room - len(self.head)
        self.head += part[:room]
        self.tail += part[max(0, room) :]
        if len(self.tail) > self.tail_room + CHUNK_BYTES:
            del self.tail[: len(self.tail) - self.tail_room]

    def kept(self) -> tuple[bytes, bytes]:
        """Return beginning and end."""
        return bytes(self.head), bytes(self.tail[-self.tail_room :] if self.tail_room else b"")


def main() -> None:
    """Serve one order from stdin."""
    # Only the line: stdin stays open behind it, and its end is what is listened for.
    order = ordered(descent.read_order(_LIFELINE))
    descent.adopt_orphans()
    # Parley may be gone when the report is written: that must be an error here, not the end.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with suppress(BrokenPipeError):
        _say(*Supervisor(order).run())


def ordered(fields: dict[str, Any]) -> CommandOrder:
    """Return an order from its JSON."""
    return CommandOrder(**{**fields, "walls": Walls(**fields["walls"])})


def _say(*parts: bytes) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(1, view) :]


class Supervisor:
    """One command from its start to the end of all its processes."""

    def __init__(self, order: CommandOrder) -> None:
        self._order = order
        self._workspace = Workspace(Path(order.directory))
        self._output = BoundedOutput(order.output_bytes - order.tail_bytes, order.tail_bytes)
        self._report = Report()
        self._child = 0
        self._started = time.monotonic()
        self._next_look = self._started + LOOK_EVERY_S
        self._measured = self._started
        self._measuring_s = 0.0
        self._free = _free_bytes(order.directory)

    def run(self) -> tuple[bytes, bytes, bytes]:
        """Run the command; return the report's line, and the output's beginning and end."""
        wake = _on_child_end()
        reading, problems = self._start()
        try:
            _say(json.dumps({"group": self._child}).encode() + b"\n")
            self._watch(reading, wake)
        finally:
            self._end_all()
        self._drain(reading)
        self._settle(os.read(problems, CHUNK_BYTES))
        return self._told()

    def _settle(self, said: bytes) -> None:
        """Take note of a command that was not run, by what was said before it took over."""
        started, problem = said.startswith(STARTED), said.removeprefix(STARTED).decode()
        if problem:
            kind, _, text = problem.partition(":")
            self._report.ended = "unconfined" if kind == "unconfined" else "failed"
            self._report.problem = text
        elif not started and self._report.ended in {"exit", "signal"}:
            # What has built the sandbox has failed, and said why where the command writes.
            self._report.ended = "unconfined"
            words = self._output.kept()[0].decode(errors="replace").strip()
            self._report.problem = words or f"the sandbox has ended with code {self._report.code}"

    def _start(self) -> tuple[int, int]:
        """Start the shell; returns where its output, and trouble before it, can be read."""
        reading, writing = os.pipe()
        problems, trouble = os.pipe()
        allowed = _own_processes() + self._order.max_processes + SPARE_PROCESSES
        # Walls and limits hold for the process that sets them: the child sets its own.
        self._child = os.fork()
        if self._child == 0:
            _become(self._order, writing, trouble, allowed)
        os.close(writing)
        os.close(trouble)
        # What the command has left running may keep the pipe open with nothing in it.
        os.set_blocking(reading, False)
        return reading, problems

    def _watch(self, reading: int, wake: int) -> None:
        """Return when the command has ended, broke a limit, or nobody waits for it any more."""
        poll = select.poll()
        for each in (reading, wake, _LIFELINE):
            poll.register(each, select.POLLIN)
        while self._report.ended == "failed":
            ready = {handle for handle, _ in poll.poll(self._until_next_look() * 1000)}
            # What is written there means nothing; its end does.
            if _LIFELINE in ready and not os.read(_LIFELINE, CHUNK_BYTES):
                self._report.ended, self._report.problem = "signal", "nobody waits for it"
            if reading in ready and not self._take(reading):
                # At its end a pipe is always ready: this loop would not wait any more.
                poll.unregister(reading)
            if wake in ready:
                os.read(wake, CHUNK_BYTES)
            self._check_limits()
            self._reap()

    def _until_next_look(self) -> float:
        deadline = self._started + self._order.timeout_s
        return max(0.0, min(self._next_look, deadline) - time.monotonic())

    def _take(self, reading: int) -> bool:
        """Read what is there; whether there may be more."""
        try:
            part = os.read(reading, CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._output.add(part)
        return bool(part)

    def _check_limits(self) -> None:
        now = time.monotonic()
        if now >= self._started + self._order.timeout_s:
            self._report.ended = "timeout"
        elif now >= self._next_look:
            self._count()
            if self._report.ended == "failed" and self._takes_too_much(now):
                self._report.ended = "disk"

    def _takes_too_much(self, now: float) -> bool:
        """Whether the directory holds too much, or the disk has lost too much meanwhile.

        The disk tells of what the directory does not show: files deleted while they are open.
        """
        lost = self._free - _free_bytes(self._order.directory)
        if lost > min(self._order.disk_bytes + SPARE_DISK_BYTES, self._free // 2):
            self._report.problem = "the disk lost too much free space meanwhile"
            return True
        pause_s = LOOK_EVERY_S if lost > self._order.disk_bytes else MEASURE_EVERY_S
        if not self._order.disk_bytes or now < self._measured + max(pause_s, self._measuring_s):
            return False
        try:
            return self._workspace.used_bytes() > self._order.disk_bytes
        except ToolError:
            return True
        finally:
            self._measured = time.monotonic()
            self._measuring_s = 20 * (self._measured - now)

    def _count(self) -> None:
        began_s = time.process_time()
        found = descent.descendants(os.getpid())
        # By the time of the processor: a bomb that keeps this process waiting wins none by it.
        pause_s = max(LOOK_EVERY_S, 20 * (time.process_time() - began_s))
        self._next_look = time.monotonic() + pause_s
        if sum(each.threads for each in found) > self._order.max_processes:
            self._report.ended = "processes"
        elif sum(each.memory_bytes for each in found) > self._order.memory_bytes:
            self._report.ended = "memory"

    def _reap(self) -> None:
        """Take leave of dead orphans; the command itself stays, so that its group keeps its id."""
        while (end := descent.dead_child()) is not None:
            if end.si_pid == self._child:
                if self._report.ended == "failed":
                    is_exit = end.si_code == os.CLD_EXITED
                    self._report.ended = "exit" if is_exit else "signal"
                    self._report.code = end.si_status
                return
            os.waitpid(end.si_pid, 0)

    def _end_all(self) -> None:
        """Kill the group and all descendants until there is none.

        Where the command is held in its group that dies in one step, and nothing is left.
        """
        deadline = time.monotonic() + END_WITHIN_S
        descent.stop_group(self._child)
        # Where it has process ids of its own, they end with it, and nobody can tell how many.
        if self._order.walls.backend != "bwrap":
            self._report.left_behind = sum(
                each.pid != self._child for each in descent.descendants(os.getpid())
            )
        descent.kill_group(self._child)
        while descent.kill_descendants(os.getpid()) and time.monotonic() < deadline:
            self._reap()
        while _reaped_one():
            pass

    def _drain(self, reading: int) -> None:
        """Take what the dead left in the pipe."""
        with suppress(BlockingIOError):
            while part := os.read(reading, CHUNK_BYTES):
                self._output.add(part)

    def _told(self) -> tuple[bytes, bytes, bytes]:
        head, tail = self._output.kept()
        self._report.output_bytes = self._output.size
        self._report.head_bytes = len(head)
        self._report.duration_s = time.monotonic() - self._started
        return json.dumps(asdict(self._report)).encode() + b"\n", head, tail


def _free_bytes(directory: str) -> int:
    """Return the free space of the disk; of a directory that is not there nothing can be said."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return sys.maxsize
    return disk.f_bavail * disk.f_frsize


def _on_child_end() -> int:
    """Return a file that becomes readable when a child ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # poll() goes on after a signal (PEP 475), and Python writes a byte to the wakeup file for
    # signals with a handler alone: the byte ends the wait.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _own_processes() -> int:
    """Return how many processes and threads this machine shows; more than the user's own."""
    return sum(each.threads for each in descent.descendants(0))


def _reaped_one() -> bool:
    """Take leave of one dead child; False where there is none any more."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _become(order: CommandOrder, output: int, trouble: int, processes: int) -> NoReturn:
    """Turn this forked process into the shell; what goes wrong before that goes to `trouble`."""
    try:
        started = _prepare(order, output, trouble, processes)
        os.execve(  # noqa: S606 - the shell is what is started
            started.command[0], started.command, started.environment
        )
    except confinement.ConfinementError as exc:
        os.write(trouble, f"unconfined:{exc}".encode())
    except (OSError, ValueError) as exc:
        os.write(trouble, f"failed:{exc}".encode())
    # Not sys.exit: this is a copy of the supervisor, and would clean up in its name.
    os._exit(127)


def _prepare(order: CommandOrder, output: int, trouble: int, processes: int) -> Launch:
    """Make this process ready; returns what it becomes."""
    # Before the filter below, under which leaving a group has no effect.
    os.setsid()
    descent.die_with_parent()
    # What is ignored stays ignored after exec: `yes | head` would not end as in a shell.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.umask(0o077)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.chdir(order.directory)
    # Before the limits, among which is that nothing may be written.
    program = [order.shell, "-c", order.command]
    started = launch(order.walls, program, order.environment, trouble)
    # Before the walls, which close /proc: that is where the kernel learns what to kill first.
    _limit(order, processes)
    confinement.hold_in_group()
    for handle in started.handles:
        os.set_inheritable(handle, True)  # noqa: FBT003 - it has no name
    raise_walls(order.walls)
    if not started.tells:
        os.write(trouble, STARTED)
    return started


def _limit(order: CommandOrder, processes: int) -> None:
    """Set the kernel's limits: each is for one process, but that of processes for the user."""
    cpu_s = int(order.timeout_s) + 2
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, order.disk_bytes),
        (resource.RLIMIT_NOFILE, MAX_FILES),
        (resource.RLIMIT_NPROC, processes),
        # Not RLIMIT_AS: runtimes reserve far more addresses than they use memory.
        (resource.RLIMIT_DATA, order.memory_bytes),
    ):
        _, hard = resource.getrlimit(kind)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))
    os.nice(NICENESS)
    # Where memory runs out, the kernel ends the command before Parley.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("1000")
