"""File descriptors: their limit, and a reserve for database and log.

A process without free descriptors cannot open anything: neither a new log file nor another database
connection. So the limit is raised at start-up, HTTP connections are refused before it is reached
(gateway/http/server.py), and `RESERVE` lends descriptors to database and log while they open a
file.
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
"""A higher limit protects nothing, and slows programs that close every possible descriptor."""
RESERVED = 16
"""Number of /dev/null descriptors held until they are lent (decision 027)."""
LENT_AT_ONCE = 4
"""An SQLite connection uses three: the database, its log, and the log's index."""
OWN, PER_TURN = 40, 3
"""Descriptors used without any turn, including the reserve; and per turn."""
_SHARE = 8
"""One in this many descriptors stays free of HTTP connections."""


def raise_limit() -> int:
    """Raise the limit of this process to the allowed maximum, and return it."""
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
    """Return the number of descriptors that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def ceiling() -> int:
    """Return the descriptor number from which HTTP connections are refused.

    The system assigns the lowest free number, which shows how many are in use. One eighth, at least
    the size of the reserve, stays free for platforms, models and programs.
    """
    most = limit()
    return most - max(RESERVED, most // _SHARE)


def most_turns(wanted: int) -> int:
    """Cap the number of concurrent turns: each calls a model and may run a program."""
    return min(wanted, max(1, (limit() - OWN) // PER_TURN))


def is_scarce() -> bool:
    """Return whether HTTP connections are now refused or the reserve is incomplete."""
    try:
        probe = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return True
    os.close(probe)
    return probe >= ceiling() or not RESERVE.filled()


class Reserve:
    """Spare descriptors, lent to the database or the log when no others are free."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._wanted = 0
        self._lock = threading.RLock()

    def filled(self) -> bool:
        """Refill the reserve with the available descriptors; return whether it is full."""
        if len(self._kept) >= self._wanted:
            return True
        with self._lock:
            self._fill()
            return len(self._kept) >= self._wanted

    def keep(self, count: int) -> None:
        """Set the size of the reserve; missing descriptors are added later."""
        with self._lock:
            self._wanted = count
            self._give_back(len(self._kept) - count)
            self._fill()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Free some descriptors for this context, and reclaim as many afterwards.

        One thread at a time: another one must not use its loan.
        """
        with self._lock:
            self._give_back(LENT_AT_ONCE)
            try:
                yield
            finally:
                self._fill()

    def lending(self, opened: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function so that it opens its file with lent descriptors."""

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
            # Retried at each loan.
            return


RESERVE = Reserve()
"""The reserve of this process; empty until `keep` is called."""
