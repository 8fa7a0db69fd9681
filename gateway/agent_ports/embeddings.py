"""Vectors of messages and questions, from a provider that has OpenAI's `/embeddings`.

Never on the path of an answer: what the search index has taken is embedded behind it. A question is
embedded while its words are looked for; where that takes too long, or fails, the words decide
alone. Each request is booked as what it costs.

Source: https://platform.openai.com/docs/api-reference/embeddings/create (at most 8,192 tokens of a
text, 300,000 tokens of a request).
"""

import asyncio
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence

import orjson
import structlog
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from agent.errors import BadRequest, ContextOverflow, ModelError, ModelRefused, ModelUnreachable
from agent.models.base import can_be_key
from agent.models.factory import resolve_provider
from agent.models.openai.client import base_url_of, openai_errors
from agent.models.openai.transport import JsonServer
from agent.ports import ModelCall
from agent.usage import Usage
from gateway.errors import SettingsError, StorageError
from gateway.settings.loading import redactor_of
from gateway.settings.tree import Settings
from gateway.storage.database import Database
from gateway.storage.reports import health, ledger
from gateway.storage.search import index, vectors
from gateway.storage.search.query import SearchLimits

log = structlog.get_logger()

POLL_S = 300.0
"""How long an indexed message stays without a vector at most, and a provider alone that fails."""
QUESTION_S = 2.0
"""How long a search waits for the vector of its question."""
WEIGHT = 0.1
"""What a standard deviation of nearness is worth, in parts of the words' best score."""
TEXT_BYTES = 8_000
"""Of a text; no tokenizer makes more than a token of a byte, so it has at most 8,192."""
PRICES = {"text-embedding-3-small": 0.02, "text-embedding-3-large": 0.13}
"""US dollars for a million tokens. Source: https://openai.com/api/pricing"""
TOP = 127
"""The largest number of a vector as it is kept: eight bits, of which the length is left out."""
SPEAK_OPENAI = frozenset({"openai", "openrouter", "nous"})


class _Vector(BaseModel):
    index: int
    embedding: list[FiniteFloat] = Field(min_length=1)


class _Usage(BaseModel):
    prompt_tokens: int = 0


class _Answer(BaseModel):
    data: list[_Vector]
    usage: _Usage = _Usage()


class Embedder:
    """Keeps vectors up with the search index, and compares them with questions."""

    def __init__(self, database: Database, settings: Settings) -> None:
        """Prepare the client; nothing is asked yet.

        Raises:
            SettingsError: There is no server, or the key cannot be used.
        """
        self._database = database
        self._chosen = chosen = settings.search
        self._redactor = redactor_of(settings)
        base_url, self._key = server_of(settings)
        self._server = JsonServer(base_url, self._key, 30.0)
        self._space = f"{base_url} {chosen.model} {chosen.dimensions or ''}".rstrip()

    async def run(self, replica_id: Callable[[], int]) -> None:
        """Make what is missing until cancelled, where this is the oldest replica.

        Args:
            replica_id: Tells which one this is now.
        """
        try:
            while True:
                await self._make_all_once(replica_id())
                await asyncio.sleep(POLL_S)
        finally:
            await self.close()

    async def _make_all_once(self, replica_id: int) -> None:
        try:
            if await self._database.read(health.oldest_replica) == replica_id:
                await self.make_all()
        except (StorageError, ModelError) as exc:
            log.warning("embeddings_not_made", error=str(exc))
        except Exception:
            log.exception("embedding_failed")

    async def close(self) -> None:
        """Give back the connections."""
        await self._server.close()

    async def make_all(self) -> int:
        """Make what is missing now; returns how many messages were embedded.

        Raises:
            ModelError: The provider cannot be asked now.
        """
        made, before = 0, (index.END, index.END)
        while found := await self._database.read(vectors.lacking, self._space, before):
            conversation, texts = found
            bodies = await self._vectors(texts, conversation)
            await self._database.write(vectors.enter, conversation, self._space, bodies)
            made, before = made + len(texts), (conversation, min(texts))
        return made

    async def _vectors(self, texts: Mapping[int, str], conversation: int) -> dict[int, bytes]:
        """Return vectors of texts by seq, an empty one of a text that the provider rejects."""
        try:
            return dict(zip(texts, await self._asked([*texts.values()], conversation), strict=True))
        except (BadRequest, ContextOverflow, ModelRefused) as exc:
            if len(texts) == 1:
                log.warning("text_not_embedded", conversation=conversation, error=str(exc))
                return dict.fromkeys(texts, b"")
        found: dict[int, bytes] = {}
        for seq, text in texts.items():
            found |= await self._vectors({seq: text}, conversation)
        return found

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
        found = await self._database.read(vectors.nearness, conversations, asked, only, self._space)
        return {key: WEIGHT * share for key, share in found.items()}

    async def _asked(self, texts: Sequence[str], conversation: int) -> list[bytes]:
        """Return the vectors of texts, by one request, which is booked.

        Raises:
            ModelError: The provider cannot be asked now, or refuses.
        """
        chosen, inputs = self._chosen, [shortened(self._redactor.text(each)) for each in texts]
        asked: dict[str, object] = {"model": chosen.model, "input": inputs}
        if chosen.dimensions is not None:
            asked["dimensions"] = chosen.dimensions
        with openai_errors(self._key):
            said = await self._server.post("/embeddings", orjson.dumps(asked))
        try:
            answer = _Answer.model_validate(said)
        except ValidationError as exc:
            raise ModelUnreachable("OpenAI API: the answer holds no vectors") from exc
        await self._book(answer.usage.prompt_tokens, conversation)
        # By their numbers: a server may answer in another order.
        found = sorted(answer.data, key=lambda each: each.index)
        lengths = {len(each.embedding) for each in found}
        is_length = lengths == {chosen.dimensions} if chosen.dimensions else len(lengths) == 1
        if [each.index for each in found] != [*range(len(texts))] or not is_length:
            raise ModelUnreachable("OpenAI API: other vectors came: check search.dimensions")
        return [_packed(each.embedding) for each in found]

    async def _book(self, tokens: int, conversation: int) -> None:
        """Book a request; a usage that the server does not report is unknown."""
        name, price = self._chosen.model, self._chosen.input_usd
        price = PRICES.get(name) if price is None else price
        cost = tokens * price / 1e6 if tokens and price is not None else None
        usage = Usage(input_tokens=tokens) if tokens else None
        call = ModelCall("embeddings", name, usage, cost, purpose="embedding")
        await self._database.write(ledger.book, conversation, None, "", [call])


def shortened(text: str) -> str:
    """Return a text as it is sent: its head if it is longer than a model reads; never empty."""
    return text.encode()[:TEXT_BYTES].decode(errors="ignore").strip() or "."


def _packed(numbers: Sequence[float]) -> bytes:
    """Return a vector by its direction: eight bits for each number."""
    if not (largest := max(map(abs, numbers))):
        raise ModelUnreachable("OpenAI API: a vector has no direction")
    return array("b", [round(each / largest * TOP) for each in numbers]).tobytes()


def server_of(settings: Settings) -> tuple[str, str]:
    """Return the address and the key, which is empty for a server that needs none.

    Raises:
        SettingsError: There is no server, or the key cannot be used.
    """
    chosen = settings.search
    main = settings.model.model_copy(update={"provider": resolve_provider(settings.model)})
    if chosen.base_url is None and main.provider not in SPEAK_OPENAI:
        raise SettingsError("search.base_url: the server of `model` has no /embeddings, name one")
    # A key goes to no other address than the one that it was given for.
    key = chosen.api_key or (main.api_key if chosen.base_url is None else None)
    text = key.get_secret_value().strip() if key else ""
    if not can_be_key(text):
        raise SettingsError("search.api_key: it holds characters that no key can have")
    return chosen.base_url or base_url_of(main), text
