"""Claude over Anthropic's Messages API: one streaming call (step 5 of the path)."""

import asyncio
from collections import OrderedDict
from typing import Any
from urllib.parse import urlsplit

import anthropic

from agent.errors import (
    BadRequest,
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
)
from agent.models.anthropic.errors import anthropic_errors
from agent.models.anthropic.stream import AnthropicAnswer
from agent.models.anthropic.wire import request_body
from agent.models.api import (
    CONNECT_TIMEOUT_S,
    HEADERS,
    LOOK_UP_TIMEOUT_S,
    StreamClock,
    answer_chars,
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
from agent.prompt_caching import cache_layout_of
from agent.settings import ModelSettings
from agent.usage import CacheLayout

REMEMBERED_ANSWERS = 1024
"""Conversations whose newest answer is known by its id."""


class AnthropicModel:
    """A Claude model. `base_url` has no /v1; `idle_timeout_s` and `request_timeout_s` end a call.

    Attributes:
        label: The name, and which key it is used with if it is not the first.
    """

    def __init__(self, settings: ModelSettings, *, key_number: int = 1) -> None:
        """Prepare the client; `key_number` counts the keys of one model from 1."""
        self.provider = "anthropic"
        self.name = settings.name or DEFAULT_NAMES["anthropic"]
        self.label = label_of(self.name, key_number)
        self.facts = facts_of(self.name, settings.facts)
        self.cache_layout: CacheLayout | None = cache_layout_of(
            self.provider, self.name, settings.base_url
        )
        self.context_length = settings.context_length or context_length(self.name)
        self._key = required_key(settings, "ANTHROPIC_API_KEY")
        self._extra = extra_fields(settings)
        self._settings = settings
        idle = settings.idle_timeout_s
        self._client = anthropic.AsyncAnthropic(
            api_key=self._key,
            base_url=settings.base_url,
            max_retries=0,
            timeout=anthropic.Timeout(idle, connect=min(idle, CONNECT_TIMEOUT_S)),
            default_headers=HEADERS,
            http_client=anthropic.DefaultAsyncHttpxClient(event_hooks={"response": [bound]}),
        )
        # Proxies that only look like the API may refuse the field.
        self._is_diagnosed = is_official(str(self._client.base_url))
        self._newest_ids: OrderedDict[str, str] = OrderedDict()
        # Loads the SDK's types now and not inside the first turn.
        self._messages = self._client.messages

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Make one streaming call; see ChatModel."""
        clock = StreamClock(self._settings)
        max_chars = answer_chars(self._settings, request.max_output_tokens)
        answer = AnthropicAnswer(AnswerDraft(sink, request.messages, max_chars), clock)
        try:
            with anthropic_errors(self._key):
                async with clock.running():
                    await self._stream(request, answer)
            with readable("Anthropic"):
                completion = answer.completion(self.name)
        except ModelError as error:
            error.usage = answer.billed(self.name)
            error.written_tokens = answer.written_tokens(self.name)
            raise
        self._remember(request.conversation, answer.id)
        return completion

    async def look_up(self) -> ModelInfo | None:
        """Ask for the window; see ChatModel."""
        try:
            with anthropic_errors(self._key):
                async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                    found = await self._client.models.retrieve(self.name)
        except (ModelNotFound, BadRequest, CredentialsRefused) as exc:
            refuse_key(exc)
            return None
        except TimeoutError as exc:
            raise ModelUnreachable(f"no answer within {LOOK_UP_TIMEOUT_S:g} s") from exc
        # A server that only looks like the API may answer anything.
        if isinstance(found, str):
            return None
        return model_info(getattr(found, "max_input_tokens", None)) or ModelInfo()

    async def close(self) -> None:
        """Give back connections."""
        await self._client.close()

    async def _stream(self, request: ModelRequest, answer: AnthropicAnswer) -> None:
        body = request_body(request, self.name) | self._diagnostics(request) | self._extra
        stream = await self._messages.create(
            model=self.name, max_tokens=1, messages=[], stream=True, extra_body=body
        )
        async with stream:
            with readable("Anthropic"):
                await answer.read(stream)

    def _diagnostics(self, request: ModelRequest) -> dict[str, Any]:
        """Return the field that asks why the cache was missed, compared with the answer before."""
        if not self._is_diagnosed or not request.conversation:
            return {}
        before = self._newest_ids.get(request.conversation)
        return {"diagnostics": {"previous_message_id": before}}

    def _remember(self, conversation: str, message_id: str) -> None:
        self._newest_ids[conversation] = message_id
        self._newest_ids.move_to_end(conversation)
        if len(self._newest_ids) > REMEMBERED_ANSWERS:
            self._newest_ids.popitem(last=False)


def is_official(base_url: str) -> bool:
    """Return whether a URL is one of Anthropic's own."""
    host = urlsplit(base_url).hostname or ""
    return host == "anthropic.com" or host.endswith(".anthropic.com")
