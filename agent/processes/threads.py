"""Daemon threads for calls that may take long or never come back: plugins, engines, summaries."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def in_daemon(function: Callable[[], T]) -> Future[T]:
    """Start the function in a thread of its own, with the context of the caller (log fields).

    A thread cannot be ended from outside. Unlike one of a pool, a daemon that hangs takes no room
    from other calls, and does not hold up the end of the process.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    context = copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(function))
        except BaseException as exc:  # noqa: BLE001 - carried to whoever waits, whatever it is
            future.set_exception(_carried(exc))

    threading.Thread(target=work, name="daemon-call", daemon=True).start()
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
