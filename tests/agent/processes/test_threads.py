"""Calls that may never come back: time limits, what they raise, and how many may hang."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest
import structlog

from agent.processes.threads import MAX_ABANDONED, CallHangs, DaemonThreads

SOON_S = 1.0


def raising(failure: BaseException) -> Callable[[], None]:
    """Return a function that raises."""

    def fail() -> None:
        raise failure

    return fail


@pytest.fixture
def hang() -> threading.Event:
    """What hanging calls wait for; a test that sets it lets them go."""
    return threading.Event()


def test_answers_and_failures_come_through() -> None:
    """Also a TimeoutError of the call itself."""
    threads = DaemonThreads()
    assert threads.run(lambda: 42, 5) == 42
    for failure in (ValueError("x"), TimeoutError("its own")):
        with pytest.raises(type(failure), match=str(failure)):
            threads.run(raising(failure), 5)


async def test_answers_and_failures_come_through_to_the_loop() -> None:
    """The same without blocking it."""
    threads = DaemonThreads()
    assert await threads.run_async(lambda: 42, 5) == 42
    for failure in (ValueError("x"), TimeoutError("its own")):
        with pytest.raises(type(failure), match=str(failure)):
            await threads.run_async(raising(failure), 5)


@pytest.mark.parametrize("failure", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_call_cannot_end_its_caller(failure: BaseException) -> None:
    """What ends programs or tasks arrives as an ordinary error."""
    with pytest.raises(RuntimeError, match=type(failure).__name__):
        DaemonThreads().run(raising(failure), 5)


@pytest.mark.parametrize("failure", [CancelledError(), StopIteration(1)])
async def test_a_call_cannot_cancel_its_caller(failure: Exception) -> None:
    """What asyncio would take for a cancellation of the task, or would never tell it."""
    with pytest.raises(RuntimeError, match=type(failure).__name__):
        await DaemonThreads().run_async(raising(failure), 5)


def test_the_thread_has_the_log_fields_of_its_caller() -> None:
    """And it is a daemon: it does not hold up the end of the process."""
    with structlog.contextvars.bound_contextvars(conversation=7):
        seen = DaemonThreads().run(structlog.contextvars.get_contextvars, 5)
    assert seen == {"conversation": 7}
    assert DaemonThreads().run(threading.current_thread, 5).daemon


@pytest.mark.thorough
def test_hanging_calls_are_left_behind_but_not_without_end(hang: threading.Event) -> None:
    """After some of them nothing is started, until one comes back."""
    threads = DaemonThreads()
    started = threading.Semaphore(0)

    def wait() -> None:
        started.release()
        hang.wait()

    for _ in range(MAX_ABANDONED):
        with pytest.raises(CallHangs, match="no answer within"):
            threads.run(wait, SOON_S)
        assert started.acquire(timeout=30)
    with pytest.raises(CallHangs, match="earlier calls still hang"):
        threads.run(wait, SOON_S)
    assert not started.acquire(blocking=False)
    left = list(threads._abandoned)
    hang.set()
    for future in left:
        future.result(30)
    assert threads.run(lambda: 1, 5) == 1


@pytest.mark.thorough
async def test_the_loop_waits_no_longer_than_the_limit(hang: threading.Event) -> None:
    """What is cancelled is counted as well."""
    threads = DaemonThreads()
    with pytest.raises(CallHangs):
        await threads.run_async(hang.wait, SOON_S)
    task = asyncio.get_running_loop().create_task(threads.run_async(hang.wait, 60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(threads._abandoned) == 2
    hang.set()
