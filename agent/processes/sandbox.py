"""Which backend keeps commands and programs to their directories here, and why the others do not.

A backend is chosen once, when the gateway starts: the wanted one, or the first that works. Whether
one works is tried, not guessed: a kernel may have namespaces and refuse them to this user.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from secrets import token_hex
from types import MappingProxyType

from agent.processes import confinement
from agent.processes.helpers import LANGUAGE, PATH
from agent.processes.walls import (
    STARTED,
    Backend,
    Container,
    Sandbox,
    Walls,
    engine_environment,
    is_podman,
    launch,
)
from agent.settings import SandboxSettings

TRIED_WITHIN_S = 20.0
"""How long a backend may take to show that it works; it takes a tenth of a second."""
ORDER: tuple[Backend, ...] = ("bwrap", "landlock", "container")
"""In which they are tried; a container has to be given an image, and costs the most."""
ENGINES = ("podman", "docker")
PORTS_ALONE = "of the network it holds TCP ports, not addresses; bwrap holds both"
NO_CONTAINER_NETWORK = "containers have no network yet: nothing leads to Parley's proxy"
_SAID_CHARS = 200


def choose(settings: SandboxSettings) -> Sandbox:
    """Return the backend that holds: the wanted one, or the first that works.

    Raises:
        ValueError: None does; the text says why, for each.
    """
    wanted = settings.backend
    if wanted == "none":
        return Sandbox("none", "", MappingProxyType({}))
    others: dict[str, str] = {}
    found: Sandbox | None = None
    for name in ORDER:
        if wanted not in {"auto", name}:
            others[name] = f"tools.sandbox.backend is {wanted}"
        elif found is not None:
            others[name] = f"{found.backend} holds already"
        elif reason := why_not(name, settings.image):
            others[name] = reason
        else:
            found = Sandbox(name, _tool(name), others, no_network(name))
    if found is None:
        tried = [name for name in ORDER if wanted in {"auto", name}]
        raise ValueError("; ".join(f"{name}: {others[name]}" for name in tried))
    return found


def report(settings: SandboxSettings) -> list[str]:
    """Return a line for each backend: whether it holds, or why not."""
    try:
        chosen = choose(settings)
    except ValueError as exc:
        return [f"no sandbox holds: {exc}"]
    if chosen.backend == "none":
        return ["no sandbox: tools.sandbox.backend is none"]
    first = f"{chosen.backend} holds"
    if chosen.no_network:
        first += f", without a network: {chosen.no_network}"
    elif chosen.backend == "landlock":
        first += f"; {PORTS_ALONE}"
    return [first, *(f"not {name}: {reason}" for name, reason in chosen.others.items())]


def no_network(backend: Backend) -> str:
    """Return why a backend gives no way to the network; empty where it does."""
    if backend == "container":
        return NO_CONTAINER_NETWORK
    lacks = backend == "landlock" and confinement.landlock_abi() < confinement.NETWORK_ABI
    return confinement.NO_NETWORK if lacks else ""


def why_not(backend: Backend, image: str | None = None) -> str | None:
    """Return why a backend cannot be used here; None where it can."""
    match backend:
        case "landlock":
            return confinement.why_not()
        case "container":
            return why_not_container(image)
        case _:
            return why_not_bwrap()


def why_not_container(image: str | None) -> str | None:
    """Return why no container can be used here; None where one can. The engine is asked."""
    if image is None:
        return "tools.sandbox.image names no image"
    tool = _tool("container")
    if not tool:
        return f"there is neither {' nor '.join(ENGINES)}"
    is_podman_here = is_podman(tool)
    shown = "{{.Host.Security.Rootless}}" if is_podman_here else "{{.SecurityOptions}}"
    code, said = _run([tool, "info", "--format", shown], engine_environment())
    if code:
        return f"{tool} does not answer: {said}"
    if ("true" if is_podman_here else "rootless") not in said:
        return f"{tool} is not rootless: what leaves its container would be root"
    with tempfile.TemporaryDirectory() as folder:
        wanted = Container(image, f"parley-{token_hex(8)}")
        walls = Walls("container", folder, tool, writable=[folder], container=wanted)
        code, said = _try(walls, -1)
    return f"{tool} runs no container of {image}: {said}" if code else None


@cache
def why_not_bwrap() -> str | None:
    """Return why bubblewrap cannot be used here; None where it can. It is tried, once."""
    tool = _tool("bwrap")
    if not tool:
        return "there is no program bwrap (Debian's package is called bubblewrap)"
    with tempfile.TemporaryDirectory() as folder:
        told, telling = os.pipe()
        with os.fdopen(told, "rb") as said:
            try:
                _, problem = _try(Walls("bwrap", folder, tool, writable=[folder]), telling)
            finally:
                os.close(telling)
            return None if said.read() == STARTED else problem or "it did not start a program"


def _try(walls: Walls, telling: int) -> tuple[int, str]:
    """Run the smallest program behind walls; returns its code and the end of what was said."""
    started = launch(walls, ["/bin/sh", "-c", ":"], {"PATH": PATH, "LANG": LANGUAGE}, telling)
    try:
        return _run(started.command, started.environment, started.handles)
    finally:
        for letter in started.handles[:1]:
            os.close(letter)


def _run(
    command: Sequence[str], environment: Mapping[str, str], handles: Sequence[int] = ()
) -> tuple[int, str]:
    try:
        done = subprocess.run(  # noqa: S603 - the tool that was found
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=handles,
            timeout=TRIED_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return 1, str(exc)
    return done.returncode, done.stdout.decode(errors="replace").strip()[-_SAID_CHARS:]


def _tool(backend: str) -> str:
    wanted = {"bwrap": ("bwrap",), "container": ENGINES}.get(backend, ())
    found = (shutil.which(name, path=PATH) for name in wanted)
    return next((path for path in found if path), "")
