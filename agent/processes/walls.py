"""What one program is kept to, and how a process becomes that program behind it.

The walls are plain data: they travel to the process that starts the program. Which backend builds
them was chosen before (`sandbox.py`): the kernel alone (`confinement.py`), or bubblewrap around it.

As a program of its own this file is the last step within a sandbox that another program has built:
it stands up the kernel's walls there, says that all of them stand, and becomes the program. Its
arguments are the numbers of two open files: one holds the order as JSON, into the other goes
`STARTED`, or what went wrong. Standard library only.
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
"""What is told just before the program takes the process over: by then all walls stand."""
SPARE_PROCESSES = 512
"""Above what is allowed, and what the user's processes are at the start: the kernel's limit is for
all of them, and is only the second line behind the count."""
_PACKAGE = Path(__file__).parents[1]
_ROOT_INSIDE = "/run/parley"
_STREAMS = (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))

# Last on the path, so that nothing there takes the place of the standard library.
BOOT = """
import sys
from importlib import import_module
sys.path.append(sys.argv[1])
import_module(sys.argv[2]).main()
"""


@dataclass(frozen=True, slots=True)
class Walls:
    """What a program may reach.

    Attributes:
        backend: What builds them; `none`: it may do whatever Parley may.
        directory: Where it works; empty: where it is started.
        readable: More directories and files that it can read, and run programs from.
        writable: Directories and files that it can read and write.
        growing: Whether it can make anything new, or only delete.
        network: Whether it has the machine's network, all of it, or none.
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
    """The backend that holds here.

    Attributes:
        backend: Its name; `none` where nothing is to be confined.
        others: Why each other backend does not hold, by name.
    """

    backend: Backend
    tool: str
    others: Mapping[str, str]


def launch(
    walls: Walls, program: Sequence[str], environment: Mapping[str, str], told: int
) -> tuple[list[str], tuple[int, ...]]:
    """Return the command that becomes a program, and the open files that must stay open for it.

    With `bwrap` that command says at `told` what became of the program; without, there are no such
    files, and `raise_walls` has been called between the fork and the command.
    """
    if walls.backend != "bwrap":
        return [*program], ()
    order = {"walls": asdict(walls), "program": [*program], "environment": dict(environment)}
    # In memory, not among the arguments: those have a longest length, and all users see them.
    letter = os.memfd_create("parley")
    os.write(letter, json.dumps(order).encode())
    inside = [
        *(os.path.realpath(sys.executable), "-I", "-S", "-c", BOOT, _ROOT_INSIDE),
        *("agent.processes.walls", str(letter), str(told)),
    ]
    return [*bwrap(walls), *inside], (letter, told)


def raise_walls(walls: Walls) -> None:
    """Confine this process, which is about to execute what `launch` says.

    Raises:
        ConfinementError: It cannot be confined; nothing must be run then.
    """
    if walls.backend == "landlock":
        confine(walls)


def confine(walls: Walls) -> None:
    """Have the kernel keep this process to what the walls allow.

    Raises:
        ConfinementError: It cannot be confined.
    """
    confinement.confine(
        walls.writable,
        walls.readable,
        network=walls.network,
        growing=walls.growing,
        apart=walls.backend == "bwrap",
    )


def bwrap(walls: Walls) -> list[str]:
    """Return the command of bubblewrap up to the program: namespaces of its own for all there is.

    There the rest of the machine does not exist: no other file, process or socket, and no network
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
    # Python is also needed for the step that sets up the last walls.
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
    # The program must get neither: what it says there would be taken for our word.
    os.set_inheritable(told, False)  # noqa: FBT003 - it has no name
    try:
        become(_read(letter), told)
    except ConfinementError as exc:
        os.write(told, f"unconfined:{exc}".encode())
    except (OSError, ValueError) as exc:
        os.write(told, f"failed:{exc}".encode())
    os._exit(127)


def become(order: dict[str, Any], told: int) -> NoReturn:
    """Stand up the walls of an order and become its program.

    Raises:
        ConfinementError: It cannot be confined.
        OSError: There is no such program, or no such directory.
    """
    program: list[str] = order["program"]
    confine(Walls(**order["walls"]))
    os.write(told, STARTED)
    os.execvpe(program[0], program, order["environment"])  # noqa: S606 - this is the order


def _read(letter: int) -> dict[str, Any]:
    """Return the order; its file is closed behind it."""
    os.lseek(letter, 0, os.SEEK_SET)
    with os.fdopen(letter, "rb") as file:
        order: dict[str, Any] = json.load(file)
    return order
