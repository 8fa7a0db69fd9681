"""Transports to an MCP server: a program's pipes, or HTTP.

A program is confined like a command of the tool `terminal`: it sees the system's programs, the
paths in its settings, and its own writable directory below PARLEY_HOME. Without confinement it may
do everything Parley may.

Both resemble the SDK's own transports, but with limits: a program gets only PATH, HOME, LANG,
TMPDIR and the variables in its settings, messages have a maximum length, and stderr does not reach
the terminal. `Watched` checks messages before the SDK does: the SDK refuses a whole listing because
of one malformed tool, validates results with the server's patterns, and does not report the end of
an idle connection.
"""

import asyncio
import os
import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import anyio
import httpx2
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, jsonrpc_message_adapter

from agent.bounded import bound
from agent.network import MAX_BYTES, proxy_for, tls_for
from agent.processes import keeper
from agent.processes.helpers import KeptProgram
from agent.processes.installations import leads_through, of_program, of_this_python
from agent.processes.sandbox import choose
from agent.processes.walls import Walls
from agent.settings import McpServerSettings, SandboxSettings
from agent.tools.mcp.listing import MAX_DEFINITIONS, find_misfit

log = structlog.get_logger()

MAX_PARTS = 1_000
"""Most parts of a result: the SDK takes seconds for a message with very many."""
ENDS_WITHIN_S = 2.0
"""Seconds that a child may take to exit after its stdin was closed, and again after SIGTERM.

Source: https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
"""
CONNECT_WITHIN_S = 30.0
"""Timeout of connecting over HTTP, in seconds."""
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")
"""Environment variables that programs inherit from Parley."""
_STDERR_CHUNK = 4_096
FOLDER = "mcp"
"""Directory below PARLEY_HOME for each server's last listing and its program's directory."""
TEMPORARY = ".tmp"
"""Name of a program's TMPDIR within its directory."""

Incoming: TypeAlias = SessionMessage | Exception


class Watched:
    """The messages of a server; implements the SDK's ReadStream.

    Closing it closes `stream`; `on_end` is called when the connection ends.

    Attributes:
        listed: The original tool definitions, up to `MAX_DEFINITIONS`.
    """

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end
        self.listed: list[Any] = []

    @property
    def last_context(self) -> Any:
        """The context of the newest message, in which the SDK continues."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Incoming:
        """Return the next message, without the parts that make the SDK fail or run slowly."""
        try:
            message: Incoming = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._on_end()
            raise
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            self._look_at(message.message.result)
        return message

    def _look_at(self, result: dict[str, Any]) -> None:
        if isinstance(result.get("tools"), list):
            came = result["tools"][: MAX_DEFINITIONS - len(self.listed)]
            self.listed += came
            result["tools"] = [bare for tool in came if (bare := _bare(tool))]
        parts = result.get("content")
        if isinstance(parts, list) and len(parts) > MAX_PARTS:
            mark = f"[{len(parts) - MAX_PARTS:,} more parts left out]"
            result["content"] = [*parts[:MAX_PARTS], {"type": "text", "text": mark}]

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _bare(tool: Any) -> dict[str, Any] | None:
    """Return a tool's name and its header arguments in the form the SDK needs, or None."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return None
    if find_misfit(tool.get("inputSchema")) is not None:
        return None
    properties = tool["inputSchema"].get("properties")
    properties = properties if isinstance(properties, dict) else {}
    sections = {name: each for name, each in properties.items() if isinstance(each, dict)}
    return {"name": tool["name"], "inputSchema": {"type": "object", "properties": sections}}


@dataclass(frozen=True, slots=True)
class Quarters:
    """The confinement shared by all servers; `home` is PARLEY_HOME, hidden from every program."""

    sandbox: SandboxSettings
    home: Path

    def prepare(self, name: str, server: McpServerSettings, path: str | None) -> Walls:
        """Create a server's directory and return the confinement of its program. Blocking.

        `path` is the PATH for its command. Raises an OSError if the program cannot be confined.
        """
        # None means confined: the code that starts a program must decide (`with_walls`).
        if server.confined is False:
            return Walls("none", "" if server.cwd is None else str(server.cwd))
        chosen = choose(self.sandbox)
        if isinstance(chosen, str):
            text = f"it cannot be confined: {chosen}; tools.mcp.{name}.confined: false starts it so"
            raise OSError(text)
        own = self.home / FOLDER / name
        (own / TEMPORARY).mkdir(mode=0o700, parents=True, exist_ok=True)
        own.chmod(0o700)
        writable = _outermost(server.writable)
        return Walls(
            backend=chosen.backend,
            tool=chosen.tool,
            directory=str(server.cwd or own),
            readable=[str(each) for each in self._readable(server, path)],
            writable=[*map(str, writable), str(own)],
            network=server.network,
        )

    def _readable(self, server: McpServerSettings, path: str | None) -> Iterator[Path]:
        """Yield the program, the files among its arguments, and the paths in the settings."""
        named = (*server.readable, *([] if server.cwd is None else [server.cwd]))
        writable = _outermost(server.writable)
        yield from (each for each in named if not leads_through(each, writable))
        yield from map(Path, of_this_python())
        command = shutil.which(server.command or "", path=path)
        if command and Path(command).is_absolute():
            yield from map(Path, of_program(Path(command), path, self.home, writable))
        for text in server.args:
            file = Path(text)
            is_open = file.is_absolute() and file.is_file()
            # Never a file in PARLEY_HOME.
            if is_open and not leads_through(file, [self.home, *writable]):
                yield from dict.fromkeys((file, file.resolve()))


def _outermost(folders: Sequence[Path]) -> list[Path]:
    return [each for each in folders if not {*each.parents} & {*folders}]


@asynccontextmanager
async def over_pipes(
    name: str, server: McpServerSettings, quarters: Quarters, stderr: deque[str]
) -> AsyncIterator[Any]:
    """Run the program within this context and yield its message streams.

    Raises an OSError if the program cannot be confined, an ExceptionGroup of one if it cannot
    start.
    """
    walls = await asyncio.to_thread(quarters.prepare, name, server, environment(server).get("PATH"))
    incoming, received = anyio.create_memory_object_stream[Incoming](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    order = keeper.ProgramOrder(
        command=[server.command or "", *server.args],
        walls=walls,
        environment=environment(server, walls),
        ends_within_s=ENDS_WITHIN_S,
    )
    with incoming, received, sent, outgoing:
        program = await KeptProgram.behind_keeper(MAX_BYTES)
        async with anyio.create_task_group() as tasks:
            # Its pipes are read until it exits: a program blocked on writing would not notice the
            # end of its stdin.
            tasks.start_soon(_read, name, program.stdout, incoming)
            tasks.start_soon(_write, program.stdin, outgoing, incoming)
            tasks.start_soon(_listen, name, program.stderr, stderr)
            try:
                await program.start(order)
                yield received, sent
            finally:
                await _end(program)
                tasks.cancel_scope.cancel()


async def _end(program: KeptProgram) -> None:
    # anyio would cancel this task at every await until it ends; this wait is bounded.
    with anyio.CancelScope(shield=True):
        await program.end()


def environment(server: McpServerSettings, walls: Walls | None = None) -> dict[str, str]:
    """Return the program's environment; if confined, with a directory it can write."""
    found = {key: value for key in _INHERITED if (value := os.getenv(key))}
    if walls and walls.backend != "none":
        own = walls.writable[-1]
        found |= {"HOME": own, "TMPDIR": f"{own}/{TEMPORARY}"}
    return found | {key: value.get_secret_value() for key, value in server.env.items()}


async def _read(
    name: str, lines: asyncio.StreamReader, into: MemoryObjectSendStream[Incoming]
) -> None:
    with into:
        try:
            while line := await lines.readline():
                await into.send(_parsed(line))
        except ValueError:
            log.warning("mcp_message_too_long", server=name, most_bytes=MAX_BYTES)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            return


def _parsed(line: bytes) -> Incoming:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        # Some programs also print greetings and logs there; the SDK ignores them.
        return ValueError("not a message")


async def _write(
    pipe: asyncio.StreamWriter,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    incoming: MemoryObjectSendStream[Incoming],
) -> None:
    """Write outgoing messages until the program closes its stdin."""
    try:
        async for message in outgoing:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            pipe.write(text.encode() + b"\n")
            await pipe.drain()
    except ConnectionError:
        incoming.close()


async def _listen(name: str, pipe: asyncio.StreamReader, end: deque[str]) -> None:
    while data := await pipe.read(_STDERR_CHUNK):
        text = data.decode("utf-8", "replace")
        end.append(text)
        log.debug("mcp_server_wrote", server=name, text=text)


@asynccontextmanager
async def over_http(server: McpServerSettings) -> AsyncIterator[Any]:
    """Yield the message streams; nothing is sent before the first message."""
    headers = {name: value.get_secret_value() for name, value in server.headers.items()}
    # A compressed answer could expand to any size.
    headers["Accept-Encoding"] = "identity"
    # Longer than the tool's own timeout, whose cancellation is forwarded to the server.
    timeout = httpx2.Timeout(CONNECT_WITHIN_S, read=server.timeout_s + CONNECT_WITHIN_S)
    url = server.url or ""
    transport = httpx2.AsyncHTTPTransport(verify=tls_for(url), proxy=proxy_for(url))
    hooks: dict[str, Any] = {"response": [bound]}
    async with (
        httpx2.AsyncClient(
            headers=headers, timeout=timeout, transport=transport, event_hooks=hooks
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_BYTES) as streams,
    ):
        yield streams
