"""A strict loopback double of OpenAI's `/embeddings`.

Source: https://platform.openai.com/docs/api-reference/embeddings/create
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

KEYS = {"model", "input", "dimensions", "encoding_format", "user"}
MOST_TEXTS = 2_048
MOST_TOKENS = 8_192
MOST_TOKENS_TOGETHER = 300_000
LENGTH = 256


class EmbeddingsServer:
    """Vectors by words: texts with the same words have the same direction.

    Attributes:
        alike: Words that mean another one.
        refusals: (status, headers, what the error says) of the next requests.
        requests: Bodies of all requests that were taken.
        poison: A text that the model never takes.
        shuffled: Whether the vectors come in another order than the texts.
        answer: What is answered whatever is asked.
        url: Of the server, ends in /v1.
        asked: Set by the first request.
    """

    def __init__(self, key: str = "sk-right", alike: Mapping[str, str] | None = None) -> None:
        self.key = key
        self.alike = alike or {}
        self.refusals: list[tuple[int, dict[str, str], dict[str, Any]]] = []
        self.requests: list[dict[str, Any]] = []
        self.poison = ""
        self.shuffled = True
        self.answer: object = None
        self.url = ""
        self.asked = asyncio.Event()

    async def _asked(self, request: web.Request) -> web.Response:
        if self.refusals:
            status, headers, error = self.refusals.pop(0)
            return web.json_response({"error": error}, status=status, headers=headers)
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return _refused(401, "Incorrect API key provided", "invalid_api_key")
        body = await request.json()
        if problem := self._problem(body):
            return _refused(400, problem, None)
        self.requests.append(body)
        self.asked.set()
        if self.answer is not None:
            return web.json_response(self.answer)
        data = [
            {"object": "embedding", "index": n, "embedding": self._vector(text, body)}
            for n, text in enumerate(body["input"])
        ]
        tokens = sum(len(text.split()) for text in body["input"])
        return web.json_response({
            "object": "list",
            "data": data[::-1] if self.shuffled else data,
            "model": body["model"],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        })

    def _problem(self, body: dict[str, Any]) -> str:
        texts = body.get("input")
        if set(body) - KEYS:
            return f"Unrecognized request argument supplied: {sorted(set(body) - KEYS)}"
        if not isinstance(texts, list) or not 0 < len(texts) <= MOST_TEXTS:
            return "'$.input' is invalid"
        if not all(isinstance(text, str) and text for text in texts):
            return "'$.input' is invalid"
        sizes = [len(text.encode()) for text in texts]
        if max(sizes) > MOST_TOKENS:
            return f"This model's maximum context length is {MOST_TOKENS} tokens"
        if sum(sizes) > MOST_TOKENS_TOGETHER:
            return f"Requested more than {MOST_TOKENS_TOGETHER} tokens, max per request"
        return "'$.input' is invalid" if self.poison and self.poison in " ".join(texts) else ""

    def _vector(self, text: str, body: dict[str, Any]) -> list[float]:
        sums = [0.0] * body.get("dimensions", LENGTH)
        for word in text.lower().split():
            chance = random.Random(self.alike.get(word, word))  # noqa: S311 - of the word alone
            sums = [total + chance.gauss(0, 1) for total in sums]
        length = sum(each * each for each in sums) ** 0.5 or 1.0
        return [each / length for each in sums]


def _refused(status: int, message: str, code: str | None) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.json_response({"error": error}, status=status)


@asynccontextmanager
async def embeddings_server(**given: Any) -> AsyncIterator[EmbeddingsServer]:
    """Serve on a loopback port."""
    server = EmbeddingsServer(**given)
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/embeddings", server._asked)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
