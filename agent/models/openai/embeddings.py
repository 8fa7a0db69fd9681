"""Vectors of texts, from a provider that has OpenAI's `/embeddings`.

Source: https://platform.openai.com/docs/api-reference/embeddings/create (at most 8,192 tokens of a
text, 300,000 tokens of a request).
"""

from array import array
from collections.abc import Sequence

import orjson
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from agent.errors import ModelUnreachable
from agent.models.openai.client import openai_errors
from agent.models.openai.transport import JsonServer
from agent.ports import ModelCall
from agent.usage import Usage

TEXT_BYTES = 8_000
"""Of a text; no tokenizer makes more than a token of a byte, so it has at most 8,192."""
PRICES = {"text-embedding-3-small": 0.02, "text-embedding-3-large": 0.13}
"""US dollars for a million tokens. Source: https://openai.com/api/pricing"""
TOP = 127
"""The largest number of a vector as it is kept: eight bits, of which the length is left out."""


class _Vector(BaseModel):
    index: int
    embedding: list[FiniteFloat] = Field(min_length=1)


class _Usage(BaseModel):
    prompt_tokens: int = 0


class _Answer(BaseModel):
    data: list[_Vector]
    usage: _Usage = _Usage()


class EmbeddingModel:
    """A model that turns texts into vectors.

    Attributes:
        space: Names what its vectors can be compared with; another one makes all of them anew.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        name: str,
        *,
        dimensions: int | None = None,
        input_usd: float | None = None,
    ) -> None:
        """Prepare the client.

        Args:
            base_url: Ends in /v1.
            key: Of the account; empty for a server that needs none.
            dimensions: Asked for; None for a model of one length.
            input_usd: US dollars for a million tokens; None for what `PRICES` says.
        """
        self.space = f"{base_url} {name} {dimensions or ''}".rstrip()
        self._name, self._key, self._dimensions = name, key, dimensions
        self._input_usd = PRICES.get(name) if input_usd is None else input_usd
        self._server = JsonServer(base_url, key, 30.0)

    async def embed(self, texts: Sequence[str]) -> tuple[list[bytes], ModelCall]:
        """Return the vectors of the texts of one request, in their order, and what it has cost.

        Raises:
            ModelError: The provider cannot be asked now, or refuses.
        """
        asked: dict[str, object] = {"model": self._name, "input": [*map(shortened, texts)]}
        if self._dimensions is not None:
            asked["dimensions"] = self._dimensions
        with openai_errors(self._key):
            said = await self._server.post("/embeddings", orjson.dumps(asked))
        try:
            answer = _Answer.model_validate(said)
        except ValidationError as exc:
            raise ModelUnreachable("OpenAI API: the answer holds no vectors") from exc
        # By their numbers: a server may answer in another order.
        found = sorted(answer.data, key=lambda each: each.index)
        lengths = {self._dimensions or len(found[0].embedding) for _ in found[:1]}
        if [each.index for each in found] != [*range(len(texts))] or lengths != {
            len(each.embedding) for each in found
        }:
            raise ModelUnreachable("OpenAI API: other vectors came: check search.dimensions")
        return [_packed(each.embedding) for each in found], self._call(answer.usage.prompt_tokens)

    def _call(self, tokens: int) -> ModelCall:
        """Describe a request for the ledger; what the server does not report is unknown."""
        usage = Usage(input_tokens=tokens) if tokens else None
        cost = tokens * self._input_usd / 1e6 if tokens and self._input_usd is not None else None
        return ModelCall("embeddings", self._name, usage, cost, purpose="embedding")

    async def close(self) -> None:
        """Give back the connections."""
        await self._server.close()


def shortened(text: str) -> str:
    """Return a text as it is sent: its head if it is longer than a model reads; never empty."""
    return text.encode()[:TEXT_BYTES].decode(errors="ignore").strip() or "."


def _packed(numbers: Sequence[float]) -> bytes:
    """Return a vector by its direction: eight bits for each number."""
    if not (largest := max(map(abs, numbers))):
        raise ModelUnreachable("OpenAI API: a vector has no direction")
    return array("b", [round(each / largest * TOP) for each in numbers]).tobytes()
