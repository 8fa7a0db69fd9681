"""`python -m gateway.cli.main` as a fork of a process that has imported all, 0.2 s instead of 2.4.

`Forked` is what a test holds of such a process; it has what `ParleyProcess` uses of asyncio's
`Process`. Run as a module this is the process that forks: it has no thread and no event loop. A
request is one packet on its standard input, a socket: JSON, with four descriptors that the new
process has as stdin, stdout and stderr, and on which the forking process tells how it ended.
"""

import array
import asyncio
import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

_ROOT = Path(__file__).resolve().parents[2]
_LARGEST_REQUEST_BYTES = 1 << 18
_WARM = (
    "gateway.cli.main",
    "gateway.app",
    "gateway.cli.chat",
    "gateway.cli.run",
    "gateway.console.site",
    "gateway.wiring",
    "adapters.telegram.adapter",
    "adapters.web.adapter",
    "agent.models.offline",
    "agent.models.anthropic.client",
    "agent.models.openai.client",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
"""What processes of tests import, now or when they come to it."""


class Forked:
    """A running `python -m gateway.cli.main`.

    Attributes:
        returncode: How it ended, negative for a signal; None while it runs.
        stdout: What it writes.
        stderr: What it writes beside that.
    """

    def __init__(self, pid: int, stdin: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: asyncio.StreamReader
        self.stderr: asyncio.StreamReader
        self._stdin = stdin
        self._status = status
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(status, self._note_end)

    @classmethod
    async def start(
        cls, arguments: tuple[str, ...], environ: dict[str, str], limit: int
    ) -> "Forked":
        """Start it with these arguments and variables; lines of its output may be `limit` long."""
        theirs, ours = [], []
        for inwards in (True, False, False, False):
            read, write = os.pipe()
            theirs.append(read if inwards else write)
            ours.append(write if inwards else read)
        request = {"arguments": arguments, "environ": environ, "cwd": str(_ROOT)}
        try:
            pid = await asyncio.to_thread(_ask, json.dumps(request).encode(), theirs)
        finally:
            for each in theirs:
                os.close(each)
        forked = cls(pid, ours[0], ours[3])
        forked.stdout, forked.stderr = [await _reader(each, limit) for each in ours[1:3]]
        return forked

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    async def communicate(self, given: bytes = b"") -> tuple[bytes, bytes]:
        """Hand it all of its input and read all of its output."""
        if self.returncode is None:
            with suppress(BrokenPipeError):
                os.write(self._stdin, given)
        self._close_stdin()
        found = await asyncio.gather(self.stdout.read(), self.stderr.read(), self.wait())
        return found[0], found[1]

    def _note_end(self) -> None:
        """Take how it ended."""
        asyncio.get_running_loop().remove_reader(self._status)
        self.returncode = int(os.read(self._status, 16))
        os.close(self._status)
        self._close_stdin()
        self._ended.set()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1


async def _reader(descriptor: int, limit: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader


_forking: list[socket.socket] = []
_asking = threading.Lock()


def _ask(request: bytes, descriptors: list[int]) -> int:
    """Have a process forked; return its pid."""
    with_them = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    with _asking:
        if not _forking:
            _forking.append(_begin())
        _forking[0].sendmsg([request], with_them)
        return int(_forking[0].recv(16))


def _begin() -> socket.socket:
    """Start the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST_BYTES)
    command = [sys.executable, "-m", "tests.support.forks"]
    process = subprocess.Popen(command, cwd=_ROOT, stdin=theirs, stdout=subprocess.DEVNULL)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def main() -> None:
    """Fork until the other side is gone; in a fork, be `python -m gateway.cli.main`."""
    for name in _WARM:
        import_module(name)
    _migrate_once()
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=0))
    if request is not None:
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environ"])
        time.tzset()
        sys.argv = ["", *request["arguments"]]
        # Else runpy warns that it is there already.
        del sys.modules["gateway.cli.main"]
        try:
            runpy.run_module("gateway.cli.main", run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if ended.code is None or isinstance(ended.code, int):
                _leave(ended.code or 0)
            raise


def _leave(code: int) -> NoReturn:
    """End as Python does, but for taking apart what was imported: that copies it, for 0.13 s."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _migrate_once() -> None:
    """What would be a new database is a copy of a migrated one: to migrate is most of a start."""
    migrations: Any = import_module("gateway.storage.migrations")
    storage = import_module("tests.support.storage")
    with TemporaryDirectory() as folder:
        template = storage.migrated_file(Path(folder, "parley.db"))
        migrations.connected = storage.connecting_to_copies(template)


def _serve(asked: socket.socket) -> dict[str, Any] | None:
    """Return a request in the fork that is to do it, or None at the end."""
    ending: dict[int, int] = {}
    with asked, _told_of_ends() as told:
        while True:
            ready, _, _ = select.select([asked, told], [], [])
            if told in ready:
                told.recv(4096)
                _report(ending)
            if asked not in ready:
                continue
            request, descriptors, *_ = socket.recv_fds(asked, _LARGEST_REQUEST_BYTES, 4)
            if not request:
                return None
            if (pid := os.fork()) == 0:
                break
            for each in descriptors[:3]:
                os.close(each)
            ending[pid] = descriptors[3]
            asked.send(str(pid).encode())
    for each in (*ending.values(), descriptors[3]):
        os.close(each)
    for standard, each in enumerate(descriptors[:3]):
        os.dup2(each, standard)
        os.close(each)
    return dict(json.loads(request))


@contextmanager
def _told_of_ends() -> Iterator[socket.socket]:
    """Return a socket that can be read whenever a forked process has ended."""
    told, tells = socket.socketpair()
    tells.setblocking(False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    with told, tells:
        signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
        try:
            yield told
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, before)


def _report(ending: dict[int, int]) -> None:
    """Tell of each process that has ended how it did."""
    for pid in [*ending]:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            told = ending.pop(pid)
            os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(told)


if __name__ == "__main__":
    main()
