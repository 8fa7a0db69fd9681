"""The one way out of a sandbox: a proxy that lets a program reach named hosts of the open internet.

It runs in a thread of the process that holds the program, and ends with it. A name is resolved
once, all its addresses must be public, and the connection goes to one of these: a name that changes
its address meanwhile gains nothing, and nothing on this machine or in its networks is reached. HTTP
only: CONNECT for TLS, and plain requests.

Where bubblewrap gives the program a network of its own, the proxy's door stands in that network:
the process opens it before it becomes the program, and hands it out. Else the door is a port of
loopback, the only port that the kernel lets the program connect to. Standard library only.
"""

import asyncio
import base64
import hmac
import ipaddress
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from agent.processes.walls import PROXY_USER, Walls

ANY = "*"
"""As a host: every one of the open internet."""
MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 32_768
HEAD_WITHIN_S = 10.0
CONNECT_WITHIN_S = 20.0
IDLE_S = 120.0
"""A connection on which neither side says anything for so long is closed."""
_CHUNK = 65_536
_WEB_PORTS = {80, 443}
_KEPT_REFUSALS = 5

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Source: IANA's registries of special-purpose addresses, 2025; the last one is not in them: the
# virtual machines' own service of a large cloud.
_PRIVATE_4 = [
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "168.63.129.16/32",
    )
]
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
"""All that is given out; loopback, local, multicast and unique local addresses lie outside."""
# Protocols (Teredo and ORCHID among them), documentation, 6to4.
_PRIVATE_6 = [
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class EgressRefused(Exception):
    """A request goes nowhere; the text says why, for whoever reads what the program has said."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Gate:
    """The way out for one program: stand it up, start the program behind `walls`, then `open`.

    Attributes:
        walls: Those of the program, with what it needs to find the proxy.
    """

    def __init__(self, walls: Walls) -> None:
        pass_word = secrets.token_urlsafe(24)
        self._proxy = Proxy(walls.outlet.hosts, pass_word)
        outlet = replace(walls.outlet, pass_word=pass_word)
        if walls.backend == "bwrap":
            self._door, far = socket.socketpair()
            outlet = replace(outlet, gate=far.detach())
        else:
            self._door = socket.create_server(("127.0.0.1", 0))
            outlet = replace(outlet, port=self._door.getsockname()[1])
        self.walls = replace(walls, outlet=outlet)

    @property
    def refused(self) -> list[str]:
        """The newest hosts that the program asked for and may not reach."""
        return list(self._proxy.refused)

    def open(self) -> None:
        """Serve in a thread from now on; the program was started."""
        if self.walls.outlet.gate >= 0:
            os.close(self.walls.outlet.gate)
        threading.Thread(target=self._serve, name="egress", daemon=True).start()

    def _serve(self) -> None:
        door: socket.socket | None = self._door
        if self.walls.outlet.gate >= 0:
            with self._door:
                door = _handed_out(self._door)
        if door is not None:
            asyncio.run(self._proxy.serve(door))


def _handed_out(near: socket.socket) -> socket.socket | None:
    """Return the door that the program has opened in its network; None where it never did."""
    with suppress(OSError):
        _, handles, _, _ = socket.recv_fds(near, 1, 1)
        if handles:
            return socket.socket(fileno=handles[0])
    return None


async def look_up(host: str, port: int) -> Sequence[str]:
    """Return all addresses of a host, as the system knows them.

    Raises:
        OSError: It has none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(address: str, port: int) -> Streams:
    """Connect to an address, which is one already.

    Raises:
        OSError: Nobody answers there.
    """
    return await asyncio.open_connection(address, port, limit=_CHUNK)


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """What a program asks the proxy for.

    Attributes:
        head: What is sent on first; nothing for a tunnel.
        pass_word: What it has shown, as the header has it.
    """

    host: str
    port: int
    head: bytes
    pass_word: str

    @property
    def is_tunnel(self) -> bool:
        """Whether the bytes go both ways as they are."""
        return not self.head


class Proxy:
    """Serves requests of one program.

    Args:
        pass_word: What it must show: on loopback others could use the port as well.

    Attributes:
        refused: The newest hosts that were asked for and may not be reached.
    """

    def __init__(self, hosts: Iterable[str], pass_word: str) -> None:
        self.refused: deque[str] = deque(maxlen=_KEPT_REFUSALS)
        self._hosts = [host.lower() for host in hosts]
        self._expected = "Basic " + base64.b64encode(f"{PROXY_USER}:{pass_word}".encode()).decode()
        self._open = 0

    async def serve(self, door: socket.socket) -> None:
        """Serve until cancelled."""
        server = await asyncio.start_server(self._take, sock=door, limit=MAX_HEAD_BYTES)
        async with server:
            await server.serve_forever()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            await self._answer(reader, writer)
        except EgressRefused as exc:
            await _say(writer, exc)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            # One of the two is gone: there is nobody to tell.
            return
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_WITHIN_S):
                if self._open > MAX_CONNECTIONS:
                    # With words unread the end would be a reset, and the answer be lost.
                    await reader.read(MAX_HEAD_BYTES)
                    raise EgressRefused("503 Service Unavailable", "too many connections at a time")
                request = parsed(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError as exc:
            raise EgressRefused(
                "431 Request Header Fields Too Large", "the head is too long"
            ) from exc
        if not hmac.compare_digest(request.pass_word.encode(), self._expected.encode()):
            raise EgressRefused("407 Proxy Authentication Required", "the password is missing")
        there = await self._reach(request)
        try:
            if request.is_tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            there[1].write(request.head)
            await _splice((reader, writer), there)
        finally:
            there[1].close()

    async def _reach(self, request: ProxyRequest) -> Streams:
        """Connect to one of the addresses that were checked."""
        asked = f"{request.host}:{request.port}"
        if not allows(self._hosts, request.host, request.port):
            self._refuse(asked)
            raise EgressRefused("403 Forbidden", f"{asked} is not among the hosts of the settings")
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                found = await look_up(request.host, request.port)
        except (OSError, TimeoutError, UnicodeError) as exc:
            raise EgressRefused("502 Bad Gateway", f"{request.host} is not known") from exc
        # All, not some: a name that leads to both kinds is a trap.
        if not found or not all(is_public_text(address) for address in found):
            self._refuse(asked)
            raise EgressRefused("403 Forbidden", f"{request.host} is not on the open internet")
        for address in found:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    return await connect(address, request.port)
        raise EgressRefused("502 Bad Gateway", f"{asked} does not answer")

    def _refuse(self, host: str) -> None:
        if host not in self.refused:
            self.refused.append(host)


async def _say(writer: asyncio.StreamWriter, refusal: EgressRefused) -> None:
    body = f"Parley: {refusal}\n".encode()
    asks = "Proxy-Authenticate: Basic\r\n" if refusal.status.startswith("407") else ""
    head = f"HTTP/1.1 {refusal.status}\r\n{asks}Content-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    with suppress(OSError):
        await writer.drain()


async def _splice(here: Streams, there: Streams) -> None:
    """Pass on what each side says until one has ended; the other's last words still go through."""
    async with asyncio.TaskGroup() as tasks:
        for source, target in ((here[0], there[1]), (there[0], here[1])):
            tasks.create_task(_pass_on(source, target))


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError, TimeoutError):
        while True:
            async with asyncio.timeout(IDLE_S):
                part = await source.read(_CHUNK)
            if not part:
                break
            target.write(part)
            await target.drain()
    with suppress(OSError):
        target.write_eof()


def parsed(head: bytes) -> ProxyRequest:
    """Return what the head of a request asks for.

    Raises:
        EgressRefused: It asks for nothing that a proxy gives.
    """
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not version.startswith("HTTP/1.") or not target:
        raise EgressRefused("400 Bad Request", "this is no request for a proxy")
    headers = [(name.strip().lower(), text.strip()) for name, _, text in map(_split, lines)]
    pass_word = dict(headers).get("proxy-authorization", "")
    url = f"//{target}" if method == "CONNECT" else target
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (0 if method == "CONNECT" else 80)
    except ValueError as exc:
        raise EgressRefused("400 Bad Request", "this is no address") from exc
    host = host.rstrip(".").lower()
    if not host or not port or parts.username is not None or "\0" in host:
        raise EgressRefused("400 Bad Request", "this is no address of a host and a port")
    if method == "CONNECT":
        return ProxyRequest(host, port, b"", pass_word)
    if parts.scheme != "http":
        raise EgressRefused("400 Bad Request", "only http is sent on; https wants CONNECT")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # One request for a connection: a second one could ask for another host.
    sent = [f"{method} {path} {version}", f"Host: {parts.netloc}", "Connection: close"]
    sent += [
        line
        for line, (name, _) in zip(lines, headers, strict=True)
        if name not in {"host", "connection"} and not name.startswith("proxy-")
    ]
    return ProxyRequest(host, port, "\r\n".join([*sent, "", ""]).encode("latin-1"), pass_word)


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def allows(hosts: Iterable[str], host: str, port: int) -> bool:
    """Whether one of the hosts stands for this one.

    Args:
        hosts: `example.org`, `*.example.org` (all below it), `*` (all), each with `:port` or not;
            without it the ports of the web are meant, with `*` also those from 1024 on.
        host: In lower case, without a dot at its end.
    """
    return any(_stands_for(each, host, port) for each in hosts)


def _stands_for(pattern: str, host: str, port: int) -> bool:
    name, separator, number = pattern.rpartition(":")
    if not separator or not number.isdecimal():
        name, number = pattern, ""
    is_port = port == int(number) if number else port in _WEB_PORTS
    if name == ANY:
        return is_port or (not number and port >= 1024)
    below = name.startswith("*.") and host.endswith(name[1:])
    return is_port and (below or host == name.strip("[]"))


def hosts_of(network: bool | Sequence[str]) -> Sequence[str]:  # noqa: FBT001 - the setting's type
    """Return the hosts that a setting names; true stands for all."""
    if isinstance(network, bool):
        return (ANY,) if network else ()
    return tuple(network)


def is_public(address: Address) -> bool:
    """Whether an address belongs to the open internet.

    One that holds an IPv4 address (mapped, NAT64) is judged by that; tunnels are not public.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _PRIVATE_4)
    if address.scope_id is not None:
        return False
    if address in _MAPPED or address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _GLOBAL_6 and not any(address in network for network in _PRIVATE_6)


def is_public_text(address: str) -> bool:
    """Do the same for the text of an address; what is none is not public."""
    try:
        return is_public(ipaddress.ip_address(address))
    except ValueError:
        return False
