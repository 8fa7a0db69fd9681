"""The confinement ("walls") of one program, and the steps by which a process becomes that program.

The walls are plain data for the process that starts the program. `sandbox.py` has chosen the
backend that builds them: the kernel alone (`confinement.py`), or bubblewrap around it.

Run as a program, this file is the last step inside bubblewrap: it applies the kernel's confinement,
reports success and becomes the program. Its arguments are the numbers of two open files: one with
the order as JSON, one for `STARTED` or the error. It uses only the standard library.
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
"""Reported just before the program takes over the process: confinement is complete."""
SPARE_PROCESSES = 512
"""Added to the kernel's limit of the user's processes, besides the allowed and the existing ones;
that limit backs up the keeper's count."""
_PACKAGE = Path(__file__).parents[1]
_ROOT_INSIDE = "/run/parley"
_STREAMS = (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))

# Last on the path, so that nothing there shadows the standard library.
BOOT = """
import sys
from importlib import import_module
sys.path.append(sys.argv[1])
import_module(sys.argv[2]).main()
"""


@dataclass(frozen=True, slots=True)
class Walls:
    """The access rights of a program.

    Attributes:
        backend: `none`: unconfined, with all of Parley's rights.
        directory: Its working directory; empty for the starting process's.
        readable: Directories and files that it can only read and execute.
        growing: Whether it can create files, or only delete.
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
        others: Reason why each other backend is not used, by name.
    """

    backend: Backend
    tool: str
    others: Mapping[str, str]


def launch(
    walls: Walls, program: Sequence[str], environment: Mapping[str, str], told: int
) -> tuple[list[str], tuple[int, ...]]:
    """Return the command that becomes a program, and the files that must stay open for it.

    With `bwrap` the command reports to `told`. Otherwise no file needs to stay open, and
    `raise_walls` must be called between fork and exec.
    """
    if walls.backend != "bwrap":
        return [*program], ()
    order = {"walls": asdict(walls), "program": [*program], "environment": dict(environment)}
    # In memory: arguments have a maximum length and are visible to all users.
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
        ConfinementError: Confinement failed; nothing must be run.
    """
    if walls.backend == "landlock":
        confine(walls)


def confine(walls: Walls) -> None:
    """Have the kernel confine this process; raise a ConfinementError if it cannot."""
    confinement.confine(
        walls.writable,
        walls.readable,
        network=walls.network,
        growing=walls.growing,
        apart=walls.backend == "bwrap",
    )


def bwrap(walls: Walls) -> list[str]:
    """Return the bubblewrap command up to the program, with separate namespaces.

    The rest of the machine does not exist there: no other file, process or socket, and no network
    unless allowed.
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
    # The step that completes the confinement needs Python.
    named = dict.fromkeys([*system, *of_this_python(), *walls.readable])
    # A mounted folder already has its content; a link is not a mount point.
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
    # The program must not inherit it: its output would pass for ours.
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
    """Confine this process as ordered and become the program.

    Raises a ConfinementError, or an OSError if the program or directory is missing.
    """
    program: list[str] = order["program"]
    confine(Walls(**order["walls"]))
    os.write(told, STARTED)
    os.execvpe(program[0], program, order["environment"])  # noqa: S606 - this is the order
