"""A port in front of a server, for outages: closed until it is opened."""

import asyncio
import socket
from typing import Self
from urllib.parse import urlsplit


class Relay:
    """Refuses connections until `open`; then everything goes to the server behind it.

    Args:
        target: URL of the server behind.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port)
        # Bound but not listening: the port is taken and yet refuses connections.
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._server: asyncio.Server | None = None
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}{parts.path}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def open(self) -> None:
        """End the outage."""
        self._server = await asyncio.start_server(self._connect, sock=self._socket)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection(*self._target)
        await asyncio.gather(_pipe(reader, behind_writer), _pipe(behind_reader, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
