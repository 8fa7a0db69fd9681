"""Embeddings: what goes to a provider, what comes back, and what is none."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.errors import BadRequest, CredentialsRefused, ModelUnreachable, RateLimited
from agent.models.openai.embeddings import TEXT_BYTES, EmbeddingModel
from agent.usage import Usage
from tests.support.embeddings_server import EmbeddingsServer, embeddings_server


@pytest.fixture
async def server() -> AsyncIterator[EmbeddingsServer]:
    """A provider that is listening."""
    async with embeddings_server() as serving:
        yield serving


@pytest.fixture
async def model(server: EmbeddingsServer) -> AsyncIterator[EmbeddingModel]:
    """A model of that provider."""
    made = EmbeddingModel(server.url, server.key, "text-embedding-3-small", dimensions=64)
    yield made
    await made.close()


async def test_each_text_has_its_own_vector(
    model: EmbeddingModel, server: EmbeddingsServer
) -> None:
    """By its number, in whichever order they come; a byte for each number, the largest 127."""
    (first, second, third), call = await model.embed(["a zebra", "a horse", "a zebra"])
    assert first == third != second
    assert len(first) == 64
    assert max(map(abs, memoryview(first).cast("b"))) == 127
    assert (call.purpose, call.usage) == ("embedding", Usage(input_tokens=6))
    assert call.cost_usd == pytest.approx(6 * 0.02 / 1_000_000)
    assert server.requests[0]["dimensions"] == 64


async def test_the_price_is_the_operators_or_unknown(server: EmbeddingsServer) -> None:
    """What no table knows has none."""
    unknown = EmbeddingModel(server.url, server.key, "other")
    priced = EmbeddingModel(server.url, server.key, "other", input_usd=1.0)
    costs = [(await each.embed(["a b c d e"]))[1].cost_usd for each in (unknown, priced)]
    assert costs == [None, pytest.approx(5e-6)]
    for each in (unknown, priced):
        await each.close()


async def test_long_and_empty_texts_are_taken(
    model: EmbeddingModel, server: EmbeddingsServer
) -> None:
    """A long one by its head, never beyond what a model reads; an empty one as a dot."""
    await model.embed(["ü" * 20_000, " "])
    long, empty = server.requests[0]["input"]
    assert len(long.encode()) <= TEXT_BYTES
    assert empty == "."


@pytest.mark.parametrize(
    ("status", "headers", "error", "raised"),
    [
        (401, {}, {"message": "no", "code": "invalid_api_key"}, CredentialsRefused),
        (
            429,
            {"retry-after": "7"},
            {"message": "slow", "code": "rate_limit_exceeded"},
            RateLimited,
        ),
        (400, {}, {"message": "'$.input' is invalid"}, BadRequest),
        (500, {}, {"message": "broken"}, ModelUnreachable),
    ],
)
async def test_a_refusal_is_a_model_error(
    model: EmbeddingModel,
    server: EmbeddingsServer,
    status: int,
    headers: dict[str, str],
    error: dict[str, Any],
    raised: type[Exception],
) -> None:
    """As for answers; how long to wait is told."""
    server.refusals.append((status, headers, error))
    with pytest.raises(raised) as caught:
        await model.embed(["a zebra"])
    if isinstance(caught.value, RateLimited):
        assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": []},
        {"data": "no"},
        [1],
        {"data": [{"index": 1, "embedding": [0.5] * 64}]},
        {"data": [{"index": 0, "embedding": []}]},
        {"data": [{"index": 0, "embedding": [0.0] * 64}]},
        {"data": [{"index": 0, "embedding": ["x"] * 64}]},
        {"data": [{"index": 0, "embedding": [0.5] * 63}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
    ],
)
async def test_what_is_no_vector_is_refused(
    model: EmbeddingModel, server: EmbeddingsServer, answer: object
) -> None:
    """An answer that does not fit the request is none."""
    server.answer = answer
    with pytest.raises(ModelUnreachable):
        await model.embed(["a zebra"])


async def test_a_server_that_is_gone(server: EmbeddingsServer) -> None:
    """Its key stands in no error."""
    gone = EmbeddingModel("http://127.0.0.1:1/v1", "sk-secret", "any")
    with pytest.raises(ModelUnreachable) as caught:
        await gone.embed(["a zebra"])
    assert "sk-secret" not in str(caught.value)
    await gone.close()
