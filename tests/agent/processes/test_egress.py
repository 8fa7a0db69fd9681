"""The proxy that a confined program reaches the internet by; tests/security attacks it."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from socket import create_server

import pytest

from agent.processes import egress
from agent.processes.egress import EgressRefused, Proxy, allows, hosts_of, parsed

PUBLIC = "93.184.216.34"
PASS = base64.b64encode(b"parley:word").decode()


@pytest.mark.parametrize(
    ("pattern", "host", "port", "allowed"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("example.org", "example.org", 22, False),
        ("example.org:8443", "example.org", 8443, True),
        ("example.org:8443", "example.org", 443, False),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "badexample.org", 443, False),
        ("*.example.org", "www.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "example.org.evil.net", 443, False),
        ("*", "anything.net", 443, True),
        ("*", "anything.net", 8443, True),
        ("*", "anything.net", 25, False),
        ("*:25", "anything.net", 25, True),
        ("[2606:4700::1]:8443", "2606:4700::1", 8443, True),
    ],
)
def test_a_pattern_stands_for_these_hosts(
    pattern: str, host: str, port: int, *, allowed: bool
) -> None:
    """Whole names only, and the ports of the web where none is named."""
    assert allows([pattern], host, port) is allowed


def test_a_setting_names_hosts() -> None:
    """True stands for all, false for none."""
    assert hosts_of(True) == ("*",)
    assert hosts_of(False) == ()
    assert hosts_of(["a.org"]) == ("a.org",)


def test_a_plain_request_is_sent_on_without_what_is_the_proxys() -> None:
    """The host is the one that was checked, and the connection serves one request."""
    request = parsed(
        b"GET http://Example.org:8080/a?b=c HTTP/1.1\r\nHost: 10.0.0.1\r\nAccept: x\r\n"
        b"Proxy-Authorization: Basic abc\r\nProxy-Connection: keep-alive\r\n"
        b"Connection: keep-alive\r\n\r\n"
    )
    assert (request.host, request.port, request.pass_word) == ("example.org", 8080, "Basic abc")
    assert request.head == (
        b"GET /a?b=c HTTP/1.1\r\nHost: Example.org:8080\r\nConnection: close\r\nAccept: x\r\n\r\n"
    )
    assert not request.is_tunnel


def test_a_tunnel_names_a_host_and_a_port() -> None:
    """Also by an address of IPv6."""
    request = parsed(b"CONNECT example.org.:443 HTTP/1.1\r\n\r\n")
    assert (request.host, request.port, request.is_tunnel) == ("example.org", 443, True)
    assert parsed(b"CONNECT [2606:4700::1]:443 HTTP/1.1\r\n\r\n").host == "2606:4700::1"


@pytest.mark.parametrize(
    "head",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        b"GET https://example.org/ HTTP/1.1\r\n\r\n",
        b"GET ftp://example.org/ HTTP/1.1\r\n\r\n",
        b"GET http://user@example.org/ HTTP/1.1\r\n\r\n",
        b"CONNECT example.org HTTP/1.1\r\n\r\n",
        b"CONNECT example.org:0x HTTP/1.1\r\n\r\n",
        b"CONNECT [::1 HTTP/1.1\r\n\r\n",
        b"CONNECT a\0b:443 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_for_a_proxy_is_refused(head: bytes) -> None:
    """Nothing is connected to for it."""
    with pytest.raises(EgressRefused) as refusal:
        parsed(head)
    assert refusal.value.status == "400 Bad Request"


@dataclass
class Internet:
    """Names, and one server on loopback that stands for every public address.

    Attributes:
        names: What each leads to; one list after the other, the last one from then on.
        connected: Where to, in order.
    """

    names: dict[str, list[Sequence[str]]]
    connected: list[tuple[str, int]] = field(default_factory=list)

    async def look_up(self, host: str, _port: int) -> Sequence[str]:
        if host not in self.names:
            raise OSError("unknown")
        found = self.names[host]
        return found.pop(0) if len(found) > 1 else found[0]

    async def connect(self, address: str, port: int) -> egress.Streams:
        self.connected.append((address, port))
        if port == 444:
            raise ConnectionRefusedError
        return await asyncio.open_connection("127.0.0.1", self.port)

    port: int = 0


async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with what has come."""
    words = await reader.readuntil(b"\n")
    writer.write(b"heard " + words)
    writer.write_eof()
    writer.close()


@pytest.fixture
async def internet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Internet]:
    """All that the proxy can reach."""
    found = Internet({
        "example.org": [[PUBLIC]],
        "rebinds.org": [[PUBLIC], ["127.0.0.1"]],
        "inner.org": [["10.0.0.5"]],
        "both.org": [[PUBLIC, "127.0.0.1"]],
        "metadata.org": [["169.254.169.254"]],
        "nothing.org": [[]],
        "127.0.0.1": [["127.0.0.1"]],
    })
    monkeypatch.setattr(egress, "look_up", found.look_up)
    monkeypatch.setattr(egress, "connect", found.connect)
    async with await asyncio.start_server(upstream, "127.0.0.1", 0) as server:
        found.port = server.sockets[0].getsockname()[1]
        yield found


@asynccontextmanager
async def proxy(*hosts: str) -> AsyncIterator[tuple[Proxy, int]]:
    """A proxy, and its port."""
    door = create_server(("127.0.0.1", 0))
    found = Proxy(hosts, "word")
    serving = asyncio.create_task(found.serve(door))
    yield found, door.getsockname()[1]
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


async def asked(port: int, target: str, pass_word: str = PASS, body: bytes = b"hello\n") -> str:
    """Return all that the proxy answers to one request for a tunnel."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"CONNECT {target} HTTP/1.1\r\nProxy-Authorization: Basic {pass_word}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_a_tunnel_leads_to_the_address_that_was_checked(internet: Internet) -> None:
    """The bytes go both ways; a name that changes meanwhile changes nothing."""
    async with proxy("example.org", "rebinds.org") as (_, port):
        answer = await asked(port, "example.org:443")
        assert answer == "HTTP/1.1 200 Connection established\r\n\r\nheard hello\n"
        assert "heard hello" in await asked(port, "rebinds.org:443")
        assert "not on the open internet" in await asked(port, "rebinds.org:443")
    assert internet.connected == [(PUBLIC, 443)] * 2


async def test_a_plain_request_is_answered(internet: Internet) -> None:
    """Its first line is that of a server, not of a proxy."""
    async with proxy("example.org") as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET http://example.org/x HTTP/1.1\r\nProxy-Authorization: Basic {PASS}\r\n\r\n"
        writer.write(head.encode())
        assert await reader.read() == b"heard GET /x HTTP/1.1\r\n"
        writer.close()
    assert internet.connected == [(PUBLIC, 80)]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("other.org:443", "403"),
        ("example.org:22", "403"),
        ("inner.org:443", "403"),
        ("both.org:443", "403"),
        ("metadata.org:80", "403"),
        ("nothing.org:443", "403"),
        ("127.0.0.1:80", "403"),
        ("unknown.org:443", "502"),
        ("example.org:444", "502"),
    ],
)
async def test_what_may_not_be_reached_is_refused(
    internet: Internet, target: str, status: str
) -> None:
    """Although the settings name most of these hosts: private ones are out of reach for all."""
    named = ("example.org", "example.org:444", "unknown.org", "127.0.0.1")
    named += ("inner.org", "both.org", "metadata.org", "nothing.org")
    async with proxy(*named) as (found, port):
        answer = await asked(port, target)
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert list(found.refused) == ([target] if status == "403" else [])
    assert internet.connected == ([(PUBLIC, 444)] if target.endswith("444") else [])


@pytest.mark.parametrize("shown", ["", base64.b64encode(b"parley:other").decode()])
async def test_others_of_this_machine_do_not_use_the_port(internet: Internet, shown: str) -> None:
    """It stands on loopback, where every user can connect."""
    async with proxy("example.org") as (_, port):
        assert (await asked(port, "example.org:443", shown)).startswith("HTTP/1.1 407 ")
    assert internet.connected == []


@pytest.mark.usefixtures("internet")
async def test_there_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that is too long, more connections than there may be."""
    monkeypatch.setattr(egress, "MAX_HEAD_BYTES", 100)
    async with proxy("example.org") as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET http://example.org/ HTTP/1.1\r\nX: " + b"x" * 200 + b"\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
        writer.close()
        monkeypatch.setattr(egress, "MAX_CONNECTIONS", 0)
        assert (await asked(port, "example.org:443", body=b"")).startswith("HTTP/1.1 503 ")


def test_what_is_no_address_is_not_public() -> None:
    """A resolver that answers nonsense opens nothing."""
    assert not egress.is_public_text("nonsense")
    assert egress.is_public_text(PUBLIC)


async def test_the_systems_names_are_used() -> None:
    """An address stands for itself, whatever its spelling."""
    assert await egress.look_up("127.1", 80) == ["127.0.0.1"]
