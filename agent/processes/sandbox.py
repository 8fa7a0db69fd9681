"""Choose the backend that confines commands and programs on this machine.

The choice is made once at start-up: the configured backend, or the first that works. Each is tried,
because a kernel may support namespaces but refuse them to this user.
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
from agent.settings import SandboxSettings, ToolSettings

OF_FILES = frozenset({"terminal", "read_file", "write_file", "list_files", "search_files"})
"""Tools that are disabled if no backend works."""
TRIED_WITHIN_S = 20.0
"""Timeout of a backend's trial in seconds; it usually takes a tenth of a second."""
ORDER: tuple[Backend, ...] = ("bwrap", "landlock")
"""Order in which backends are tried."""
_SAID_CHARS = 200
_ENVIRONMENT = {"PATH": PATH, "LANG": LANGUAGE}


def choose(settings: SandboxSettings) -> Sandbox | str:
    """Return the configured backend or the first that works, else the reasons why none does."""
    wanted = settings.backend
    if wanted == "none":
        return Sandbox("none", "", MappingProxyType({}))
    others: dict[str, str] = {}
    found: Sandbox | None = None
    for name in ORDER:
        if wanted not in {"auto", name}:
            others[name] = f"tools.sandbox.backend is {wanted}"
        elif found is not None:
            others[name] = f"{found.backend} is used"
        elif reason := why_not(name):
            others[name] = reason
        else:
            found = Sandbox(name, _tool() if name == "bwrap" else "", others)
    if found is None:
        tried = [name for name in ORDER if wanted in {"auto", name}]
        return "; ".join(f"{name}: {others[name]}" for name in tried)
    return found


def why_off(tools: ToolSettings) -> str:
    """Return the reason why `terminal` and the file tools are disabled, or "".

    They stay enabled if the operator allows them without confinement.
    """
    is_wanted = tools.terminal.confine and not OF_FILES.isdisjoint(tools.enabled)
    if not is_wanted or isinstance(reason := choose(tools.sandbox), Sandbox):
        return ""
    return (
        f"terminal and the file tools are off: no wall works here ({reason}); install bubblewrap,"
        " or set tools.terminal.confine to false if they may run without walls"
    )


def why_not(backend: Backend) -> str | None:
    """Return the reason why a backend cannot be used here, or None."""
    return confinement.why_not() if backend == "landlock" else why_not_bwrap()


@cache
def why_not_bwrap() -> str | None:
    """Return the reason why bubblewrap cannot be used here, or None; cached after one trial."""
    tool = _tool()
    if not tool:
        return "there is no program bwrap (Debian's package is called bubblewrap)"
    told, telling = os.pipe()
    with tempfile.TemporaryDirectory() as folder, os.fdopen(told, "rb") as said:
        walls = Walls("bwrap", folder, tool, writable=[folder])
        command, handles = launch(walls, ["/bin/sh", "-c", ":"], _ENVIRONMENT, telling)
        try:
            done = subprocess.run(  # noqa: S603 - the tool that was found
                command,
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=handles,
                timeout=TRIED_WITHIN_S,
                check=False,
            )
            problem = done.stdout.decode(errors="replace").strip()[-_SAID_CHARS:]
        except (OSError, subprocess.TimeoutExpired) as exc:
            problem = str(exc)
        finally:
            for handle in handles:
                os.close(handle)
        return None if said.read() == STARTED else problem or "it did not start a program"


def _tool() -> str:
    return shutil.which("bwrap", path=PATH) or ""
