"""Calls of plugins: nothing of theirs blocks, ends or breaks the caller."""

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.plugins.supervision import Caller, PluginFailed


async def coroutine(value: int) -> int:
    return value


def raising(_: int) -> int:
    raise SystemExit("no")


async def test_functions_of_either_kind_are_asked() -> None:
    """In a thread of their own."""
    caller = Caller("mine", 10)
    assert await caller.ask("x", coroutine, 7) == 7
    assert await caller.ask("x", threading.current_thread) is not threading.current_thread()


async def test_a_failure_is_logged_with_its_traceback() -> None:
    """Also one that would end a process."""
    with capture_logs() as logs, pytest.raises(PluginFailed, match="mine: x: RuntimeError"):
        await Caller("mine", 10).ask("x", raising, 7)
    [event] = logs
    assert (event["event"], event["plugin"], event["call"]) == ("plugin_failed", "mine", "x")
    assert isinstance(event["exc_info"], RuntimeError)


async def test_what_hangs_is_left_behind() -> None:
    """And after four of them the plugin is not asked any more."""
    end = threading.Event()
    caller, asked = Caller("mine", 0.001), []

    async def hang(value: Any) -> None:
        asked.append(value)
        end.wait()

    with capture_logs() as logs:
        for _ in range(5):
            with pytest.raises(PluginFailed):
                await caller.ask("x", hang, 7)
    end.set()
    assert len(asked) <= 4
    assert [each["reason"] for each in logs][-1] == "4 earlier calls still hang"
    assert "exc_info" not in logs[0]
