"""The common part of models behind an HTTP API: call steps, keys, limits, kinds of failures.

No answer can exhaust the memory: each client limits an event, a page or a list to `MAX_BYTES`, and
agent/models/draft.py limits a stream of many small events.
"""

import asyncio
import json
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import orjson
from pydantic import SecretStr

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
    SecretUnreadable,
)
from agent.messages import ChatMessage, Usage, decode, encode
from agent.models.base import Completion, ModelRequest, StopReason, TextSink, checked_key
from agent.models.catalog import context_length, facts_of
from agent.models.draft import AnswerDraft, readable
from agent.models.openai.mode import mode_of
from agent.prompt_caching import CacheLayout, cache_layout_of
from agent.settings import ModelSettings, ReferencedSecret
from agent.tokens import estimate_tokens

WHOLE_CALL_S = 1_800.0
"""Longest call: enough for 8,192 tokens at 5 per second. `idle_timeout_s` ends a silent stream."""
CONNECT_TIMEOUT_S = 10.0
LEAST_WINDOW_TOKENS = 1_024
"""A smaller number in a refusal cannot be the size of a window."""
LOOK_UP_TIMEOUT_S = 5.0
"""Timeout of a question about a model; start-up waits for it."""
PING_PATIENCE = 5
"""Longest stream of pings and comments only, in multiples of `idle_timeout_s`."""
TRICKLE_PATIENCE = 1.5
"""Longest trickle before the user is notified, in multiples of `idle_timeout_s`."""
TRICKLE_S = 5
"""A stream trickles if it sends less than one event in this many seconds."""

CHARS_PER_TOKEN = 32
"""Most characters accepted per requested token, counting text, thoughts and arguments. A token is
about four characters of prose; a longer answer means that the server ignores the output limit."""
LEAST_ANSWER_CHARS = 100_000
"""Characters always allowed: some servers do not count a model's thoughts."""

HEADERS = {"Accept-Encoding": "identity"}
"""Sent with every request: a compressed body could expand to any size."""

_FORBIDDEN = 403
_RESERVED = frozenset(
    {"model", "messages", "system", "tools", "stream", "cache_control"}
    # Reserved by the Responses API; with the last three the provider stores the conversation.
    | {"input", "instructions", "previous_response_id", "conversation", "background"}
)
"""Fields that `extra_body` must not set. Parley already sets four cache breakpoints;
`cache_control` would add a fifth."""
UNREADABLE = (json.JSONDecodeError, UnicodeDecodeError)
"""Errors raised for a body that is not in its declared format."""
DONE = "[DONE]"
"""Sent by some servers after the last event; the stream yields it as well."""


class StreamedAnswer(ABC):
    """An answer assembled from the events of one stream.

    Attributes:
        lost: The error of a broken connection.
        counts_whole: Whether a usage report in a complete answer covers the whole answer.
    """

    lost: ClassVar[type[Exception] | tuple[type[Exception], ...]]
    counts_whole: ClassVar[bool]

    def __init__(self, draft: AnswerDraft, clock: "StreamClock", origin: str = "") -> None:
        """Start an answer; `origin` is its sender, kept with fields that only it understands."""
        self._draft = draft
        self._clock = clock
        self._origin = origin
        self._usage = Usage()
        self._is_counted = False
        self._cost_usd: float | None = None
        self._model = ""
        self._is_done = False

    async def read(self, stream: AsyncIterable[Any]) -> None:
        """Read a stream's parsed events, of any type; stop reading an answer that is too long.

        The connection may break after the end of the answer.
        """
        try:
            await self._read(stream)
        except self.lost:
            if not self._has_ended:
                raise

    async def _read(self, stream: AsyncIterable[Any]) -> None:
        with readable():
            async for event in stream:
                self._is_done = self._is_done or event == DONE
                if isinstance(event, dict):  # not `data: null`
                    self._take(event)
                if self._draft.is_full:
                    break

    @abstractmethod
    def _take(self, event: dict[str, Any]) -> None:
        """Process one event."""

    @property
    @abstractmethod
    def _has_ended(self) -> bool:
        """Whether the API has marked the end of the answer."""

    @abstractmethod
    def _stop(self) -> StopReason:
        """Return why the answer ended."""

    @abstractmethod
    def _keep_opaque(self, message: ChatMessage) -> None:
        """Store the provider-specific fields in a complete message."""

    def completion(self, name: str) -> Completion:
        """Return the complete answer; `name` is the model's name if the provider gave none.

        Raises:
            ModelUnreachable: The stream ended before the answer was complete.
            ContextOverflow: The window was full before the answer began.
            TypeError: A value cannot be serialized to JSON: an integer of more than 64 bits, a lone
                surrogate, or too many levels.
        """
        # Some servers send only `[DONE]`.
        is_done = self._is_done and self.has_begun and self._draft.may_be_whole
        if not (self._has_ended or is_done or self._draft.is_full):
            raise ModelUnreachable("the stream was cut")
        # Set before anything can raise: a cut stream is billed by the larger of report and
        # estimate.
        stop = self._stop()
        self._is_counted = self._is_counted or self.counts_whole
        done = self._draft.completion(stop, self.billed(name), self._model or name)
        # Providers refuse an incomplete signed block.
        if not self._draft.is_full:
            self._keep_opaque(done.message)
        return replace(
            done,
            # Sorted like after a restart; otherwise the next request would start with different
            # bytes.
            message=decode(encode(done.message)),
            cost_usd=self._cost_usd,
        )

    def billed(self, name: str) -> Usage | None:
        """Return the usage so far, or None if unknown; the estimate excludes hidden thoughts."""
        if not self._usage.prompt_tokens:
            return None
        if self._is_counted:
            return self._usage
        written = max(self._usage.output_tokens, self.written_tokens(name))
        return replace(self._usage, output_tokens=written)

    def written_tokens(self, name: str) -> int:
        """Estimate the tokens streamed so far."""
        return estimate_tokens(self._draft.streamed, name)

    @property
    def has_begun(self) -> bool:
        """Whether any content has arrived."""
        return bool(self._draft.streamed)


class ApiModel(ABC):
    """A model behind an HTTP API: the steps of its two calls, completed by each provider."""

    answer: ClassVar[type[StreamedAnswer]]
    _origin = ""

    def __init__(
        self, settings: ModelSettings, name: str, base_url: str | None, key: str, key_number: int
    ) -> None:
        """Store the settings; `key_number` numbers the keys of one model from 1."""
        self.provider: str = settings.provider
        self.name = name
        self.label = name if key_number == 1 else f"{name} (key {key_number})"
        self.facts = facts_of(name, settings.facts)
        self.cache_layout: CacheLayout | None = cache_layout_of(self.provider, name, base_url)
        self._window = settings.context_length or context_length(name)
        host = urlsplit(base_url or "")
        server = f"{host.hostname or self.provider}:{host.port or host.scheme}{host.path} {name}"
        self.mode = mode_of(server)
        self._key = key
        self._extra = extra_fields(settings)
        self._begins_inside = False
        self._settings = settings

    @property
    def context_length(self) -> int:
        """Window size in tokens; lowered if a refusal names a smaller one."""
        return int(min(self._window, self.mode.limit("window", self._window)))

    @context_length.setter
    def context_length(self, tokens: int) -> None:
        self._window = tokens

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Make one streaming call."""
        while True:
            asked = min(request.max_output_tokens, self.mode.limit("output"))
            request = replace(request, max_output_tokens=int(asked))
            try:
                return await self._complete(request, sink)
            except ModelError as error:
                if not self._has_learned(error, request):
                    raise

    def _has_learned(self, error: ModelError, request: ModelRequest) -> bool:
        """Store the sizes named in a refusal; return whether a shorter answer can be requested."""
        if isinstance(error, ContextOverflow) and error.window_tokens:
            if LEAST_WINDOW_TOKENS <= error.window_tokens < self.context_length:
                self.mode.keep_limit("window", error.window_tokens, self._window)
        elif isinstance(error, BadRequest) and error.output_tokens and not error.written_tokens:
            self.mode.keep_limit("output", error.output_tokens)
            return error.output_tokens < request.max_output_tokens
        return False

    async def _complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        clock = StreamClock(self._settings.idle_timeout_s, request.on_trickle)
        max_chars = max(CHARS_PER_TOKEN * request.max_output_tokens, LEAST_ANSWER_CHARS)
        draft = AnswerDraft(sink, request.messages, max_chars, opened=self._begins_inside)
        answer = self.answer(draft, clock, self._origin)
        try:
            with self._errors(request.max_output_tokens):
                async with clock.running():
                    await self._stream(request, answer)
            with readable():
                completion = answer.completion(self.name)
        except ModelError as error:
            # A cut stream is billed like a complete one.
            error.usage = answer.billed(self.name)
            error.written_tokens = answer.written_tokens(self.name)
            raise
        # The model's chat template opens the thought: the next answer starts inside it.
        self._begins_inside = draft.filter.began_inside
        if request.tools and request.allow_tools and "no_tools" not in self.mode.quirks:
            names = [tool.name for tool in request.tools]
            written = f"{draft.text}\n{draft.filter.reasoning}"
            self.mode.note_calls(written, names, called=bool(draft.calls))
        return completion

    async def look_up(self) -> int | None:
        """Ask the provider for the window size."""
        try:
            async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                with self._errors():
                    found = await self._asked()
        except CreditUsedUp:
            raise
        except (ModelNotFound, BadRequest, CredentialsRefused) as exc:
            status = getattr(exc.__cause__, "status_code", None)
            if isinstance(exc, CredentialsRefused) and status != _FORBIDDEN:
                raise
            # The server has no model list, or the key may not read it: OpenAI's restricted keys get
            # 403 here and still work for calls.
            return None
        except TimeoutError as exc:
            raise ModelUnreachable(f"no answer within {LOOK_UP_TIMEOUT_S:g} s") from exc
        return self._window_in(found)

    def renew_key(self) -> bool:
        """Reread the key if the settings refer to it; return whether it changed. May block."""
        secret = self._settings.api_key
        if isinstance(secret, ReferencedSecret):
            secret.take(checked_key(secret.read()))
        return self.take_key()

    @property
    def secret(self) -> SecretStr | None:
        """The key as configured."""
        return self._settings.api_key

    def take_key(self) -> bool:
        """Switch to the newest key; return whether it changed."""
        before, self._key = self._key, key_of(self._settings, required=False)
        return before != self._key

    @abstractmethod
    async def close(self) -> None:
        """Release the connections."""

    @abstractmethod
    def _errors(self, asked: int = 0) -> AbstractContextManager[None]:
        """Map the client's errors to agent/errors.py; for `asked`, see `Refusal.error`."""

    @abstractmethod
    async def _stream(self, request: ModelRequest, answer: StreamedAnswer) -> None:
        """Make the call and have `answer` read its stream."""

    @abstractmethod
    async def _asked(self) -> object:
        """Return the provider's description of the model, which may be of any type."""

    @abstractmethod
    def _window_in(self, found: object) -> int | None:
        """Return the window size contained in the provider's description."""


def key_of(settings: ModelSettings, *, required: bool = True, variable: str = "") -> str:
    """Return the configured key, or "" if none is required; else raise `CredentialsRefused`."""
    try:
        key = checked_key(settings.api_key.get_secret_value()).strip() if settings.api_key else ""
    except SecretUnreadable as exc:
        raise CredentialsRefused(f"model.api_key {exc}") from exc
    if required and not key:
        place = f"model.api_key or {variable}" if variable else "model.api_key"
        raise CredentialsRefused(f"provider {settings.provider} needs a key: set {place}")
    return key


def extra_fields(settings: ModelSettings) -> dict[str, Any]:
    """Return the operator's extra request fields; raise `BadRequest` for a reserved one."""
    taken = sorted(_RESERVED & set(settings.extra_body))
    if taken:
        raise BadRequest(f"model.extra_body must not set {', '.join(map(repr, taken))}")
    try:
        # YAML allows numbers as keys, JSON does not.
        written = orjson.dumps(settings.extra_body, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as exc:
        raise BadRequest(f"model.extra_body is not JSON: {exc}") from exc
    fields: dict[str, Any] = orjson.loads(written)
    return fields


class StreamClock:
    """Ends a stream that sends only pings or never ends; reports a trickling one once.

    The read timeout catches only silence. `tell` is `ModelRequest.on_trickle`.
    """

    def __init__(self, idle_s: float, tell: Callable[[], Awaitable[None]] | None) -> None:
        self._tell = tell
        self._noted = -1
        self._idle_s = idle_s
        self._deadline = asyncio.timeout(None)
        self._end_at = 0.0

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[None]":
        """Watch the stream read inside this context; end it with ModelUnreachable."""
        telling = asyncio.ensure_future(self._tell_of_trickle())
        try:
            async with self._deadline:
                self._end_at = asyncio.get_running_loop().time() + WHOLE_CALL_S
                self.note()
                yield
        except TimeoutError as exc:
            if not self._deadline.expired():
                # The client raised its own timeout, which its error mapping explains.
                raise
            # Both limits share one timer, set to the limit that ended the call.
            if self._deadline.when() == self._end_at:
                raise ModelUnreachable(f"no end within {WHOLE_CALL_S:g} s") from exc
            raise ModelUnreachable(f"no content for {PING_PATIENCE * self._idle_s:g} s") from exc
        finally:
            if not telling.cancel():
                telling.result()

    async def _tell_of_trickle(self) -> None:
        patience_s, before = TRICKLE_PATIENCE * self._idle_s, -math.inf
        while self._noted - before >= patience_s / TRICKLE_S:
            before = self._noted
            await asyncio.sleep(patience_s)
        if self._tell is not None:
            await self._tell()

    def note(self) -> None:
        """Record an event with content."""
        self._noted += 1
        now = asyncio.get_running_loop().time()
        self._deadline.reschedule(min(now + PING_PATIENCE * self._idle_s, self._end_at))
