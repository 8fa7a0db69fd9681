"""Starts Parley's own helper processes: small Python programs with nothing of the environment.

They get none of Parley's environment (it may hold secrets), and import the standard library and
`agent` alone; a request comes in by stdin. One of them is the keeper, which holds another program.
"""

import asyncio
import json
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from agent.errors import ToolError
from agent.processes import descent, keeper
from agent.processes.walls import BOOT

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LANGUAGE = "C.UTF-8"
KEEPER_GONE_WITHIN_S = 10.0
"""How long a keeper may take beside the time that its program gets to end."""

_ROOT = Path(__file__).parents[2]


def program(module: str) -> tuple[str, ...]:
    """Return the command that runs a module's `main`; further arguments stand behind it."""
    # -I: neither the environment nor the working directory adds to what can be imported.
    # -S: no site-packages, which take most of the time that a start needs.
    return (sys.executable, "-I", "-S", "-c", BOOT, str(_ROOT), module)


class HelperFailed(Exception):
    """A helper ended without its answer, or gave more than was allowed."""


async def ask_json(
    module: str,
    request: Mapping[str, Any],
    *,
    timeout_s: float,
    max_bytes: int,
    slow: str,
    failed: str,
) -> str:
    """Return the text of a helper that serves one request by `descent.serve`.

    Raises:
        ToolError: It took too long (`slow`), failed (`failed`), or says itself what is wrong.
    """
    order = json.dumps({**request, "time_limit_s": timeout_s}).encode()
    try:
        found = json.loads(await ask(module, order, timeout_s=timeout_s, max_bytes=max_bytes))
    except TimeoutError as exc:
        raise ToolError(slow) from exc
    except HelperFailed as exc:
        raise ToolError(f"{failed}: {exc}") from exc
    if "error" in found:
        raise ToolError(found["error"])
    return str(found["text"])


async def ask(module: str, request: bytes, *, timeout_s: float, max_bytes: int) -> bytes:
    """Return what a helper answers to one request; it has ended then, whatever it did.

    The end of its stdin tells a helper that Parley was killed.

    Raises:
        HelperFailed: It failed, or its answer is larger than `max_bytes`.
        TimeoutError: It did not answer in time; it was killed.
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
    stdin = cast("asyncio.StreamWriter", process.stdin)
    stdout = cast("asyncio.StreamReader", process.stdout)
    try:
        async with asyncio.timeout(timeout_s):
            # One that is gone already shows that by its answer.
            with suppress(ConnectionError):
                stdin.write(request)
                await stdin.drain()
            stdin.write_eof()
            answer = await read_all(stdout, max_bytes)
            code = await process.wait()
    finally:
        # It may be within one endless step, where it does not see that nobody waits.
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if code != 0:
        raise HelperFailed(f"{module} ended with code {code}")
    return answer


async def read_all(stream: asyncio.StreamReader, max_bytes: int) -> bytes:
    """Return all that comes up to the end.

    Raises:
        HelperFailed: It is more than `max_bytes`.
    """
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(65_536):
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise HelperFailed("the answer is too large")
    return b"".join(parts)


class KeptProgram:
    """A program behind a keeper, which ends it with all that it has started.

    The keeper ends it also when Parley is killed. Call `end` whatever has become of `start`.

    Attributes:
        stdin, stdout, stderr: The program's pipes; of a command the keeper has them.
    """

    def __init__(
        self, process: Process, told: asyncio.StreamReader, lifeline: asyncio.StreamWriter
    ) -> None:
        self.stdin = cast("asyncio.StreamWriter", process.stdin)
        self.stdout = cast("asyncio.StreamReader", process.stdout)
        self.stderr = cast("asyncio.StreamReader", process.stderr)
        self._keeper = process
        self._told = told
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
        return cls(process, *await asyncio.open_connection(sock=lifeline))

    async def start(self, order: keeper.ProgramOrder) -> None:
        """Have the keeper start the program.

        Raises:
            OSError: It cannot be started.
        """
        self._ends_within_s = order.ends_within_s
        self._lifeline.write(json.dumps(asdict(order)).encode() + b"\n")
        line = await self._told.readline()
        if not line:
            raise OSError("its keeper has ended")
        answer = keeper.StartAnswer(**json.loads(line))
        if answer.problem:
            raise OSError(f"it cannot be confined: {answer.problem}")
        if answer.group is None:
            raise OSError(answer.error, os.strerror(answer.error), answer.file)
        self._group = answer.group

    async def report(self) -> keeper.Report | None:
        """Return how a command has ended; None if something has killed its keeper."""
        with suppress(ConnectionError):
            if line := await self._told.readline():
                return keeper.Report(**json.loads(line))
        return None

    async def end(self) -> None:
        """Close stdin and the lifeline, and wait: the keeper does the rest."""
        self.stdin.close()
        self._lifeline.close()
        try:
            async with asyncio.timeout(2 * self._ends_within_s + KEEPER_GONE_WITHIN_S):
                await self._keeper.wait()
        except TimeoutError:
            # It hangs: what it holds ends without it.
            descent.kill_descendants(self._keeper.pid)
            with suppress(ProcessLookupError):
                self._keeper.kill()
        # Something has killed it. An id that it has freed may be another program's by now.
        if self._group is not None and self._keeper.returncode != 0:
            descent.kill_group(self._group)
