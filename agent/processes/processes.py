"""Starts Parley's own helper processes: small Python programs with nothing of the environment.

They get neither Parley's environment (it may hold secrets) nor its packages; what they are asked
comes in by stdin.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import structlog

log = structlog.get_logger()

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LANGUAGE = "C.UTF-8"
GRACE_S = 5.0
"""How long a helper gets to end what it has begun."""

# The package `agent` imports what a helper does not need, and cannot find.
_BOOT = """
import sys, types
agent = types.ModuleType("agent")
agent.__path__ = [sys.argv[1]]
sys.modules["agent"] = agent
from importlib import import_module
import_module(sys.argv[2]).main()
"""
_PACKAGE = Path(__file__).parents[1]


def program(module: str) -> tuple[str, ...]:
    """Return the command that runs a module's `main`; further arguments stand behind it."""
    return (sys.executable, "-I", "-S", "-c", _BOOT, str(_PACKAGE), module)


class HelperFailed(Exception):
    """A helper ended without its answer, or gave more than was allowed."""


@dataclass(frozen=True, slots=True)
class Helper:
    """A helper process with its two pipes."""

    process: asyncio.subprocess.Process
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
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
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
