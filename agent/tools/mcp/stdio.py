"""An MCP server that is a program: the messages that go over its pipes.

Like the SDK's own transport, but bounded: the program sees PATH, HOME and what its settings give,
a line has a longest length, and what it writes to stderr does not reach the terminal.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from agent.processes import keeper
from agent.processes.helpers import KeptProgram
from agent.settings import McpServerSettings
from agent.tools.excerpt import end_of
from agent.tools.mcp.streams import MAX_MESSAGE_BYTES, Incoming

log = structlog.get_logger()

ENDS_WITHIN_S = 2.0
"""How long a child has to end after its stdin was closed, and again after SIGTERM.

Source: https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
"""
_INHERITED = ("PATH", "HOME")
_STDERR_CHUNK = 4_096
_TAIL_CHARS = 500


class Tail:
    """The end of what a program said to stderr."""

    def __init__(self) -> None:
        self._kept = ""

    @property
    def text(self) -> str:
        """It, cut between words."""
        return end_of(self._kept, _TAIL_CHARS)

    def add(self, text: str) -> None:
        """Take note of more."""
        # One character too many tells that there were more.
        self._kept = (self._kept + text)[-_TAIL_CHARS - 1 :]


@asynccontextmanager
async def running(name: str, server: McpServerSettings, tail: Tail) -> AsyncIterator[Any]:
    """Run the program while the body runs; yields the streams of its messages.

    Raises:
        ExceptionGroup: Of an OSError, if it cannot be started.
    """
    incoming, received = anyio.create_memory_object_stream[Incoming](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    order = keeper.Order(
        command=[server.command or "", *server.args],
        directory=None if server.cwd is None else str(server.cwd),
        environment=environment(server),
        ends_within_s=ENDS_WITHIN_S,
    )
    with incoming, received, sent, outgoing:
        program = await KeptProgram.behind_keeper(MAX_MESSAGE_BYTES)
        async with anyio.create_task_group() as tasks:
            # Its pipes are read until it has ended: a program whose output nobody takes would wait
            # for that, and not see that its stdin has ended.
            tasks.start_soon(_read, name, program.stdout, incoming)
            tasks.start_soon(_write, program.stdin, outgoing, incoming)
            tasks.start_soon(_listen, name, program.stderr, tail)
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


def environment(server: McpServerSettings) -> dict[str, str]:
    """Return what the program finds in its environment."""
    inherited = get_default_environment()
    given = {key: value.get_secret_value() for key, value in server.env.items()}
    return {key: inherited[key] for key in _INHERITED if key in inherited} | given


async def _read(
    name: str, lines: asyncio.StreamReader, into: MemoryObjectSendStream[Incoming]
) -> None:
    """Pass on one message for each line, until there are no more."""
    with into:
        try:
            while line := await lines.readline():
                await into.send(_parsed(line))
        except ValueError:
            log.warning("mcp_message_too_long", server=name, most_bytes=MAX_MESSAGE_BYTES)
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


async def _listen(name: str, pipe: asyncio.StreamReader, tail: Tail) -> None:
    """Keep the end of what goes to stderr: it tells why a program does not start."""
    while data := await pipe.read(_STDERR_CHUNK):
        text = data.decode("utf-8", "replace")
        tail.add(text)
        log.debug("mcp_server_wrote", server=name, text=text)
