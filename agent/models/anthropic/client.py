"""Claude over Anthropic's Messages API."""

from collections import OrderedDict
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import anthropic
from typing_extensions import override

from agent.models.anthropic.errors import anthropic_errors
from agent.models.anthropic.stream import AnthropicAnswer
from agent.models.anthropic.wire import request_body
from agent.models.api import (
    CONNECT_TIMEOUT_S,
    HEADERS,
    ApiModel,
    StreamClock,
    bound,
    model_info,
    required_key,
)
from agent.models.base import ModelInfo, ModelRequest
from agent.models.catalog import DEFAULT_NAMES
from agent.models.draft import AnswerDraft, readable
from agent.settings import ModelSettings

REMEMBERED_ANSWERS = 1024
"""Conversations whose newest answer is known by its id."""


class AnthropicModel(ApiModel[AnthropicAnswer]):
    """A Claude model; `base_url` has no /v1."""

    api = "Anthropic"

    def __init__(self, settings: ModelSettings, *, key_number: int = 1) -> None:
        """Prepare the client; `key_number` counts the keys of one model from 1."""
        name = settings.name or DEFAULT_NAMES["anthropic"]
        key = required_key(settings, "ANTHROPIC_API_KEY")
        super().__init__(settings, name, settings.base_url, key, key_number)
        idle = settings.idle_timeout_s
        self._client = anthropic.AsyncAnthropic(
            api_key=key,
            base_url=settings.base_url,
            # The one retry policy is agent/turn/recovery.py's.
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

    @override
    async def close(self) -> None:
        await self._client.close()

    @override
    def _begun(self, draft: AnswerDraft, clock: StreamClock) -> AnthropicAnswer:
        return AnthropicAnswer(draft, clock)

    @override
    def _errors(self) -> AbstractContextManager[None]:
        return anthropic_errors(self._key)

    @override
    async def _stream(self, request: ModelRequest, answer: AnthropicAnswer) -> None:
        # The operator's fields come last: they may change all that Parley does not need itself.
        body = request_body(request, self.name) | self._diagnostics(request) | self._extra
        # The SDK demands its own arguments; `extra_body` takes their place on the wire.
        stream = await self._messages.create(
            model=self.name, max_tokens=1, messages=[], stream=True, extra_body=body
        )
        async with stream:
            with readable(self.api):
                await answer.read(stream)

    @override
    async def _asked(self) -> object:
        return await self._client.models.retrieve(self.name)

    @override
    def _info(self, found: object) -> ModelInfo | None:
        # A page of HTML: the SDK returns it as a text.
        if isinstance(found, str):
            return None
        return model_info(getattr(found, "max_input_tokens", None)) or ModelInfo()

    def _diagnostics(self, request: ModelRequest) -> dict[str, Any]:
        """Return the field that asks why the cache was missed, compared with the answer before."""
        if not self._is_diagnosed or not request.conversation:
            return {}
        before = self._newest_ids.get(request.conversation)
        return {"diagnostics": {"previous_message_id": before}}

    @override
    def _note(self, request: ModelRequest, answer: AnthropicAnswer) -> None:
        self._newest_ids[request.conversation] = answer.id
        self._newest_ids.move_to_end(request.conversation)
        # A forgotten id costs nothing but the reason of one cache miss.
        if len(self._newest_ids) > REMEMBERED_ANSWERS:
            self._newest_ids.popitem(last=False)


def is_official(base_url: str) -> bool:
    """Return whether a URL is one of Anthropic's own."""
    host = urlsplit(base_url).hostname or ""
    return host == "anthropic.com" or host.endswith(".anthropic.com")
