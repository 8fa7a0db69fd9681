"""Any server that speaks OpenAI's Chat Completions: one streaming call, and its list of models."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import openai

from agent.errors import (
    BadRequest,
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
)
from agent.models.api import (
    CONNECT_TIMEOUT_S,
    HEADERS,
    LOOK_UP_TIMEOUT_S,
    StreamClock,
    answer_chars,
    api_key,
    bound,
    extra_fields,
    label_of,
    model_info,
    refuse_key,
    required_key,
)
from agent.models.base import Completion, ModelInfo, ModelRequest, TextSink
from agent.models.catalog import DEFAULT_NAMES, context_length, facts_of
from agent.models.draft import AnswerDraft, readable
from agent.models.openai.errors import openai_errors
from agent.models.openai.stream import OpenAIAnswer
from agent.models.openai.wire import origin_of, request_body
from agent.prompt_caching import cache_layout_of
from agent.settings import ModelSettings
from agent.usage import CacheLayout

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


class OpenAIModel:
    """A model behind Chat Completions. `base_url` ends in /v1; most local servers need no key.

    Attributes:
        label: The name, and which key it is used with if it is not the first.
    """

    def __init__(self, settings: ModelSettings, *, key_number: int = 1) -> None:
        """Prepare the client; `key_number` counts the keys of one model from 1."""
        self.provider: str = settings.provider
        self.name = settings.name or _default_name(settings)
        self.label = label_of(self.name, key_number)
        self.facts = facts_of(self.name, settings.facts)
        self.context_length = settings.context_length or context_length(self.name)
        base_url = settings.base_url or _PRESETS.get(settings.provider, _OFFICIAL_URL)
        self.cache_layout: CacheLayout | None = cache_layout_of(self.provider, self.name, base_url)
        self._official = (urlsplit(base_url).hostname or "").endswith("api.openai.com")
        self._limit_key = "max_completion_tokens" if self._official else "max_tokens"
        self._origin = origin_of(base_url, self.name)
        self._key = _key(settings, official=self._official)
        self._extra = extra_fields(settings)
        self._settings = settings
        idle = settings.idle_timeout_s
        self._client = openai.AsyncOpenAI(
            # The SDK would look for a key in the environment if it got none.
            api_key=self._key or "none",
            base_url=base_url,
            max_retries=0,
            timeout=openai.Timeout(idle, connect=min(idle, CONNECT_TIMEOUT_S)),
            default_headers=HEADERS,
            http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [bound]}),
        )
        # Loads the SDK's types now and not inside the first turn.
        self._completions = self._client.chat.completions

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Make one streaming call; see ChatModel."""
        clock = StreamClock(self._settings)
        max_chars = answer_chars(self._settings, request.max_output_tokens)
        draft = AnswerDraft(sink, request.messages, max_chars)
        answer = OpenAIAnswer(draft, clock, self._origin)
        try:
            with openai_errors(self._key):
                async with clock.running():
                    await self._stream(request, answer)
            with readable("OpenAI API"):
                completion = answer.completion(self.name)
        except ModelError as error:
            error.usage = answer.billed(self.name)
            error.written_tokens = answer.written_tokens(self.name)
            raise
        return completion

    async def look_up(self) -> ModelInfo | None:
        """Look for the model in the server's list; see ChatModel. OpenAI's own has no sizes."""
        try:
            with openai_errors(self._key):
                async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                    listing = await self._listing()
        except (ModelNotFound, BadRequest, CredentialsRefused) as exc:
            refuse_key(exc)
            return None
        except TimeoutError as exc:
            raise ModelUnreachable(f"no answer within {LOOK_UP_TIMEOUT_S:g} s") from exc
        if not isinstance(listing, dict | list):
            return None
        return info_from_list(listing, self.name) or ModelInfo()

    async def close(self) -> None:
        """Give back connections."""
        await self._client.close()

    async def _listing(self) -> object:
        if self.provider == "openrouter":
            # Its list is public: a wrong key would be shown it, too.
            await self._client.get("/key", cast_to=object)
        return await self._client.get("/models", cast_to=object)

    async def _stream(self, request: ModelRequest, answer: OpenAIAnswer) -> None:
        body = request_body(request, self.name, self._limit_key, self.cache_layout, self._origin)
        stream = await self._completions.create(
            model=self.name, messages=[], stream=True, extra_body=body | self._extra
        )
        async with stream:
            with readable("OpenAI API"):
                await answer.read(stream)


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
