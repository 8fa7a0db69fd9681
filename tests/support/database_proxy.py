"""The way between one replica and PostgreSQL, which a test can break.

Bytes go through as they come. Only a COMMIT is looked for, where one is to be lost, with what was
sent together with it.
"""

import asyncio
import re
import socket
import struct
from typing import Literal, Self, cast

from typing_extensions import override

HOST = "127.0.0.1"
Side = Literal["client", "server"]
Loss = Literal["request", "answer"]
"""request: the COMMIT does not reach the server. answer: it does, and nobody is told."""
_COMMIT = re.compile(rb"Q\0\0\0\x0bCOMMIT\0|P\0\0\0\x0e\0COMMIT\0")
"""As psycopg sends it, and as Parley does, behind writes that nobody has waited for.

Source: postgresql.org/docs/18/protocol-message-formats.html, Query and Parse.
"""


class DatabaseProxy:
    """Use as an async context manager.

    Args:
        server_port: Where PostgreSQL listens on loopback.

    Attributes:
        port: Where the replica connects to.
        server_port: Where new connections lead.
        opened: How many connections it has made.
        lost: How many COMMITs were lost on the way.
        is_stalled: Whether bytes, and new connections, wait.
    """

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.opened = self.lost = 0
        self.is_stalled = False
        self.server_port = server_port
        self._losses: list[tuple[Loss, asyncio.Future[None]]] = []
        self._ways: set[_Way] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: _Way(self).ends["client"], HOST, 0)
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        for way in list(self._ways):
            way.reset()
        # What is aborted tells its protocol in the next round of the loop.
        await asyncio.sleep(0)

    def url(self, database: str) -> str:
        """Return how a database is reached by way of this proxy."""
        return f"postgresql://parley@{HOST}:{self.port}/{database}"

    def cut(self) -> None:
        """Reset all connections; new ones can be made."""
        for way in list(self._ways):
            way.reset()

    def stall(self) -> None:
        """Let nothing through in either direction, as where a network is parted, until `flow`."""
        self.is_stalled = True

    def flow(self) -> None:
        """Let through what waits, and all that comes."""
        self.is_stalled = False
        for way in list(self._ways):
            way.go_on()

    def silence(self) -> None:
        """Let nothing through any more on the connections of now, and tell neither of their ends.

        So does a load balancer that has lost its state. New connections can be made.
        """
        for way in self._ways:
            way.is_silent = True

    def lose_commit(self, loss: Loss) -> "asyncio.Future[None]":
        """Lose the next COMMIT, or the answer to it, and reset its connection.

        Returns:
            What is done once that has happened; cancelled, it does not happen any more.
        """
        happened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._losses.append((loss, happened))
        return happened

    def note(self, way: "_Way") -> None:
        """Take note of a connection that the replica has made."""
        self.opened += 1
        self._ways.add(way)

    async def connect(self, way: "_Way") -> None:
        """Make the second half of a connection."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: way.ends["server"], HOST, self.server_port)
        except OSError:
            # It restarts: its own host would refuse the connection, too.
            way.reset()

    def forget(self, way: "_Way") -> None:
        """Take note of the end of a connection."""
        self._ways.discard(way)

    def take_loss(self) -> tuple[Loss, "asyncio.Future[None]"] | None:
        """Return what is to become of a COMMIT that came just now; None to let it through."""
        while self._losses:
            loss, happened = self._losses.pop(0)
            if not happened.done():
                return loss, happened
        return None


class _Way:
    """One connection: an end at the replica, an end at the server."""

    def __init__(self, proxy: DatabaseProxy) -> None:
        self._proxy = proxy
        self.ends: dict[Side, _End] = {
            "client": _End(self, "client"),
            "server": _End(self, "server"),
        }
        self.is_silent = False
        self._held: list[tuple[Side, bytes | None]] = []
        self._is_over = False
        self._losing: asyncio.Future[None] | None = None
        self._connecting: asyncio.Task[None] | None = None

    def opened(self, side: Side) -> None:
        """Go on once an end is there."""
        if side == "client":
            self._proxy.note(self)
        if self._is_over:
            self.ends[side].reset()
        self.go_on()

    def received(self, side: Side, data: bytes | None) -> None:
        """Take what an end has sent; None for its farewell."""
        if self.is_silent:
            return
        self._held.append((side, data))
        self.go_on()

    def go_on(self) -> None:
        """Pass on what is held, as far as that goes."""
        if self._proxy.is_stalled or self.is_silent or self._is_over:
            return
        if self.ends["server"].transport is None:
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._proxy.connect(self), name="database")
            return
        while self._held and not self._is_over:
            side, data = self._held.pop(0)
            if data is None:
                self.reset()
            else:
                self._pass_on(side, data)

    def _pass_on(self, side: Side, data: bytes) -> None:
        if side == "client" and _COMMIT.search(data) and (taken := self._proxy.take_loss()):
            loss, self._losing = taken
            if loss == "request":
                self.reset()
                return
        elif side == "server" and self._losing:
            self.reset()
            return
        other = self.ends["server" if side == "client" else "client"].transport
        assert other is not None
        other.write(data)

    def reset(self) -> None:
        """Reset both ends."""
        self._is_over = True
        if self._losing is not None and not self._losing.done():
            self._proxy.lost += 1
            self._losing.set_result(None)
        self._proxy.forget(self)
        for end in self.ends.values():
            end.reset()


class _End(asyncio.Protocol):
    def __init__(self, way: _Way, side: Side) -> None:
        self._way = way
        self._side = side
        self.transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._way.opened(self._side)

    @override
    def data_received(self, data: bytes) -> None:
        self._way.received(self._side, data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._way.received(self._side, None)

    def reset(self) -> None:
        """Close it with a reset instead of a farewell."""
        if self.transport is None or self.transport.is_closing():
            return
        known = self.transport.get_extra_info("socket")
        known.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
