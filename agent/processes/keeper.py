"""The process that holds somebody else's program, and ends it with all that it has started.

Parley may be killed at any moment, and a program need not look at its stdin. The keeper stands
beside the pipes, which are the program's alone, and reads a lifeline: a socket that ends with
Parley, or when Parley needs the program no more. The program's stdin has ended by then. It gets
some time, then SIGTERM, then it is killed with every descendant, also those in a session of their
own (Linux).

On the lifeline, in: one line of JSON (`ProgramOrder`). Out: one line of JSON (`StartAnswer`). It
runs on the standard library only.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

from agent.processes import descent
from agent.processes.confinement import ConfinementError
from agent.processes.walls import STARTED, Walls, launch, raise_walls

GONE_WITHIN_S = 5.0
"""How long killed descendants may take to be gone."""


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """What is to be run; all that comes from Parley.

    Attributes:
        environment: All that it finds there.
        ends_within_s: How long it has to end, and again after SIGTERM.
    """

    command: list[str]
    walls: Walls
    environment: dict[str, str]
    ends_within_s: float


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """Whether it runs.

    Attributes:
        group: Its process group; None where it could not be started.
        error: Why not: the number of the system's error, and the file that it is about.
        problem: Why not, where it could not be confined.
    """

    group: int | None = None
    error: int = 0
    file: str | None = None
    problem: str = ""


class NotConfinedError(Exception):
    """The walls could not be built; the text says why."""


def main() -> None:
    """Keep one program; the lifeline is the file whose number is the last argument."""
    lifeline = int(sys.argv[-1])
    fields = descent.read_order(lifeline)
    order = ProgramOrder(**{**fields, "walls": Walls(**fields["walls"])})
    descent.adopt_orphans()
    try:
        program = _started(order)
    except OSError as exc:
        _say(lifeline, StartAnswer(error=exc.errno or 0, file=exc.filename))
        return
    except NotConfinedError as exc:
        _say(lifeline, StartAnswer(problem=str(exc)))
        return
    try:
        _let_go_of_its_pipes()
        _outlast_signals()
        _say(lifeline, StartAnswer(program.pid))
        _wait(lifeline, program.pid)
    finally:
        _end(program, order.ends_within_s)


def _started(order: ProgramOrder) -> subprocess.Popen[bytes]:
    """Start the program on this process's own pipes, in a session of its own, behind its walls.

    Raises:
        OSError: It cannot be started.
        NotConfinedError: It cannot be confined.
    """
    told, telling = os.pipe()
    walls = order.walls
    with os.fdopen(told, "rb") as said:
        started = launch(walls, order.command, order.environment, telling)
        try:
            program = subprocess.Popen(  # noqa: S603 - the operator's command
                started.command,
                cwd=(walls.directory or None) if not started.tells else None,
                env=started.environment,
                # A group of its own: it can be killed without the keeper.
                start_new_session=True,
                # Nothing else runs in this process, so nothing can hold a lock.
                preexec_fn=partial(_stand_behind, walls, telling),  # noqa: PLW1509
                pass_fds=started.handles,
            )
        except subprocess.SubprocessError as exc:
            os.close(telling)
            raise NotConfinedError(said.read().decode()) from exc
        for handle in {telling, *started.handles}:
            os.close(handle)
        # The program itself, where it runs, closes it; the builder of its walls says more.
        if started.tells and (words := said.readline()) != STARTED:
            problem = words.decode().partition(":")[2] or "its sandbox could not be built"
            raise NotConfinedError(problem)
    return program


def _stand_behind(walls: Walls, telling: int) -> None:
    """Make the process ready that is about to become the program."""
    descent.die_with_parent()
    try:
        raise_walls(walls)
    except ConfinementError as exc:
        os.write(telling, str(exc).encode())
        raise


def _let_go_of_its_pipes() -> None:
    """Have the pipes end when the program ends them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)


def _outlast_signals() -> None:
    """Leave signals that are sent to all processes at once to the program: they may end it."""
    for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)


def _say(lifeline: int, answer: StartAnswer) -> None:
    with suppress(ConnectionError):
        os.write(lifeline, json.dumps(asdict(answer)).encode() + b"\n")


def _wait(lifeline: int, program: int) -> None:
    """Return when the lifeline has ended; dead orphans are taken leave of meanwhile."""
    signal.signal(signal.SIGCHLD, lambda *_: _reap(program))
    _reap(program)
    # An end with words unread is a reset.
    with suppress(ConnectionError):
        while os.read(lifeline, 1):
            continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _reap(program: int) -> None:
    """Take leave of dead orphans; the program itself stays, so that its group keeps its id."""
    # Elsewhere orphans do not come here, and some systems lack waitid.
    if sys.platform != "linux":
        return
    while (end := descent.dead_child()) is not None:
        if end.si_pid == program:
            # No other is told of behind it, so none may stay any more.
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            return
        # A signal may have come in between, and this been done.
        with suppress(ChildProcessError):
            os.waitpid(end.si_pid, 0)


def _end(program: subprocess.Popen[bytes], within_s: float) -> None:
    if not _ends(program, within_s):
        descent.terminate_group(program.pid)
        _ends(program, within_s)
    descent.kill_group(program.pid)
    # What has left the group may fork after it was listed: again until there is none.
    deadline = time.monotonic() + GONE_WITHIN_S
    while descent.kill_descendants(os.getpid()) and time.monotonic() < deadline:
        time.sleep(0.01)


def _ends(program: subprocess.Popen[bytes], within_s: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        program.wait(within_s)
    return program.returncode is not None
