"""The records of one conversation for its context engine: `agent.ports.Archive` on the database.

Engines run in threads and may block; each question is asked on the event loop and waited for.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from agent.nodes import Node
from gateway.errors import StorageError
from gateway.indexing import Indexer
from gateway.searching import CATCH_UP_S
from gateway.storage import nodes, search, transcript
from gateway.storage.engine import Database
from gateway.storage.search import Only
from gateway.storage.transcript import END

P = ParamSpec("P")
T = TypeVar("T")

LIMIT_S = 30.0
"""Longest wait for one answer; a reader takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Everything that is on record about one conversation, and about no other."""

    database: Database
    conversation: int
    loop: asyncio.AbstractEventLoop
    turn_begins_at: int = END

    def bodies(self, first_seq: int, last_seq: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return stored messages of a range in order."""
        return self._read(
            transcript.load_bodies, self.conversation, first_seq, last_seq, limit=limit
        )

    def nodes(self) -> Sequence[Node]:
        """Return every node."""
        return self._read(nodes.of_conversation, self.conversation)

    def find(self, words: str, limit: int, before_seq: int) -> Sequence[int]:
        """Return the seqs of messages that the search finds, best first."""
        only = Only(before=(self.conversation, before_seq))
        return self._wait(self._found(words, limit, only))

    async def _found(self, words: str, limit: int, only: Only) -> list[int]:
        """Search, once what was said last is in the index, if that does not take long."""
        with suppress(TimeoutError, StorageError):
            async with asyncio.timeout(CATCH_UP_S):
                await Indexer(self.database).catch_up([self.conversation])
        found = await self.database.search(
            search.find, [self.conversation], words, limit=limit, only=only
        )
        return [match.seq for match in found]

    def output(self, output_id: str) -> str | None:
        """Return a stored tool output."""
        return self._read(transcript.read_blob, self.conversation, output_id)

    def _read(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._wait(self.database.read(fn, *args, **kwargs))

    def _wait(self, reading: Coroutine[Any, Any, T]) -> T:
        if _is_in(self.loop):
            reading.close()
            raise RuntimeError("the archive blocks: it is not for the event loop's own thread")
        return asyncio.run_coroutine_threadsafe(reading, self.loop).result(LIMIT_S)


def _is_in(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the calling thread runs this loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
