"""How messages go to an MCP server and come back: over a program's pipes, or over HTTP.

A program is kept in quarters: it is confined like a command of the tool `terminal`, and sees the
system's programs, what its settings name, and its directory below PARLEY_HOME, which it alone can
write. Without confinement it may do whatever Parley may.

Both ways are like the SDK's own transports, but bounded. A program gets PATH, HOME, LANG, TMPDIR
and the variables of its settings, messages have a maximum length, and a program's stderr does not
reach the terminal. `Watched` checks messages before the SDK does: the SDK refuses a whole listing
if one tool in it is malformed, checks results with patterns written by the server, and does not
report the end of an idle connection.
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
"""Of a result: the SDK takes seconds for those of a message that is nothing but parts."""
ENDS_WITHIN_S = 2.0
"""How long a child has to end after its stdin was closed, and again after SIGTERM.

Source: https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
"""
CONNECT_WITHIN_S = 30.0
"""How long connecting over HTTP may take."""
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")
"""What a program gets of Parley's own environment."""
_STDERR_CHUNK = 4_096
FOLDER = "mcp"
"""Below PARLEY_HOME: what each server offered last, and the directory of its program."""
TEMPORARY = ".tmp"
"""A program's TMPDIR, in its directory."""

Incoming: TypeAlias = SessionMessage | Exception


class Watched:
    """The messages of a server; implements the SDK's ReadStream.

    Args:
        stream: What is watched; closed with this.
        on_end: Called when nothing will come any more.

    Attributes:
        listed: The definitions of tools that have come, as they came, up to `MAX_DEFINITIONS`.
    """

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end
        self.listed: list[Any] = []

    @property
    def last_context(self) -> Any:
        """The context in which the newest message was sent; the SDK goes on in it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Incoming:
        """Return the next message, without what the SDK stumbles over or takes long for."""
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
        """Close what is watched."""
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
    """Return a tool's name and which arguments become headers, as the SDK needs it; or None."""
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
    """What the programs of all servers share.

    Attributes:
        home: PARLEY_HOME, which none of them may read.
    """

    sandbox: SandboxSettings
    home: Path

    def prepare(self, name: str, server: McpServerSettings, path: str | None) -> Walls:
        """Make the directory of a server, and return the walls around its program. Blocking.

        Args:
            path: Where its command is looked for, as in PATH.

        Raises:
            OSError: It cannot be confined, or has no directory.
        """
        # Undecided means confined: the code that starts a program must decide (`with_walls`).
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
        """Yield the program, the files among its arguments, and what is named."""
        named = (*server.readable, *([] if server.cwd is None else [server.cwd]))
        writable = _outermost(server.writable)
        yield from (each for each in named if not leads_through(each, writable))
        yield from map(Path, of_this_python())
        command = shutil.which(server.command or "", path=path)
        if command and Path(command).is_absolute():
            yield from map(Path, of_program(Path(command), path, self.home, writable))
        for text in server.args:
            if Path(text).is_absolute() and Path(text).is_file():
                file = Path(text)
                # Nothing that lies in PARLEY_HOME.
                if not leads_through(file, [self.home, *writable]):
                    yield from dict.fromkeys((file, file.resolve()))


def _outermost(folders: Sequence[Path]) -> list[Path]:
    return [each for each in folders if not {*each.parents} & {*folders}]


@asynccontextmanager
async def over_pipes(
    name: str, server: McpServerSettings, quarters: Quarters, stderr: deque[str]
) -> AsyncIterator[Any]:
    """Run the program while the body runs; yields the streams of its messages.

    Raises:
        OSError: It cannot be confined.
        ExceptionGroup: Of an OSError, if it cannot be started.
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
            # Its pipes are read until it has ended: a program whose output nobody takes would wait
            # for that, and not see that its stdin has ended.
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
    # anyio cancels a task at every await until it has ended: without the shield nothing could be
    # awaited here. It lasts for a bounded time.
    with anyio.CancelScope(shield=True):
        await program.end()


def environment(server: McpServerSettings, walls: Walls | None = None) -> dict[str, str]:
    """Return what the program finds in its environment; within walls, where it may write."""
    found = {key: value for key in _INHERITED if (value := os.getenv(key))}
    if walls and walls.backend != "none":
        own = walls.writable[-1]
        found |= {"HOME": own, "TMPDIR": f"{own}/{TEMPORARY}"}
    return found | {key: value.get_secret_value() for key, value in server.env.items()}


async def _read(
    name: str, lines: asyncio.StreamReader, into: MemoryObjectSendStream[Incoming]
) -> None:
    """Pass on one message for each line, until there are no more."""
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
        # Programs greet and log there, too: the SDK passes over it.
        return ValueError("not a message")


async def _write(
    pipe: asyncio.StreamWriter,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    incoming: MemoryObjectSendStream[Incoming],
) -> None:
    """Write what is sent; a program that does not take it any more is not waited for."""
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
    # Beyond the limit of the tool, whose cancellation is passed on to the server.
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
