"""Any server that speaks OpenAI's Chat Completions: one streaming call, and its list of models.

What goes wrong becomes a ModelError: by status, code and type of the error. The text of a message
decides only inside one status, where compatible servers have no code.
"""

from collections.abc import AsyncIterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from typing_extensions import override

from agent.errors import (
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
)
from agent.models.api import (
    UNREADABLE,
    ApiModel,
    StreamClock,
    StreamedAnswer,
    api_key,
    build_error,
    describe,
    error_class,
    model_info,
    required_key,
    sent,
    window_in,
)
from agent.models.base import Completion, ModelInfo, ModelRequest, StopReason
from agent.models.catalog import DEFAULT_NAMES
from agent.models.draft import (
    AnswerDraft,
    CallDraft,
    arguments_in,
    field_in,
    readable,
    storable,
    text_in,
    tokens_in,
    usd_in,
)
from agent.models.openai.transport import Disconnected, JsonServer, ServerError, Unreadable
from agent.models.openai.wire import Fields, OpaqueParts, origin_of, request_body
from agent.models.reasoning import ReasoningFilter
from agent.settings import ModelSettings
from agent.usage import Usage

_STOP_REASONS: dict[str, StopReason] = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refused",
}
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
_BY_CODE: dict[str | None, type[ModelError]] = {
    "insufficient_quota": CreditUsedUp,
    "billing_hard_limit_reached": CreditUsedUp,
    "invalid_api_key": CredentialsRefused,
    "model_not_found": ModelNotFound,
    "context_length_exceeded": ContextOverflow,
    "exceed_context_size_error": ContextOverflow,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "content_filter": ModelRefused,
    "content_policy_violation": ModelRefused,
}
# Status, text, what it means then. vLLM, llama.cpp, Ollama, OpenRouter and its upstreams say of a
# request that is too large only in words; OpenAI says of one above its rate limit alone. OpenRouter
# has no code for a key whose own limit of spending is reached.
_BY_TEXT: tuple[tuple[int, str, type[ModelError]], ...] = (
    (400, "context length", ContextOverflow),
    (400, "context size", ContextOverflow),
    (400, "context window", ContextOverflow),
    (400, "prompt is too long", ContextOverflow),
    (400, "input token count", ContextOverflow),
    (429, "request too large for", ContextOverflow),
    (403, "key limit exceeded", CreditUsedUp),
)
_TOO_LARGE = 413
_FORBIDDEN = 403


class OpenAIAnswer(StreamedAnswer):
    """Grows with the chunks of one stream."""

    def __init__(self, draft: AnswerDraft, clock: StreamClock, origin: str) -> None:
        """`draft` collects what is said; `clock` is told of it; `origin` is who says it."""
        super().__init__(draft, clock)
        self._opaque = OpaqueParts(origin)
        self._filter = ReasoningFilter()
        self._cost_usd: float | None = None
        self._finish_reason: str | None = None
        self._refusal: list[str] = []
        self._structured = False
        self._slots: dict[object, CallDraft] = {}

    @override
    async def read(self, stream: AsyncIterable[Any]) -> None:
        """Take every chunk; what happens to the connection after the last one does not matter.

        A chunk without choices says as little as a comment. An answer that is larger than it may
        be is left.
        """
        try:
            async for chunk in stream:
                if chunk is None:
                    continue  # `data: null`
                if chunk.get("choices"):
                    self._clock.note()
                self._take(chunk)
                if self._draft.is_full:
                    break
        except Disconnected:
            if self._finish_reason is None:
                raise

    @override
    def completion(self, name: str) -> Completion:
        if self._finish_reason in {None, "error"} and not self._draft.is_full:
            raise ModelUnreachable("OpenAI API: the stream was cut")
        self._draft.say(self._filter.close())
        if not self._structured:
            self._draft.think(self._filter.reasoning)
        stop = _STOP_REASONS.get(self._finish_reason or "", "stop")
        if self._refusal:
            stop = "refused"
            self._draft.say("".join(self._refusal))
        usage = self._usage if self._usage.prompt_tokens else None
        done = self._draft.completion(stop, usage, self._model or name)
        if not self._draft.is_full:
            self._opaque.add_to(done.message, self._draft.opaque_calls)
        return storable(replace(done, cost_usd=self._cost_usd))

    @property
    @override
    def _streamed(self) -> str:
        return "".join((self._draft.streamed, self._filter.held_back, *self._refusal))

    def _take(self, chunk: Fields) -> None:
        self._model = text_in(chunk.get("model")) or self._model
        if usage := chunk.get("usage"):
            self._usage = _usage(usage)
            self._cost_usd = _cost_usd(usage)
        for choice in chunk.get("choices") or []:
            if delta := choice.get("delta"):
                self._grow(delta)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _grow(self, delta: Fields) -> None:
        self._grow_reasoning(delta)
        if said := text_in(delta.get("content")):
            self._draft.say(self._filter.feed(self._draft.admit(said)))
        if refusal := text_in(delta.get("refusal")):
            self._refusal.append(self._draft.admit(refusal))
        for call in delta.get("tool_calls") or []:
            self._grow_call(call)

    def _grow_reasoning(self, delta: Fields) -> None:
        """Take the reasoning of a delta; the field's name differs, and some servers fill both."""
        for name in ("reasoning_content", "reasoning"):
            if isinstance(thought := delta.get(name), str) and thought:
                self._structured = True
                self._draft.think(self._draft.admit(thought))
                self._opaque.take_field(name)
                break
        if details := delta.get("reasoning_details"):
            self._draft.admit_part(len(str(details)))
            self._opaque.take_details(details)

    def _grow_call(self, delta: Fields) -> None:
        index = delta.get("index")
        slot = self._slots.get(index)
        # Some servers give every call of a message the index 0 and tell them apart by id.
        call_id = text_in(delta.get("id"))
        if slot is None or (call_id and slot.id and call_id != slot.id):
            slot = self._slots[index] = CallDraft()
            self._draft.admit_part()
            self._draft.calls.append(slot)
        slot.id = slot.id or call_id
        if function := delta.get("function"):
            slot.name = slot.name or self._draft.admit(text_in(function.get("name")))
            if piece := arguments_in(function.get("arguments")):
                slot.arguments.append(self._draft.admit(piece))
        if extra := delta.get("extra_content"):
            self._draft.admit_part(len(str(extra)))
            slot.opaque = extra


def _usage(reported: object) -> Usage:
    details = field_in(reported, "prompt_tokens_details")
    written = tokens_in(details, "cache_write_tokens")
    # DeepSeek and Moonshot report what was cached in places of their own.
    cached = (
        tokens_in(details, "cached_tokens")
        or tokens_in(reported, "prompt_cache_hit_tokens")
        or tokens_in(reported, "cached_tokens")
    )
    return Usage(
        input_tokens=max(tokens_in(reported, "prompt_tokens") - cached - written, 0),
        output_tokens=tokens_in(reported, "completion_tokens"),
        cache_read_tokens=cached,
        cache_write_5m_tokens=written,
    )


def _cost_usd(reported: object) -> float | None:
    """Return what OpenRouter says the call cost.

    With a key of the operator's own behind it, `cost` is OpenRouter's fee alone.

    Source: https://openrouter.ai/docs/use-cases/usage-accounting
    """
    cost = usd_in(field_in(reported, "cost"))
    upstream = field_in(field_in(reported, "cost_details"), "upstream_inference_cost")
    if cost is None or not field_in(reported, "is_byok"):
        return cost
    return cost + (usd_in(upstream) or 0.0)


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
        self._server = JsonServer(base_url, self._key, settings.idle_timeout_s)

    @override
    def _use_key(self, key: str) -> None:
        self._server.key = key

    @override
    async def close(self) -> None:
        await self._server.close()

    @override
    def _begun(self, draft: AnswerDraft, clock: StreamClock) -> OpenAIAnswer:
        return OpenAIAnswer(draft, clock, self._origin)

    @override
    def _errors(self) -> AbstractContextManager[None]:
        return openai_errors(self._key)

    @override
    async def _stream(self, request: ModelRequest, answer: OpenAIAnswer) -> None:
        body = request_body(request, self.name, self._limit_key, self.cache_layout, self._origin)
        async with self._server.events("/chat/completions", sent(body | self._extra)) as events:
            with readable(self.api):
                await answer.read(events)

    @override
    async def _asked(self) -> object:
        if self.provider == "openrouter":
            # Its list is public: a wrong key would be shown it, too.
            await self._server.get("/key")
        return await self._server.get("/models")

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


@contextmanager
def openai_errors(key: str) -> Iterator[None]:
    """Map what the transport raises to agent/errors.py; the messages do not hold `key`."""
    try:
        yield
    except ServerError as exc:
        raise _from_server(exc, key) from exc
    except (Disconnected, Unreadable) as exc:
        raise ModelUnreachable(f"OpenAI API: {exc}") from exc
    except UNREADABLE as exc:
        raise ModelUnreachable(f"OpenAI API: {type(exc).__name__}") from exc


def _from_server(exc: ServerError, key: str) -> ModelError:
    message = exc.body.get("message")
    message = message if isinstance(message, str) else ""
    reason = describe(exc.status_code, exc.code, message, key)
    error = build_error(_classify(exc), exc.status_code, reason, exc.headers)
    if isinstance(error, ContextOverflow):
        error.window_tokens = window_in(exc.body.get("n_ctx"), message, _raw(exc.body))
    return error


def _raw(body: Mapping[str, Any]) -> object:
    """Return what OpenRouter was told by who it asked."""
    metadata = body.get("metadata")
    return metadata.get("raw") if isinstance(metadata, dict) else None


def _classify(exc: ServerError) -> type[ModelError]:
    status, body = exc.status_code, exc.body
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    text = f"{body.get('message')} {metadata.get('raw')}".lower()
    for known_status, sign, kind in _BY_TEXT:
        if status == known_status and sign in text:
            return kind
    if status == _TOO_LARGE:
        return ContextOverflow
    if status == _FORBIDDEN and metadata.get("reasons"):
        return ModelRefused  # OpenRouter's moderation flagged the input
    by_code = _BY_CODE.get(str(body.get("code"))) or _BY_CODE.get(str(body.get("type")))
    return by_code or error_class(status)
