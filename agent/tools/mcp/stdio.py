"""A server that is a program (step 6): started as a child, spoken to over its pipes.

Like the SDK's own transport, but what the child gets and what it may do is bounded: it sees PATH,
HOME and what its settings give, a line has a longest length, and what it says to stderr is kept
away from the terminal. It ends when its stdin closes, so also when this process is killed.
"""

import asyncio
import os
import signal
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from agent.settings import McpServerSettings
from agent.tools.mcp.streams import MAX_MESSAGE_BYTES, Incoming

log = structlog.get_logger()

ENDS_WITHIN_S = 2.0
"""How long a child has to end after its stdin was closed, and again after SIGTERM.

Source: https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
"""
GONE_WITHIN_S = 10.0
"""How long a killed child may take to be gone."""
_INHERITED = ("PATH", "HOME")
_STDERR_CHUNK = 4_096
_TAIL_CHARS = 500


class Tail:
    """The end of what a program said to stderr."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, text: str) -> None:
        """Take note of more."""
        self.text = (self.text + text)[-_TAIL_CHARS:]


@asynccontextmanager
async def running(name: str, server: McpServerSettings, tail: Tail) -> AsyncIterator[Any]:
    """Run the program while the body runs; yields the streams of its messages.

    Raises:
        OSError: It cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        server.command or "",
        *server.args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=server.cwd,
        env=environment(server),
        limit=MAX_MESSAGE_BYTES,
        start_new_session=True,
    )
    incoming, received = anyio.create_memory_object_stream[Incoming](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    with incoming, received, sent, outgoing:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, name, process, incoming)
            tasks.start_soon(_write, process, outgoing, incoming)
            tasks.start_soon(_listen, name, process, tail)
            try:
                yield received, sent
            finally:
                await _end(process)
                tasks.cancel_scope.cancel()


def environment(server: McpServerSettings) -> dict[str, str]:
    """Return what the program finds in its environment."""
    inherited = get_default_environment()
    given = {key: value.get_secret_value() for key, value in server.env.items()}
    return {key: inherited[key] for key in _INHERITED if key in inherited} | given


async def _read(name: str, process: Process, into: MemoryObjectSendStream[Incoming]) -> None:
    """Pass on one message for each line, until there are no more."""
    lines = cast("StreamReader", process.stdout)
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
    process: Process,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    incoming: MemoryObjectSendStream[Incoming],
) -> None:
    """Write what is sent; a program that does not take it any more is not waited for."""
    pipe = cast("StreamWriter", process.stdin)
    try:
        async for message in outgoing:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            pipe.write(text.encode() + b"\n")
            await pipe.drain()
    except ConnectionError:
        incoming.close()


async def _listen(name: str, process: Process, tail: Tail) -> None:
    """Keep the end of what goes to stderr: it tells why a program does not start."""
    pipe = cast("StreamReader", process.stderr)
    while data := await pipe.read(_STDERR_CHUNK):
        text = data.decode("utf-8", "replace")
        tail.add(text)
        log.debug("mcp_server_wrote", server=name, text=text)


async def _end(process: Process) -> None:
    """Close stdin and wait; then end the whole group, by force if need be."""
    cast("StreamWriter", process.stdin).close()
    with anyio.CancelScope(shield=True):
        try:
            if not await _ends(process, ENDS_WITHIN_S):
                _signal(process, signal.SIGTERM)
                await _ends(process, ENDS_WITHIN_S)
        finally:
            # Also where nobody waits any longer; what it has started must not stay behind either.
            _signal(process, signal.SIGKILL)
        await _ends(process, GONE_WITHIN_S)


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _ends(process: Process, within_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await process.wait()
    return process.returncode is not None
