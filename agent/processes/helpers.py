"""Start Parley's own helper processes: small Python programs.

They do not inherit Parley's environment, which may contain secrets, and import only the standard
library and `agent`; a request arrives on stdin. One of them is the keeper, which supervises another
program.
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
"""Seconds that a keeper may take in addition to its program's time to exit."""

_ROOT = Path(__file__).parents[2]


def program(module: str) -> tuple[str, ...]:
    """Return the command that runs a module's `main`; arguments may be appended."""
    # -I: no imports from the environment or the working directory.
    # -S: no site-packages, which account for most of the start-up time.
    return (sys.executable, "-I", "-S", "-c", BOOT, str(_ROOT), module)


async def ask_json(
    module: str,
    request: Mapping[str, Any],
    *,
    timeout_s: float,
    max_bytes: int,
    slow: str,
    failed: str,
) -> str:
    """Return a helper's answer to one request (`descent.serve`); the helper has always ended then.

    Its stdin is closed if Parley is killed.

    Raises:
        ToolError: With the text `slow` or `failed`, or the helper's own error.
    """
    order = json.dumps({**request, "time_limit_s": timeout_s}).encode()
    try:
        process = await asyncio.create_subprocess_exec(
            *program(module),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            # A helper must not keep Parley's directory from being unmounted.
            cwd="/",
            env={"PATH": PATH, "LANG": LANGUAGE},
            start_new_session=True,
        )
    except OSError as exc:
        raise ToolError(f"{failed}: no process can be started: {exc.strerror}") from exc
    stdin = cast("asyncio.StreamWriter", process.stdin)
    stdout = cast("asyncio.StreamReader", process.stdout)
    try:
        async with asyncio.timeout(timeout_s):
            # A helper that has already exited gives no answer.
            with suppress(ConnectionError):
                stdin.write(order)
                await stdin.drain()
            stdin.write_eof()
            answer = await read_all(stdout, max_bytes, failed)
            code = await process.wait()
    except TimeoutError as exc:
        raise ToolError(slow) from exc
    finally:
        # It may be in an endless loop.
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if code != 0:
        raise ToolError(f"{failed}: {module} ended with code {code}")
    found = json.loads(answer)
    if "error" in found:
        raise ToolError(found["error"])
    return str(found["text"])


async def read_all(stream: asyncio.StreamReader, max_bytes: int, failed: str) -> bytes:
    """Read a stream to its end; raise a ToolError `failed` if it exceeds `max_bytes`."""
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(65_536):
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise ToolError(f"{failed}: the answer is too large")
    return b"".join(parts)


class KeptProgram:
    """A program behind a keeper, which ends it and its descendants even if Parley is killed.

    Always call `end`, even if `start` failed.

    Attributes:
        stdin, stdout, stderr: The program's pipes; for a command the keeper's.
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
        """Start a keeper; its program's lines may have `max_line_bytes`. May raise an OSError."""
        lifeline, far_end = socket.socketpair()
        try:
            # Only the keeper may hold this end: a copy here would hide the keeper's death.
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
            ConnectionError: The keeper died; the program may have run.
            OSError: The program was not started.
        """
        self._ends_within_s = order.ends_within_s
        self._lifeline.write(json.dumps(asdict(order)).encode() + b"\n")
        line = await self._told.readline()
        if not line:
            raise ConnectionError("it ended without a report")
        answer = keeper.StartAnswer(**json.loads(line))
        if answer.problem:
            raise OSError(f"it cannot be confined: {answer.problem}")
        if answer.group is None:
            raise OSError(answer.error, os.strerror(answer.error), answer.file)
        self._group = answer.group

    async def report(self) -> keeper.Report | None:
        """Return the report of a command; None if its keeper was killed."""
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
            # The keeper hangs: end its program without it.
            descent.kill_descendants(self._keeper.pid)
            with suppress(ProcessLookupError):
                self._keeper.kill()
        # Only if it was killed: a released id may already belong to another program.
        if self._group is not None and self._keeper.returncode != 0:
            descent.kill_group(self._group)
