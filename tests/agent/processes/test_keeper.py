"""The keeper of a program, alone; the tests of MCP and of crashes have it stand behind Parley."""

import errno
import json
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO

import psutil
import pytest

from agent.processes.helpers import program
from agent.processes.keeper import ProgramOrder, StartAnswer
from agent.processes.walls import Walls

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
