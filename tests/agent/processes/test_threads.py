"""Calls in daemon threads: what comes back from them, and what they must not do to who waits."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest
import structlog

from agent.processes.threads import in_daemon


def raising(failure: BaseException) -> Callable[[], None]:
    """Return a function that raises."""

    def fail() -> None:
        raise failure

    return fail


def test_answers_and_failures_come_through() -> None:
    """Also a TimeoutError of the call itself."""
    assert in_daemon(lambda: 42).result(5) == 42
    for failure in (ValueError("x"), TimeoutError("its own")):
        with pytest.raises(type(failure), match=str(failure)):
            in_daemon(raising(failure)).result(5)


@pytest.mark.parametrize("failure", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_call_cannot_end_its_caller(failure: BaseException) -> None:
    """What ends programs or tasks arrives as an ordinary error."""
    with pytest.raises(RuntimeError, match=type(failure).__name__):
        in_daemon(raising(failure)).result(5)


@pytest.mark.parametrize("failure", [CancelledError(), StopIteration(1)])
async def test_a_call_cannot_cancel_its_caller(failure: Exception) -> None:
    """What asyncio would take for a cancellation of the task, or would never tell it."""
    with pytest.raises(RuntimeError, match=type(failure).__name__):
        await asyncio.wrap_future(in_daemon(raising(failure)))


def test_the_thread_has_the_log_fields_of_its_caller() -> None:
    """And it is a daemon: it does not hold up the end of the process."""
    with structlog.contextvars.bound_contextvars(conversation=7):
        seen = in_daemon(structlog.contextvars.get_contextvars).result(5)
    assert seen == {"conversation": 7}
    assert in_daemon(threading.current_thread).result(5).daemon
