"""A process that copies a database, to be killed behind any report of how far it is.

It is forked from one that has imported everything.
"""

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

from gateway.storage import copying, postgres, presence
from tests.support.postgres import server_at

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.copy_process"])
WHOLE = "whole"


def copy(source: str, target: str, tell: Connection) -> None:
    """Copy, and say the part of each report."""
    copying.TOLD_EVERY = 3
    file, server = copying.file_of(source, Path()), copying.server_of(target)
    copying.copy(file, server, lambda part, *_: tell.send(part))
    tell.send(WHOLE)


def copy_and_kill(source: str, target: str, after: int, delay_s: float) -> list[str]:
    """Have a process copy; kill it so long behind so many reports. Returns the parts of those."""
    told, tell = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=copy, args=(source, target, tell))
    process.start()
    tell.close()
    said: list[str] = []
    while len(said) < after and WHOLE not in said:
        said.append(told.recv())
    time.sleep(delay_s)
    process.kill()
    process.join()
    told.close()
    _wait_until_noticed(target)
    return said


def _wait_until_noticed(url: str) -> None:
    """Return when the server has let go of what the killed process held."""
    conn = postgres.connect(server_at(url))
    try:
        conn.exec_driver_sql("SET lock_timeout = 0")
        conn.exec_driver_sql("SELECT pg_advisory_lock(%s)", (presence.USED_LOCK,))
        conn.exec_driver_sql("SELECT pg_advisory_unlock(%s)", (presence.USED_LOCK,))
    finally:
        conn.close()
