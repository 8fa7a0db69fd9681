"""What systemd is told, over a real socket, and when the watchdog is fed no more."""

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.logging.recent import TAPS
from gateway.supervision.service_manager import Pulse, ServiceManager, service_manager
from tests.support.gateway import running
from tests.support.thorough import WAIT_S

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulse that never ran hears nothing of later tests."""
    monkeypatch.setattr(TAPS, "_listeners", defaultdict(list))


class Listener:
    """systemd's end: a datagram socket, and what came."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(WAIT_S)
        self.path = path

    def next(self) -> str:
        """Wait for a message."""
        return self.socket.recv(4096).decode()

    def until(self, wanted: str) -> list[str]:
        """Return the messages up to the first that begins so."""
        found = [self.next()]
        while not found[-1].startswith(wanted):
            found.append(self.next())
        return found

    def waiting(self) -> list[str]:
        """Return what has come by now."""
        self.socket.settimeout(0.0)
        found = []
        try:
            while True:
                found.append(self.socket.recv(4096).decode())
        except BlockingIOError:
            self.socket.settimeout(WAIT_S)
        return found


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """A socket in a folder, as NOTIFY_SOCKET mostly is."""
    made = Listener(tmp_path / "notify")
    with closing(made.socket):
        yield made


def test_a_message_arrives(listener: Listener) -> None:
    """Also by a name that is in no folder; where nobody listens nothing happens."""
    ServiceManager(str(listener.path)).tell("READY=1")
    assert listener.next() == "READY=1"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as hidden:
        hidden.bind(f"\0parley-test-{os.getpid()}")
        ServiceManager(f"@parley-test-{os.getpid()}").tell("WATCHDOG=1")
        assert hidden.recv(100) == b"WATCHDOG=1"
    ServiceManager("/nowhere/at/all").tell("READY=1")


def test_a_reload_has_a_beginning_and_an_end(listener: Listener) -> None:
    """With the clock that systemd asks for."""
    manager = ServiceManager(str(listener.path))
    manager.hear({"event": "reload_begun"})
    began, clock = listener.next().split("\n")
    assert began == "RELOADING=1"
    assert 0 < int(clock.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    for end in ("settings_reloaded", "settings_refused", "reload_failed"):
        manager.hear({"event": end})
        assert listener.next() == "READY=1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"NOTIFY_SOCKET": "vsock:2:1"}, None),
        ({"NOTIFY_SOCKET": "/run/n"}, ServiceManager("/run/n")),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "60000000"}, ServiceManager("@n", 60.0)),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}, ServiceManager("/n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "no"}, ServiceManager("/n")),
    ],
)
def test_whom_systemd_names(environ: dict[str, str], expected: ServiceManager | None) -> None:
    """Its variables are read once: programs that Parley starts do not have them."""
    assert service_manager(environ) == expected
    assert environ == {}


async def test_progress_feeds_the_watchdog(tmp_path: Path, listener: Listener) -> None:
    """The loop turns, the database answers, the worker passes."""
    async with running(tmp_path) as chat:
        gateway = chat.gateway
        manager = ServiceManager(str(listener.path), 600.0)
        pulse = Pulse(manager, gateway.database, gateway.replica, gateway.worker.still_s)
        feeding = asyncio.ensure_future(pulse.run())
        assert await asyncio.to_thread(listener.until, "WATCHDOG=1") == ["WATCHDOG=1"]
        feeding.cancel()
        await asyncio.wait({feeding})
        assert pulse.stalled == ""


@pytest.mark.thorough
@pytest.mark.usefixtures("sqlite_alone")
async def test_a_database_that_hangs_feeds_nothing(tmp_path: Path, listener: Listener) -> None:
    """Somebody holds it; the log and the status say what it is, and that it is over."""
    async with running(tmp_path) as chat:
        gateway = chat.gateway
        manager = ServiceManager(str(listener.path), 4.0)
        pulse = Pulse(manager, gateway.database, gateway.replica, gateway.worker.still_s)
        with closing(sqlite3.connect(tmp_path / "parley.db", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            pulse._note(await pulse.look(1.0))
            holder.execute("ROLLBACK")
        assert listener.waiting() == ["STATUS=the database does not answer"]
        assert chat.events("progress_stalled")[0]["reason"] == "the database does not answer"
        gateway.worker.wake()
        pulse._note(await pulse.look(WAIT_S))
        assert listener.waiting() == ["STATUS=receiving and answering", "WATCHDOG=1"]
        assert chat.events("progress_resumed")


async def test_a_worker_that_stands_still_feeds_nothing(tmp_path: Path, listener: Listener) -> None:
    """Though the database answers."""
    async with running(tmp_path) as chat:
        gateway = chat.gateway
        manager = ServiceManager(str(listener.path), 60.0)
        pulse = Pulse(manager, gateway.database, gateway.replica, lambda: 31.0)
        assert await pulse.look(15.0) == "the worker stands still"
        pulse._note("the worker stands still")
        assert "WATCHDOG=1" not in listener.waiting()


async def test_an_error_is_an_answer(tmp_path: Path, listener: Listener) -> None:
    """A restart empties no disk."""
    async with running(tmp_path) as chat:
        gateway = chat.gateway
        await gateway.database.close()
        manager = ServiceManager(str(listener.path), 60.0)
        pulse = Pulse(manager, gateway.database, gateway.replica, lambda: 0.0)
        assert await pulse.look(15.0) == ""


async def test_what_a_look_meets_ends_no_gateway(tmp_path: Path, listener: Listener) -> None:
    """It is no progress, and no end; nor is a process without a descriptor left."""

    class Broken:
        async def write(self, *_: object) -> None:
            raise RuntimeError("of a driver")

    async with running(tmp_path) as chat:
        manager = ServiceManager(str(listener.path), 0.04)
        broken, replica = Broken(), chat.gateway.replica
        pulse = Pulse(manager, broken, replica, lambda: 0.0)  # type: ignore[arg-type]
        feeding = asyncio.ensure_future(pulse.run())
        await chat.logged("progress_look_broke", 2)
        assert not feeding.done()
        assert "WATCHDOG=1" not in listener.waiting()
        feeding.cancel()
        await asyncio.wait({feeding})


def test_a_message_without_a_descriptor_is_left_out(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog is told with the next one."""

    def none_left(*_: object) -> None:
        raise OSError(24, "Too many open files")

    manager = ServiceManager(str(listener.path), 60.0)
    with monkeypatch.context() as patch:
        patch.setattr("gateway.supervision.service_manager.socket.socket", none_left)
        manager.tell("WATCHDOG=1")
    manager.tell("READY=1")
    assert listener.waiting() == ["READY=1"]


async def test_a_worker_tells_when_it_passed_last(tmp_path: Path) -> None:
    """And nothing before and after its run."""
    async with running(tmp_path, at_work=False) as chat:
        assert chat.gateway.worker.still_s() == 0.0
    async with running(tmp_path) as chat:
        await chat.ask("one")
        assert 0.0 < chat.gateway.worker.still_s() < WAIT_S


@pytest.mark.thorough
def test_a_service_from_its_start_to_its_end(tmp_path: Path, listener: Listener) -> None:
    """Ready, fed, silent while the loop is blocked, reloaded, stopped."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "parley.yaml").write_text("web: {port: 0}\nmodel: {provider: offline}\n")
    environ = {
        "PATH": os.environ["PATH"],
        "PARLEY_HOME": str(home),
        "NOTIFY_SOCKET": str(listener.path),
        "WATCHDOG_USEC": "8000000",
    }
    parley = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli.main", "run"],
        env=environ,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert listener.until("READY=1")[-1] == "READY=1\nSTATUS=receiving and answering"
        listener.until("WATCHDOG=1")
        parley.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, parley.pid, os.WSTOPPED)
        listener.waiting()
        listener.socket.settimeout(3.0)
        with pytest.raises(TimeoutError):
            listener.next()
        parley.send_signal(signal.SIGCONT)
        listener.socket.settimeout(WAIT_S)
        listener.until("WATCHDOG=1")
        parley.send_signal(signal.SIGHUP)
        listener.until("RELOADING=1\nMONOTONIC_USEC=")
        listener.until("READY=1")
        parley.send_signal(signal.SIGTERM)
        listener.until("STOPPING=1")
        assert parley.wait(WAIT_S) == 0
    finally:
        parley.kill()
        parley.wait()
