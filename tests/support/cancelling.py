"""Cancels a task at one of its awaits, or makes each of them long, to find out what gets lost."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class CancelledAt:
    """Runs a coroutine in the task that awaits this, and cancels that task at the n-th await.

    Attributes:
        reached: Whether there were so many awaits.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], n: int) -> None:
        self.reached = False
        self._coroutine = coroutine
        self._n = n

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        error: BaseException | None = None
        awaits = 0
        while True:
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            awaits += 1
            if awaits == self._n:
                self.reached = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waits_for
                error = None
            except BaseException as exc:  # noqa: BLE001 - the coroutine gets it
                error = exc


async def cancelled_at(coroutine: Coroutine[Any, Any, Any], n: int) -> bool:
    """Run a coroutine in a task that is cancelled at its n-th await; False if it has fewer."""
    at = CancelledAt(coroutine, n)

    async def run() -> None:
        await at

    await asyncio.wait([asyncio.get_running_loop().create_task(run())])
    return at.reached


class Slowed:
    """Runs a coroutine in the task that awaits this; each of its awaits takes longer.

    A cancellation that comes meanwhile is one at that await: on a busy machine they last as long.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], pause_s: Callable[[], float]) -> None:
        self._coroutine = coroutine
        self._pause_s = pause_s

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        error: BaseException | None = None
        while True:
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            try:
                yield waits_for
                yield from asyncio.sleep(self._pause_s()).__await__()
                error = None
            except BaseException as exc:  # noqa: BLE001 - the coroutine gets it
                error = exc
