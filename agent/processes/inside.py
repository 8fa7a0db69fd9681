"""The last step within a sandbox that another program has built: it stands up the kernel's walls.

Bubblewrap has made namespaces in which the rest of the machine does not exist. This process is the
first in them: it gives up what it does not need, has Landlock and seccomp confine it as without
bubblewrap, says that all walls stand, and becomes the program.

Arguments: the numbers of two open files. One holds the order as JSON; into the other
goes `STARTED`, or what went wrong. Standard library only.
"""

import json
import os
import sys
from typing import Any, NoReturn

from agent.processes.confinement import ConfinementError
from agent.processes.walls import STARTED, Walls, confine


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
    walls = Walls(**order["walls"])
    program: list[str] = order["program"]
    confine(walls)
    os.write(told, STARTED)
    os.execvpe(program[0], program, order["environment"])  # noqa: S606 - this is the order


def _read(letter: int) -> dict[str, Any]:
    """Return the order; its file is closed behind it."""
    os.lseek(letter, 0, os.SEEK_SET)
    with os.fdopen(letter, "rb") as file:
        order: dict[str, Any] = json.load(file)
    return order
