"""Runs tests as if none of Debian's extras were installed: `PARLEY_TEST_BARE=1`.

A fresh machine has none of them, and `make test` must pass there. Mounts in a namespace of this run
hide installed ones, so that the product and programs started by tests do not find them either.
This needs root, but not on a machine without extras.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence

BARE = os.environ.get("PARLEY_TEST_BARE") == "1"
EXTRAS = ("bwrap", "chromium", "docker", "nginx", "pgbouncer", "podman", "promtool")
WHERE = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEW_MOUNT_NAMESPACE = 0x00020000
"""CLONE_NEWNS. Source: linux/sched.h."""


def installed(programs: Iterable[str] = EXTRAS, where: str = WHERE) -> list[str]:
    """Return the paths of the installed programs."""
    return [path for name in programs if (path := shutil.which(name, path=where))]


def hide(programs: Sequence[str]) -> None:
    """Hide programs from this process and its children, permanently.

    Raises:
        RuntimeError: The system refuses it.
    """
    if not programs:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNT_NAMESPACE):
        reason = os.strerror(ctypes.get_errno())
        raise RuntimeError(f"PARLEY_TEST_BARE hides {', '.join(programs)}, as root: {reason}")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for program in programs:
        # A file that is not executable: a search for the program skips it.
        subprocess.run(["mount", "--bind", "/dev/null", os.path.realpath(program)], check=True)


if BARE:
    hide(installed())
