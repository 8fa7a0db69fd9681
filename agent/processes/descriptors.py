"""File descriptors: how many there may be, and those that are kept for database and log.

A process that has used up its descriptors can open nothing: no log file to rotate into, no second
connection to its database. So the limit is raised at the start, new HTTP connections are refused
before it is reached (gateway/http/server.py), and `RESERVE` holds some descriptors that are given
back for the moment in which the database or the log opens a file.
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
"""Beyond that a limit guards nothing, and programs that close every possible one take long."""
RESERVED = 16
"""Descriptors that lie on /dev/null until they are lent (decision 032)."""
LENT_AT_ONCE = 4
"""An SQLite connection has three: the file, its log, and the log's index."""
OWN, PER_TURN = 40, 3
"""What the process has open without a turn, the reserve included, and what a turn opens."""
_SHARE = 8
"""One of so many stays free of HTTP connections."""


def raise_limit() -> int:
    """Raise the limit of this process as far as it may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limit()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # macOS has a lower limit than the one that it tells.
        return soft
    return wanted


def limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def ceiling() -> int:
    """Return the number from which on a descriptor is one too many for HTTP.

    The system hands out the lowest free number, so one tells how many are in use. An eighth, at
    least as many as are reserved, stays for what Parley itself opens: platforms, models, programs.
    """
    most = limit()
    return most - max(RESERVED, most // _SHARE)


def most_turns(wanted: int) -> int:
    """Return how many turns may run at once: each talks to a model, and may run a program."""
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
    """Descriptors that nobody uses, until the database or the log has no other."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._wanted = 0
        self._lock = threading.RLock()

    def filled(self) -> bool:
        """Take back what there is room for; return whether all that should be kept is there."""
        if len(self._kept) >= self._wanted:
            return True
        with self._lock:
            self._fill()
            return len(self._kept) >= self._wanted

    def keep(self, count: int) -> None:
        """Keep so many from now on; those that cannot be had now, later."""
        with self._lock:
            self._wanted = count
            self._give_back(len(self._kept) - count)
            self._fill()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Have some descriptors free for what is opened in here, and take as many again after it.

        One thread at a time: what one was lent another must not open its files with.
        """
        with self._lock:
            self._give_back(LENT_AT_ONCE)
            try:
                yield
            finally:
                self._fill()

    def lending(self, opened: Callable[P, T]) -> Callable[P, T]:
        """Return a function that opens a file, with descriptors that it is lent."""

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
            # Full again once others have gone: it is tried at each loan.
            return


RESERVE = Reserve()
"""Of this process; descriptors are one for all. Empty until `keep`."""
