"""Threads for calls that may take long or never come back: plugins, engines, their summaries."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")

MAX_ABANDONED = 4
"""How many calls of one plugin may hang at a time before it is not asked any more."""


class CallHangs(Exception):
    """A call took longer than its limit, or was not made since too many earlier ones still run."""


class DaemonThreads:
    """Runs each call in a thread of its own, which is left behind when its time is up.

    A thread cannot be ended from outside; being a daemon it does not hold up the end of the
    process. What was left behind is counted until it comes back.
    """

    def __init__(self) -> None:
        self._abandoned: list[Future[Any]] = []

    def run(self, function: Callable[[], T], limit_s: float) -> T:
        """Return what the function returns, or raise what it raises; blocks for `limit_s` at most.

        Raises:
            CallHangs: There is no answer in time, or too many calls hang already.
        """
        future = self._started(function)
        try:
            return future.result(limit_s)
        except TimeoutError:
            if future.done():
                raise
            self._abandoned.append(future)
            raise CallHangs(f"no answer within {limit_s:g} s") from None

    async def run_async(self, function: Callable[[], T], limit_s: float) -> T:
        """Do the same from the event loop; a cancellation leaves the thread behind as well.

        Raises:
            CallHangs: There is no answer in time, or too many calls hang already.
        """
        future = self._started(function)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if future.done():
                raise
            raise CallHangs(f"no answer within {limit_s:g} s") from None
        finally:
            if not future.done():
                self._abandoned.append(future)

    def _started(self, function: Callable[[], T]) -> Future[T]:
        self._abandoned = [future for future in self._abandoned if not future.done()]
        if len(self._abandoned) >= MAX_ABANDONED:
            raise CallHangs(f"{len(self._abandoned)} earlier calls still hang")
        return in_daemon(function)


def in_daemon(function: Callable[[], T]) -> Future[T]:
    """Start the function in a daemon thread with the context of the caller (log fields)."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    context = copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(function))
        except BaseException as exc:  # noqa: BLE001 - carried to whoever waits, whatever it is
            future.set_exception(_carried(exc))

    threading.Thread(target=work, name="context-engine", daemon=True).start()
    return future


def _carried(failure: BaseException) -> Exception:
    """Return what is raised for a failure: it must neither end nor cancel whoever waits.

    asyncio takes a cancelled `concurrent.futures` future for a cancellation of the waiting task,
    and does not carry a StopIteration at all.
    """
    if isinstance(failure, Exception) and not isinstance(failure, CancelledError | StopIteration):
        return failure
    carried = RuntimeError(f"{type(failure).__name__}: {failure}")
    carried.__cause__ = failure
    return carried
