"""Hints within the process about changed rows. Rows are authoritative: a lost hint costs seconds.

Intake, worker, delivery and the file fetcher share these hints instead of knowing each other.
`Stops` ends a running turn on `/stop`, before its next write would fail.
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
    """One kind of hint. Calling it calls all listeners; without listeners it is lost."""

    def __init__(self) -> None:
        self._listeners: list[Callable[P, None]] = []

    def listen(self, listener: Callable[P, None]) -> None:
        """Add a listener."""
        self._listeners.append(listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send the hint."""
        for listener in self._listeners:
            listener(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Wakeups:
    """All hints by name; `app.py` registers the listeners."""

    work: Hint[int] = field(default_factory=Hint)
    """A conversation's inbox changed."""
    ready: Hint[int] = field(default_factory=Hint)
    """A conversation's turn can continue or end without a new message: its files arrived or failed,
    its question is settled, or it was stopped."""
    files: Hint[[]] = field(default_factory=Hint)
    """A message with files came, or one waiting for files was dropped."""
    stop: Hint[int, int] = field(default_factory=Hint)
    """A conversation's turns up to this inbox seq were cancelled."""
    reaction: Hint[MessageRef, Reaction] = field(default_factory=Hint)
    """A message needs a reaction."""
    outbox: Hint[int] = field(default_factory=Hint)
    """A conversation's outbox changed."""
    forgotten: Hint[[]] = field(default_factory=Hint)
    """A conversation was erased: drop its text from memory."""

    def mark(self, turn: Turn, reaction: Reaction) -> None:
        """Request a reaction on all messages of a turn."""
        for ref in turn.refs:
            self.reaction(replace(turn.question, message_ref=ref), reaction)


class Stops:
    """The stoppable turns of this process by conversation."""

    def __init__(self) -> None:
        self._scopes: dict[int, tuple[int, asyncio.Timeout]] = {}
        self._stopped: dict[int, int] = {}

    def stop(self, conversation_id: int, upto_seq: int) -> None:
        """Interrupt a turn that answers nothing newer than `upto_seq`, now or when it starts."""
        self._stopped[conversation_id] = upto_seq
        if conversation_id in self._scopes:
            self._interrupt(conversation_id)

    def running(self) -> Iterable[int]:
        """Return the conversations with running turns."""
        return self._scopes.keys()

    def forget(self, conversation_id: int) -> None:
        """Drop stops from before the next turn, which the rows contain."""
        self._stopped.pop(conversation_id, None)

    @contextmanager
    def covering(self, turn: Turn, scope: asyncio.Timeout) -> Iterator[None]:
        """Let `stop` end this turn's scope."""
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
