"""File descriptors: their limit, and a reserve for database and log.

A process without free descriptors can open nothing: no new log file, no second connection to its
database. So the limit is raised at the start, new HTTP connections are refused before it is reached
(gateway/http/server.py), and `RESERVE` lends descriptors to the database and the log while they
open a file.
"""

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MOST_DESCRIPTORS = 65_536
"""A higher limit guards nothing, and slows programs that close every possible one."""
RESERVED = 16
"""Descriptors of /dev/null until they are lent (decision 032)."""
LENT_AT_ONCE = 4
"""An SQLite connection has three: the file, its log, and the log's index."""
OWN, PER_TURN = 40, 3
"""Open descriptors without a turn, with the reserve; and of one turn."""
_SHARE = 8
"""One of so many stays free of HTTP connections."""


def raise_limit() -> int:
    """Raise the limit of this process as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limit()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # macOS has a lower limit than it reports.
        return soft
    return wanted


def limit() -> int:
    """Return the number of descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def ceiling() -> int:
    """Return the descriptor from which on HTTP connections are refused.

    The system hands out the lowest free number, so it shows how many are in use. An eighth, at
    least the size of the reserve, stays for platforms, models and programs.
    """
    most = limit()
    return most - max(RESERVED, most // _SHARE)


def most_turns(wanted: int) -> int:
    """Return how many turns may run at once: each calls a model, and may run a program."""
    return min(wanted, max(1, (limit() - OWN) // PER_TURN))


def is_scarce() -> bool:
    """Whether new HTTP connections are refused now, or the reserve is not whole."""
    try:
        probe = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return True
    os.close(probe)
    return probe >= ceiling() or not RESERVE.filled()


class Reserve:
    """Unused descriptors for a moment in which the database or the log has no other."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._wanted = 0
        self._lock = threading.RLock()

    def filled(self) -> bool:
        """Refill the reserve as far as possible; whether it is full."""
        if len(self._kept) >= self._wanted:
            return True
        with self._lock:
            self._fill()
            return len(self._kept) >= self._wanted

    def keep(self, count: int) -> None:
        """Keep so many from now on; missing ones follow later."""
        with self._lock:
            self._wanted = count
            self._give_back(len(self._kept) - count)
            self._fill()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Free some descriptors for this context, and take as many again after it.

        One thread at a time: another one must not use its loan.
        """
        with self._lock:
            self._give_back(LENT_AT_ONCE)
            try:
                yield
            finally:
                self._fill()

    def lending(self, opened: Callable[P, T]) -> Callable[P, T]:
        """Return a function that opens a file with lent descriptors."""

        def lent(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.lent():
                return opened(*args, **kwargs)

        return lent

    def _give_back(self, count: int) -> None:
        for _ in range(min(count, len(self._kept))):
            os.close(self._kept.pop())

    def _fill(self) -> None:
        try:
            while len(self._kept) < self._wanted:
                self._kept.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            # Tried again at each loan.
            return


RESERVE = Reserve()
"""Of this process. Empty until `keep`."""
