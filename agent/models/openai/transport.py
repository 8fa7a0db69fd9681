"""HTTP to a server that speaks OpenAI's API: sends JSON, receives JSON or an event stream.

It uses aiohttp's client. OpenAI's SDK would add types, an object per event and retries, which
Parley does not use and which cost more than the request itself (decision 026).
"""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import orjson

from agent.models import refusals
from agent.models.api import CONNECT_TIMEOUT_S, DONE, HEADERS
from agent.models.refusals import Refusal
from agent.network import MAX_BYTES, proxy_for, tls_for

_DRAIN_S = 1.0
"""Seconds to wait for the end of a body after the last event before closing the connection."""
_FIRST_ERROR = 400
_JSON = frozenset({b"{", b"["})
"""First bytes of a body that is plain JSON, not an event stream."""
_ANSWERS = ("choices", "output", "content")
"""Fields that hold the answer, one per API."""
_OF_ANSWERS = frozenset({"choices", "type", "usage", "id"})
_OF_ERRORS = frozenset({"detail", "message", "errors"})


class ServerError(Exception):
    """The server answered with an error; `status_code` is from HTTP or the stream."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"HTTP {refusal.status}")
        self.refusal = refusal
        self.status_code = refusal.status


class Unreadable(Exception):
    """The answer is too large, or compressed although no compression was requested."""


class JsonServer:
    """Connections to one server; the first request opens them in its event loop.

    Args:
        base_url: Prefix of all paths; ends in /v1.
        key: Returns the current key; called for each request.
    """

    def __init__(self, base_url: str, key: Callable[[], str], idle_s: float) -> None:
        self._key = key
        self.session: aiohttp.ClientSession | None = None
        self.base_url = base_url.rstrip("/")
        self._idle_s = idle_s

    async def ask(self, path: str, body: bytes | None = None) -> object:
        """Return the parsed answer to a GET, or to a POST of `body`; plain text if it is not JSON.

        Raises:
            ServerError: The server answered with an error.
            ClientError, OSError: The connection was lost.
            UnusableEnvironment: The environment's proxy or certificates are unusable.
            Unreadable: The answer is too large.
            JSONDecodeError: The answer is declared as JSON but is malformed.
        """
        async with self._answer(path, body) as answer:
            text = await _whole(answer.content.iter_any())
            return json.loads(text) if "json" in answer.content_type else text.decode()

    @asynccontextmanager
    async def events(
        self, path: str, body: bytes, ends: Collection[str] = ()
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Make a request and yield the parsed events of its answer, which may be of any type.

        Leaving the context before the last event closes the connection. `ends` lists the final
        event types of an API without `[DONE]`. Raises the errors of `ask`, also while events are
        read.
        """
        async with self._answer(path, body) as answer:
            yield events_of(answer.content.iter_any(), ends)

    async def close(self) -> None:
        """Close the connections."""
        if self.session is not None:
            await self.session.close()

    @asynccontextmanager
    async def _answer(self, path: str, body: bytes | None) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Authorization": f"Bearer {self._key() or 'none'}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        async with self._opened().request(
            "POST" if body else "GET", f"{self.base_url}{path}", data=body, headers=headers
        ) as answer:
            # A few compressed bytes can expand to gigabytes.
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise Unreadable("the answer is compressed, although not requested")
            if answer.status >= _FIRST_ERROR:
                body = await _whole(answer.content.iter_any())
                raise ServerError(refusals.parse_refusal(answer.status, answer.headers, body))
            yield answer

    def _opened(self) -> aiohttp.ClientSession:
        if self.session is None:
            idle_s = self._idle_s
            self.session = aiohttp.ClientSession(
                # The number of concurrent turns is limited elsewhere.
                connector=aiohttp.TCPConnector(limit=0, ssl=tls_for(self.base_url)),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=min(idle_s, CONNECT_TIMEOUT_S), sock_read=idle_s
                ),
                headers={**HEADERS, "Accept": "application/json", "User-Agent": "parley"},
                auto_decompress=False,
                proxy=proxy_for(self.base_url),
            )
        return self.session


async def _whole(pieces: AsyncIterable[bytes]) -> bytes:
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > MAX_BYTES:
            raise Unreadable(f"the answer has more than {MAX_BYTES:,} bytes")
    return bytes(body)


def _unlisted(said: Any) -> Any:
    """Unwrap a one-element list; Gemini wraps a refusal in one."""
    return said[0] if isinstance(said, list) and len(said) == 1 else said


async def events_of(pieces: AsyncIterable[bytes], ends: Collection[str] = ()) -> AsyncIterator[Any]:
    """Yield the events of a body, or its single JSON answer, whatever its content type.

    See `JsonServer.events` for `ends` and errors.
    """
    first = b""
    # DeepSeek and OpenRouter send blank lines before an unstreamed answer.
    async for piece in pieces:
        first += piece
        if first.strip():
            break
    if first.lstrip()[:1] in _JSON:
        said = _unlisted(json.loads(await _whole(_from(first, pieces))))
        if not (isinstance(said, dict) and any(said.get(each) for each in _ANSWERS)):
            raise ServerError(refusals.parse_stream_error(said))
        yield said
        yield DONE
        return
    async for data in data_of(_from(first, pieces)):
        if data.strip() == DONE.encode():
            await _drain(pieces)
            yield DONE
            return
        event = _unlisted(_parsed(data))
        if isinstance(event, dict) and _is_failure(event):
            raise ServerError(refusals.parse_stream_error(event))
        yield event
        if ends and isinstance(event, dict) and event.get("type") in ends:
            await _drain(pieces)
            return


async def _from(first: bytes, pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in pieces:
        yield piece


def _is_failure(event: dict[str, Any]) -> bool:
    """Return whether a stream event is an error, in any of several servers' formats."""
    if event.get("error") or event.get("object") == "error":
        return True
    return _OF_ANSWERS.isdisjoint(event) and not _OF_ERRORS.isdisjoint(event)


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # orjson refuses a lone surrogate; the other half arrives with the next event.
        return json.loads(data)


async def _drain(pieces: AsyncIterable[bytes]) -> None:
    """Read a complete answer to its end, which frees the connection; ignore failures."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass


async def data_of(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each event of a body that arrives in arbitrary pieces.

    Lines end in LF or CRLF.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream

    Raises:
        Unreadable: An event exceeds `MAX_BYTES`.
    """
    begun, data, size = bytearray(), list[bytes](), 0
    async for piece in pieces:
        size += len(piece)
        begun += piece
        *lines, begun = begun.split(b"\n") if b"\n" in piece else [begun]
        for each in lines:
            line = bytes(each.removesuffix(b"\r"))
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            if line:
                continue
            size = 0
            if data:
                yield b"\n".join(data)
            data.clear()
        if size > MAX_BYTES:
            raise Unreadable(f"an event has more than {MAX_BYTES:,} bytes")
