"""Starts Parley's own helper processes: small Python programs with nothing of the environment.

They get neither Parley's environment (it may hold secrets) nor its packages; what they are asked
comes in by stdin. One of them is the keeper, which holds a program of somebody else's.
"""

import asyncio
import json
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import structlog

from agent.processes import descent, keeper
from agent.processes.walls import BOOT

log = structlog.get_logger()

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LANGUAGE = "C.UTF-8"
GRACE_S = 5.0
"""How long a helper gets to end what it has begun."""
KEEPER_GONE_WITHIN_S = 10.0
"""How long a keeper may take beside the time that its program gets to end."""

_PACKAGE = Path(__file__).parents[1]


def program(module: str) -> tuple[str, ...]:
    """Return the command that runs a module's `main`; further arguments stand behind it."""
    # -I: neither the environment nor the working directory adds to what can be imported.
    # -S: no site-packages, which take most of the time that a start needs.
    return (sys.executable, "-I", "-S", "-c", BOOT, str(_PACKAGE), module)


class HelperFailed(Exception):
    """A helper ended without its answer, or gave more than was allowed."""


@dataclass(frozen=True, slots=True)
class Helper:
    """A helper process with its two pipes."""

    process: Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    async def send(self, request: bytes) -> None:
        """Send a request; a helper that is gone already shows that by its answer."""
        with suppress(ConnectionError):
            self.stdin.write(request)
            await self.stdin.drain()

    async def read_all(self, max_bytes: int) -> bytes:
        """Return all that it writes up to its end.

        Raises:
            HelperFailed: It is more than `max_bytes`.
        """
        parts: list[bytes] = []
        size = 0
        while part := await self.stdout.read(65_536):
            parts.append(part)
            size += len(part)
            if size > max_bytes:
                raise HelperFailed("the answer is too large")
        return b"".join(parts)


@asynccontextmanager
async def helper(module: str) -> AsyncIterator[Helper]:
    """Run a helper in a session of its own; on leaving it is told to end, and then killed.

    The end of its stdin tells it; a helper notices in the same way that Parley was killed.

    Raises:
        HelperFailed: It cannot be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *program(module),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            # Not where Parley runs: a helper must not keep a directory from being unmounted.
            cwd="/",
            env={"PATH": PATH, "LANG": LANGUAGE},
            start_new_session=True,
        )
    except OSError as exc:
        raise HelperFailed(f"no process can be started: {exc.strerror}") from exc
    found = Helper(
        process,
        cast("asyncio.StreamWriter", process.stdin),
        cast("asyncio.StreamReader", process.stdout),
    )
    try:
        yield found
    finally:
        await _end(found)


async def _end(helper: Helper) -> None:
    helper.stdin.close()
    try:
        async with asyncio.timeout(GRACE_S):
            await helper.process.wait()
    except TimeoutError:
        log.warning("helper_killed", pid=helper.process.pid)
    finally:
        with suppress(ProcessLookupError):
            helper.process.kill()
        await helper.process.wait()


async def ask(module: str, request: bytes, *, timeout_s: float, max_bytes: int) -> bytes:
    """Return what a helper answers to one request.

    Raises:
        HelperFailed: It failed, or its answer is larger than `max_bytes`.
        TimeoutError: It did not answer in time; it was killed.
    """
    async with helper(module) as asked:
        try:
            async with asyncio.timeout(timeout_s):
                await asked.send(request)
                asked.stdin.write_eof()
                answer = await asked.read_all(max_bytes)
                code = await asked.process.wait()
        except BaseException:
            # It may be within one endless step, where it does not see that nobody waits.
            with suppress(ProcessLookupError):
                asked.process.kill()
            raise
    if code != 0:
        raise HelperFailed(f"{module} ended with code {code}")
    return answer


class KeptProgram:
    """A program behind a keeper, which ends it with all that it has started.

    The keeper ends it also when Parley is killed. Call `end` whatever has become of `start`.

    Attributes:
        stdin, stdout, stderr: The program's pipes; the keeper has none of its own.
    """

    def __init__(self, process: Process, lifeline: socket.socket) -> None:
        self.stdin = cast("asyncio.StreamWriter", process.stdin)
        self.stdout = cast("asyncio.StreamReader", process.stdout)
        self.stderr = cast("asyncio.StreamReader", process.stderr)
        self._keeper = process
        self._lifeline = lifeline
        self._group: int | None = None
        self._ends_within_s = 0.0

    @classmethod
    async def behind_keeper(cls, max_line_bytes: int) -> "KeptProgram":
        """Start a keeper; no line longer than `max_line_bytes` can be read from its program.

        Raises:
            OSError: No process can be started.
        """
        lifeline, far_end = socket.socketpair()
        # The loop's own calls on a socket want it not to block.
        lifeline.settimeout(0)
        try:
            # This end is the keeper's alone: a copy of it here would hide that the keeper is gone.
            with far_end:
                process = await asyncio.create_subprocess_exec(
                    *program("agent.processes.keeper"),
                    str(far_end.fileno()),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=PIPE,
                    env={"PATH": PATH, "LANG": LANGUAGE},
                    limit=max_line_bytes,
                    pass_fds=(far_end.fileno(),),
                    start_new_session=True,
                )
        except BaseException:
            lifeline.close()
            raise
        return cls(process, lifeline)

    async def start(self, order: keeper.ProgramOrder) -> None:
        """Have the keeper start the program.

        Raises:
            OSError: It cannot be started.
        """
        self._ends_within_s = order.ends_within_s
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._lifeline, json.dumps(asdict(order)).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            part = await loop.sock_recv(self._lifeline, 4_096)
            if not part:
                raise OSError("its keeper has ended")
            line += part
        answer = keeper.StartAnswer(**json.loads(line))
        if answer.problem:
            raise OSError(f"it cannot be confined: {answer.problem}")
        if answer.group is None:
            raise OSError(answer.error, os.strerror(answer.error), answer.file)
        self._group = answer.group

    async def end(self) -> None:
        """Close stdin and the lifeline, and wait: the keeper does the rest."""
        self.stdin.close()
        self._lifeline.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * self._ends_within_s + KEEPER_GONE_WITHIN_S):
                    await self._keeper.wait()
        finally:
            # Where nobody waits any longer, or something has killed the keeper.
            if self._group is not None:
                descent.kill_group(self._group)
