"""A real PgBouncer in transaction mode, where Debian's is installed: see docs/configuration.md.

It refuses to be root: there it belongs to the user `nobody`, as the server of the tests does.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from gateway.storage.database import DatabaseServer
from tests.support.confined import NOBODY
from tests.support.postgres import PostgresServer, server_at
from tests.support.process import free_port

PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")
TAKES_PGBOUNCER = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
BOTH_WAYS = ["direct", pytest.param("pooled", marks=TAKES_PGBOUNCER)]
"""For tests that hold with a pooler and without it."""
SESSIONS = 4
"""Of the server, for all clients: fewer than one replica has connections."""
STARTS_IN_S = 60
TRY_EVERY_S = 0.02
CONFIG = """
[databases]
* = host=127.0.0.1 port={server} user=parley
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
server_login_retry = 1
logfile = {folder}/log
pidfile = {folder}/pid
"""


class PgBouncer:
    """A pooler that can be stopped and started again.

    Args:
        folder: Where its settings and its log are.
        server_port: Where PostgreSQL listens on loopback.

    Attributes:
        port: Where it listens itself.
    """

    def __init__(self, folder: Path, server_port: int) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        text = CONFIG.format(server=server_port, port=self.port, sessions=SESSIONS, folder=folder)
        (folder / "pgbouncer.ini").write_text(text)

    def start(self) -> None:
        """Start it, and return once it takes connections."""
        owner = {} if os.geteuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._process = subprocess.Popen(
            [str(PGBOUNCER), "-q", self._folder / "pgbouncer.ini"],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **owner,
        )
        self.wait_until_it_answers("postgres")

    def wait_until_it_answers(self, database: str) -> None:
        """Return once a query gets through to a database.

        It refuses them for `server_login_retry` seconds after the server itself had refused it.
        """
        until = time.monotonic() + STARTS_IN_S
        while not self._answers(database):
            assert self._process is not None
            assert self._process.poll() is None, f"PgBouncer ended: {self.log()}"
            assert time.monotonic() < until, f"PgBouncer does not answer: {self.log()}"
            time.sleep(TRY_EVERY_S)

    def _answers(self, database: str) -> bool:
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(self.url(database), autocommit=True) as driver,
        ):
            driver.execute("SELECT 1")
            return True
        return False

    def stop(self) -> None:
        """End it at once, with all transactions that are under way."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        """Return what it has said."""
        file = self._folder / "log"
        return file.read_text().strip() if file.exists() else ""

    def url(self, database: str) -> str:
        """Return how a database is reached by way of it."""
        return f"postgresql://parley@127.0.0.1:{self.port}/{database}"


@contextmanager
def pgbouncer(server: PostgresServer) -> Iterator[PgBouncer]:
    """Run a pooler before a server until the end."""
    with tempfile.TemporaryDirectory(prefix="pool-") as name:
        folder = Path(name)
        pooler = PgBouncer(folder, server.port)
        if not os.geteuid():
            # Also the settings: what a test leaves behind as umask may have closed them.
            for each in (folder, *folder.iterdir()):
                os.chown(each, NOBODY, NOBODY)
        pooler.start()
        try:
            yield pooler
        finally:
            pooler.stop()


def behind(pooler: PgBouncer, direct_url: str) -> DatabaseServer:
    """Return a database as a gateway behind a pooler has it."""
    url = pooler.url(name_of(direct_url))
    return server_at(url, pooled=True, direct_url=SecretStr(direct_url))


def name_of(url: str) -> str:
    """Return the name of the database that a URL names."""
    return url.partition("?")[0].rpartition("/")[2]
