"""What models behind an HTTP API share: the steps of a call, keys, limits, kinds of failures.

No answer may fill the memory: each client bounds an event, a page or a list by `MAX_BYTES`, and
agent/models/draft.py bounds a stream of many small events.
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
"""Longest call: 8,192 tokens at 5 a second fit. `idle_timeout_s` ends a silent one."""
CONNECT_TIMEOUT_S = 10.0
LEAST_WINDOW_TOKENS = 1_024
"""A smaller number in a refusal is not a window."""
LOOK_UP_TIMEOUT_S = 5.0
"""Longest question about a model: start-up waits for it."""
PING_PATIENCE = 5
"""Times `idle_timeout_s`: how long a stream may consist of pings and comments."""
TRICKLE_PATIENCE = 1.5
"""Times `idle_timeout_s`: how long a stream may trickle before the user is told."""
TRICKLE_S = 5
"""A stream with less than one event in so many seconds trickles."""

CHARS_PER_TOKEN = 32
"""Most characters for each requested token: text, thoughts and arguments together. A token is four
characters of prose. A longer answer comes from a server that ignores the limit of the request."""
LEAST_ANSWER_CHARS = 100_000
"""Allowed in any case: some servers do not count a model's thoughts."""

HEADERS = {"Accept-Encoding": "identity"}
"""Of every request: a compressed body could be of any size."""

_FORBIDDEN = 403
_RESERVED = frozenset(
    {"model", "messages", "system", "tools", "stream", "cache_control"}
    # Of the Responses API; with the last three the provider stores the conversation.
    | {"input", "instructions", "previous_response_id", "conversation", "background"}
)
"""Fields that `extra_body` must not set; `cache_control` would be a fifth breakpoint after the four
that Parley sets."""
UNREADABLE = (json.JSONDecodeError, UnicodeDecodeError)
"""Errors of a body that does not have the form that it claims."""
DONE = "[DONE]"
"""Sent by some servers after the last event; it is yielded, too."""


class StreamedAnswer(ABC):
    """An answer that grows with the events of one stream.

    Attributes:
        lost: The error of a broken connection.
        counts_whole: Whether any report of usage in a whole answer is of all of it.
    """

    lost: ClassVar[type[Exception] | tuple[type[Exception], ...]]
    counts_whole: ClassVar[bool]

    def __init__(self, draft: AnswerDraft, clock: "StreamClock", origin: str = "") -> None:
        """Begin an answer; `origin` is the sender, for the fields that only it understands."""
        self._draft = draft
        self._clock = clock
        self._origin = origin
        self._usage = Usage()
        self._is_counted = False
        self._cost_usd: float | None = None
        self._model = ""
        self._is_done = False

    async def read(self, stream: AsyncIterable[Any]) -> None:
        """Take the parsed events of a stream, which may be anything; leave a too long answer.

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
        """Take one event."""

    @property
    @abstractmethod
    def _has_ended(self) -> bool:
        """Whether the API's own end of an answer came."""

    @abstractmethod
    def _stop(self) -> StopReason:
        """Return why the answer ended."""

    @abstractmethod
    def _keep_opaque(self, message: ChatMessage) -> None:
        """Store in a whole message the fields that only its provider understands."""

    def completion(self, name: str) -> Completion:
        """Return the whole answer; `name` is the model's if the provider gave none.

        Raises:
            ModelUnreachable: The stream ended before the answer did.
            ContextOverflow: The window was full before the answer began.
            TypeError: A value does not fit into JSON: an integer of more than 64 bits, half a
                surrogate pair, or too many levels.
        """
        # Some servers send `[DONE]` alone.
        is_done = self._is_done and self.has_begun and self._draft.may_be_whole
        if not (self._has_ended or is_done or self._draft.is_full):
            raise ModelUnreachable("the stream was cut")
        # May raise: a stream that is cut is billed by the larger of report and estimate.
        stop = self._stop()
        self._is_counted = self._is_counted or self.counts_whole
        done = self._draft.completion(stop, self.billed(name), self._model or name)
        # Providers refuse half of a signed block.
        if not self._draft.is_full:
            self._keep_opaque(done.message)
        return replace(
            done,
            # In the order of keys after a restart: else the next request would begin differently.
            message=decode(encode(done.message)),
            cost_usd=self._cost_usd,
        )

    def billed(self, name: str) -> Usage | None:
        """Return the usage so far, None if unknown; hidden thoughts are not in its estimate."""
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
        """Whether anything came yet."""
        return bool(self._draft.streamed)


class ApiModel(ABC):
    """A model behind an HTTP API: the steps of its two calls, which each provider fills in."""

    answer: ClassVar[type[StreamedAnswer]]
    _origin = ""

    def __init__(
        self, settings: ModelSettings, name: str, base_url: str | None, key: str, key_number: int
    ) -> None:
        """Take the settings; `key_number` counts the keys of one model from 1."""
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
        """The window in tokens; a refusal may have named a smaller one than configured."""
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
        """Keep the sizes that a refusal names; whether a shorter answer can be asked for now."""
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
            # A stream that is cut is billed all the same.
            error.usage = answer.billed(self.name)
            error.written_tokens = answer.written_tokens(self.name)
            raise
        # The model's chat template opens the thought: the next answer waits for its end.
        self._begins_inside = draft.filter.began_inside
        if request.tools and request.allow_tools and "no_tools" not in self.mode.quirks:
            names = [tool.name for tool in request.tools]
            written = f"{draft.text}\n{draft.filter.reasoning}"
            self.mode.note_calls(written, names, called=bool(draft.calls))
        return completion

    async def look_up(self) -> int | None:
        """Ask the provider for the size of the window."""
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
            # The server has no such list, or the key may not read it: OpenAI's restricted keys get
            # 403 here and can still be used.
            return None
        except TimeoutError as exc:
            raise ModelUnreachable(f"no answer within {LOOK_UP_TIMEOUT_S:g} s") from exc
        return self._window_in(found)

    def renew_key(self) -> bool:
        """Read the key again if the settings refer to it; whether it changed. May block."""
        secret = self._settings.api_key
        if isinstance(secret, ReferencedSecret):
            secret.take(checked_key(secret.read()))
        return self.take_key()

    @property
    def secret(self) -> SecretStr | None:
        """The key in the settings."""
        return self._settings.api_key

    def take_key(self) -> bool:
        """Use the newest key; whether it changed."""
        before, self._key = self._key, key_of(self._settings, required=False)
        return before != self._key

    @abstractmethod
    async def close(self) -> None:
        """Give back connections."""

    @abstractmethod
    def _errors(self, asked: int = 0) -> AbstractContextManager[None]:
        """Map the client's errors to agent/errors.py; `asked` is as for `Refusal.error`."""

    @abstractmethod
    async def _stream(self, request: ModelRequest, answer: StreamedAnswer) -> None:
        """Make the call; `answer` reads its stream."""

    @abstractmethod
    async def _asked(self) -> object:
        """Return the provider's description of the model, which may be anything."""

    @abstractmethod
    def _window_in(self, found: object) -> int | None:
        """Return the result of `look_up` from such an answer."""


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
    """Return the operator's fields for every request; raises `BadRequest` for a reserved one."""
    taken = sorted(_RESERVED & set(settings.extra_body))
    if taken:
        raise BadRequest(f"model.extra_body must not set {', '.join(map(repr, taken))}")
    try:
        # YAML has numbers as keys, JSON does not.
        written = orjson.dumps(settings.extra_body, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as exc:
        raise BadRequest(f"model.extra_body is not JSON: {exc}") from exc
    fields: dict[str, Any] = orjson.loads(written)
    return fields


class StreamClock:
    """Ends a stream of nothing but pings, or one that never ends; reports one that trickles, once.

    The read timeout finds only silence. `tell` is `ModelRequest.on_trickle`.
    """

    def __init__(self, idle_s: float, tell: Callable[[], Awaitable[None]] | None) -> None:
        self._tell = tell
        self._noted = -1
        self._idle_s = idle_s
        self._deadline = asyncio.timeout(None)
        self._end_at = 0.0

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[None]":
        """Watch the stream that is read inside of this context; a ModelUnreachable ends it."""
        telling = asyncio.ensure_future(self._tell_of_trickle())
        try:
            async with self._deadline:
                self._end_at = asyncio.get_running_loop().time() + WHOLE_CALL_S
                self.note()
                yield
        except TimeoutError as exc:
            if not self._deadline.expired():
                # The client's own, which its errors explain.
                raise
            # Both limits share one timer: it was set to the one that ended the call.
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
        """Note an event with content."""
        self._noted += 1
        now = asyncio.get_running_loop().time()
        self._deadline.reschedule(min(now + PING_PATIENCE * self._idle_s, self._end_at))
