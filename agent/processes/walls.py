"""What one program is kept to, and how a process becomes that program behind it.

The walls are plain data: they travel to the process that starts the program. Which backend builds
them was chosen before (`sandbox.py`): the kernel alone (`confinement.py`), bubblewrap around it, or
a container.

As a program of its own this file is the last step within a sandbox that another program has built:
it stands up the kernel's walls there, says that all of them stand, and becomes the program. Its
arguments are the numbers of two open files: one holds the order as JSON, into the other goes
`STARTED`, or what went wrong. Standard library only.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from agent.processes import confinement
from agent.processes.confinement import ConfinementError

Backend = Literal["bwrap", "landlock", "container", "none"]

STARTED = b"started\n"
"""What is told just before the program takes the process over: by then all walls stand."""
ENDS_WITHIN_S = 10.0
"""How long an engine may take to end a container."""
SPARE_PROCESSES = 512
"""Above what is allowed, and what the user's processes are at the start: the kernel's limit is for
all of them, and is only the second line behind the count."""
PROXY_USER = "parley"
_CONTROL_GROUPS_2 = Path("/sys/fs/cgroup/cgroup.controllers")
_PACKAGE = Path(__file__).parents[1]
_PACKAGE_INSIDE = "/run/parley"
_OF_ENGINE = {"PATH", "HOME", "PWD", "TMPDIR", "LANG", "TERM", "XDG_RUNTIME_DIR", "DOCKER_HOST"}
_STREAMS = (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))

# The package `agent` imports what a helper does not need, and cannot find.
BOOT = """
import sys, types
agent = types.ModuleType("agent")
agent.__path__ = [sys.argv[1]]
sys.modules["agent"] = agent
from importlib import import_module
import_module(sys.argv[2]).main()
"""


@dataclass(frozen=True, slots=True)
class Outlet:
    """The way of a program to the network: only through Parley's proxy, or none.

    Attributes:
        hosts: What the proxy lets it reach; none: there is no proxy.
        port: Of the proxy, on loopback; 0 as long as it is not known.
        gate: The open socket by which the program hands out the proxy's door; -1: none is needed.
        pass_word: What the proxy wants to be shown.
    """

    hosts: Sequence[str] = ()
    port: int = 0
    gate: int = -1
    pass_word: str = ""

    def environment(self) -> dict[str, str]:
        """Return what tells programs of the proxy; nothing where there is none."""
        if not self.port:
            return {}
        url = f"http://{PROXY_USER}:{self.pass_word}@127.0.0.1:{self.port}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        return dict.fromkeys(names, url) | {"no_proxy": "", "NO_PROXY": ""}


@dataclass(frozen=True, slots=True)
class Container:
    """What an engine of containers is told beside the walls.

    Attributes:
        image: What is in it.
        name: By which it is ended.
        max_processes, memory_bytes: Of all in it; 0: no limit.
        file_bytes: Of one file; -1: no limit.
    """

    image: str
    name: str
    max_processes: int = 0
    memory_bytes: int = 0
    file_bytes: int = -1


@dataclass(frozen=True, slots=True)
class Walls:
    """What a program may reach.

    Attributes:
        backend: What builds them; `none`: it may do whatever Parley may.
        directory: Where it works; empty: where it is started.
        readable: More directories and files that it can read, and run programs from.
        writable: Directories and files that it can read and write.
        growing: Whether it can make anything new, or only delete.
        container: For that backend.
    """

    backend: Backend
    directory: str
    tool: str = ""
    readable: Sequence[str] = ()
    writable: Sequence[str] = ()
    growing: bool = True
    outlet: Outlet = Outlet()
    container: Container | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Walls":
        """Return walls from their JSON."""
        container = fields["container"] and Container(**fields["container"])
        outlet = Outlet(**fields["outlet"])
        return cls(**{**fields, "outlet": outlet, "container": container})


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The backend that holds here.

    Attributes:
        backend: Its name; `none` where nothing is to be confined.
        others: Why each other backend does not hold, by name.
        no_network: Why no program can be given a way to the network; empty where it can.
    """

    backend: Backend
    tool: str
    others: Mapping[str, str]
    no_network: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a program is started behind walls.

    Attributes:
        environment: All that it finds there.
        handles: Open files that must stay open then.
        tells: Whether what is executed tells `STARTED` itself.
    """

    command: list[str]
    environment: dict[str, str]
    handles: tuple[int, ...] = ()
    tells: bool = False


def launch(
    walls: Walls, program: Sequence[str], environment: Mapping[str, str], told: int
) -> Launch:
    """Return how a process becomes a program; `told` is where it says what became of that.

    What stands up in the process itself is `raise_walls`, between the fork and this command.
    """
    if walls.container is not None:
        command = container(walls, walls.container, program, environment)
        found = {name: value for name, value in environment.items() if f"--env={name}" in command}
        return Launch(command, found | engine_environment())
    if walls.backend != "bwrap":
        return Launch([*program], {**environment, **walls.outlet.environment()})
    order = {"walls": asdict(walls), "program": [*program], "environment": dict(environment)}
    # In memory, not among the arguments: those have a longest length, and all users see them.
    letter = os.memfd_create("parley")
    os.write(letter, json.dumps(order).encode())
    inside = [
        *(os.path.realpath(sys.executable), "-I", "-S", "-c", BOOT, _PACKAGE_INSIDE),
        *("agent.processes.walls", str(letter), str(told)),
    ]
    gates = (walls.outlet.gate,) if walls.outlet.gate >= 0 else ()
    handles = (letter, told, *gates)
    return Launch([*bwrap(walls), *inside], dict(environment), handles, tells=True)


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
        port=walls.outlet.port or None,
        growing=walls.growing,
        apart=walls.backend == "bwrap",
    )


def bwrap(walls: Walls) -> list[str]:
    """Return the command of bubblewrap up to the program: namespaces of its own for all there is.

    There the rest of the machine does not exist: no other file, process, socket or network.
    """
    return [
        *(walls.tool, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc"),
        *("--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--cap-drop", "ALL"),
        *("--proc", "/proc", "--dir", "/dev"),
        *_bound("--dev-bind", confinement.DEVICES),
        *_links(),
        *_bound("--ro-bind-try", _readable(walls)),
        *("--ro-bind", str(_PACKAGE / "processes"), f"{_PACKAGE_INSIDE}/processes"),
        *_bound("--bind", walls.writable),
        *("--remount-ro", "/", "--chdir", walls.directory, "--"),
    ]


def container(
    walls: Walls, wanted: Container, program: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Return the command of a rootless engine, podman or docker, that runs a program.

    Raises:
        ConfinementError: A path cannot be named to it.
    """
    mounts = [(path, ",readonly") for path in walls.readable]
    mounts += [(path, "") for path in walls.writable]
    if named := [path for path, _ in mounts if "," in path or '"' in path]:
        raise ConfinementError(f"no container can be given {named[0]!r}: a comma is in it")
    size = wanted.file_bytes if walls.growing else 0
    limits = [f"--ulimit=fsize={size}:{size}"] if size >= 0 else []
    if wanted.max_processes:
        most = wanted.max_processes + SPARE_PROCESSES
        limits += [f"--ulimit=nproc={most}:{most}"]
    # With the first version of control groups podman ignores these, and says so to each command.
    if not is_podman(walls.tool) or _CONTROL_GROUPS_2.exists():
        of_all = {"pids-limit": wanted.max_processes, "memory": wanted.memory_bytes}
        limits += [f"--{option}={limit}" for option, limit in of_all.items() if limit]
    # As the user who runs the engine, so that what is written belongs to him outside.
    own = ["--userns=keep-id", "--read-only-tmpfs=false"] if is_podman(walls.tool) else []
    return [
        *(walls.tool, "run", "--rm", "--interactive", f"--name={wanted.name}", "--pull=never"),
        *("--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
        # Whoever removes it does not wait for its end.
        "--stop-timeout=0",
        *own,
        *limits,
        *(f"--mount=type=bind,source={path},target={path}{how}" for path, how in mounts),
        *(f"--env={_told(name, value)}" for name, value in environment.items()),
        *(f"--workdir={walls.directory}", f"--entrypoint={program[0]}", wanted.image),
        *program[1:],
    ]


def _told(name: str, value: str) -> str:
    """Return how an engine is told a variable: by its name alone, since all users see arguments.

    It finds the value among its own. What would change the engine there is no secret.
    """
    of_engine = name in _OF_ENGINE or name.startswith("LD_")
    return f"{name}={value}" if of_engine else name


def is_podman(tool: str) -> bool:
    """Whether an engine is podman; else it is docker."""
    return Path(tool).name == "podman"


def engine_environment() -> dict[str, str]:
    """Return where an engine finds what is this user's; a helper has nothing of that."""
    runtime = f"/run/user/{os.geteuid()}"
    found = {
        "PATH": os.defpath,
        "HOME": str(Path("~").expanduser()),
        "DOCKER_HOST": f"unix://{runtime}/docker.sock",
    }
    # A service without a login has none: podman makes a place of its own, unless one is named.
    return found | ({"XDG_RUNTIME_DIR": runtime} if Path(runtime).is_dir() else {})


def end_container(walls: Walls) -> None:
    """Kill and remove the container of a program that is over; it need not be there any more."""
    if walls.container is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(  # noqa: S603 - the engine that has started it
                # Not "kill": what would remove it then is ended with the program's processes.
                [walls.tool, "rm", "--force", walls.container.name],
                env=engine_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=ENDS_WITHIN_S,
                check=False,
            )


def _readable(walls: Walls) -> Iterator[str]:
    system = [path for path in confinement.SYSTEM if not path.startswith("/proc/")]
    yield from system
    # Python, for the step that stands up the last walls; those close it to the program again.
    if not any(Path(sys.base_prefix).is_relative_to(path) for path in system):
        yield sys.base_prefix
    yield from walls.readable


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
    walls = Walls.of(order["walls"])
    program: list[str] = order["program"]
    if walls.outlet.gate >= 0:
        walls = replace(walls, outlet=_opened(walls.outlet))
    confine(walls)
    os.write(told, STARTED)
    environment = {**order["environment"], **walls.outlet.environment()}
    os.execvpe(program[0], program, environment)  # noqa: S606 - this is the order


def _opened(outlet: Outlet) -> Outlet:
    """Open the proxy's door in this process's own network and hand it out; now its port is known.

    Raises:
        OSError: There is no loopback here, or nobody takes the door.
    """
    gate = socket.socket(fileno=outlet.gate)
    with gate, socket.create_server(("127.0.0.1", 0)) as door:
        socket.send_fds(gate, [b"."], [door.fileno()])
        return replace(outlet, gate=-1, port=door.getsockname()[1])


def _read(letter: int) -> dict[str, Any]:
    """Return the order; its file is closed behind it."""
    os.lseek(letter, 0, os.SEEK_SET)
    with os.fdopen(letter, "rb") as file:
        order: dict[str, Any] = json.load(file)
    return order
