"""A balancer of TCP connections: each goes to the next replica that is ready.

It asks each replica for `/readyz` once a second. One that does not say 200, or does not take a
connection, is left out until it does again. Connections that are under way stay where they are: a
browser whose replica ends connects anew, and comes to another one.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CHECK_EVERY_S = 1.0
ANSWERS_IN_S = 3.0
CONNECTS_IN_S = 1.0
CHUNK = 65_536
_ASK = b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
_NOBODY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 21\r\n"
    b"Connection: close\r\n\r\nno replica is ready.\n"
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class Backend:
    """A replica, by its port.

    Attributes:
        ready: Whether it said so when it was asked last.
        served: How many connections it was given.
    """

    port: int
    ready: bool = False
    served: int = 0


@dataclass(slots=True)
class Balancer:
    """Connections come to one port, and go to those of the replicas in turn."""

    backends: list[Backend]
    _next: int = 0
    _checked: asyncio.Condition = field(default_factory=asyncio.Condition)

    @classmethod
    def of(cls, ports: Iterable[int]) -> "Balancer":
        """Return a balancer before these ports; nobody is known to be ready."""
        return cls([Backend(port) for port in ports])

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[None]:
        """Take connections at a port of loopback meanwhile."""
        running: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as tasks:

            def run(work: Coroutine[None, None, None]) -> None:
                task = tasks.create_task(work)
                running.add(task)
                task.add_done_callback(running.discard)

            def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                run(self._serve(reader, writer))

            server = await asyncio.start_server(serve, "127.0.0.1", port)
            for backend in self.backends:
                run(self._check(backend))
            try:
                yield
            finally:
                server.close()
                for each in running:
                    each.cancel()

    async def wait_ready(self, count: int) -> None:
        """Return when so many replicas are ready."""
        async with self._checked:
            await self._checked.wait_for(lambda: sum(each.ready for each in self.backends) >= count)

    async def _check(self, backend: Backend) -> None:
        while True:
            backend.ready = await is_ready(backend.port)
            async with self._checked:
                self._checked.notify_all()
            await asyncio.sleep(CHECK_EVERY_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await self._connected()
        try:
            if behind is None:
                writer.write(_NOBODY)
            else:
                await _joined((reader, writer), behind)
        finally:
            await _closed(writer)
            if behind is not None:
                await _closed(behind[1])

    async def _connected(self) -> Streams | None:
        """Connect to the next replica that takes it; None where none does."""
        for _ in self.backends:
            backend = self.backends[self._next % len(self.backends)]
            self._next += 1
            if not backend.ready:
                continue
            try:
                async with asyncio.timeout(CONNECTS_IN_S):
                    streams = await asyncio.open_connection("127.0.0.1", backend.port)
            except (OSError, TimeoutError):
                backend.ready = False
                continue
            backend.served += 1
            return streams
        return None


async def is_ready(port: int) -> bool:
    """Whether the replica at a port of loopback says that it is."""
    try:
        async with asyncio.timeout(ANSWERS_IN_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(_ASK)
                status = await reader.readline()
            finally:
                await _closed(writer)
    except (OSError, TimeoutError):
        return False
    return status.split()[1:2] == [b"200"]


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection; that the other side has gone before is no trouble."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _joined(here: Streams, there: Streams) -> None:
    """Carry bytes both ways until both sides have ended, or one is gone."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_carry(here[0], there[1]))
        tasks.create_task(_carry(there[0], here[1]))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry what one side sends to the other; its end is told."""
    try:
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()
    except OSError:
        writer.transport.abort()
