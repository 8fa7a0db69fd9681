"""Makes the vectors of messages in the background, and those of questions, where that is set up.

Never on the path of an answer: what the search index has taken is embedded behind it, one claim at
a time, and a claim that was not fulfilled ends by itself (gateway/storage/search/vectors.py). A
question is embedded while its words are looked for; where that takes too long, or fails, the words
decide alone. Each request is booked as what it costs.
"""

import asyncio
from collections.abc import Mapping, Sequence

import structlog
from typing_extensions import override

from agent.errors import BadRequest, ContextOverflow, ModelError, ModelRefused, RateLimited
from agent.models.base import can_be_key
from agent.models.factory import resolve_provider
from agent.models.openai.client import base_url_of
from agent.models.openai.embeddings import EmbeddingModel
from agent.ports import ModelCall
from agent.safety.redaction import Redactor
from gateway.agent_ports.search import Meanings
from gateway.errors import SettingsError, StorageError
from gateway.settings.loading import redactor_of
from gateway.settings.tree import Settings
from gateway.storage.database import Database
from gateway.storage.reports import ledger
from gateway.storage.search import vectors

log = structlog.get_logger()

POLL_S = 30.0
"""How long an indexed message stays without a vector at most."""
REST_S = 60.0
"""How long the provider is left alone after a failure, unless it says longer."""
QUESTION_S = 2.0
"""How long a search waits for the vector of its question."""
SPEAK_OPENAI = frozenset({"openai", "openrouter", "nous"})


class Embedder(Meanings):
    """Keeps vectors up with the search index."""

    def __init__(
        self, database: Database, model: EmbeddingModel, redactor: Redactor, weight: float
    ) -> None:
        """Make nothing yet.

        Args:
            redactor: Takes configured secrets out of what the provider gets.
            weight: See `Meanings`.
        """
        self.weight = weight
        self._database = database
        self._model = model
        self._redactor = redactor

    @override
    async def run(self) -> None:
        try:
            while True:
                rest_s = await self._step()
                await asyncio.sleep(rest_s)
        finally:
            await self.close()

    async def close(self) -> None:
        """Give back the connections."""
        await self._model.close()

    async def _step(self) -> float:
        """Make all that is missing; returns how long to rest."""
        try:
            await self.make_all()
        except StorageError as exc:
            log.warning("embeddings_not_stored", error=str(exc))
        except ModelError as exc:
            log.warning("embeddings_not_made", error=str(exc))
            asked = exc.retry_after_s if isinstance(exc, RateLimited) else None
            return max(REST_S, asked or 0.0)
        except Exception:
            log.exception("embedding_failed")
            return REST_S
        return POLL_S

    async def make_all(self) -> int:
        """Make what is missing now; returns how many messages were looked at.

        Raises:
            ModelError: The provider cannot be asked now.
        """
        made = 0
        while claimed := await self._database.write(vectors.claim, self._model.space):
            made += len(claimed.texts)
            try:
                bodies = await self._vectors(claimed.texts, claimed.conversation)
            except ModelError:
                await self._database.write(vectors.give_back, claimed)
                raise
            await self._database.write(vectors.enter, claimed, bodies)
        return made

    async def _vectors(self, texts: Mapping[int, str], conversation: int) -> dict[int, bytes]:
        """Return vectors of texts by seq; a text that the provider rejects has none."""
        if not texts:
            return {}
        try:
            return dict(zip(texts, await self._asked([*texts.values()], conversation), strict=True))
        except (BadRequest, ContextOverflow, ModelRefused) as exc:
            if len(texts) == 1:
                log.warning("text_not_embedded", conversation=conversation, error=str(exc))
                return {}
        found: dict[int, bytes] = {}
        for seq, text in texts.items():
            found |= await self._vectors({seq: text}, conversation)
        return found

    @override
    async def question(self, text: str, conversation: int) -> bytes | None:
        try:
            async with asyncio.timeout(QUESTION_S):
                (found,) = await self._asked([text], conversation)
        except (ModelError, StorageError, TimeoutError) as exc:
            log.warning("question_not_embedded", error=str(exc) or type(exc).__name__)
            return None
        return found

    async def _asked(self, texts: Sequence[str], conversation: int) -> tuple[bytes, ...]:
        """Make one request, which is booked."""
        done = await self._model.embed([self._redactor.text(each) for each in texts])
        call = ModelCall(
            provider=self._model.provider,
            model=self._model.name,
            usage=done.usage,
            cost_usd=self._model.cost_usd(done.usage),
            purpose="embedding",
        )
        await self._database.write(ledger.book, conversation, None, "", [call])
        return done.vectors


def build_embedder(settings: Settings, database: Database) -> Embedder:
    """Return who makes vectors, by the server and the key that the settings name.

    Raises:
        SettingsError: As for `embedding_model`.
    """
    model = embedding_model(settings)
    return Embedder(database, model, redactor_of(settings), settings.search.weight)


def embedding_model(settings: Settings) -> EmbeddingModel:
    """Return the model for the server and the key in the settings.

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
    return EmbeddingModel(
        chosen.base_url or base_url_of(main),
        text,
        chosen.model,
        dimensions=chosen.dimensions,
        input_usd=chosen.input_usd,
    )
