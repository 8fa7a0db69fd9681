"""A gateway is killed while an MCP server runs a tool: that is reported, and not done again."""

import asyncio
import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import mcp_server
from tests.support.crash import KILLED, Crashes, describe
from tests.support.mcp_http import TOKEN, mcp_over_http

ENDS_WITHIN_S = 30.0


@pytest.mark.thorough
async def test_a_call_of_a_program_that_died_with_its_gateway(crashes: Crashes) -> None:
    """The program ends by itself, and the model is told that the outcome is not known."""
    log = crashes.home / "far.log"
    args = ("-I", "-S", mcp_server.__file__, json.dumps({"log": str(log)}))
    crashes.configure(mcp={"far": {"command": sys.executable, "args": args, "confined": False}})
    await crashes.write("a", "far")
    pid = crashes.start()
    await noted(log, "called wait")
    with program_of(log) as program:
        assert await crashes.kill(pid) == KILLED
        ended, _, _ = await asyncio.to_thread(select.select, [program], [], [], ENDS_WITHIN_S)
        assert ended
    await reported(crashes)
    found = [line.split()[0] for line in lines(log)]
    assert found[:4] == ["started", "called", "ended", "started"]
    # The next one is ended by its gateway, which does not wait long for it to note that down.
    assert found[4:] in ([], ["ended"])


@pytest.mark.thorough
async def test_a_deaf_program_ends_with_all_that_it_started(crashes: Crashes) -> None:
    """It looks neither at its stdin nor at SIGTERM, and what it started has left its session."""
    log, plan, alive = (crashes.home / name for name in ("far.log", "plan", "alive"))
    os.mkfifo(alive)
    plan.write_text(json.dumps({"log": str(log), "deaf": True}))
    command = 'exec 7> "$0"; setsid sleep 300 & exec "$@"'
    server = (sys.executable, "-I", "-S", mcp_server.__file__, f"@{plan}")
    args = ("-c", command, str(alive), *server)
    crashes.configure(mcp={"far": {"command": "sh", "args": args, "confined": False}})
    await crashes.write("a", "far")
    with read_end(alive) as held:
        pid = crashes.start()
        await noted(log, "called wait")
        plan.write_text(json.dumps({"log": str(log)}))
        assert await crashes.kill(pid) == KILLED
        # The pipe ends with the last process that could write into it.
        ended, _, _ = await asyncio.to_thread(select.select, [held], [], [], 60)
        assert ended
        await reported(crashes)


async def test_a_call_over_http_that_was_under_way(crashes: Crashes) -> None:
    """The server is asked once; the next gateway has a session of its own."""
    async with mcp_over_http() as server:
        far = {"url": server.url, "headers": {"Authorization": TOKEN}}
        crashes.configure(mcp={"far": far})
        await crashes.write("a", "far")
        pid = crashes.start()
        await server.until("tools/call wait")
        assert await crashes.kill(pid) == KILLED
        await reported(crashes)
        assert server.events.count("tools/call wait") == 1
        assert server.events.count("initialize") == 2


async def reported(crashes: Crashes) -> None:
    """Live on; the answer tells that the model was told."""
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)
    [answer] = crashes.platform.finals("a")
    assert answer.endswith("unknown:m1-far")


def lines(log: Path) -> list[str]:
    """Return what the program noted down."""
    return log.read_text().splitlines() if log.exists() else []


async def noted(log: Path, line: str) -> None:
    """Wait until the program has noted a line down."""
    async with asyncio.timeout(60):
        # Another process writes them.
        while line not in lines(log):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextmanager
def read_end(pipe: Path) -> Iterator[int]:
    """Open a pipe before anybody writes into it."""
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield held
    finally:
        os.close(held)


@contextmanager
def program_of(log: Path) -> Iterator[int]:
    """Open the newest program; the file is readable once it has ended."""
    [*_, started] = [line for line in lines(log) if line.startswith("started")]
    program = os.pidfd_open(int(started.split()[1]))
    try:
        yield program
    finally:
        os.close(program)
