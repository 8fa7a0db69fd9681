"""The walls around one program, and the steps by which a process becomes that program.

The walls are plain data for the process that starts the program. `sandbox.py` has chosen the
backend that builds them: the kernel alone (`confinement.py`), or bubblewrap around it.

As a program of its own this file is the last step inside of bubblewrap: it builds the kernel's
walls there, reports that all of them are built, and becomes the program. Its arguments are the
numbers of two open files: one with the order as JSON, one for `STARTED` or the error. It imports
the standard library only.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from agent.processes import confinement
from agent.processes.confinement import ConfinementError
from agent.processes.installations import of_this_python

Backend = Literal["bwrap", "landlock", "none"]

STARTED = b"started\n"
"""Reported just before the program takes over the process: all walls are built."""
SPARE_PROCESSES = 512
"""In the kernel's limit for all processes of the user, the second line behind the count: besides
the allowed ones and those that exist at the start."""
_PACKAGE = Path(__file__).parents[1]
_ROOT_INSIDE = "/run/parley"
_STREAMS = (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))

# Last on the path, so that nothing there replaces the standard library.
BOOT = """
import sys
from importlib import import_module
sys.path.append(sys.argv[1])
import_module(sys.argv[2]).main()
"""


@dataclass(frozen=True, slots=True)
class Walls:
    """The reach of a program.

    Attributes:
        backend: `none`: it may do all that Parley may.
        directory: Its working directory; empty: that of its start.
        readable: More directories and files that it can read, and run programs from.
        writable: Directories and files that it can read and write.
        growing: Whether it can make anything new, or only delete.
        network: Whether it has the machine's whole network, or none.
    """

    backend: Backend
    directory: str
    tool: str = ""
    readable: Sequence[str] = ()
    writable: Sequence[str] = ()
    growing: bool = True
    network: bool = False


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The backend in use; `none` confines nothing.

    Attributes:
        others: Why each other backend is not used, by name.
    """

    backend: Backend
    tool: str
    others: Mapping[str, str]


def launch(
    walls: Walls, program: Sequence[str], environment: Mapping[str, str], told: int
) -> tuple[list[str], tuple[int, ...]]:
    """Return the command that becomes a program, and the files that must stay open for it.

    With `bwrap` that command reports to `told`; without, there are no such files, and `raise_walls`
    must be called between the fork and the command.
    """
    if walls.backend != "bwrap":
        return [*program], ()
    order = {"walls": asdict(walls), "program": [*program], "environment": dict(environment)}
    # In memory: arguments have a longest length, and all users see them.
    letter = os.memfd_create("parley")
    os.write(letter, json.dumps(order).encode())
    inside = [
        *(os.path.realpath(sys.executable), "-I", "-S", "-c", BOOT, _ROOT_INSIDE),
        *("agent.processes.walls", str(letter), str(told)),
    ]
    return [*bwrap(walls), *inside], (letter, told)


def raise_walls(walls: Walls) -> None:
    """Confine this process before it executes the command of `launch`.

    Raises:
        ConfinementError: It cannot be confined; nothing must be run then.
    """
    if walls.backend == "landlock":
        confine(walls)


def confine(walls: Walls) -> None:
    """Have the kernel confine this process; raises a ConfinementError if it cannot."""
    confinement.confine(
        walls.writable,
        walls.readable,
        network=walls.network,
        growing=walls.growing,
        apart=walls.backend == "bwrap",
    )


def bwrap(walls: Walls) -> list[str]:
    """Return the command of bubblewrap up to the program, with namespaces of its own.

    The rest of the machine does not exist there: no other file, process or socket, and no network
    unless it is allowed.
    """
    return [
        *(walls.tool, "--unshare-user", "--unshare-pid", "--unshare-ipc"),
        *(() if walls.network else ("--unshare-net",)),
        *("--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--cap-drop", "ALL"),
        *("--proc", "/proc", "--dir", "/dev"),
        *_bound("--dev-bind", confinement.DEVICES),
        *_links(),
        *_bound("--ro-bind-try", _readable(walls)),
        *("--ro-bind", str(_PACKAGE / "__init__.py"), f"{_ROOT_INSIDE}/agent/__init__.py"),
        *("--ro-bind", str(_PACKAGE / "processes"), f"{_ROOT_INSIDE}/agent/processes"),
        *_bound("--bind", walls.writable),
        *("--remount-ro", "/", "--chdir", walls.directory, "--"),
    ]


def _readable(walls: Walls) -> Iterator[str]:
    system = [path for path in confinement.SYSTEM if not path.startswith("/proc/")]
    # The step that builds the last walls needs Python.
    named = dict.fromkeys([*system, *of_this_python(), *walls.readable])
    # The content of a mounted folder is there already; a link is not a mount point.
    yield from (each for each in named if not {*map(str, Path(each).parents)} & named.keys())


def _bound(option: str, paths: Any) -> Iterator[str]:
    for path in paths:
        yield from (option, path, path)


def _links() -> Iterator[str]:
    for name, target in _STREAMS:
        yield from ("--symlink", f"/proc/self/{target}", f"/dev/{name}")


def main() -> NoReturn:
    """Become the program."""
    letter, told = (int(argument) for argument in sys.argv[-2:])
    # The program must not get it: its words would count as ours.
    os.set_inheritable(told, False)  # noqa: FBT003 - it has no name
    try:
        become(_read(letter), told)
    except ConfinementError as exc:
        os.write(told, f"unconfined:{exc}".encode())
    except (OSError, ValueError) as exc:
        os.write(told, f"failed:{exc}".encode())
    os._exit(127)


def _read(letter: int) -> dict[str, Any]:
    os.lseek(letter, 0, os.SEEK_SET)
    with os.fdopen(letter, "rb") as file:
        order: dict[str, Any] = json.load(file)
    return order


def become(order: dict[str, Any], told: int) -> NoReturn:
    """Build the walls of an order and become its program.

    Raises a ConfinementError, or an OSError without such a program or directory.
    """
    program: list[str] = order["program"]
    confine(Walls(**order["walls"]))
    os.write(told, STARTED)
    os.execvpe(program[0], program, order["environment"])  # noqa: S606 - this is the order
