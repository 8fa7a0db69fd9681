"""Tests as if none of Debian's extras were installed: `PARLEY_TEST_BARE=1`.

A fresh machine has none of them, and `make test` must pass there. Where some are installed they are
hidden by mounts in a namespace of this run alone, so that the product and the programs that tests
start do not find them either. That takes root; without extras it takes nothing.
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
    """Return the paths of the programs that this machine has."""
    return [path for name in programs if (path := shutil.which(name, path=where))]


def hide(programs: Sequence[str]) -> None:
    """Hide programs from this process and all that it starts, for good.

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
        # A file that nobody may execute: a search for the program passes it by.
        subprocess.run(["mount", "--bind", "/dev/null", os.path.realpath(program)], check=True)


if BARE:
    hide(installed())
