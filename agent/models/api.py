"""What models behind an HTTP API share: keys, limits of time and size, how a failure is mapped.

No event, error page or list may fill the memory: the SDKs collect an event until its blank line
and read every other body as a whole. What a stream of many small events brings is bounded where
it is read: agent/models/draft.py.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
from typing_extensions import override

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
    RateLimited,
)
from agent.models.base import ModelInfo
from agent.settings import ModelSettings

CONNECT_TIMEOUT_S = 10.0
LOOK_UP_TIMEOUT_S = 5.0
"""Longest question about a model: start-up waits for it."""
PING_PATIENCE = 5
"""So many times `idle_timeout_s` a stream may consist of pings and comments alone."""

CHARS_PER_TOKEN = 32
LEAST_ANSWER_CHARS = 100_000
"""Some servers do not count what a model thinks."""

MAX_BYTES = 8_000_000
"""Of one event, or of a body that is no stream of events: eight times the longest known list of
models (OpenRouter's). Whoever sends an answer as one event does not come near either.
"""
HEADERS = {"Accept-Encoding": "identity"}
"""Of every request: compressed bodies could be of any size."""

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_END = 4

_LONGEST_REASON = 300
_UNAVAILABLE = 503
_FORBIDDEN = 403
_RESERVED = frozenset({"model", "messages", "system", "tools", "stream", "cache_control"})
"""`cache_control` at the top would be a breakpoint beside the four that Parley sets."""
# What these say is clear, whatever else the answer holds.
CLEAR_STATUS: dict[int, type[ModelError]] = {
    401: CredentialsRefused,
    402: CreditUsedUp,
    403: CredentialsRefused,
    404: ModelNotFound,
    408: ModelUnreachable,
    409: ModelUnreachable,
    413: ContextOverflow,
    429: RateLimited,
    529: RateLimited,
}


def api_key(settings: ModelSettings) -> str:
    """Return the configured key, "" if there is none.

    Raises:
        CredentialsRefused: The key holds characters that no HTTP header can carry.
    """
    key = settings.api_key.get_secret_value().strip() if settings.api_key else ""
    if key and not (key.isascii() and key.isprintable()):
        raise CredentialsRefused("model.api_key holds characters that no key has")
    return key


def required_key(settings: ModelSettings, variable: str = "") -> str:
    """Return the configured key.

    Raises:
        CredentialsRefused: There is none; the message names the setting and the variable.
    """
    key = api_key(settings)
    if not key:
        place = f"model.api_key or {variable}" if variable else "model.api_key"
        raise CredentialsRefused(f"provider {settings.provider} needs a key: set {place}")
    return key


def label_of(name: str, key_number: int) -> str:
    """Return what a model is called in logs; only further keys are numbered, from 2."""
    return name if key_number == 1 else f"{name} (key {key_number})"


def extra_fields(settings: ModelSettings) -> dict[str, Any]:
    """Return the operator's fields for every request.

    Raises:
        BadRequest: One of them is what Parley writes itself.
    """
    taken = sorted(_RESERVED & set(settings.extra_body))
    if taken:
        raise BadRequest(f"model.extra_body must not set {', '.join(map(repr, taken))}")
    return settings.extra_body


def answer_chars(settings: ModelSettings, max_output_tokens: int) -> int:
    """Return how much one call may bring: text, thoughts and arguments together, in characters.

    A token is four characters of prose; the longest ones, of blanks, are over a hundred. What goes
    beyond the derived limit comes from a server that does not keep to the limit of the request.
    """
    derived = max(CHARS_PER_TOKEN * max_output_tokens, LEAST_ANSWER_CHARS)
    return settings.max_answer_chars or derived


class StreamClock:
    """Ends a stream that brings nothing but pings, or that never ends.

    The SDK's read timeout sees only silence.
    """

    def __init__(self, settings: ModelSettings) -> None:
        """Take the limits of one call from the settings."""
        self._step_s = settings.idle_timeout_s
        self._whole_s = settings.request_timeout_s
        self._deadline = asyncio.timeout(None)
        self._set_at = 0.0
        self._end_at = 0.0

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[None]":
        """Watch what happens in here.

        Raises:
            ModelUnreachable: Nothing was noted for 4 to 5 times the idle timeout, or the time for
                the whole call is over.
        """
        try:
            async with self._deadline:
                now = asyncio.get_running_loop().time()
                self._end_at = now + self._whole_s
                self._start_anew(now)
                yield
        except TimeoutError as exc:
            if self._deadline.when() == self._end_at:
                raise ModelUnreachable(f"no end within {self._whole_s:g} s") from exc
            limit_s = PING_PATIENCE * self._step_s
            raise ModelUnreachable(f"no content for {limit_s:g} s") from exc

    def note(self) -> None:
        """Take note of content. Costs next to nothing: the timer is moved once a step."""
        now = asyncio.get_running_loop().time()
        if now - self._set_at > self._step_s:
            self._start_anew(now)

    def _start_anew(self, now: float) -> None:
        self._set_at = now
        self._deadline.reschedule(min(now + PING_PATIENCE * self._step_s, self._end_at))


def model_info(context_length: object) -> ModelInfo | None:
    """Return the window that a server's answer tells; None for what is no size above 0."""
    if not isinstance(context_length, int) or isinstance(context_length, bool):
        return None
    return ModelInfo(context_length) if context_length > 0 else None


def refuse_key(failure: ModelError) -> None:
    """Raise a failed question about a model again if it says that the key is of no use.

    Else the server has no such question, or the key may do other things: OpenAI's restricted keys
    get 403 for it, and answer all the same.

    Raises:
        CredentialsRefused: The key is refused for everything, or its account has no money left.
    """
    cause = failure.__cause__
    is_forbidden = getattr(cause, "status_code", None) == _FORBIDDEN
    is_broke = isinstance(failure, CreditUsedUp)
    if isinstance(failure, CredentialsRefused) and (is_broke or not is_forbidden):
        raise failure


def error_class(status: int) -> type[ModelError]:
    """Return what an HTTP status means where the provider says nothing more precise."""
    default = BadRequest if 400 <= status < 500 else ModelUnreachable
    return CLEAR_STATUS.get(status, default)


def build_error(
    kind: type[ModelError], status: int, reason: str, headers: Mapping[str, str]
) -> ModelError:
    """Return an error of this kind; a RateLimited one carries what the headers ask for.

    So does a server that cannot answer now and says when it can.
    """
    wait_s = retry_after_s(headers)
    if status == _UNAVAILABLE and kind is ModelUnreachable and wait_s is not None:
        kind = RateLimited
    return kind(reason, wait_s) if issubclass(kind, RateLimited) else kind(reason)


def describe(status: int, kind: str | None, message: str | None, key: str) -> str:
    """Return a short line about a failure.

    Without the key even where the provider echoes it, and without a proxy's page of HTML.
    """
    text = "" if (message or "").lstrip().startswith("<") else message or ""
    # An event inside a stream comes with status 200.
    parts = [f"HTTP {status}" if status >= 400 else "", kind or "", text]
    line = " ".join(": ".join(part for part in parts if part).split())
    if key:
        line = line.replace(key, "[key]")
    return line[:_LONGEST_REASON]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that the headers ask for, at least 0; None if they do not say.

    Source: RFC 9110 §10.2.3 (seconds or a date); `retry-after-ms` is OpenAI's finer form.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    return seconds if seconds is not None else _seconds_until(text)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return max(value, 0.0) if math.isfinite(value) else None


def _seconds_until(text: str | None) -> float | None:
    try:
        moment = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - datetime.now(UTC)).total_seconds(), 0.0)


async def bound(response: httpx2.Response) -> None:
    """Bound a response whose body was not read yet; a hook of httpx2's client.

    Raises:
        RemoteProtocolError: The body is compressed. Later also from the body: it is too large.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.RemoteProtocolError("the answer is compressed, which was not asked for")
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    response.stream = _Bounded(response.stream, by_event=is_stream)


class _Bounded(httpx2.AsyncByteStream):
    """The body of a response, as far as it may go."""

    def __init__(self, inner: Any, *, by_event: bool) -> None:
        self._inner = inner
        self._by_event = by_event

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen, before = 0, b""
        async for chunk in self._inner:
            seen += len(chunk)
            if self._by_event:
                # The end of an event may come in two pieces.
                joined = before + chunk
                ended = max(map(joined.rfind, _EVENT_ENDS))
                seen = seen if ended < 0 else len(joined) - ended
                before = joined[1 - _LONGEST_END :]
            if seen > MAX_BYTES:
                what = "an event" if self._by_event else "the answer"
                raise httpx2.RemoteProtocolError(f"{what} has more than {MAX_BYTES:,} bytes")
            yield chunk

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()
