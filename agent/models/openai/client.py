"""Any server that speaks OpenAI's Chat Completions: one streaming call, and its model list."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import aiohttp
import orjson
from typing_extensions import override

from agent.errors import ModelNotFound, ModelUnreachable
from agent.messages import ChatMessage, Usage
from agent.models.api import UNREADABLE, ApiModel, StreamClock, StreamedAnswer, key_of
from agent.models.base import ModelRequest, StopReason
from agent.models.catalog import DEFAULT_NAMES, PROVIDERS, base_url_of
from agent.models.draft import AnswerDraft, CallDraft
from agent.models.openai.mode import Negotiation, Quirks, is_official
from agent.models.openai.transport import JsonServer, ServerError, Unreadable
from agent.models.openai.wire import Fields, OpaqueParts, origin_of, request_body
from agent.models.wire import arguments_in, field_in, parse_object, text_in, tokens_in, usd_in
from agent.network import UnusableEnvironment, in_words
from agent.settings import ModelSettings

_STOP_REASONS: dict[str, StopReason] = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    # Sent by Gemini, Mistral and servers that forward another API's terms.
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "content_filter": "refused",
}
_BROKEN_CALL = "function_call_filter"
"""Gemini's finish reason for an unparsable call. Source: answers quoted in users' issues, e.g.
"function_call_filter: MALFORMED_FUNCTION_CALL"."""
_PRESETS = PROVIDERS.keys() - DEFAULT_NAMES

# In order: the loaded window before the possible one. A model's training window may differ from the
# server's. Source: answers documented by the servers' projects.
_WINDOW_KEYS = (
    "loaded_context_length",  # LM Studio
    "max_model_len",  # vLLM, SGLang
    "n_ctx",  # llama.cpp, in `meta`
    "context_length",  # OpenRouter, Together, Moonshot
    "context_window",  # Groq
    "max_context_length",  # Mistral, LM Studio
)


class OpenAIStream(StreamedAnswer):
    """The common part of both OpenAI APIs' answers."""

    lost = (aiohttp.ClientError, OSError)
    counts_whole = True
    _refused = False

    def _note_usage(self, reported: object, asked: str, answered: str) -> None:
        """Record a usage report; `asked` and `answered` are the API's words in its field names."""
        self._usage = usage_in(reported, asked, answered)
        self._cost_usd = cost_in(reported)


class OpenAIAnswer(OpenAIStream):
    """An answer assembled from the chunks of one stream.

    Some servers send no finish reason: `[DONE]` after some text ends the answer as well, and so
    does the usage report.
    """

    def __init__(self, draft: AnswerDraft, clock: StreamClock, origin: str = "") -> None:
        super().__init__(draft, clock, origin)
        self._opaque = OpaqueParts(origin)
        self._finish_reason = ""
        self._slots: dict[object, CallDraft] = {}

    @property
    @override
    def _has_ended(self) -> bool:
        return self._finish_reason != ""

    @override
    def _stop(self) -> StopReason:
        reason = self._finish_reason
        if reason == "error" and not self._draft.is_full:
            raise ModelUnreachable("the stream was cut")
        if reason.startswith(_BROKEN_CALL):
            raise ModelUnreachable("the model's call of a tool was broken off")
        return "refused" if self._refused else _STOP_REASONS.get(reason.lower(), "stop")

    @override
    def _keep_opaque(self, message: ChatMessage) -> None:
        self._opaque.add_to(message, self._draft.opaque_calls)

    @override
    def _take(self, event: Fields) -> None:
        # A chunk without choices has no content.
        if event.get("choices"):
            self._clock.note()
        self._model = text_in(event.get("model")) or self._model
        if usage := event.get("usage"):
            self._note_usage(usage, "prompt", "completion")
            self._is_done = True
        for choice in event.get("choices") or []:
            self._is_done = False
            # A server that does not stream sends the whole message.
            if delta := choice.get("delta") or choice.get("message"):
                self._grow(delta)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _grow(self, delta: Fields) -> None:
        # The field's name varies, and some servers fill both.
        for name in ("reasoning_content", "reasoning"):
            if isinstance(thought := delta.get(name), str) and thought:
                self._draft.think(thought)
                self._opaque.field = name
                break
        if details := delta.get("reasoning_details"):
            self._draft.count(len(str(details)))
            self._opaque.take_details(details)
        if said := text_in(delta.get("content")):
            self._draft.say(said)
        if refusal := text_in(delta.get("refusal")):
            self._refused = True
            self._draft.say(refusal)
        for call in delta.get("tool_calls") or []:
            self._grow_call(call)

    def _grow_call(self, delta: Fields) -> None:
        index = delta.get("index")
        slot = self._slots.get(index)
        # Some servers send index 0, or none, for every call of a message; only the ids differ.
        call_id = text_in(delta.get("id"))
        function = delta.get("function")
        if slot is None or _is_another(slot, call_id, function):
            slot = self._slots[index] = self._draft.begin_call()
        name = text_in(field_in(function, "name"))
        self._draft.grow(slot, call_id, name, arguments_in(field_in(function, "arguments")))
        if extra := delta.get("extra_content"):
            self._draft.count(len(str(extra)))
            slot.opaque = extra


def _is_another(slot: CallDraft, call_id: str, function: object) -> bool:
    """Return whether a delta starts another call at the same index; Gemini reuses one for all."""
    if call_id and slot.id:
        return call_id != slot.id
    is_whole = bool(slot.name) and parse_object("".join(slot.arguments)) is not None
    return is_whole and bool(text_in(field_in(function, "name")))


def usage_in(reported: object, asked: str, answered: str) -> Usage:
    """Parse a usage report; `asked` and `answered` are the API's words in its field names."""
    details = field_in(reported, f"{asked}_tokens_details")
    written = tokens_in(details, "cache_write_tokens")
    # DeepSeek and Moonshot report cached tokens in their own fields.
    cached = (
        tokens_in(details, "cached_tokens")
        or tokens_in(reported, "prompt_cache_hit_tokens")
        or tokens_in(reported, "cached_tokens")
    )
    prompt = tokens_in(reported, f"{asked}_tokens")
    # Gemini includes thoughts only in the total, and bills them as output.
    thought = tokens_in(reported, "total_tokens") - prompt
    return Usage(
        input_tokens=max(prompt - cached - written, 0),
        output_tokens=max(tokens_in(reported, f"{answered}_tokens"), thought),
        cache_read_tokens=cached,
        cache_write_5m_tokens=written,
    )


def cost_in(reported: object) -> float | None:
    """Return the cost of a call in US dollars as OpenRouter reports it.

    If the operator uses an own key for the upstream provider, `cost` is OpenRouter's fee alone.

    Source: https://openrouter.ai/docs/use-cases/usage-accounting
    """
    cost = usd_in(field_in(reported, "cost"))
    upstream = field_in(field_in(reported, "cost_details"), "upstream_inference_cost")
    if cost is None or not field_in(reported, "is_byok"):
        return cost
    return cost + (usd_in(upstream) or 0.0)


class OpenAIServerModel(ApiModel):
    """The common part of models behind either of OpenAI's APIs.

    `base_url` ends in /v1; most local servers need no key.

    Attributes:
        ends: Event types that end an answer in an API without `[DONE]`.
    """

    path: ClassVar[str]
    ends: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, settings: ModelSettings, *, key_number: int = 1) -> None:
        """Prepare the client; see `ApiModel` for the arguments."""
        provider, base_url = settings.provider, base_url_of(settings)
        if provider in _PRESETS and not settings.name:
            raise ModelNotFound(f"provider {provider} has no default model: set model.name")
        name = settings.name or DEFAULT_NAMES["openai"]
        official = is_official(base_url)
        variable = "OPENAI_API_KEY" if official else ""
        key = key_of(settings, required=official or provider in _PRESETS, variable=variable)
        super().__init__(settings, name, base_url, key, key_number)
        self._origin = origin_of(base_url, name)
        self._server = JsonServer(base_url, lambda: self._key, settings.idle_timeout_s)
        # OpenAI's newer models refuse `max_tokens`; other servers know only that name.
        self.mode.usual = frozenset({"max_completion_tokens"} if official else ())
        # These two merge consecutive messages themselves, or their models accept them.
        self._joins = not (official or self.provider == "openrouter" or self.cache_layout)

    @override
    async def close(self) -> None:
        await self._server.close()

    @override
    def _errors(self, asked: int = 0) -> AbstractContextManager[None]:
        return openai_errors(self._key, self.context_length, asked)

    @override
    async def _stream(self, request: ModelRequest, answer: StreamedAnswer) -> None:
        talk = Negotiation(self.mode, lambda quirks: self._body(request, quirks) | self._extra)
        while True:
            body = orjson.dumps(talk.body() | {"stream": True})
            try:
                async with self._server.events(self.path, body, self.ends) as events:
                    await answer.read(events)
            except ServerError as refusal:
                # Some servers report a refusal inside the stream, which has not repeated any text.
                if answer.has_begun or not talk.goes_on(refusal.refusal):
                    raise
            else:
                talk.settle()
                return

    @abstractmethod
    def _body(self, request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
        """Return the request body adapted to `quirks`, without the operator's fields."""

    @override
    async def _asked(self) -> object:
        if self.provider == "openrouter":
            # OpenRouter's model list is public: reading it proves nothing about the key.
            await self._server.ask("/key")
        return await self._server.ask("/models")

    @override
    def _window_in(self, found: object) -> int | None:
        # OpenAI's own list contains no sizes.
        if not isinstance(found, dict | list):
            return None
        return window_in_list(found, self.name)


class OpenAIModel(OpenAIServerModel):
    """A model behind Chat Completions."""

    answer = OpenAIAnswer
    path = "/chat/completions"

    @override
    def _body(self, request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
        return request_body(
            request,
            self.name,
            layout=self.cache_layout,
            origin=self._origin,
            quirks=quirks,
            join=self._joins,
        )


def window_in_list(listing: object, name: str) -> int:
    """Return a model's window from a response of GET /models of any type, or 0.

    A server with a single model lists it under an arbitrary name (llama.cpp).
    """
    # Together sends the list without an envelope.
    models = listing.get("data") if isinstance(listing, dict) else listing
    models = models if isinstance(models, list) else []
    entries = [each for each in models if isinstance(each, dict)]
    named = [entry for entry in entries if entry.get("id") == name]
    entry = next(iter(named or (entries if len(entries) == 1 else [])), {})
    places = (entry, field_in(entry, "meta"))
    found = (tokens_in(place, key) for key in _WINDOW_KEYS for place in places)
    return next(filter(None, found), 0)


@contextmanager
def openai_errors(key: str, window: int = 0, asked: int = 0) -> Iterator[None]:
    """Map transport errors to agent/errors.py; see `Refusal.error` for the arguments."""
    try:
        yield
    except ServerError as exc:
        raise exc.refusal.error(key, window, asked) from exc
    except (UnusableEnvironment, Unreadable) as exc:
        raise ModelUnreachable(f"OpenAI API: {exc}") from exc
    except (aiohttp.ClientError, OSError, *UNREADABLE) as exc:
        raise ModelUnreachable(f"OpenAI API: {in_words(exc)}") from exc
