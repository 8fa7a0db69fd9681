"""A gateway is killed while a command runs: nothing of it lives on, and it is never run again."""

import asyncio
import os

from tests.support.crash import KILLED, Crashes, describe

ENDS_WITHIN_S = 30


async def test_a_command_dies_with_its_gateway_and_is_reported(crashes: Crashes) -> None:
    """At once, with what meant to leave its session; the model is told that it does not know."""
    workspace = crashes.home / "workspace"
    workspace.mkdir(mode=0o700)
    os.mkfifo(workspace / "started")
    await crashes.write("a", "shell")
    pid = crashes.start()
    with await asyncio.to_thread((workspace / "started").open) as started:
        told = await asyncio.to_thread(started.readline)
        assert await crashes.kill(pid) == KILLED
        async with asyncio.timeout(ENDS_WITHIN_S):
            # The pipe ends with the last process that could write into it.
            assert await asyncio.to_thread(started.read) == ""
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)
    assert crashes.platform.finals("a")[0].endswith("unknown:m1-shell")
    assert (workspace / "runs").read_text() == told
