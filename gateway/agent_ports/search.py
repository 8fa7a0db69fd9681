"""Search for one turn (`agent.ports.Searcher`), and the feeders of its index and vectors.

A search covers what the turn's conversation may see (gateway/storage/search/query.py). The index is
fed from the transcript in the background, so a kill loses nothing; a search indexes the messages
that it needs.

Message vectors come later, from a provider with OpenAI's `/embeddings`. A question is embedded
during the word search; if that fails or takes too long, only the words count. Each request is
booked. Source: https://platform.openai.com/docs/api-reference/embeddings/create (at most 8,192
tokens of a text, 300,000 tokens of a request).
"""

import asyncio
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog
from typing_extensions import override

from agent.errors import (
    BadRequest,
    ContextOverflow,
    ModelError,
    ModelRefused,
    ModelUnreachable,
    ToolError,
)
from agent.messages import Usage, count
from agent.models.catalog import base_url_of
from agent.models.openai.client import openai_errors
from agent.models.openai.transport import JsonServer
from agent.models.wire import field_in, tokens_in
from agent.ports import Findings, Hit, ModelCall, Searcher, SearchQuery
from agent.safety.redaction import Redactor
from agent.settings import ModelSettings
from gateway.errors import StorageError
from gateway.storage.conversation import conversations
from gateway.storage.conversation.transcript import END
from gateway.storage.database import Database
from gateway.storage.reports import health, spending
from gateway.storage.search import index
from gateway.storage.search import query as search
from gateway.storage.search.index import VERSION, Unindexed
from gateway.storage.search.query import Scope, SearchLimits

log = structlog.get_logger()

FEED_EVERY_S = 5.0
"""Pause between two runs of the indexer, in seconds."""
AT_ONCE = 50
"""Conversations per lookup."""
CATCH_UP_S = 2.0
"""Seconds that a search waits for the index to catch up."""
EMBED_EVERY_S = 300.0
"""Pause between two runs of the embedder, also after a provider's failure, in seconds."""
QUESTION_S = 2.0
"""Seconds that a search waits for the vector of its question."""
TEXT_BYTES = 8_000
"""Longest embedded text; a byte is at most one token, so it stays below 8,192 tokens."""
PRICES = {"text-embedding-3-small": 0.02, "text-embedding-3-large": 0.13}
"""US dollars for a million tokens. Source: https://openai.com/api/pricing"""
SHORTENED, DIMENSIONS = "text-embedding-3-", 256
"""Prefix of models with shortenable vectors, and their length; each number is stored in a byte."""


class Indexer:
    """Keeps the search index up to date with the transcripts."""

    def __init__(self, database: Database, meanings: "Embedder | None" = None) -> None:
        """Without `meanings` searches compare words only."""
        self.meanings = meanings
        self._database = database
        self._broken: set[int] = set()

    async def feed_all(self) -> int:
        """Index all missing messages; return the number seen."""
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
        """Index the missing messages of conversations; return the number seen.

        Each step is a transaction; a conversation that cannot be indexed delays no other.
        """
        fed = 0
        for each in conversation_ids:
            while each not in self._broken and (
                found := await self._database.read(index.waiting, each)
            ):
                fed += await self._enter(found)
        return fed

    async def _enter(self, found: Unindexed) -> int:
        """Index one step; return its number of messages, 0 if another feeder was first."""
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
    """Searches the messages visible to a turn, before the turn's first message."""

    database: Database
    indexer: Indexer
    conversation: int
    before_seq: int = END

    @override
    async def search(self, query: SearchQuery) -> Findings:
        """Search; raise `ToolError` for an invalid time."""
        before = (self.conversation, self.before_seq)
        only = SearchLimits(query.role, _seconds(query.since), _seconds(query.until), before=before)
        scope = await self.database.read(search.searched_by, self.conversation)
        missing = await self._catch_up(scope)
        words = self.database.search(search.gather, scope.conversations, query.query, only)
        nearness: Mapping[tuple[int, int], float] = {}
        if (meanings := self.indexer.meanings) is None:
            gathered = await words
        else:
            near = meanings.nearness(scope.conversations, query.query, only, self.conversation)
            gathered, nearness = await asyncio.gather(words, near)
        matches = await asyncio.to_thread(search.best, gathered, query.limit, nearness)
        texts = await self.database.read(search.with_neighbours, matches, query.neighbours)
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
        """Index missing messages; return the number still missing."""
        if not await self.database.read(conversations.count_unsearched, scope.conversations):
            return 0
        with suppress(TimeoutError, StorageError):
            async with asyncio.timeout(CATCH_UP_S):
                await self.indexer.catch_up(scope.conversations)
        return await self.database.read(conversations.count_unsearched, scope.conversations)


def _seconds(time: str | None) -> float | None:
    """Parse a time into seconds since the epoch; without a zone it is UTC."""
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


class Embedder:
    """Keeps vectors up to date with the search index and compares them with questions."""

    def __init__(self, database: Database, model: ModelSettings, redactor: Redactor) -> None:
        self._database = database
        self._model, self._name = model, model.name or ""
        self._redactor = redactor
        self._base_url = base_url_of(model)
        is_short = self._name.rpartition("/")[2].startswith(SHORTENED)
        self._dimensions = DIMENSIONS if is_short else None
        self._space = f"{self._base_url} {self._name} {self._dimensions or ''}".rstrip()

    async def make_all_if_oldest(self, replica_id: Callable[[], int]) -> None:
        """Make the missing vectors if this is the oldest replica; log failures."""
        if await self._database.read(health.oldest_replica) == replica_id():
            try:
                await self.make_all()
            except ModelError as exc:
                log.warning("embeddings_not_made", error=str(exc))

    async def make_all(self) -> int:
        """Make the missing vectors; return their number.

        After a refused request, send the texts one by one to find the refused one: it gets an empty
        vector and is not sent again.

        Raises:
            ModelError: The provider is unavailable.
        """
        made, most, before = 0, search.TEXTS, (index.END, index.END)
        while found := await self._database.read(search.lacking, self._space, before, most):
            conversation, texts = found
            try:
                bodies = await self._asked([*texts.values()], conversation)
            except (BadRequest, ContextOverflow, ModelRefused) as exc:
                if len(texts) > 1:
                    most = 1
                    continue
                log.warning("text_not_embedded", conversation=conversation, error=str(exc))
                bodies, most = [b""], search.TEXTS
            by_seq = dict(zip(texts, bodies, strict=True))
            await self._database.write(search.enter_vectors, conversation, self._space, by_seq)
            made, before = made + len(texts), (conversation, min(texts))
        return made

    async def nearness(
        self, conversations: Collection[int], question: str, only: SearchLimits, conversation: int
    ) -> dict[tuple[int, int], float]:
        """Return the similarity of messages to a question; {} without a vector for it."""
        try:
            async with asyncio.timeout(QUESTION_S):
                (asked,) = await self._asked([question], conversation)
        except (ModelError, StorageError, TimeoutError) as exc:
            log.warning("question_not_embedded", error=str(exc) or type(exc).__name__)
            return {}
        # In a thread: comparing 100,000 vectors would block the event loop.
        return await self._database.read(search.nearness, conversations, asked, only, self._space)

    async def _asked(self, texts: Sequence[str], conversation: int) -> list[bytes]:
        """Return the vectors of texts from one booked request."""
        inputs = [shortened(self._redactor.text(each)) for each in texts]
        asked: dict[str, object] = {"model": self._name, "input": inputs}
        if self._dimensions is not None:
            asked["dimensions"] = self._dimensions
        # Read each time, since a reload may replace it.
        key = self._model.api_key.get_secret_value().strip() if self._model.api_key else ""
        # Requests are too rare to keep a connection.
        server = JsonServer(self._base_url, lambda: key, 30.0)
        try:
            with openai_errors(key):
                said = await server.ask("/embeddings", orjson.dumps(asked))
        finally:
            await server.close()
        tokens = tokens_in(field_in(said, "usage"), "prompt_tokens")
        told = self._model.facts.input_usd
        price = PRICES.get(self._name) if told is None else told
        cost = tokens * price / 1e6 if tokens and price is not None else None
        usage = Usage(input_tokens=tokens) if tokens else None
        call = ModelCall("embeddings", self._name, usage, cost, purpose="embedding")
        await self._database.write(spending.book, conversation, None, "", [call])
        return _vectors_in(said, len(texts), self._dimensions)


def shortened(text: str) -> str:
    """Cut a text to the length that a model accepts; never empty."""
    return text.encode()[:TEXT_BYTES].decode(errors="ignore").strip() or "."


def _vectors_in(said: Any, count: int, length: int | None) -> list[bytes]:
    """Return the vectors of a response in the order of the texts."""
    try:
        found = {each["index"]: each["embedding"] for each in said["data"]}
        bodies = [_packed(found[n]) for n in range(count)]
    except (LookupError, TypeError, ValueError, ArithmeticError) as exc:
        raise ModelUnreachable("OpenAI API: the answer lacks vectors") from exc
    if {*map(len, bodies)} != {length or len(bodies[0])}:
        raise ModelUnreachable("OpenAI API: vectors of another length came")
    return bodies


def _packed(numbers: Sequence[float]) -> bytes:
    """Normalize a vector and pack it into one byte per number; zeros stay zeros."""
    largest = max(map(abs, numbers))
    return array("b", [round(each / largest * 127) for each in numbers]).tobytes()
