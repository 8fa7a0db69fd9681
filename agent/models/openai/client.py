"""Any server that speaks OpenAI's Chat Completions: one streaming call, and its list of models."""

from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import openai
from typing_extensions import override

from agent.errors import ModelNotFound
from agent.models.api import (
    CONNECT_TIMEOUT_S,
    HEADERS,
    ApiModel,
    StreamClock,
    api_key,
    bound,
    model_info,
    required_key,
)
from agent.models.base import ModelInfo, ModelRequest
from agent.models.catalog import DEFAULT_NAMES
from agent.models.draft import AnswerDraft, readable
from agent.models.openai.errors import openai_errors
from agent.models.openai.stream import OpenAIAnswer
from agent.models.openai.wire import origin_of, request_body
from agent.settings import ModelSettings

_OFFICIAL_URL = "https://api.openai.com/v1"
_PRESETS = {
    "openrouter": "https://openrouter.ai/api/v1",
    "nous": "https://inference-api.nousresearch.com/v1",
}

# In order: what is loaded before what could be. A model's training window says nothing about the
# server's. Source: the servers' own answers, as their projects document them.
_WINDOW_KEYS = (
    ("loaded_context_length",),  # LM Studio
    ("max_model_len",),  # vLLM, SGLang
    ("meta", "n_ctx"),  # llama.cpp
    ("context_length",),  # OpenRouter, Together, Moonshot
    ("context_window",),  # Groq
    ("max_context_length",),  # Mistral, LM Studio
)


class OpenAIModel(ApiModel[OpenAIAnswer]):
    """A model behind Chat Completions. `base_url` ends in /v1; most local servers need no key."""

    api = "OpenAI API"

    def __init__(self, settings: ModelSettings, *, key_number: int = 1) -> None:
        """Prepare the client; `key_number` counts the keys of one model from 1."""
        name = settings.name or _default_name(settings)
        base_url = settings.base_url or _PRESETS.get(settings.provider, _OFFICIAL_URL)
        official = (urlsplit(base_url).hostname or "").endswith("api.openai.com")
        super().__init__(settings, name, base_url, _key(settings, official=official), key_number)
        # OpenAI's newer models refuse `max_tokens`; other servers know no other name.
        self._limit_key = "max_completion_tokens" if official else "max_tokens"
        self._origin = origin_of(base_url, name)
        idle = settings.idle_timeout_s
        self._client = openai.AsyncOpenAI(
            # The SDK would look for a key in the environment if it got none.
            api_key=self._key or "none",
            base_url=base_url,
            # The one retry policy is agent/turn/recovery.py's.
            max_retries=0,
            timeout=openai.Timeout(idle, connect=min(idle, CONNECT_TIMEOUT_S)),
            default_headers=HEADERS,
            http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [bound]}),
        )
        # Loads the SDK's types now and not inside the first turn.
        self._completions = self._client.chat.completions

    @override
    async def close(self) -> None:
        await self._client.close()

    @override
    def _begun(self, draft: AnswerDraft, clock: StreamClock) -> OpenAIAnswer:
        return OpenAIAnswer(draft, clock, self._origin)

    @override
    def _errors(self) -> AbstractContextManager[None]:
        return openai_errors(self._key)

    @override
    async def _stream(self, request: ModelRequest, answer: OpenAIAnswer) -> None:
        body = request_body(request, self.name, self._limit_key, self.cache_layout, self._origin)
        # The SDK demands its own arguments; `extra_body` takes their place on the wire.
        stream = await self._completions.create(
            model=self.name, messages=[], stream=True, extra_body=body | self._extra
        )
        async with stream:
            with readable(self.api):
                await answer.read(stream)

    @override
    async def _asked(self) -> object:
        if self.provider == "openrouter":
            # Its list is public: a wrong key would be shown it, too.
            await self._client.get("/key", cast_to=object)
        return await self._client.get("/models", cast_to=object)

    @override
    def _info(self, found: object) -> ModelInfo | None:
        # OpenAI's own list has no sizes.
        if not isinstance(found, dict | list):
            return None
        return info_from_list(found, self.name) or ModelInfo()


def _default_name(settings: ModelSettings) -> str:
    if settings.provider in _PRESETS:
        raise ModelNotFound(f"provider {settings.provider} has no default model: set model.name")
    return DEFAULT_NAMES["openai"]


def _key(settings: ModelSettings, *, official: bool) -> str:
    if official:
        return required_key(settings, "OPENAI_API_KEY")
    return required_key(settings) if settings.provider in _PRESETS else api_key(settings)


def info_from_list(listing: object, name: str) -> ModelInfo | None:
    """Return what a list says about a model, None where it says nothing.

    A server with a single model answers with that one, whatever it is called in the request
    (llama.cpp).

    Args:
        listing: The parsed answer to GET /models, which may be anything.
        name: The provider's name of the model.
    """
    entries = _entries(listing)
    named = [entry for entry in entries if entry.get("id") == name]
    entry = next(iter(named or (entries if len(entries) == 1 else [])), None)
    if entry is None:
        return None
    found = (_at(entry, path) for path in _WINDOW_KEYS)
    return model_info(next((value for value in found if value), None))


def _entries(listing: object) -> list[dict[str, Any]]:
    # Together sends the list without an envelope.
    models = listing.get("data") if isinstance(listing, dict) else listing
    return [each for each in models if isinstance(each, dict)] if isinstance(models, list) else []


def _at(entry: object, path: tuple[str, ...]) -> object:
    for key in path:
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry
