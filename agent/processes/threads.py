"""Daemon threads for calls that may take long or never return: plugins, engines, summaries."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def in_daemon(function: Callable[[], T]) -> Future[T]:
    """Run the function in a new thread, with the caller's context variables (log fields).

    Unlike a pool thread, a daemon thread that hangs blocks neither other calls nor the exit of the
    process.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    context = copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(function))
        except BaseException as exc:  # noqa: BLE001 - carried to the waiting task
            future.set_exception(_carried(exc))

    threading.Thread(target=work, name="daemon-call", daemon=True).start()
    return future


def _carried(failure: BaseException) -> Exception:
    """Convert a failure to an exception that does not cancel the waiting task.

    asyncio treats a CancelledError of the future as a cancellation of the waiting task, and cannot
    propagate a StopIteration.
    """
    if isinstance(failure, Exception) and not isinstance(failure, CancelledError | StopIteration):
        return failure
    carried = RuntimeError(f"{type(failure).__name__}: {failure}")
    carried.__cause__ = failure
    return carried
