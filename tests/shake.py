"""Shakes the order of events: `PARLEY_TEST_SHAKE=seed make test`.

With a seed, tasks that wait for something are woken later at random, and so are those that wait
for a thread. A test that passes only because two things usually happen in one order fails then.
What asyncio promises stays: tasks start in the order of their creation, callbacks of transports and
the results of one thread keep theirs. The same seed delays the same steps, unless the test itself
takes another course.

On a loop of virtual time a step waits for some turns of the loop, else for some milliseconds.
"""

import asyncio
import os
import random
import threading
import time
from asyncio import base_events
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

import pytest

SEED = os.environ.get("PARLEY_TEST_SHAKE", "")
SHARE = 0.05
"""Of the steps and results, how many are delayed."""
LONGEST_S = 0.01
LONGEST_TURNS = 20

_call_soon = base_events.BaseEventLoop.call_soon
_call_soon_threadsafe = base_events.BaseEventLoop.call_soon_threadsafe


class Shake:
    """The plugin: delays steps and results at random, by the seed and the test's id."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311 - not for secrets
        self.delayed = 0

    def install(self) -> None:
        """Delay steps of all loops of this process."""
        shake = self

        def call_soon(
            loop: Any, callback: Callable[..., Any], *args: Any, context: Context | None = None
        ) -> asyncio.Handle:
            if not (_is_wakeup(callback) and shake.is_due()):
                return _call_soon(loop, callback, *args, context=context)
            if type(loop).time is not base_events.BaseEventLoop.time:
                turns = shake.turns()
                return _call_soon(loop, _Later(loop, turns, callback, args), context=context)
            return loop.call_later(shake.seconds(), callback, *args, context=context)

        def call_soon_threadsafe(loop: Any, callback: Any, *args: Any, context: Any = None) -> Any:
            if threading.get_ident() != loop._thread_id and shake.is_due():
                time.sleep(shake.seconds())
            return _call_soon_threadsafe(loop, callback, *args, context=context)

        base_events.BaseEventLoop.call_soon = call_soon  # type: ignore[method-assign]
        base_events.BaseEventLoop.call_soon_threadsafe = (  # type: ignore[method-assign]
            call_soon_threadsafe
        )

    def is_due(self) -> bool:
        """Whether the next step is delayed."""
        if self._random.random() >= SHARE:
            return False
        self.delayed += 1
        return True

    def seconds(self) -> float:
        """Return a random delay of up to `LONGEST_S`."""
        return self._random.random() * LONGEST_S

    def turns(self) -> int:
        """Return a random number of turns of a loop."""
        return self._random.randint(1, LONGEST_TURNS)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Begin each test with its own sequence of delays."""
        self._random.seed(f"{self._seed} {item.nodeid}")
        return (yield)

    def pytest_report_header(self) -> str:
        """Name the seed in the first lines."""
        return f"shaken by seed {self._seed}"


class _Later:
    """A step that lets the loop turn some times before it runs."""

    def __init__(self, loop: Any, turns: int, callback: Callable[..., Any], args: Any) -> None:
        self._loop, self._turns, self._callback, self._args = loop, turns, callback, args

    def __call__(self) -> None:
        self._turns -= 1
        if self._turns <= 0:
            self._callback(*self._args)
        else:
            _call_soon(self._loop, self)


def _is_wakeup(callback: Callable[..., Any]) -> bool:
    """Whether a callback wakes a task that waited for a future."""
    is_first = type(callback).__name__ == "TaskStepMethWrapper"
    return not is_first and isinstance(getattr(callback, "__self__", None), asyncio.Task)


def watch(config: pytest.Config) -> None:
    """Shake this run if a seed is given."""
    if SEED:
        shake = Shake(SEED)
        shake.install()
        config.pluginmanager.register(shake, "shake")
