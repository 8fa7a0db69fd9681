"""Vectors of messages and questions, from a provider that has OpenAI's `/embeddings`.

Never on the path of an answer: what the search index has taken is embedded behind it. A question is
embedded while its words are looked for; where that takes too long, or fails, the words decide
alone. Each request is booked as what it costs.

Source: https://platform.openai.com/docs/api-reference/embeddings/create (at most 8,192 tokens of a
text, 300,000 tokens of a request).
"""

import asyncio
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Any

import orjson
import structlog

from agent.errors import BadRequest, ContextOverflow, ModelError, ModelRefused, ModelUnreachable
from agent.models.openai.client import base_url_of, openai_errors
from agent.models.openai.transport import JsonServer
from agent.models.wire import field_in, tokens_in
from agent.ports import ModelCall
from agent.safety.redaction import Redactor
from agent.settings import ModelSettings
from agent.usage import Usage
from gateway.errors import StorageError
from gateway.storage.database import Database
from gateway.storage.reports import health, spending
from gateway.storage.search import index, query
from gateway.storage.search.query import SearchLimits

log = structlog.get_logger()

POLL_S = 300.0
"""How long an indexed message stays without a vector at most, and a provider alone that fails."""
QUESTION_S = 2.0
"""How long a search waits for the vector of its question."""
TEXT_BYTES = 8_000
"""Of a text; no tokenizer makes more than a token of a byte, so it has at most 8,192."""
PRICES = {"text-embedding-3-small": 0.02, "text-embedding-3-large": 0.13}
"""US dollars for a million tokens. Source: https://openai.com/api/pricing"""
SHORTENED, DIMENSIONS = "text-embedding-3-", 256
"""Models whose vectors can be shortened, and to how many numbers: a byte each is stored."""
SPEAK_OPENAI = frozenset({"openai", "openrouter", "nous"})


class Embedder:
    """Keeps vectors up with the search index, and compares them with questions."""

    def __init__(self, database: Database, model: ModelSettings, redactor: Redactor) -> None:
        """Ask nothing yet; `redactor` masks what must not leave."""
        self._database = database
        self._model, self._name = model, model.name or ""
        self._redactor = redactor
        self._base_url = base_url_of(model)
        is_short = self._name.rpartition("/")[2].startswith(SHORTENED)
        self._dimensions = DIMENSIONS if is_short else None
        self._space = f"{self._base_url} {self._name} {self._dimensions or ''}".rstrip()

    async def make_all_if_oldest(self, replica_id: Callable[[], int]) -> None:
        """Make what is missing if this is the oldest replica; a provider that fails is logged."""
        if await self._database.read(health.oldest_replica) == replica_id():
            try:
                await self.make_all()
            except ModelError as exc:
                log.warning("embeddings_not_made", error=str(exc))

    async def make_all(self) -> int:
        """Make what is missing now; returns how many messages were embedded.

        After a refused request the texts go one by one, until the refused one is found: it gets an
        empty vector and is not sent again.

        Raises:
            ModelError: The provider cannot be asked now.
        """
        made, most, before = 0, query.TEXTS, (index.END, index.END)
        while found := await self._database.read(query.lacking, self._space, before, most):
            conversation, texts = found
            try:
                bodies = await self._asked([*texts.values()], conversation)
            except (BadRequest, ContextOverflow, ModelRefused) as exc:
                if len(texts) > 1:
                    most = 1
                    continue
                log.warning("text_not_embedded", conversation=conversation, error=str(exc))
                bodies, most = [b""], query.TEXTS
            by_seq = dict(zip(texts, bodies, strict=True))
            await self._database.write(query.enter_vectors, conversation, self._space, by_seq)
            made, before = made + len(texts), (conversation, min(texts))
        return made

    async def nearness(
        self, conversations: Collection[int], question: str, only: SearchLimits, conversation: int
    ) -> dict[tuple[int, int], float]:
        """Return how near messages that may be found are to a question; {} without its vector.

        Args:
            conversation: The one that asks.
        """
        try:
            async with asyncio.timeout(QUESTION_S):
                (asked,) = await self._asked([question], conversation)
        except (ModelError, StorageError, TimeoutError) as exc:
            log.warning("question_not_embedded", error=str(exc) or type(exc).__name__)
            return {}
        # On a thread: to compare 100,000 vectors takes too long for the event loop.
        return await self._database.read(query.nearness, conversations, asked, only, self._space)

    async def _asked(self, texts: Sequence[str], conversation: int) -> list[bytes]:
        """Return the vectors of texts, by one request, which is booked.

        Raises:
            ModelError: The provider cannot be asked now, or refuses.
        """
        inputs = [shortened(self._redactor.text(each)) for each in texts]
        asked: dict[str, object] = {"model": self._name, "input": inputs}
        if self._dimensions is not None:
            asked["dimensions"] = self._dimensions
        # As it is now: what it refers to may have been read again.
        key = self._model.api_key.get_secret_value().strip() if self._model.api_key else ""
        # Requests are too far apart to keep a connection.
        server = JsonServer(self._base_url, lambda: key, 30.0)
        try:
            with openai_errors(key):
                said = await server.post("/embeddings", orjson.dumps(asked))
        finally:
            await server.close()
        # A usage that the server does not report is unknown.
        tokens = tokens_in(field_in(said, "usage"), "prompt_tokens")
        told = self._model.facts.input_usd
        price = PRICES.get(self._name) if told is None else told
        cost = tokens * price / 1e6 if tokens and price is not None else None
        usage = Usage(input_tokens=tokens) if tokens else None
        call = ModelCall("embeddings", self._name, usage, cost, purpose="embedding")
        await self._database.write(spending.book, conversation, None, "", [call])
        return _vectors_in(said, len(texts), self._dimensions)


def shortened(text: str) -> str:
    """Return a text as it is sent: its head if it is longer than a model reads; never empty."""
    return text.encode()[:TEXT_BYTES].decode(errors="ignore").strip() or "."


def _vectors_in(said: Any, count: int, length: int | None) -> list[bytes]:
    """Return the vectors of an answer, in the order of the texts: it may have another."""
    try:
        found = {each["index"]: each["embedding"] for each in said["data"]}
        bodies = [_packed(found[n]) for n in range(count)]
    except (LookupError, TypeError, ValueError, ArithmeticError) as exc:
        raise ModelUnreachable("OpenAI API: the answer lacks vectors") from exc
    if {*map(len, bodies)} != {length or len(bodies[0])}:
        raise ModelUnreachable("OpenAI API: vectors of another length came")
    return bodies


def _packed(numbers: Sequence[float]) -> bytes:
    """Return a vector by its direction, which zeros have none of: eight bits for each number."""
    largest = max(map(abs, numbers))
    return array("b", [round(each / largest * 127) for each in numbers]).tobytes()
