"""Searches for one turn, within what its conversation may see (agent.tools.services.Searcher).

That is the conversation itself, from its first message on, and in a direct chat the other direct
chats of the same sender.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from typing_extensions import override

from agent.errors import ToolError
from agent.tools.services import Findings, Hit, Searcher, SearchQuery
from gateway.errors import StorageError
from gateway.indexing import Indexer
from gateway.storage import search, searchindex, searchscope
from gateway.storage.engine import Database
from gateway.storage.search import Only
from gateway.storage.searchscope import Scope
from gateway.storage.transcript import END

CATCH_UP_S = 2.0
"""How long a search waits until what was said last is in the index."""


@dataclass(frozen=True, slots=True)
class ConversationSearcher(Searcher):
    """Searches what the conversation of a turn may see, but for the turn itself.

    Attributes:
        before_seq: The first message of the turn: it and what follows is in view.
    """

    database: Database
    indexer: Indexer
    conversation: int
    before_seq: int = END

    @override
    async def search(self, query: SearchQuery) -> Findings:
        """Return what was found.

        Raises:
            ToolError: A time is none.
        """
        before = (self.conversation, self.before_seq)
        only = Only(query.role, _seconds(query.since), _seconds(query.until), before=before)
        scope = await self.database.read(searchscope.of, self.conversation)
        missing = await self._catch_up(scope)
        gathered = await self.database.search(search.gather, scope.conversations, query.text, only)
        matches = await asyncio.to_thread(search.best, gathered, query.limit)
        rows = await self.database.read(searchscope.around, matches, query.neighbours)
        texts = await asyncio.to_thread(searchscope.messages, rows)
        hits = (
            Hit(
                conversation=match.conversation,
                title=scope.titles[match.conversation],
                here=match.conversation == self.conversation,
                seq=match.seq,
                messages=tuple(
                    past for past in texts[n] if past.seq <= only.ends(match.conversation)
                ),
                holds=match.holds,
            )
            for n, match in enumerate(matches)
            if n in texts
        )
        return Findings(tuple(hits), _in_words(scope, missing))

    async def _catch_up(self, scope: Scope) -> int:
        """Feed what the index lacks; returns how many messages it lacks still: it may be many."""
        if not await self.database.read(searchindex.unindexed, scope.conversations):
            return 0
        with suppress(TimeoutError, StorageError):
            async with asyncio.timeout(CATCH_UP_S):
                await self.indexer.catch_up(scope.conversations)
        return await self.database.read(searchindex.unindexed, scope.conversations)


def _seconds(time: str | None) -> float | None:
    """Return a time in seconds since the epoch; one without a zone is in UTC."""
    if time is None:
        return None
    try:
        at = datetime.fromisoformat(time)
    except ValueError as exc:
        raise ToolError(f"{time!r} is no ISO 8601 time, as in 2026-03-01T08:00:00Z") from exc
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _in_words(scope: Scope, missing: int) -> str:
    others = len(scope.titles) - 1
    searched = "this conversation from its first message on, also before /new"
    if others:
        searched += f", and {others} other direct {_plural('chat', others)} of the same sender"
    unseen = ["what other people say to the bot", "the middle of long tool results"]
    unseen.insert(0, "groups" if scope.is_direct else "any other chat")
    if scope.left_out:
        unseen.insert(0, f"{scope.left_out} older direct {_plural('chat', scope.left_out)}")
    if missing:
        unseen.append(f"the newest {missing} {_plural('message', missing)}, not indexed yet")
    return f"Searched: {searched}. Not searched: {', '.join(unseen)}."


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
