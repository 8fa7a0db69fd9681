"""Transaction functions that wait for a thread, and the way of their results back to the loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Job(NamedTuple):
    """A function that waits for a thread, and the future of its caller.

    Attributes:
        begin: How its transaction begins, where there are several ways.
        apart: It runs outside of transactions, and gets the driver's connection.
    """

    fn: Callable[[Any], Any]
    future: asyncio.Future[Any]
    begin: str = ""
    apart: bool = False


class JobResult(NamedTuple):
    """What became of a job: its value, or the exception that its caller gets."""

    job: Job
    value: Any
    error: BaseException | None


class Results:
    """Hands results to those who wait for them; what comes at once wakes the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[JobResult] = deque()
        self._is_called = False

    def add(self, done: Iterable[JobResult]) -> None:
        """Hand these over; called on any thread.

        They are in the queue before `_is_called` is read, and `_report` clears it before it reads
        the queue: whoever sees it set is seen.
        """
        self._done.extend(done)
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        self._is_called = False
        while self._done:
            job, value, error = self._done.popleft()
            if job.future.done():
                continue
            if error is None:
                job.future.set_result(value)
            else:
                job.future.set_exception(error)
                retrieve(job.future)


def retrieve(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from complaining where the caller was cancelled, and nobody asks any more."""
    if not future.cancelled():
        future.exception()
