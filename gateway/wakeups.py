"""Hints within the process that rows have changed. Rows are the truth: a lost hint costs seconds.

Intake, worker, delivery and who fetches files know only this, not each other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from adapters.messages import Mark, Question


def _nobody(*_: object) -> None:
    """Nobody listens yet."""


@dataclass(slots=True)
class Wakeups:
    """Who is told what; `app.py` connects them."""

    work: Callable[[int], None] = field(default=_nobody)
    """A conversation's inbox has something new."""
    ready: Callable[[int], None] = field(default=_nobody)
    """A conversation's files are there, or never will be; nothing new came."""
    files: Callable[[], None] = field(default=_nobody)
    """A message came with files, or one that waits for its files was dropped."""
    stop: Callable[[int, int], None] = field(default=_nobody)
    """A conversation's turns up to this inbox seq are cancelled."""
    reaction: Callable[[Question, Mark], None] = field(default=_nobody)
    """A message of a person is to be marked."""
    transcript: Callable[[int], None] = field(default=_nobody)
    """A conversation's transcript has grown."""
    outbox: Callable[[int], None] = field(default=_nobody)
    """A conversation's outbox has something new."""
