"""Limits on the number and duration of connections to the HTTP port.

A connection costs a descriptor and memory, and opening one needs no password. So limits apply per
address, overall, and below the number of descriptors. A connection beyond a limit replaces the one
that has waited longest without a whole request, so every complete request is answered. The last
fifth is a reserve: while all others are busy, the web chat's guard serves only owners. Deadlines
end the rest: `IDLE_S` for a request's head, `BODY_S` or `UPLOAD_S` for its body.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sized
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import cast

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from typing_extensions import override

from adapters.door import network_of
from adapters.web.requests import CROWDED
from agent.processes import descriptors

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Network = IPv4Network | IPv6Network

BACKLOG = 1024
"""Most connections waiting to be accepted; further clients retry after a second."""
IDLE_S = 20.0
"""Seconds from the opening of a connection, or the previous response, to the end of a request's
head."""
BODY_S = 30.0
"""Seconds from there to the end of its body."""
UPLOAD_S = 600.0
"""The same for a form, which may have files."""
MAX_HEADERS = 64
MAX_LINE_BYTES = 8_192
"""Limit of the request line and of each header; a proxy's cookies have a few thousand."""
MAX_HEAD_BYTES = 32_768
"""Limit of the request line and all headers; nginx's limit."""
_HEAD_ENDS = b"\r\n\r\n"
_TOO_LONG = f"The request's head is longer than {MAX_HEAD_BYTES:,} bytes.\n"
_REFUSAL = (
    "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n"
    f"Content-Length: {len(_TOO_LONG)}\r\nConnection: close\r\n\r\n{_TOO_LONG}"
).encode()
_RESERVE = 5
"""One in this many connections is reserved for health checks, webhooks and owners while all others
are busy.

More than asyncio accepts at once, so a burst does not displace connections that just came.
"""


@dataclass(eq=False, slots=True)
class _Open:
    """An open connection.

    Attributes:
        answered: The previous request, whose body may still be arriving.
        head_bytes: Received bytes of the next request's head.
        is_headed: Whether that head is complete but not being answered yet.
        last: The last received bytes, which may start the end mark of a head.
    """

    transport: asyncio.Transport
    address: str
    request: web.Request | None = None
    answered: web.Request | None = None
    head_bytes: int = 0
    is_headed: bool = False
    last: bytes = b""

    @property
    def only_waits(self) -> bool:
        """Whether it has no request or one with an incomplete body."""
        return self.request is None or not self.request.content.is_eof()

    def takes(self, data: bytes) -> bool:
        """Count received data; return False if a head is too long. Bodies have other limits."""
        current = self.request or self.answered
        if self.is_headed or (current is not None and not current.content.is_eof()):
            return True
        seen = self.last + data
        end = seen.find(_HEAD_ENDS)
        self.is_headed = end >= 0
        size = self.head_bytes - len(self.last)
        size += end + len(_HEAD_ENDS) if self.is_headed else len(seen)
        self.head_bytes, self.last = (0, b"") if self.is_headed else (size, seen[-3:])
        return size <= MAX_HEAD_BYTES


@dataclass(slots=True)
class Connections:
    """The connections of a port, oldest first.

    Attributes:
        most: Limit for all addresses together.
        most_per_address: Limit per address or IPv6 /64 network.
        exempt: Networks of proxies, for which only `most` applies.
    """

    most: int = 1000
    most_per_address: int = 100
    exempt: tuple[Network, ...] = ()
    _open: dict[asyncio.BaseTransport, _Open] = field(default_factory=dict)

    def let_in(self, transport: asyncio.Transport) -> bool:
        """Add a connection, if needed in place of a waiting one; return False if refused."""
        # The peer may already be gone.
        peer = transport.get_extra_info("peername")
        address = network_of(peer[0]) if peer else ""
        here = [each for each in self._open.values() if each.address == address]
        reason = self._too_many(transport, address, here)
        if reason:
            pool: Iterable[_Open] = here if reason == "address" else self._open.values()
            waiting = next((each for each in pool if each.only_waits), None)
            # Its own descriptor is above the limit even if another one closes.
            if waiting is None or reason == "descriptors":
                log.warning(
                    "connection_refused", reason=reason, address=address, limit=descriptors.limit()
                )
                return False
            log.warning("connection_displaced", reason=reason, address=waiting.address)
            self.forget(waiting.transport)
            waiting.transport.abort()
        self._open[transport] = _Open(transport, address)
        return True

    def forget(self, transport: asyncio.BaseTransport) -> None:
        """Remove an ended connection, if present."""
        self._open.pop(transport, None)

    def asks(self, transport: asyncio.BaseTransport | None, request: web.Request | None) -> None:
        """Set a connection's current request."""
        found = self._open.get(transport) if transport is not None else None
        if found is not None:
            found.request, found.answered = request, found.request
            if request is not None:
                found.is_headed = False

    @property
    def are_crowded(self) -> bool:
        """Whether only the reserve is left."""
        shared = self.most - self.most // _RESERVE
        if len(self._open) <= shared:
            return False
        return sum(not each.only_waits for each in self._open.values()) > shared

    def takes(self, transport: asyncio.Transport, data: bytes) -> bool:
        """Count received data; return False if it was refused and the connection closed."""
        found = self._open.get(transport)
        if found is None or found.takes(data):
            return True
        log.warning("head_too_long", address=found.address)
        # During a response the client would take this for a part of it.
        if found.request is None:
            transport.write(_REFUSAL)
        self.forget(transport)
        transport.close()
        return False

    def _too_many(self, transport: asyncio.Transport, address: str, here: Sized) -> str:
        """Return the limit exceeded by a new connection, or ""."""
        # The system assigns the lowest free number, which shows how many are in use.
        if transport.get_extra_info("socket").fileno() >= descriptors.ceiling():
            return "descriptors"
        if len(here) >= self.most_per_address and not (
            address and any(ip_address(address) in each for each in self.exempt)
        ):
            return "address"
        return "all" if len(self._open) >= self.most else ""


async def listen(
    runner: web.AppRunner, host: str, port: int, connections: Connections
) -> asyncio.Server:
    """Listen on host and port and count connections; close the server before the runner."""
    server = runner.server
    assert server is not None  # noqa: S101 - the runner is set up
    # asyncio accepts as many at a time as its queue is long, and may have four times as many open
    # before it closes the first of them. The system's own queue may be longer.
    at_once = min(128, (descriptors.limit() - descriptors.ceiling()) // 5)
    listening = await asyncio.get_running_loop().create_server(
        lambda: _Doorway(server, connections), host, port, backlog=at_once
    )
    for each in listening.sockets:
        # A copy of the descriptor: leaving `with` closes it, and asyncio keeps its own.
        with socket.socket(fileno=os.dup(each.fileno())) as same:
            same.listen(BACKLOG)
    return listening


class _Doorway(asyncio.Protocol):
    """Wraps a connection's protocol to see its start and end."""

    def __init__(
        self, inside: Callable[[], asyncio.BaseProtocol], connections: Connections
    ) -> None:
        self._new = inside
        self._connections = connections
        self._inside: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast("asyncio.Transport", transport)
        if not self._connections.let_in(connection):
            connection.abort()
            return
        self._transport = connection
        self._inside = cast("asyncio.Protocol", self._new())
        self._inside.connection_made(connection)

    @override
    def data_received(self, data: bytes) -> None:
        if self._inside is None or self._transport is None:
            return
        if self._connections.takes(self._transport, data):
            self._inside.data_received(data)

    @override
    def eof_received(self) -> bool | None:
        return None if self._inside is None else self._inside.eof_received()

    @override
    def pause_writing(self) -> None:
        if self._inside is not None:
            self._inside.pause_writing()

    @override
    def resume_writing(self) -> None:
        if self._inside is not None:
            self._inside.resume_writing()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._connections.forget(self._transport)
        if self._inside is not None:
            self._inside.connection_lost(exc)


def counting(connections: Connections) -> Middleware:
    """Return the middleware that tracks a connection's request and closes one with a late body."""

    @web.middleware
    async def tell(request: web.Request, handler: Handler) -> web.StreamResponse:
        connections.asks(request.transport, request)
        request[CROWDED] = connections.are_crowded
        transport = request.transport
        late_s = UPLOAD_S if request.content_type == "multipart/form-data" else BODY_S
        # A request without a body is complete and needs no deadline.
        timer = (
            None
            if request.content.is_eof()
            else asyncio.get_running_loop().call_later(late_s, _end_if_late, request)
        )
        try:
            return await handler(request)
        finally:
            connections.asks(transport, None)
            if timer is not None:
                timer.cancel()

    return tell


def _end_if_late(request: web.Request) -> None:
    if not request.content.is_eof() and request.transport is not None:
        log.warning("body_too_slow", path=request.path)
        request.transport.close()
