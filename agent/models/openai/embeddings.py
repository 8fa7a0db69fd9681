"""Vectors of texts, from a provider that has OpenAI's `/embeddings`.

What is alike in meaning is alike in direction. Texts go in requests of a bounded size; what goes
wrong becomes a ModelError, as for answers. The answer is held against the request: a vector for
each text, by its index, all of one length.

Source: https://platform.openai.com/docs/api-reference/embeddings/create (at most 2,048 texts of a
request, 8,192 tokens of a text, 300,000 tokens of all).
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from agent.errors import ModelUnreachable
from agent.models.draft import field_in, tokens_in
from agent.models.openai.client import openai_errors
from agent.models.openai.transport import JsonServer
from agent.usage import Usage

PATH = "/embeddings"
TEXT_BYTES = 8_000
"""Of a text; no tokenizer makes more than a token of a byte, so it has at most 8,192."""
REQUEST_TEXTS = 64
REQUEST_BYTES = 200_000
"""Of the texts of one request: below 300,000 tokens, and a few seconds of a server at home."""
MILLION = 1_000_000
PRICES = {"text-embedding-3-small": 0.02, "text-embedding-3-large": 0.13}
"""US dollars for a million tokens. Source: https://openai.com/api/pricing"""
TOP = 127
"""The largest number of a vector as it is kept: eight bits, of which the length is left out."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """What one request brought.

    Attributes:
        vectors: In the order of the texts, each as `array('b')` bytes: its direction alone.
        usage: None where nothing was reported.
    """

    vectors: tuple[bytes, ...]
    usage: Usage | None


class EmbeddingModel:
    """A model that turns texts into vectors.

    Attributes:
        space: Names what its vectors can be compared with; another one makes all of them anew.
    """

    provider = "embeddings"

    def __init__(
        self,
        base_url: str,
        key: str,
        name: str,
        *,
        dimensions: int | None = None,
        input_usd: float | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Prepare the client.

        Args:
            base_url: Ends in /v1.
            key: Of the account; empty for a server that needs none.
            dimensions: Asked for; None where the model has one length only.
            input_usd: US dollars for a million tokens; None for what `PRICES` says.
            timeout_s: How long the server may be silent.
        """
        self.name = name
        self.space = f"{base_url} {name} {dimensions or ''}".rstrip()
        self._dimensions = dimensions
        self._input_usd = PRICES.get(name) if input_usd is None else input_usd
        self._key = key
        self._server = JsonServer(base_url, key, timeout_s)

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Return the vectors of texts: of one request, so at most as many as `requests` gives.

        Raises:
            ModelError: The provider cannot be asked now, or refuses.
        """
        asked: dict[str, object] = {
            "model": self.name,
            "input": [shortened(each) for each in texts],
        }
        if self._dimensions is not None:
            asked["dimensions"] = self._dimensions
        with openai_errors(self._key):
            said = await self._server.post(PATH, orjson.dumps(asked))
        return Embedded(_vectors(said, len(texts), self._dimensions), _usage(said))

    def cost_usd(self, usage: Usage | None) -> float | None:
        """Return what a request has cost; None where that is not known."""
        if usage is None or self._input_usd is None:
            return None
        return usage.input_tokens * self._input_usd / MILLION

    async def close(self) -> None:
        """Give back the connections."""
        await self._server.close()


def requests(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield texts by requests, in order; each has one at least."""
    start, room = 0, REQUEST_BYTES
    for n, text in enumerate(texts):
        room -= min(len(text.encode()), TEXT_BYTES)
        if n > start and (room < 0 or n - start >= REQUEST_TEXTS):
            yield texts[start:n]
            start, room = n, REQUEST_BYTES - min(len(text.encode()), TEXT_BYTES)
    if texts:
        yield texts[start:]


def shortened(text: str) -> str:
    """Return a text as it is sent: its head where it is longer than a model reads; never empty."""
    return text.encode()[:TEXT_BYTES].decode(errors="ignore").strip() or "."


def _vectors(said: object, count: int, dimensions: int | None) -> tuple[bytes, ...]:
    data = field_in(said, "data")
    if not isinstance(data, list) or len(data) != count:
        raise ModelUnreachable(f"OpenAI API: {count} texts were sent, and not as many vectors came")
    # By their numbers: a server may answer in another order.
    numbers = [field_in(each, "index") for each in data]
    if sorted(number for number in numbers if isinstance(number, int)) != list(range(count)):
        raise ModelUnreachable("OpenAI API: the vectors are not numbered as the texts are")
    found = {
        number: field_in(each, "embedding") for number, each in zip(numbers, data, strict=True)
    }
    vectors = tuple(_packed(found[number]) for number in range(count))
    lengths = {len(each) for each in vectors}
    if len(lengths) > 1:
        raise ModelUnreachable("OpenAI API: the vectors have several lengths")
    if dimensions is not None and lengths != {dimensions}:
        raise ModelUnreachable(f"vectors of {lengths.pop()} numbers came: set search.dimensions")
    return vectors


def _packed(numbers: object) -> bytes:
    """Return a vector by its direction: eight bits for each number."""
    if not isinstance(numbers, list) or not numbers:
        raise ModelUnreachable("OpenAI API: a vector is none")
    known = [float(each) for each in numbers if isinstance(each, int | float)]
    largest = max(map(abs, known), default=0.0)
    if len(known) != len(numbers) or not math.isfinite(sum(known)) or largest == 0:
        raise ModelUnreachable("OpenAI API: a vector is none")
    return array("b", [round(each / largest * TOP) for each in known]).tobytes()


def _usage(said: object) -> Usage | None:
    tokens = tokens_in(field_in(said, "usage"), "prompt_tokens")
    return Usage(input_tokens=tokens) if tokens else None
