"""The process that supervises one program and ends it with all its descendants.

It runs between Parley, which may be killed at any moment, and the program, which may do anything.
Its lifeline is a socket that closes when Parley dies or no longer needs the program. Then the
keeper kills the program's process group and every descendant, even in other sessions (Linux).

An MCP server uses the keeper's pipes, and its stdin is closed by then: it gets some time, then
SIGTERM, before it is killed. A command of the tool `terminal` has limits; when one is exceeded, it
is killed with all its descendants. The beginning and the end of its output are kept.

The lifeline carries one line of JSON in (`ProgramOrder`) and a `StartAnswer` line out; for a
command a `Report` follows, with the kept output on stdout. The module uses only the standard
library.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agent.errors import ToolError
from agent.processes import confinement, descent
from agent.processes.confinement import ConfinementError
from agent.processes.walls import SPARE_PROCESSES, STARTED, Walls, launch, raise_walls
from agent.processes.workspace import Workspace

Ended = Literal["exit", "signal", "timeout", "processes", "memory", "disk"]

CHUNK_BYTES = 65_536
LOOK_EVERY_S = 0.05
"""Shortest pause between counts of the descendants; counting takes at most 1/20 of the time."""
MEASURE_EVERY_S = 1.0
"""The same for the directory's size, unless the disk fills up."""
SPARE_DISK_BYTES = 500_000_000
"""Free disk space may shrink by this much more than the directory grows: others write as well."""
STARTS_WITHIN_S = 30.0
"""Timeout of setting up confinement, in seconds."""
GONE_WITHIN_S = 5.0
"""Seconds for killed descendants to disappear."""
MAX_FILES = 256
"""Most files that each process of a command may open."""
NICENESS = 10


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Limits of a command.

    Attributes:
        tail_bytes: Part of `output_bytes` reserved for the end of the output.
        disk_bytes: Of the whole directory and of a single file; 0 if the directory is already full.
    """

    timeout_s: float
    output_bytes: int
    tail_bytes: int
    max_processes: int
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """An order from Parley.

    Attributes:
        environment: The complete environment.
        ends_within_s: Time for the program to exit, and again after SIGTERM.
        limits: Limits of a command; None for a program that runs as long as Parley needs it.
    """

    command: list[str]
    walls: Walls
    environment: dict[str, str]
    ends_within_s: float = 0.0
    limits: CommandLimits | None = None


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """The result of starting a program.

    Attributes:
        group: The process group; None if the program could not be started.
        error: The system's errno, about `file`.
        problem: Reason why the program could not be confined.
    """

    group: int | None = None
    error: int = 0
    file: str | None = None
    problem: str = ""


@dataclass(slots=True)
class Report:
    """The end of a command; `code` is the exit code or the signal number.

    Attributes:
        ended: None while it runs.
        head_bytes: Bytes kept from the beginning; the remaining kept bytes are the end.
    """

    ended: Ended | None = None
    code: int = 0
    output_bytes: int = 0
    head_bytes: int = 0
    problem: str = ""


@dataclass(slots=True)
class BoundedOutput:
    """Keeps the beginning and the end of an output in bounded memory."""

    head_room: int
    tail_room: int
    size: int = 0
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add(self, part: bytes) -> None:
        """Add the next part."""
        self.size += len(part)
        room = self.head_room - len(self.head)
        self.head += part[:room]
        self.tail += part[max(0, room) :]
        if len(self.tail) > self.tail_room + CHUNK_BYTES:
            del self.tail[: len(self.tail) - self.tail_room]

    def kept(self) -> tuple[bytes, bytes]:
        """Return the beginning and the end."""
        return bytes(self.head), bytes(self.tail[-self.tail_room :] if self.tail_room else b"")


def main() -> None:
    """Supervise one program; the last argument is the lifeline's descriptor number."""
    lifeline = int(sys.argv[-1])
    order = parse_order(descent.read_order(lifeline))
    descent.adopt_orphans()
    # Parley may be gone.
    with suppress(ConnectionError):
        keep(order, lifeline)


def parse_order(fields: dict[str, Any]) -> ProgramOrder:
    """Build an order from its JSON fields."""
    limits = fields["limits"] and CommandLimits(**fields["limits"])
    return ProgramOrder(**{**fields, "walls": Walls(**fields["walls"]), "limits": limits})


def keep(order: ProgramOrder, lifeline: int) -> None:
    """Run a program from its start until all its processes have ended."""
    wake = _on_child_end()
    command = HeldCommand(order.walls, order.limits) if order.limits else None
    told, telling = os.pipe()
    try:
        process = _started(order, lifeline, command, (told, telling))
    except OSError as exc:
        _say(lifeline, StartAnswer(error=exc.errno or 0, file=exc.filename))
        return
    # A character that a command cannot contain raises a ValueError.
    except (ConfinementError, ValueError) as exc:
        _say(lifeline, StartAnswer(problem=str(exc)))
        return
    try:
        # Signals sent to all processes at once are meant to end the program, not the keeper.
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        if command is None:
            # The pipes must close when the program closes them.
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(nothing, standard)
        _say(lifeline, StartAnswer(process.pid))
        _watch(process.pid, lifeline, wake, command)
    finally:
        _end(process, order)
    if command is not None:
        report, head, tail = command.told()
        # The program is missing inside its confinement, or has too many arguments.
        report.problem = report.problem or _problem_in(_written(told))
        _say(lifeline, report)
        _write(1, head)
        _write(1, tail)


def _started(
    order: ProgramOrder, lifeline: int, command: "HeldCommand | None", pipe: tuple[int, int]
) -> subprocess.Popen[bytes]:
    """Start the program in its own session; raise a ConfinementError if confinement fails."""
    told, telling = pipe
    words, handles = launch(order.walls, order.command, order.environment, telling)
    streams: dict[str, Any] = {}
    if command is not None:
        streams = {"stdin": subprocess.DEVNULL, "stdout": command.writing, "umask": 0o077}
        streams["stderr"] = subprocess.STDOUT
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's command, or the model's
            words,
            cwd=order.walls.directory or None,
            env=order.environment,
            # In a group of its own, it can be killed without the keeper.
            start_new_session=True,
            # Nothing else runs in this process, so no lock can be held.
            preexec_fn=partial(_prepare, order, telling),  # noqa: PLW1509
            pass_fds=handles,
            **streams,
        )
    except subprocess.SubprocessError as exc:
        os.close(telling)
        raise ConfinementError(os.read(told, CHUNK_BYTES).decode()) from exc
    for handle in {telling, *handles, *([command.writing] if command else [])}:
        os.close(handle)
    # bubblewrap reports that confinement is complete, or why it failed.
    if handles and (answer := _first_words(told, lifeline)) != STARTED:
        process.kill()
        said = command.drained() if command is not None else ""
        raise ConfinementError(_problem_in(answer) or said or "its sandbox could not be built")
    return process


def _problem_in(words: bytes) -> str:
    """Return the error reported by the confinement backend, or ""."""
    return words.decode(errors="replace").removeprefix(STARTED.decode()).partition(":")[2]


def _written(told: int) -> bytes:
    """Return the remaining bytes of a pipe whose writers are dead."""
    os.set_blocking(told, False)
    with suppress(BlockingIOError):
        return os.read(told, CHUNK_BYTES)
    return b""


def _first_words(told: int, lifeline: int) -> bytes:
    """Return the first output; b"" on timeout or if Parley is gone."""
    poll = select.poll()
    for each in (told, lifeline):
        poll.register(each, select.POLLIN)
    ready = dict(poll.poll(STARTS_WITHIN_S * 1000))
    return os.read(told, CHUNK_BYTES) if told in ready else b""


def _prepare(order: ProgramOrder, telling: int) -> None:
    descent.die_with_parent()
    try:
        if order.limits is not None:
            # Before confinement, which blocks /proc and so oom_score_adj.
            _limit(order.limits)
            confinement.hold_in_group()
        raise_walls(order.walls)
    except (ConfinementError, OSError, ValueError) as exc:
        os.write(telling, str(exc).encode())
        raise


def _limit(limits: CommandLimits) -> None:
    """Set the kernel's limits per process; the limit of processes applies to the user."""
    # Count all visible processes: at least the user's own.
    running = sum(each.threads for each in descent.descendants(0))
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(limits.timeout_s) + 2),
        (resource.RLIMIT_FSIZE, limits.disk_bytes),
        (resource.RLIMIT_NOFILE, MAX_FILES),
        (resource.RLIMIT_NPROC, running + limits.max_processes + SPARE_PROCESSES),
        # Not RLIMIT_AS: runtimes reserve far more address space than they use memory.
        (resource.RLIMIT_DATA, limits.memory_bytes),
    ):
        _, hard = resource.getrlimit(kind)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))
    os.nice(NICENESS)
    # If memory runs out, the kernel kills the command before Parley.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("1000")


def _on_child_end() -> int:
    """Return a file that becomes readable when a child ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # poll() resumes after a signal (PEP 475): Python writes a byte to the wakeup file for signals
    # that have a handler, and this byte ends the wait.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _say(lifeline: int, words: StartAnswer | Report) -> None:
    _write(lifeline, json.dumps(asdict(words)).encode() + b"\n")


def _write(handle: int, part: bytes) -> None:
    view = memoryview(part)
    while view:
        view = view[os.write(handle, view) :]


def _watch(program: int, lifeline: int, wake: int, command: "HeldCommand | None") -> None:
    """Wait until Parley no longer needs the program, or a command ends or exceeds a limit."""
    poll = select.poll()
    for each in (lifeline, wake, *([command.reading] if command else [])):
        poll.register(each, select.POLLIN)
    while command is None or command.report.ended is None:
        wait_s = command.until_next_look() if command else None
        ready = {handle for handle, _ in poll.poll(None if wait_s is None else wait_s * 1000)}
        if lifeline in ready and not _is_needed(lifeline):
            return
        if command is not None and command.reading in ready and not command.take():
            # A closed pipe is always ready: the loop would no longer wait.
            poll.unregister(command.reading)
        if wake in ready:
            os.read(wake, CHUNK_BYTES)
        if command is not None:
            command.check_limits()
        _reap(program, command)


def _is_needed(lifeline: int) -> bool:
    """Return whether the lifeline is open; a reset means that it closed with unread data."""
    with suppress(ConnectionError):
        return bool(os.read(lifeline, CHUNK_BYTES))
    return False


def _reap(program: int, command: "HeldCommand | None") -> None:
    """Reap dead orphans, but not the program, so that its group keeps its id."""
    # Other systems have no orphans here, and some lack waitid.
    if command is None and sys.platform != "linux":
        return
    while (end := descent.dead_child()) is not None:
        if end.si_pid == program:
            if command is not None:
                command.note_end(end)
            # `dead_child` finds no further one: the kernel reaps them from now on.
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            return
        os.waitpid(end.si_pid, 0)


def _end(process: subprocess.Popen[bytes], order: ProgramOrder) -> None:
    """Let the program exit, then kill its group and all descendants until none is left."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if order.ends_within_s and not _ends(process, order.ends_within_s):
        descent.kill_group(process.pid, signal.SIGTERM)
        _ends(process, order.ends_within_s)
    deadline = time.monotonic() + GONE_WITHIN_S
    descent.kill_group(process.pid)
    # Processes outside the group may fork after they were listed.
    while descent.kill_descendants(os.getpid()) and time.monotonic() < deadline:
        time.sleep(0.001)
    # Reap the dead.
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def _ends(process: subprocess.Popen[bytes], within_s: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
    return process.returncode is not None


class HeldCommand:
    """The output of a command, and the checks of its limits.

    Attributes:
        reading, writing: The ends of the pipe for its output.
    """

    def __init__(self, walls: Walls, limits: CommandLimits) -> None:
        self.report = Report()
        self.reading, self.writing = os.pipe()
        # Remaining descendants may keep an empty pipe open.
        os.set_blocking(self.reading, False)
        self._directory = walls.directory
        self._limits = limits
        self._output = BoundedOutput(limits.output_bytes - limits.tail_bytes, limits.tail_bytes)
        self._started = time.monotonic()
        self._next_look = self._started + LOOK_EVERY_S
        self._measured = self._started
        self._measuring_s = 0.0
        self._free = _free_bytes(walls.directory)

    def until_next_look(self) -> float:
        """Return the seconds until the next check of limits."""
        deadline = self._started + self._limits.timeout_s
        return max(0.0, min(self._next_look, deadline) - time.monotonic())

    def take(self) -> bool:
        """Read the output so far; return whether more may follow."""
        try:
            part = os.read(self.reading, CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._output.add(part)
        return bool(part)

    def note_end(self, end: Any) -> None:
        """Record that the command itself ended, unless a limit ended it."""
        if self.report.ended is None:
            self.report.ended = "exit" if end.si_code == os.CLD_EXITED else "signal"
            self.report.code = end.si_status

    def check_limits(self) -> None:
        """Check the limits and record an exceeded one."""
        now = time.monotonic()
        if now >= self._started + self._limits.timeout_s:
            self.report.ended = "timeout"
        elif now >= self._next_look:
            self._count()
            if self.report.ended is None and self.takes_too_much(now):
                self.report.ended = "disk"

    def takes_too_much(self, now: float) -> bool:
        """Return whether the directory is too large or the disk lost too much space.

        Only the disk's free space reveals files that were deleted while open.
        """
        disk_bytes = self._limits.disk_bytes
        lost = self._free - _free_bytes(self._directory)
        if lost > min(disk_bytes + SPARE_DISK_BYTES, self._free // 2):
            self.report.problem = "the disk lost too much free space meanwhile"
            return True
        pause_s = LOOK_EVERY_S if lost > disk_bytes else MEASURE_EVERY_S
        if not disk_bytes or now < self._measured + max(pause_s, self._measuring_s):
            return False
        try:
            return Workspace(Path(self._directory)).used_bytes() > disk_bytes
        except ToolError:
            return True
        finally:
            self._measured = time.monotonic()
            self._measuring_s = 20 * (self._measured - now)

    def _count(self) -> None:
        began_s = time.process_time()
        found = descent.descendants(os.getpid())
        # In CPU time: a fork bomb that delays this process gains nothing.
        pause_s = max(LOOK_EVERY_S, 20 * (time.process_time() - began_s))
        self._next_look = time.monotonic() + pause_s
        if sum(each.threads for each in found) > self._limits.max_processes:
            self.report.ended = "processes"
        elif sum(each.memory_bytes for each in found) > self._limits.memory_bytes:
            self.report.ended = "memory"

    def drained(self) -> str:
        """Read the rest of the pipe; return the beginning of the output."""
        with suppress(BlockingIOError):
            while part := os.read(self.reading, CHUNK_BYTES):
                self._output.add(part)
        return self._output.kept()[0].decode(errors="replace").strip()

    def told(self) -> tuple[Report, bytes, bytes]:
        """Return the report, and the beginning and end of the output."""
        self.drained()
        head, tail = self._output.kept()
        self.report.output_bytes = self._output.size
        self.report.head_bytes = len(head)
        return self.report, head, tail


def _free_bytes(directory: str) -> int:
    """Return the free space on a directory's disk, or the largest number if it is missing."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return sys.maxsize
    return disk.f_bavail * disk.f_frsize
