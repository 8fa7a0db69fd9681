"""`/stop` as it reaches a running turn at once: the rows alone tell it at its next write."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.storage.turns import Turn


class Stops:
    """The turns of this process that can be stopped at once, by conversation."""

    def __init__(self) -> None:
        self._scopes: dict[int, tuple[int, asyncio.Timeout]] = {}
        self._stopped: dict[int, int] = {}

    def stop(self, conversation_id: int, upto_seq: int) -> None:
        """Interrupt the conversation's turn if it answers nothing newer than `upto_seq`.

        A turn that is about to begin is interrupted when it does.
        """
        self._stopped[conversation_id] = upto_seq
        if conversation_id in self._scopes:
            self._interrupt(conversation_id)

    def forget(self, conversation_id: int) -> None:
        """Drop what was said before the next turn is frozen: the rows tell about that."""
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
        if turn_upto <= self._stopped.get(conversation_id, 0) and not scope.expired():
            scope.reschedule(asyncio.get_running_loop().time())
