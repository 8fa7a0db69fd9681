"""A process that copies a database in small batches, to be killed behind any of them.

It is forked from one that has imported everything.
"""

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

from gateway.storage import bulk, copying, postgres, presence
from tests.support.postgres import server_at

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.copy_process"])
WHOLE = "whole"


def copy(source: str, target: str, batch_bytes: int, tell: Connection) -> None:
    """Copy, and say the part of each batch."""
    copying.INDEXED_ROWS = 3
    with bulk.source_of(source, Path()) as one, bulk.target_of(target) as other:
        copying.Copy(one, other, lambda step: tell.send(step.part), batch_bytes).run()
    tell.send(WHOLE)


def copy_and_kill(
    source: str, target: str, batch_bytes: int, after: int, delay_s: float
) -> list[str]:
    """Have a process copy; kill it so long behind so many batches. Returns the parts of those."""
    told, tell = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=copy, args=(source, target, batch_bytes, tell))
    process.start()
    tell.close()
    said: list[str] = []
    while len(said) < after and WHOLE not in said:
        said.append(told.recv())
    time.sleep(delay_s)
    process.kill()
    process.join()
    told.close()
    for url in (source, target):
        if url.startswith("postgresql"):
            _wait_until_noticed(url)
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
