"""Commands under the real supervisor, as the user `nobody`: what an ordinary user can do.

Which backends this machine has, and whether it can become that user, is said here alone.
"""

import atexit
import io
import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.processes import confinement, sandbox, supervisor
from agent.processes.supervisor import CommandOrder, Report
from agent.processes.walls import Backend, Container, Walls

NOBODY = 65534
TAKES_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
TAKES_LANDLOCK = pytest.mark.skipif(
    (WHY_NO_LANDLOCK := confinement.why_not()) is not None, reason=f"landlock: {WHY_NO_LANDLOCK}"
)
BY_NOBODY = [TAKES_ROOT, TAKES_LANDLOCK]
BECOME_NOBODY = f"""
import os
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
"""
"""A process reads the code first: to this user it may be closed."""


@dataclass(frozen=True, slots=True)
class Internet:
    """What the proxy finds: all public addresses are one port of loopback.

    Attributes:
        names: What each host leads to, one answer after the other, the last one from then on; all
            others are themselves.
    """

    port: int
    names: dict[str, list[list[str]]]


REACH = """
import asyncio
from agent.processes import egress
names = {names!r}
async def look_up(host, port):
    found = names.get(host, [[host]])
    return found.pop(0) if len(found) > 1 else found[0]
async def connect(address, port):
    assert egress.is_public_text(address)
    return await asyncio.open_connection("127.0.0.1", {port})
egress.look_up, egress.connect = look_up, connect
"""
SUPERVISE = f"""
import sys, types
agent = types.ModuleType("agent")
agent.__path__ = [{str(Path(supervisor.__file__).parents[1])!r}]
sys.modules["agent"] = agent
from agent.processes import supervisor
REACH
{BECOME_NOBODY}
supervisor.main()
"""


def why_no_podman() -> str | None:
    """Return why `nobody` has no containers of a real podman here, as far as a look tells it."""
    if shutil.which("podman") is None:
        return "there is no podman"
    named = Path("/etc/subuid")
    if not named.is_file() or "nobody:" not in named.read_text():
        return "nobody has no ids in /etc/subuid (docs/decisions/235-a-container-is-tried.md)"
    return None


class Engine:
    """A rootless podman of `nobody`, with a home and an image of its own.

    Attributes:
        tool: Its path.
        home: Of that user.
        image: Holds a shell alone; all else is the machine's own /usr, where a test has it mounted.
    """

    def __init__(self, home: Path) -> None:
        """Make the image.

        Raises:
            RuntimeError: Neither runtime starts a container here; the text says why.
        """
        self.tool = shutil.which("podman") or ""
        self.home = home
        self.image = "localhost/parley-tests:1"
        settings = home / ".config/containers"
        settings.mkdir(parents=True)
        for path in (home / ".config", settings):
            os.chown(path, NOBODY, NOBODY)
        self.ask("import", "-", self.image, given=_shell_alone())
        said = []
        for runtime in ("crun", "runc"):
            (settings / "containers.conf").write_text(f'[engine]\nruntime = "{runtime}"\n')
            tried = self.ask("run", "--rm", "--network=none", self.image, "/bin/sh", "-c", ":")
            if tried.returncode == 0:
                return
            said.append(tried.stderr.decode())
        raise RuntimeError("".join(said))

    def ask(self, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Have the engine do something as that user."""
        code = f"{BECOME_NOBODY}import sys; os.execv({self.tool!r}, ['podman', *sys.argv[1:]])"
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(
            command, input=given, env=self.environment(), capture_output=True, check=False
        )

    def environment(self) -> dict[str, str]:
        """Return what leads a process of that user to this engine."""
        return {"PATH": os.defpath, "HOME": str(self.home)}


def _shell_alone() -> bytes:
    """Return an image's files: /bin/sh, what it loads, and places for the rest."""
    sh = Path(shutil.which("sh") or "/bin/sh").resolve()
    loaded = subprocess.run(["ldd", sh], capture_output=True, text=True, check=True).stdout.split()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as image:
        for name in ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "usr/bin"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            image.addfile(folder)
        for name in ("bin", "sbin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            image.addfile(link)
        for path in [each for each in loaded if each.startswith("/")]:
            _pack(image, Path(path).resolve(), "usr/" + path.removeprefix("/usr").lstrip("/"))
        _pack(image, sh, "usr/bin/sh")
    return packed.getvalue()


def _pack(image: tarfile.TarFile, path: Path, name: str) -> None:
    member = image.gettarinfo(path, name)
    member.uid = member.gid = 0
    with path.open("rb") as file:
        image.addfile(member, file)


@cache
def engine() -> Engine:
    """Return the podman of these tests, which is there until the last of them is over.

    The test is skipped where none runs a container.
    """
    home = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(home, NOBODY, NOBODY)
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    try:
        found = Engine(home)
    except RuntimeError as exc:
        pytest.skip(f"container: {exc}")
    # Called before the line above is: layers belong to ids that only the engine can remove.
    atexit.register(found.ask, "system", "reset", "--force")
    return found


def on_each_backend(*, networked: bool = False, contained: bool = False) -> pytest.MarkDecorator:
    """Return the mark of tests that take a `backend`: each that this machine has.

    Args:
        networked: Whether only those count that give a command a network.
        contained: Whether containers count, which hold what their image does.
    """
    why_not: dict[Backend, str | None] = {
        "landlock": WHY_NO_LANDLOCK or (networked and sandbox.no_network("landlock")) or None,
        "bwrap": sandbox.why_not_bwrap(),
    }
    if contained:
        why_not["container"] = why_no_podman()
    found = [
        pytest.param(name, marks=pytest.mark.skipif(reason is not None, reason=f"{name}: {reason}"))
        for name, reason in why_not.items()
    ]
    return pytest.mark.parametrize("backend", found)


@contextmanager
def folder_of_nobody() -> Iterator[Path]:
    """Make a directory of that user; pytest's own directories are closed to him."""
    with tempfile.TemporaryDirectory(dir="/tmp") as found:
        os.chown(found, NOBODY, NOBODY)
        yield Path(found)


def order_for(folder: Path, command: str, backend: Backend, **changes: Any) -> CommandOrder:
    """Return an order with small limits; what the walls have by that name is changed there."""
    walls = Walls(backend, str(folder), shutil.which("bwrap") or "", writable=[str(folder)])
    of_walls = {each.name for each in fields(Walls)} & changes.keys()
    walls = replace(walls, **{name: changes.pop(name) for name in of_walls})
    order: dict[str, Any] = {
        "command": command,
        "shell": shutil.which("bash") or "/bin/sh",
        "directory": str(folder),
        "environment": {"PATH": os.defpath, "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"},
        "walls": walls,
        "timeout_s": 30,
        "output_bytes": 2_000,
        "tail_bytes": 1_000,
        "max_processes": 30,
        "memory_bytes": 100_000_000,
        "disk_bytes": 200_000,
    }
    return CommandOrder(**{**order, **changes})


def run_as_nobody(
    folder: Path,
    command: str,
    backend: Backend = "landlock",
    *,
    internet: Internet | None = None,
    **changes: Any,
) -> tuple[Report, str]:
    """Have a supervisor that is this user run a command; returns its report and the output."""
    environment = None
    if backend == "container":
        environment = engine().environment()
        changes = {**_in_a_container(changes), **changes}
    order = order_for(folder, command, backend, **changes)
    reach = REACH.format(**asdict(internet)) if internet else ""
    # One that this user may run: within bubblewrap Python is started anew.
    started = [
        shutil.which("python3", path="/usr/bin") or sys.executable,
        "-c",
        SUPERVISE.replace("REACH", reach),
    ]
    with subprocess.Popen(
        started,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        process.stdin.flush()
        _group, report, output = process.stdout.read().split(b"\n", 2)
    return Report(**json.loads(report)), output.decode(errors="replace")


def _in_a_container(changes: dict[str, Any]) -> dict[str, Any]:
    """Return what the walls of a container have beside the others'; the machine's /usr is in it."""
    name = f"parley-{secrets.token_hex(8)}"
    file_bytes = changes.get("disk_bytes", 200_000)
    wanted = Container(engine().image, name, 30, 100_000_000, file_bytes)
    return {"tool": engine().tool, "container": wanted, "readable": ["/usr"]}
