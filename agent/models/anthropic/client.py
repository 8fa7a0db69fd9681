"""Claude over Anthropic's Messages API: one streaming call, and the mapping of its errors."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import anthropic
import httpx2
import orjson
from typing_extensions import override

from agent.bounded import bound
from agent.errors import ContextOverflow, ModelUnreachable
from agent.messages import ChatMessage, Usage
from agent.models.anthropic.wire import Block, Place, opaque_fields, request_body
from agent.models.api import (
    CONNECT_TIMEOUT_S,
    HEADERS,
    UNREADABLE,
    ApiModel,
    StreamClock,
    StreamedAnswer,
    key_of,
)
from agent.models.base import ModelRequest, StopReason
from agent.models.catalog import DEFAULT_NAMES, base_url_of
from agent.models.draft import AnswerDraft, CallDraft
from agent.models.openai.transport import ServerError, Unreadable, events_of
from agent.models.refusals import parse_refusal
from agent.models.wire import arguments_in, field_in, text_in, tokens_in
from agent.network import UnusableEnvironment, in_words, proxy_for, tls_for
from agent.settings import ModelSettings

_STOP_REASONS: dict[str | None, StopReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class AnthropicAnswer(StreamedAnswer):
    """An answer assembled from the events of one stream."""

    lost = httpx2.TransportError
    counts_whole = False

    def __init__(self, draft: AnswerDraft, clock: StreamClock, origin: str = "") -> None:
        super().__init__(draft, clock, origin)
        self._stop_reason: str | None = None
        self._finished = False
        self._calls: dict[object, CallDraft] = {}
        self._thinking: dict[object, tuple[Block, Place]] = {}

    @override
    def _stop(self) -> StopReason:
        is_empty = not self._draft.calls and not self._draft.text.strip()
        if self._stop_reason == "model_context_window_exceeded" and is_empty:
            raise ContextOverflow("the window was full before the answer began")
        return _STOP_REASONS.get(self._stop_reason, "stop")

    @override
    def _keep_opaque(self, message: ChatMessage) -> None:
        if kept := opaque_fields(self._thinking.values()):
            message["opaque"] = kept

    @property
    @override
    def _has_ended(self) -> bool:
        # Some proxies omit one of the two fields that mark a tool call.
        return self._finished or self._stop_reason is not None

    @override
    def _take(self, event: Block) -> None:
        kind = event.get("type")
        if kind != "ping":
            self._clock.note()
        if kind == "message":
            # A complete answer from a server that does not stream.
            self._begin(event)
            for index, block in enumerate(event["content"]):
                self._begin_block(index, block)
            self._take({"type": "message_delta", "delta": event, "usage": event.get("usage")})
        elif kind == "message_start":
            self._begin(event["message"])
        elif kind == "content_block_start":
            self._begin_block(event.get("index"), event["content_block"])
        elif kind == "content_block_delta":
            self._grow_block(event.get("index"), event["delta"])
        elif kind == "message_delta":
            self._stop_reason = event["delta"].get("stop_reason") or self._stop_reason
            usage = event.get("usage")
            # Without a final report the first count is too small.
            self._is_counted = tokens_in(usage, "output_tokens") > 0
            self._usage = _usage(usage, self._usage)
        elif kind == "message_stop":
            self._finished = True

    def _begin(self, message: Block) -> None:
        self._model = text_in(message.get("model"))
        self._usage = _usage(message.get("usage"), Usage())

    def _begin_block(self, index: object, block: Block) -> None:
        kind = block.get("type")
        if kind == "text":
            self._draft.count()
            self._draft.say(text_in(block.get("text")))
        elif kind == "tool_use":
            self._draft.end_text()
            call = self._calls[index] = self._draft.begin_call()
            # Some proxies send the whole input here instead of deltas.
            given = block.get("input")
            whole = arguments_in(given) if given else ""
            self._draft.grow(call, text_in(block.get("id")), text_in(block.get("name")), whole)
        elif kind in {"thinking", "redacted_thinking"}:
            # The API accepts signed blocks only unchanged and in their original position.
            self._draft.end_text()
            self._draft.count(len(str(block)))
            self._thinking[index] = block, (len(self._draft.text), len(self._draft.calls))

    def _grow_block(self, index: object, delta: Block) -> None:
        """Append a delta; ignore blocks that never began and blocks of server-side tools."""
        kind = delta.get("type")
        if kind == "text_delta":
            self._draft.say(text_in(delta.get("text")))
        elif kind == "input_json_delta" and index in self._calls:
            self._draft.grow(self._calls[index], arguments=arguments_in(delta.get("partial_json")))
        elif kind == "thinking_delta":
            thought = text_in(delta.get("thinking"))
            self._draft.think(thought)
            if index in self._thinking:
                block, _ = self._thinking[index]
                block["thinking"] = text_in(block.get("thinking")) + thought
        elif kind == "signature_delta" and index in self._thinking:
            signature = text_in(delta.get("signature"))
            self._draft.count(len(signature))
            self._thinking[index][0]["signature"] = signature


def _usage(reported: object, before: Usage) -> Usage:
    """Return the usage totals reported so far; missing fields keep their value in `before`."""
    hour = tokens_in(
        field_in(reported, "cache_creation"),
        "ephemeral_1h_input_tokens",
        before.cache_write_1h_tokens,
    )
    written = before.cache_write_5m_tokens + before.cache_write_1h_tokens
    created = tokens_in(reported, "cache_creation_input_tokens", written)
    return Usage(
        input_tokens=tokens_in(reported, "input_tokens", before.input_tokens),
        output_tokens=tokens_in(reported, "output_tokens", before.output_tokens),
        cache_read_tokens=tokens_in(reported, "cache_read_input_tokens", before.cache_read_tokens),
        cache_write_5m_tokens=max(created - hour, 0),
        cache_write_1h_tokens=hour,
    )


class AnthropicModel(ApiModel):
    """A Claude model; `base_url` has no /v1."""

    answer = AnthropicAnswer

    def __init__(self, settings: ModelSettings, *, key_number: int = 1) -> None:
        """Prepare the client; see `ApiModel` for the arguments."""
        name = settings.name or DEFAULT_NAMES["anthropic"]
        key = key_of(settings, variable="ANTHROPIC_API_KEY")
        super().__init__(settings, name, settings.base_url, key, key_number)

    @functools.cached_property
    def _client(self) -> anthropic.AsyncAnthropic:
        """Create the SDK's client on the first request, so that its failure is reported there."""
        url, idle = base_url_of(self._settings), self._settings.idle_timeout_s
        return anthropic.AsyncAnthropic(
            api_key=self._key,
            base_url=url,
            # Parley has a single retry policy: agent/models/recovery.py.
            max_retries=0,
            timeout=anthropic.Timeout(idle, connect=min(idle, CONNECT_TIMEOUT_S)),
            default_headers=HEADERS,
            http_client=anthropic.DefaultAioHttpClient(
                verify=tls_for(url),
                proxy=proxy_for(url),
                trust_env=False,
                event_hooks={"response": [bound]},
            ),
        )

    @override
    async def close(self) -> None:
        if "_client" in vars(self):
            await self._client.close()

    @override
    @contextmanager
    def _errors(self, asked: int = 0) -> Iterator[None]:
        try:
            yield
        except (UnusableEnvironment, Unreadable) as exc:
            raise ModelUnreachable(str(exc)) from exc
        except (anthropic.APIStatusError, ServerError) as exc:
            if isinstance(exc, ServerError):
                refusal = exc.refusal
            else:
                refusal = parse_refusal(exc.status_code, exc.response.headers, exc.body)
            raise refusal.error(self._key, self.context_length, asked) from exc
        except (anthropic.APIError, httpx2.HTTPError, httpx2.StreamError, *UNREADABLE) as exc:
            # The operating system's message names host and port; other messages may contain a
            # header.
            told = f": {exc.__cause__}" if isinstance(exc.__cause__, httpx2.ConnectError) else ""
            raise ModelUnreachable(f"Anthropic: {in_words(exc)}{told}") from exc

    @override
    async def _stream(self, request: ModelRequest, answer: StreamedAnswer) -> None:
        self._client.api_key = self._key
        # The operator's fields come last: they may override all but the reserved ones.
        body = request_body(request, self.name) | self._extra
        # The SDK's own method would validate every field of every message and build an object for
        # every event: together that costs more than everything else Parley does for a call.
        stream = await self._client.post(
            "/v1/messages",
            cast_to=object,
            content=orjson.dumps(body | {"stream": True}),
            stream=True,
            stream_cls=anthropic.AsyncStream[object],
        )
        async with stream:
            await answer.read(events_of(stream.response.aiter_bytes()))

    @override
    async def _asked(self) -> object:
        self._client.api_key = self._key
        return await self._client.get(f"/v1/models/{quote(self.name, safe='')}", cast_to=object)

    @override
    def _window_in(self, found: object) -> int | None:
        # The SDK returns an HTML page as text.
        return None if isinstance(found, str) else tokens_in(found, "max_input_tokens")
