"""HTTP to a server that speaks OpenAI's API: sends JSON; receives JSON or a stream of events.

It uses aiohttp's client. OpenAI's SDK would add types, an object for each event and retries, which
cost more than the request itself and are not used (decision 290).
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
"""How long the end of a body may take after the last event; then the connection is closed."""
_FIRST_ERROR = 400
_JSON = frozenset({b"{", b"["})
"""First bytes of a body that is not a stream of events."""
_ANSWERS = ("choices", "output", "content")
"""The field of each API that holds the answer."""
_OF_ANSWERS = frozenset({"choices", "type", "usage", "id"})
_OF_ERRORS = frozenset({"detail", "message", "errors"})


class ServerError(Exception):
    """The server answers with an error; `status_code` is its status, or the one in a stream."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"HTTP {refusal.status}")
        self.refusal = refusal
        self.status_code = refusal.status


class Unreadable(Exception):
    """The answer is too large, or compressed without being asked to be."""


class JsonServer:
    """The connections to one server; the first request opens them, in its loop.

    Args:
        base_url: Comes before all paths; ends in /v1.
        key: Called for each request.
    """

    def __init__(self, base_url: str, key: Callable[[], str], idle_s: float) -> None:
        self._key = key
        self.session: aiohttp.ClientSession | None = None
        self.base_url = base_url.rstrip("/")
        self._idle_s = idle_s

    async def ask(self, path: str, body: bytes | None = None) -> object:
        """Return the parsed answer to GET, or to POST with a body; its text if it is not JSON.

        Raises:
            ServerError: The server answers with an error.
            ClientError, OSError: The connection is lost.
            UnusableEnvironment: The proxy or the certificates of the environment are wrong.
            Unreadable: The answer is too large.
            JSONDecodeError: The answer claims to be JSON and is not.
        """
        async with self._answer(path, body) as answer:
            text = await _whole(answer.content.iter_any())
            return json.loads(text) if "json" in answer.content_type else text.decode()

    @asynccontextmanager
    async def events(
        self, path: str, body: bytes, ends: Collection[str] = ()
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Make a request, and yield the parsed events of its answer, which may be anything.

        Leaving before the last event closes the connection. `ends` are the types of last events in
        an API without `[DONE]`. Raises the errors of `ask`, also while the events are read.
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
                raise Unreadable("the answer is compressed, which was not asked for")
            if answer.status >= _FIRST_ERROR:
                body = await _whole(answer.content.iter_any())
                raise ServerError(refusals.read(answer.status, answer.headers, body))
            yield answer

    def _opened(self) -> aiohttp.ClientSession:
        if self.session is None:
            idle_s = self._idle_s
            self.session = aiohttp.ClientSession(
                # How many turns run at once is limited elsewhere.
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
    """Return the content of a list of one; Gemini wraps a refusal in one."""
    return said[0] if isinstance(said, list) and len(said) == 1 else said


async def events_of(pieces: AsyncIterable[bytes], ends: Collection[str] = ()) -> AsyncIterator[Any]:
    """Yield the events of a body, or its one answer in JSON, whatever its content type.

    `ends` and errors are as for `JsonServer.events`.
    """
    first = b""
    # DeepSeek and OpenRouter send blank lines before an answer in one piece.
    async for piece in pieces:
        first += piece
        if first.strip():
            break
    if first.lstrip()[:1] in _JSON:
        said = _unlisted(json.loads(await _whole(_from(first, pieces))))
        if not (isinstance(said, dict) and any(said.get(each) for each in _ANSWERS)):
            raise ServerError(refusals.read_event(said))
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
            raise ServerError(refusals.read_event(event))
        yield event
        if ends and isinstance(event, dict) and event.get("type") in ends:
            await _drain(pieces)
            return


async def _from(first: bytes, pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in pieces:
        yield piece


def _is_failure(event: dict[str, Any]) -> bool:
    """Whether an event of a stream is an error, in the forms of several servers."""
    if event.get("error") or event.get("object") == "error":
        return True
    return _OF_ANSWERS.isdisjoint(event) and not _OF_ERRORS.isdisjoint(event)


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # orjson refuses half a surrogate pair, whose other half comes with the next event.
        return json.loads(data)


async def _drain(pieces: AsyncIterable[bytes]) -> None:
    """Read the end of a complete answer, which frees the connection; a failure does not matter."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass


async def data_of(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each event of a body that comes in pieces, cut anywhere.

    Lines end in LF or CRLF.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream

    Raises:
        Unreadable: An event has more than `MAX_BYTES`.
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
