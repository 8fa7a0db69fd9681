"""Transports to an MCP server: over a program's pipes, or over HTTP.

A program is confined like a command of the tool `terminal`: it sees the system's programs, the
paths in its settings, and its own directory below PARLEY_HOME, which it can write. Without
confinement it may do all that Parley may.

Both are like the SDK's own transports, but bounded: a program gets PATH, HOME, LANG, TMPDIR and the
variables of its settings, messages have a maximum length, and stderr does not reach the terminal.
`Watched` checks messages before the SDK does: the SDK refuses a whole listing for one malformed
tool, checks results with patterns of the server, and does not report the end of an idle connection.
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
from agent.tools.mcp.listing import MAX_DEFINITIONS, misfit

log = structlog.get_logger()

MAX_PARTS = 1_000
"""Of a result: the SDK takes seconds for a message full of parts."""
ENDS_WITHIN_S = 2.0
"""How long a child may take to end after its stdin was closed, and again after SIGTERM.

Source: https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
"""
CONNECT_WITHIN_S = 30.0
"""How long connecting over HTTP may take."""
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")
"""Variables of Parley's environment for programs."""
_STDERR_CHUNK = 4_096
FOLDER = "mcp"
"""Below PARLEY_HOME: the last listing of each server, and the directory of its program."""
TEMPORARY = ".tmp"
"""A program's TMPDIR, in its directory."""

Incoming: TypeAlias = SessionMessage | Exception


class Watched:
    """The messages of a server; implements the SDK's ReadStream.

    `stream` is closed with it; `on_end` is called at the end of the connection.

    Attributes:
        listed: The original definitions of tools, up to `MAX_DEFINITIONS`.
    """

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end
        self.listed: list[Any] = []

    @property
    def last_context(self) -> Any:
        """The context of the newest message; the SDK goes on in it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Incoming:
        """Return the next message, without parts on which the SDK fails or is slow."""
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
    """Return a tool's name and its arguments that become headers, for the SDK; or None."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return None
    if misfit(tool.get("inputSchema")) is not None:
        return None
    properties = tool["inputSchema"].get("properties")
    properties = properties if isinstance(properties, dict) else {}
    sections = {name: each for name, each in properties.items() if isinstance(each, dict)}
    return {"name": tool["name"], "inputSchema": {"type": "object", "properties": sections}}


@dataclass(frozen=True, slots=True)
class Quarters:
    """The common part of all servers' walls; `home` is PARLEY_HOME, which no program may read."""

    sandbox: SandboxSettings
    home: Path

    def prepare(self, name: str, server: McpServerSettings, path: str | None) -> Walls:
        """Make the directory of a server, and return the walls around its program. Blocking.

        `path` is the PATH for its command. Raises an OSError if it cannot be confined.
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
            # No file of PARLEY_HOME.
            if is_open and not leads_through(file, [self.home, *writable]):
                yield from dict.fromkeys((file, file.resolve()))


def _outermost(folders: Sequence[Path]) -> list[Path]:
    return [each for each in folders if not {*each.parents} & {*folders}]


@asynccontextmanager
async def over_pipes(
    name: str, server: McpServerSettings, quarters: Quarters, stderr: deque[str]
) -> AsyncIterator[Any]:
    """Run the program in this context; yields the streams of its messages.

    Raises an OSError if it cannot be confined, an ExceptionGroup of one if it cannot be started.
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
            # Its pipes are read until it has ended: a program that waits to write would not see
            # the end of its stdin.
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
    # anyio cancels a task at every await until it has ended. This wait is bounded.
    with anyio.CancelScope(shield=True):
        await program.end()


def environment(server: McpServerSettings, walls: Walls | None = None) -> dict[str, str]:
    """Return the environment of the program; within walls, with a directory that it may write."""
    found = {key: value for key in _INHERITED if (value := os.getenv(key))}
    if walls and walls.backend != "none":
        own = walls.writable[-1]
        found |= {"HOME": own, "TMPDIR": f"{own}/{TEMPORARY}"}
    return found | {key: value.get_secret_value() for key, value in server.env.items()}


async def _read(
    name: str, lines: asyncio.StreamReader, into: MemoryObjectSendStream[Incoming]
) -> None:
    """Pass on one message for each line."""
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
        # Programs also greet and log there: the SDK ignores it.
        return ValueError("not a message")


async def _write(
    pipe: asyncio.StreamWriter,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    incoming: MemoryObjectSendStream[Incoming],
) -> None:
    """Write the sent messages until the program closes its stdin."""
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
    """Yield the streams of messages; nothing is sent before the first one."""
    headers = {name: value.get_secret_value() for name, value in server.headers.items()}
    # Compressed answers could be of any size.
    headers["Accept-Encoding"] = "identity"
    # After the tool's own limit, whose cancellation is passed on to the server.
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
