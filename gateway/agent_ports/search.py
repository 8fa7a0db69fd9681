"""Searches for one turn (`agent.ports.Searcher`), and feeds the index that they read.

A search is limited to what the turn's conversation may see (gateway/storage/search/query.py). The
index is fed in the background from what turns have committed: what is missing is read from the
transcript, so a kill costs nothing. Its steps are short (gateway/storage/search/index.py). A search
does not wait for that: it feeds what it needs itself.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from typing_extensions import override

from agent.errors import ToolError
from agent.messages import count
from agent.ports import Findings, Hit, Searcher, SearchQuery
from gateway.agent_ports.embeddings import Embedder
from gateway.errors import StorageError
from gateway.storage.conversation import conversations
from gateway.storage.conversation.transcript import END
from gateway.storage.database import Database
from gateway.storage.search import index
from gateway.storage.search import query as search
from gateway.storage.search.index import VERSION, Unindexed
from gateway.storage.search.query import Scope, SearchLimits

log = structlog.get_logger()

FEED_EVERY_S = 5.0
"""How long a message stays out of the index, if nobody searches meanwhile."""
AT_ONCE = 50
"""Conversations that are looked up together."""
CATCH_UP_S = 2.0
"""How long a search waits until what was said last is in the index."""


class Indexer:
    """Keeps the search index up with the transcripts."""

    def __init__(self, database: Database, meanings: Embedder | None = None) -> None:
        """Feed nothing yet.

        Args:
            meanings: None to compare words only.
        """
        self.meanings = meanings
        self._database = database
        self._broken: set[int] = set()

    async def feed_all(self) -> int:
        """Feed what is missing; returns the number of messages seen.

        An index of another version is cleared first.
        """
        if not await self._database.read(index.is_current) and await self._database.write(
            index.clear
        ):
            log.info("search_index_cleared", version=VERSION)
        self._broken.clear()
        fed = 0
        while here := await self._database.read(conversations.unsearched, AT_ONCE, self._broken):
            fed += await self.catch_up(here)
        return fed

    async def catch_up(self, conversation_ids: Sequence[int]) -> int:
        """Feed what conversations lack, a step a transaction; returns how many messages were seen.

        One that cannot be fed holds up no other.
        """
        fed = 0
        for each in conversation_ids:
            while each not in self._broken and (
                found := await self._database.read(index.waiting, each)
            ):
                fed += await self._enter(found)
        return fed

    async def _enter(self, found: Unindexed) -> int:
        """Enter the messages of a step; returns how many, none where another feeder was first."""
        try:
            batch = await asyncio.to_thread(index.prepared, found)
            entered = await self._database.write(index.feed, batch)
        except StorageError:
            raise
        except Exception:
            log.exception("conversation_not_indexed", conversation=found.conversation)
            self._broken.add(found.conversation)
            return 0
        return len(found.rows) if entered else 0


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
        only = SearchLimits(query.role, _seconds(query.since), _seconds(query.until), before=before)
        scope = await self.database.read(search.of, self.conversation)
        missing = await self._catch_up(scope)
        gathered, nearness = await asyncio.gather(
            self.database.search(search.gather, scope.conversations, query.query, only),
            self._nearness(scope, query.query, only),
        )
        matches = await asyncio.to_thread(search.best, gathered, query.limit, nearness)
        texts = await self.database.read(search.around, matches, query.neighbours)
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

    async def _nearness(
        self, scope: Scope, text: str, only: SearchLimits
    ) -> Mapping[tuple[int, int], float]:
        """Return how near messages are to what is asked; {} where meanings are not compared."""
        meanings = self.indexer.meanings
        if meanings is None:
            return {}
        return await meanings.nearness(scope.conversations, text, only, self.conversation)

    async def _catch_up(self, scope: Scope) -> int:
        """Feed what the index lacks; returns how many messages it lacks still: it may be many."""
        if not await self.database.read(conversations.count_unsearched, scope.conversations):
            return 0
        with suppress(TimeoutError, StorageError):
            async with asyncio.timeout(CATCH_UP_S):
                await self.indexer.catch_up(scope.conversations)
        return await self.database.read(conversations.count_unsearched, scope.conversations)


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
        searched += f", and {count(others, 'other direct chat')} of the same sender"
    unseen = ["what other people say to the bot", "the middle of long tool results"]
    unseen.insert(0, "groups" if scope.is_direct else "any other chat")
    if scope.left_out:
        unseen.insert(0, count(scope.left_out, "older direct chat"))
    if missing:
        unseen.append(f"the newest {count(missing, 'message')}, not indexed yet")
    return f"Searched: {searched}. Not searched: {', '.join(unseen)}."
