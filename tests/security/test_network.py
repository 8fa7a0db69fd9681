"""What a command with a network reaches, on each backend: named hosts, through the proxy alone."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.processes.walls import Backend, Outlet
from tests.support.confined import (
    TAKES_ROOT,
    Internet,
    folder_of_nobody,
    on_each_backend,
    run_as_nobody,
)

pytestmark = [TAKES_ROOT, on_each_backend(networked=True)]
GET = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=30) as answer:
        print(answer.read().decode())
except urllib.error.HTTPError as exc:
    print(exc.code, exc.read().decode())
except OSError as exc:
    print("failed", exc)
"""


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A directory of `nobody`, with a small program that fetches a page."""
    with folder_of_nobody() as found:
        (found / "get.py").write_text(GET)
        (found / "get.py").chmod(0o644)
        yield found


class Server:
    """A server on loopback, which notes what it is asked; for the web chat, or for the internet."""

    def __init__(self, answer: str) -> None:
        self.asked: list[str] = []
        self._answer = answer.encode()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Serve nobody any more."""
        self._door.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(10_000).decode())
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(self._answer)}\r\n"
                connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + self._answer)


@pytest.fixture
def web() -> Iterator[Server]:
    """The gateway's web chat."""
    found = Server("the web chat")
    yield found
    found.close()


@pytest.fixture
def internet() -> Iterator[Server]:
    """What answers for every public address."""
    found = Server("a page")
    yield found
    found.close()


@pytest.mark.thorough
def test_attack_3_a_command_with_a_network_does_not_reach_the_web_chat(
    workspace: Path, web: Server, internet: Server, backend: Backend
) -> None:
    """Neither by itself nor through the proxy, under any name; not even where it is named."""
    names = Internet(internet.port, {"inner.org": [["127.0.0.1"]], "localhost": [["::1"]]})
    direct = f'import socket; socket.create_connection(("127.0.0.1", {web.port}), 2)'
    command = "; ".join([
        f"python3 -IS -c '{direct}' 2>/dev/null && echo escaped",
        f"env -u http_proxy python3 -S get.py http://127.0.0.1:{web.port}/ | grep chat",
        f"python3 -S get.py http://127.0.0.1:{web.port}/",
        f"python3 -S get.py http://inner.org:{web.port}/",
        f"python3 -S get.py http://localhost:{web.port}/",
        "true",
    ])
    named = ["*", *(f"{host}:{web.port}" for host in ("127.0.0.1", "inner.org", "localhost"))]
    report, output = run_as_nobody(
        workspace, command, backend, outlet=Outlet(named), internet=names
    )
    assert (report.code, report.problem) == (0, ""), output
    assert "escaped" not in output
    assert "the web chat" not in output
    assert output.count("is not on the open internet") == 3
    assert web.asked == []
    assert len(report.refused) == 3


def test_a_named_host_is_reached(workspace: Path, internet: Server, backend: Backend) -> None:
    """With the programs' own means: the environment names the proxy."""
    names = Internet(internet.port, {"example.org": [["93.184.216.34"]]})
    command = "python3 -S get.py http://example.org/x; python3 -S get.py http://other.org/"
    report, output = run_as_nobody(
        workspace, command, backend, outlet=Outlet(["example.org"]), internet=names
    )
    assert report.problem == ""
    assert output.splitlines()[0] == "a page"
    assert "403 Parley: other.org:80 is not among the hosts of the settings" in output
    assert report.refused == ["other.org:80"]
    assert [line.split("\r\n")[0] for line in internet.asked] == ["GET /x HTTP/1.1"]


def test_a_name_that_changes_its_address_gains_nothing(
    workspace: Path, web: Server, internet: Server, backend: Backend
) -> None:
    """DNS rebinding: what is connected to is what was checked."""
    names = Internet(internet.port, {"rebinds.org": [["93.184.216.34"], ["127.0.0.1"]]})
    get = f"python3 -S get.py http://rebinds.org:{web.port}/"
    outlet = Outlet([f"rebinds.org:{web.port}"])
    report, output = run_as_nobody(
        workspace, f"{get}; {get}", backend, outlet=outlet, internet=names
    )
    assert report.problem == ""
    assert output.splitlines()[0] == "a page"
    assert "rebinds.org is not on the open internet" in output
    assert web.asked == []


def test_there_is_no_other_way_out(workspace: Path, web: Server, backend: Backend) -> None:
    """No datagrams, no port of others, no connection that is made by sending, no server."""
    tries = f"""
import socket, sys
def udp(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 53))
def tcp(): socket.create_connection(("127.0.0.1", {web.port}), 2)
def tcp6(): socket.create_connection(("::1", {web.port}), 2)
def fast(): socket.socket().sendto(b"x", 0x20000000, ("127.0.0.1", {web.port}))
def mptcp(): socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
def raw(): socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
def private(): socket.create_connection(("10.0.0.1", 80), 2)
def unix(): socket.socket(socket.AF_UNIX)
for each in (udp, tcp, tcp6, fast, mptcp, raw, private, unix):
    try:
        each()
        print("escaped", each.__name__)
    except OSError:
        print("refused")
"""
    script = workspace / "tries.py"
    script.write_text(tries)
    script.chmod(0o644)
    report, output = run_as_nobody(
        workspace, "python3 -IS tries.py", backend, outlet=Outlet(["example.org"])
    )
    assert report.problem == ""
    assert output.split() == ["refused"] * 8
    assert web.asked == []
