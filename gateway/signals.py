"""Hints within the process that rows have changed. Rows are the truth: a lost hint costs seconds.

Intake, worker, delivery and the fetcher of files know these hints, not each other. `Stops` ends a
running turn at `/stop`, before its next write would fail.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, ParamSpec

from adapters.messages import MessageRef, Reaction
from gateway.storage.conversation.turns import Turn

P = ParamSpec("P")


class Hint(Generic[P]):
    """One kind of hint. Calling it calls all listeners at once; without listeners it is lost."""

    def __init__(self) -> None:
        self._listeners: list[Callable[P, None]] = []

    def listen(self, listener: Callable[P, None]) -> None:
        """Add a listener."""
        self._listeners.append(listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Give the hint."""
        for listener in self._listeners:
            listener(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Wakeups:
    """All hints by name; `app.py` says who listens."""

    work: Hint[int] = field(default_factory=Hint)
    """A conversation's inbox has something new."""
    ready: Hint[int] = field(default_factory=Hint)
    """A conversation's turn can continue or end without a new message: its files are there or
    will never come, its question is settled, it was stopped."""
    files: Hint[[]] = field(default_factory=Hint)
    """A message came with files, or one that waits for its files was dropped."""
    stop: Hint[int, int] = field(default_factory=Hint)
    """A conversation's turns up to this inbox seq are cancelled."""
    reaction: Hint[MessageRef, Reaction] = field(default_factory=Hint)
    """A message must be marked."""
    outbox: Hint[int] = field(default_factory=Hint)
    """A conversation's outbox has something new."""
    forgotten: Hint[[]] = field(default_factory=Hint)
    """`parley forget` erased a conversation: no text of it may stay in memory."""

    def mark(self, turn: Turn, reaction: Reaction) -> None:
        """Have all messages of a turn marked."""
        for ref in turn.refs:
            self.reaction(replace(turn.question, message_ref=ref), reaction)


class Stops:
    """The turns of this process that can be stopped at once, by conversation."""

    def __init__(self) -> None:
        self._scopes: dict[int, tuple[int, asyncio.Timeout]] = {}
        self._stopped: dict[int, int] = {}

    def stop(self, conversation_id: int, upto_seq: int) -> None:
        """Interrupt the turn that answers nothing newer than `upto_seq`, now or when it begins."""
        self._stopped[conversation_id] = upto_seq
        if conversation_id in self._scopes:
            self._interrupt(conversation_id)

    def running(self) -> Iterable[int]:
        """Return the conversations whose turns run now."""
        return self._scopes.keys()

    def forget(self, conversation_id: int) -> None:
        """Drop the stops from before the next turn: the rows have them."""
        self._stopped.pop(conversation_id, None)

    @contextmanager
    def covering(self, turn: Turn, scope: asyncio.Timeout) -> Iterator[None]:
        """Let `stop` end the scope of this turn."""
        conversation_id = turn.lease.conversation
        self._scopes[conversation_id] = (turn.upto_seq, scope)
        self._interrupt(conversation_id)
        try:
            yield
        finally:
            del self._scopes[conversation_id]
            self._stopped.pop(conversation_id, None)

    def _interrupt(self, conversation_id: int) -> None:
        turn_upto, scope = self._scopes[conversation_id]
        # asyncio refuses to reschedule an expired scope.
        if turn_upto <= self._stopped.get(conversation_id, 0) and not scope.expired():
            scope.reschedule(asyncio.get_running_loop().time())
