"""Which backend keeps commands and programs to their directories here, and why the others do not.

A backend is chosen once, when the gateway starts: the wanted one, or the first that works. Whether
one works is tried, not guessed: a kernel may have namespaces and refuse them to this user.
"""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from types import MappingProxyType

from agent.processes import confinement
from agent.processes.helpers import LANGUAGE, PATH
from agent.processes.walls import STARTED, Backend, Sandbox, Walls, launch
from agent.settings import SandboxSettings

TRIED_WITHIN_S = 20.0
"""How long a backend may take to show that it works; it takes a tenth of a second."""
ORDER: tuple[Backend, ...] = ("bwrap", "landlock")
"""In which they are tried: the first hides most."""
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
        elif reason := why_not(name):
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
    return [first, *(f"not {name}: {reason}" for name, reason in chosen.others.items())]


def no_network(backend: Backend) -> str:
    """Return why a backend gives no way to the network; empty where it does."""
    lacks = backend == "landlock" and confinement.landlock_abi() < confinement.NETWORK_ABI
    return confinement.NO_NETWORK if lacks else ""


def why_not(backend: Backend) -> str | None:
    """Return why a backend cannot be used here; None where it can."""
    return confinement.why_not() if backend == "landlock" else why_not_bwrap()


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
                problem = _try(Walls("bwrap", folder, tool, writable=[folder]), telling)
            finally:
                os.close(telling)
            return None if said.read() == STARTED else problem or "it did not start a program"


def _try(walls: Walls, telling: int) -> str:
    """Run the smallest program behind walls; returns what was said about that."""
    environment = {"PATH": PATH, "LANG": LANGUAGE}
    started = launch(walls, ["/bin/sh", "-c", ":"], environment, telling)
    try:
        done = subprocess.run(  # noqa: S603 - its own command
            started.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=started.handles,
            timeout=TRIED_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    finally:
        os.close(started.handles[0])
    return done.stderr.decode(errors="replace").strip()[-_SAID_CHARS:]


def _tool(backend: str) -> str:
    return shutil.which("bwrap", path=PATH) or "" if backend == "bwrap" else ""
