"""Parley's own helper processes."""

import asyncio

import pytest

from agent.processes import helpers
from agent.processes.helpers import ask_json


async def test_a_helper_that_has_ended_takes_no_cancellation_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is nothing to kill any more, and whoever was cancelled stays so."""

    async def cancelled(stdout: asyncio.StreamReader, *_: object) -> bytes:
        await stdout.read()
        for _ in range(10):
            await asyncio.sleep(0)
        raise asyncio.CancelledError

    monkeypatch.setattr(helpers, "read_all", cancelled)
    with pytest.raises(asyncio.CancelledError):
        await ask_json(
            "agent.tools.sandbox.pages",
            {"html": ""},
            timeout_s=10,
            max_bytes=100,
            slow="slow",
            failed="failed",
        )
