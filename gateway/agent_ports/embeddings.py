"""Makes the vectors of messages in the background, and compares them with questions.

Never on the path of an answer: what the search index has taken is embedded behind it. A question is
embedded while its words are looked for; where that takes too long, or fails, the words decide
alone. Each request is booked as what it costs.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import structlog

from agent.errors import BadRequest, ContextOverflow, ModelError, ModelRefused, RateLimited
from agent.models.base import can_be_key
from agent.models.factory import resolve_provider
from agent.models.openai.client import base_url_of
from agent.models.openai.embeddings import EmbeddingModel
from agent.safety.redaction import Redactor
from gateway.errors import SettingsError, StorageError
from gateway.settings.loading import redactor_of
from gateway.settings.tree import Settings
from gateway.storage.database import Database
from gateway.storage.reports import ledger
from gateway.storage.search import vectors
from gateway.storage.search.query import SearchLimits

log = structlog.get_logger()

POLL_S = 300.0
"""How long an indexed message stays without a vector at most."""
REST_S = 60.0
"""How long the provider is left alone after a failure, unless it says longer."""
QUESTION_S = 2.0
"""How long a search waits for the vector of its question."""
SPEAK_OPENAI = frozenset({"openai", "openrouter", "nous"})


class Embedder:
    """Keeps vectors up with the search index.

    Attributes:
        weight: What a standard deviation of nearness is worth, in parts of the words' best score.
    """

    def __init__(
        self, database: Database, model: EmbeddingModel, redactor: Redactor, weight: float
    ) -> None:
        """Make nothing yet; `redactor` takes configured secrets out of what the provider gets."""
        self.weight = weight
        self._database = database
        self._model = model
        self._redactor = redactor

    async def run(self) -> None:
        """Make what is missing until cancelled."""
        try:
            while True:
                rest_s = await self._step()
                await asyncio.sleep(rest_s)
        finally:
            await self._model.close()

    async def _step(self) -> float:
        """Make all that is missing; returns how long to rest."""
        try:
            await self.make_all()
        except (StorageError, ModelError) as exc:
            log.warning("embeddings_not_made", error=str(exc))
            return max(REST_S, (exc.retry_after_s or 0.0) if isinstance(exc, RateLimited) else 0.0)
        except Exception:
            log.exception("embedding_failed")
            return REST_S
        return POLL_S

    async def make_all(self) -> int:
        """Make what is missing now; returns how many messages were looked at.

        Raises:
            ModelError: The provider cannot be asked now.
        """
        made, after = 0, (0, 0)
        space, search = self._model.space, self._database.search
        while found := await search(vectors.lacking, space, after):
            conversation, texts = found
            said = {seq: text for seq, text in texts.items() if text.strip()}
            bodies = dict.fromkeys(texts, b"") | await self._vectors(said, conversation)
            await self._database.write(vectors.enter, conversation, space, bodies)
            made, after = made + len(said), (conversation, max(texts))
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
        known = (self._model.space, len(asked))
        found = {
            each: await self._database.search(vectors.directions, each, only.ends(each), *known)
            for each in conversations
        }
        near = await asyncio.to_thread(vectors.nearness, found, asked)
        return {
            (each, row.seq): self.weight * near[each, row.seq]
            for each, rows in (found.items() if near else ())
            for row in rows
            if only.admits(row.seq, row.role, row.at)
        }

    async def _asked(self, texts: Sequence[str], conversation: int) -> list[bytes]:
        """Make one request, which is booked."""
        made, call = await self._model.embed([self._redactor.text(each) for each in texts])
        await self._database.write(ledger.book, conversation, None, "", [call])
        return made


def build_embedder(settings: Settings, database: Database) -> Embedder | None:
    """Return who makes vectors; None where only words are compared.

    Raises:
        SettingsError: As for `embedding_model`.
    """
    if (model := embedding_model(settings)) is None:
        return None
    return Embedder(database, model, redactor_of(settings), settings.search.weight)


def embedding_model(settings: Settings) -> EmbeddingModel | None:
    """Return the model for the server and the key in the settings; None where it is switched off.

    Raises:
        SettingsError: There is no server, or the key cannot be used.
    """
    chosen = settings.search
    if chosen.embeddings == "off":
        return None
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
