"""Commands with a network reach the machine's network and nothing else, on each backend."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.processes.walls import Backend
from tests.support.confined import (
    TAKES_ROOT,
    folder_of_nobody,
    on_each_backend,
    run_as_nobody,
)

pytestmark = [TAKES_ROOT, on_each_backend()]
TRIES = """
import socket, sys
port, private = int(sys.argv[1]), sys.argv[2]
def tcp(): return socket.create_connection(("127.0.0.1", port), 5).recv(10)
def udp(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port))
def serve(): socket.create_server(("127.0.0.1", 0))
def unix(): socket.socket(socket.AF_UNIX).connect(private)
def abstract(): socket.socket(socket.AF_UNIX).connect("\\0" + private)
def netlink(): socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
def packets(): socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
def raw(): socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
def vsock(): socket.socket(40, socket.SOCK_STREAM)
for each in (tcp, udp, serve, unix, abstract, netlink, packets, raw, vsock):
    try:
        each()
        print(each.__name__)
    except OSError:
        pass
"""
OF_THE_NETWORK = ["tcp", "udp", "serve"]


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A directory of `nobody`, with a program that tries all kinds of sockets."""
    with folder_of_nobody() as found:
        (found / "tries.py").write_text(TRIES)
        (found / "tries.py").chmod(0o644)
        yield found


@pytest.fixture
def port() -> Iterator[int]:
    """A service of this machine's network."""

    def serve(door: socket.socket) -> None:
        while True:
            try:
                connection, _ = door.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"hello")

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=serve, args=(door,), daemon=True).start()
        yield int(door.getsockname()[1])
        door.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("network", "reached"), [(True, OF_THE_NETWORK), (False, [])])
def test_the_network_is_all_or_none(
    workspace: Path, port: int, backend: Backend, *, network: bool, reached: list[str]
) -> None:
    """Never local sockets of services, packet sockets or raw sockets."""
    with folder_of_nobody() as home, socket.socket(socket.AF_UNIX) as private:
        path = str(home / "parley.sock")
        private.bind(path)
        (home / "parley.sock").chmod(0o777)
        private.listen()
        with socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(f"\0{path}")
            abstract.listen()
            report, output = run_as_nobody(
                workspace, f"python3 -IS tries.py {port} {path}", backend, network=network
            )
    assert (report.ended, report.code, report.problem) == ("exit", 0, ""), output
    assert output.split() == reached


def test_names_are_resolved_as_outside(workspace: Path, backend: Backend) -> None:
    """The system's resolver files are readable; names need no local service."""
    command = "python3 -IS -c 'import socket; print(socket.gethostbyname(\"localhost\"))'"
    report, output = run_as_nobody(workspace, command, backend, network=True)
    assert (report.code, output.strip()) == (0, "127.0.0.1")
