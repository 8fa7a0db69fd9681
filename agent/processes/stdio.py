"""A server that is a program (step 6): started as a child, spoken to over its pipes.

Like the SDK's own transport, but what the child gets and what it may do is bounded: it sees PATH,
HOME and what its settings give, a line has a longest length, and what it says to stderr is kept
away from the terminal. `keeper.py` stands between and ends it, also when this process is killed.
"""

import asyncio
import json
import os
import socket
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any, cast

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from agent.processes import descent, keeper
from agent.processes.processes import LANGUAGE, PATH, program
from agent.settings import McpServerSettings
from agent.tools.excerpt import end_of
from agent.tools.mcp.streams import MAX_MESSAGE_BYTES, Incoming

log = structlog.get_logger()

ENDS_WITHIN_S = 2.0
"""How long a child has to end after its stdin was closed, and again after SIGTERM.

Source: https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
"""
GONE_WITHIN_S = 10.0
"""How long its keeper may take beside that."""
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
    lifeline, far_end = socket.socketpair()
    with incoming, received, sent, outgoing, lifeline:
        with far_end:
            process = await _keeper(far_end.fileno())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, name, process, incoming)
            tasks.start_soon(_write, process, outgoing, incoming)
            tasks.start_soon(_listen, name, process, tail)
            group = None
            try:
                group = await _start(lifeline, server)
                yield received, sent
            finally:
                await _end(process, lifeline, group)
                tasks.cancel_scope.cancel()


async def _keeper(lifeline: int) -> Process:
    """Return a keeper; its pipes are those of the program that it will be told to start."""
    return await asyncio.create_subprocess_exec(
        *program("agent.processes.keeper"),
        str(lifeline),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={"PATH": PATH, "LANG": LANGUAGE},
        limit=MAX_MESSAGE_BYTES,
        pass_fds=(lifeline,),
        start_new_session=True,
    )


async def _start(lifeline: socket.socket, server: McpServerSettings) -> int:
    """Have the keeper start the program; returns its process group.

    Raises:
        OSError: It cannot be started.
    """
    order = keeper.Order(
        command=[server.command or "", *server.args],
        directory=None if server.cwd is None else str(server.cwd),
        environment=environment(server),
        ends_within_s=ENDS_WITHIN_S,
    )
    lifeline.settimeout(0)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(lifeline, json.dumps(asdict(order)).encode() + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        part = await loop.sock_recv(lifeline, 4_096)
        if not part:
            raise OSError("its keeper has ended")
        answer += part
    told = keeper.Answer(**json.loads(answer))
    if told.group is None:
        raise OSError(told.error, os.strerror(told.error), told.file)
    return told.group


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


async def _end(process: Process, lifeline: socket.socket, group: int | None) -> None:
    """Close stdin and wait: the keeper does the rest."""
    cast("StreamWriter", process.stdin).close()
    lifeline.close()
    with anyio.CancelScope(shield=True):
        try:
            await _ends(process, 2 * ENDS_WITHIN_S + GONE_WITHIN_S)
        finally:
            # Where nobody waits any longer, or something has killed the keeper.
            if group is not None:
                descent.kill_group(group)


async def _ends(process: Process, within_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await process.wait()
