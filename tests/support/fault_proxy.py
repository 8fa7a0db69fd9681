"""A proxy between a platform's client and its double that breaks the network for a while.

It speaks HTTP/1.1 over plain connections or TLS, one request after another on each connection,
and runs on the double's own loop.
"""

import asyncio
import datetime
import ipaddress
import json
import math
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.process import free_port
from tests.support.virtual_time import virtual_loop

FaultKind = Literal[
    "refuse",
    "reset before",
    "reset after",
    "half-open",
    "hang",
    "slow body",
    "TLS cut",
    "429",
    "5xx",
    "200 HTML",
    "lost reply",
    "late 5xx",
    "DNS",
]
"""refuse: nobody listens. reset before: connections are reset before a request is read. reset
after: a request is read and dropped, then reset. half-open: the other side is gone, without a word
and for good. hang: nothing happens until it is over, then the request is carried out if anybody
still waits. slow body: carried out; the answer comes byte by byte. TLS cut: within the handshake,
or carried out and cut within the answer. 429, 5xx, 200 HTML: answered so, not carried out. lost
reply: carried out, then reset. late 5xx: carried out, but answered with 502. DNS: the name is not
found, open connections break."""
HOST = "platform.test"
_TRICKLE_S = 5.0
_CHUNK = 1 << 16


class _Message(NamedTuple):
    """A request or an answer: everything up to the blank line, and what follows."""

    head: bytes
    body: bytes


class FaultProxy:
    """Forwards to a port of this machine until a fault begins.

    Args:
        port: Of the double.
        tls: Whether clients talk TLS to it.

    Attributes:
        faced: Connections and requests that met the fault.
        root: Address for the client.
    """

    def __init__(self, port: int, *, tls: bool) -> None:
        self._target = port
        self._tls = _server_context() if tls else None
        self._fault: FaultKind | None = None
        self._until = 0.0
        self._over = asyncio.Event()
        self._over.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._frozen: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._port = free_port()
        self.faced = 0
        self.root = ""

    async def start(self) -> None:
        """Listen, again on the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self.root = f"{'https' if self._tls else 'http'}://{HOST}:{self._port}"

    async def stop(self) -> None:
        """Close everything."""
        self._refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @asynccontextmanager
    async def broken(self, fault: FaultKind, for_s: float) -> AsyncIterator[None]:
        """Break the network; the block ends when the time is over."""
        self._fault, self._until = fault, virtual_loop().time() + for_s
        self._over.clear()
        self._begin(fault)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.sleep(for_s))
                yield
        finally:
            self._fault = None
            virtual_loop().unknown_hosts.clear()
            self._over.set()
            if self._server is None:
                await self.start()

    def _begin(self, fault: FaultKind) -> None:
        if fault == "half-open":
            self._frozen |= self._open
        elif fault in {"refuse", "reset before", "TLS cut", "DNS"}:
            for writer in self._open:
                _reset(writer)
        if fault == "refuse":
            self._refuse()
        elif fault == "DNS":
            virtual_loop().unknown_hosts.add(HOST)

    def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if await self._is_accepted(reader, writer):
                await self._talk(reader, writer)
        except (OSError, EOFError, ssl.SSLError):
            pass  # the client has gone, or was sent away
        finally:
            self._open.discard(writer)
            self._frozen.discard(writer)
            _reset(writer)

    async def _is_accepted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        self.faced += self._fault is not None
        if self._fault == "reset before":
            return False
        if self._fault == "half-open":
            self._frozen.add(writer)
        if self._fault == "TLS cut" and self.faced % 2:
            await reader.read(_CHUNK)
            return False
        if self._tls is not None and writer not in self._frozen:
            await writer.start_tls(self._tls)
        return True

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request after another, until one is not answered."""
        while True:
            request = await _read(reader)
            self.faced += self._fault is not None
            if writer in self._frozen:
                await _never()
            if not await self._answer(request, reader, writer):
                return
            await writer.drain()

    async def _answer(
        self, request: _Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request as the fault wants it; False to reset the connection."""
        fault = self._fault
        if fault == "hang":
            await self._over.wait()
            # Nobody carries out what nobody waits for any more.
            await asyncio.sleep(0)
            if reader.at_eof() or writer.is_closing():
                return False
        if fault in {"429", "5xx", "200 HTML"}:
            writer.write(self._page(fault))
            return True
        if fault == "reset after":
            return False
        answer = b"".join(await self._forward(request))
        if fault == "lost reply":
            return False
        if fault == "TLS cut":
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            return False
        if fault == "late 5xx":
            answer = self._page("5xx")
        if fault == "slow body":
            await self._trickle(answer, writer)
        else:
            writer.write(answer)
        return True

    async def _forward(self, request: _Message) -> _Message:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            writer.write(b"".join(request))
            await writer.drain()
            return await _read(reader)
        finally:
            writer.transport.abort()

    async def _trickle(self, answer: bytes, writer: asyncio.StreamWriter) -> None:
        sent = answer.index(b"\r\n\r\n") + 4
        writer.write(answer[:sent])
        while sent < len(answer) - 1 and not self._over.is_set():
            writer.write(answer[sent : sent + 1])
            await writer.drain()
            sent += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), _TRICKLE_S)
        writer.write(answer[sent:])

    def _page(self, fault: FaultKind) -> bytes:
        """Return an answer that comes from no platform, but for the 429, which all understand."""
        if fault == "429":
            wait_s = max(1, math.ceil(self._until - virtual_loop().time()))
            headers = f"Retry-After: {wait_s}\r\nVia: 1.1 google\r\nContent-Type: application/json"
            body = json.dumps({
                "ok": False,
                "error": "ratelimited",
                "error_code": 429,
                "description": f"Too Many Requests: retry after {wait_s}",
                "parameters": {"retry_after": wait_s},
                "message": "You are being rate limited.",
                "retry_after": wait_s,
                "global": False,
            })
            return _response("429 Too Many Requests", headers, body)
        status = "200 OK" if fault == "200 HTML" else "502 Bad Gateway"
        return _response(status, "Content-Type: text/html", "<html><h1>Log in first</h1></html>")


def _response(status: str, headers: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


async def _read(reader: asyncio.StreamReader) -> _Message:
    """Read one message whole.

    Raises:
        EOFError: The other side has closed the connection.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if fields.get(b"transfer-encoding") == b"chunked":
        return _Message(head, await _read_chunks(reader))
    if head.startswith(b"HTTP/1.1 204"):
        return _Message(head, b"")
    return _Message(head, await reader.readexactly(int(fields.get(b"content-length", b"0"))))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while not body.endswith(b"0\r\n\r\n"):
        size = await reader.readline()
        body += size + await reader.readexactly(int(size, 16) + 2)
    return body


async def _never() -> None:
    await asyncio.Event().wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset instead of a farewell."""
    known = writer.get_extra_info("socket")
    if known is not None and known.fileno() >= 0:
        known.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@cache
def certificate() -> tuple[bytes, bytes]:
    """Return certificate and key of the proxy's host, in PEM; made once for each process."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(HOST), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    built = (
        x509
        .CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return built.public_bytes(serialization.Encoding.PEM), secret


@cache
def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The context takes files only.
    with TemporaryDirectory() as folder:
        file = Path(folder) / "both.pem"
        file.write_bytes(b"".join(certificate()))
        context.load_cert_chain(file)
    return context
