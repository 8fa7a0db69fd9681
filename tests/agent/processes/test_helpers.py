"""Parley's own helper processes."""

import asyncio

import pytest

from agent.processes.helpers import Helper, ask


async def test_a_helper_that_has_ended_takes_no_cancellation_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is nothing to kill any more, and whoever was cancelled stays so."""

    async def cancelled(asked: Helper, _max_bytes: int) -> bytes:
        await asked.stdout.read()
        await asked.process.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        raise asyncio.CancelledError

    monkeypatch.setattr(Helper, "read_all", cancelled)
    with pytest.raises(asyncio.CancelledError):
        await ask(
            "agent.tools.sandbox.pages",
            b'{"html": "", "time_limit_s": 9}',
            timeout_s=10,
            max_bytes=100,
        )
