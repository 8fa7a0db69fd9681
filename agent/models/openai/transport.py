"""HTTP to a server that speaks OpenAI's API: JSON goes out; JSON, or a stream of events, comes in.

aiohttp's client does the work. What OpenAI's SDK would add to it (types, an object for each event,
retries) costs more than the request itself, and nothing of it is used (decision 290).
"""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import aiohttp
import orjson

from agent.models import refusals
from agent.models.api import CONNECT_TIMEOUT_S, DONE, HEADERS
from agent.models.refusals import Refusal
from agent.network import MAX_BYTES, UnusableEnvironment, in_words, proxy_for, tls_for

_DRAIN_S = 1.0
"""How long the end of a body may take behind the last event; then the connection is given up."""
_FIRST_ERROR = 400
_JSON = frozenset({b"{", b"["})
"""How a body begins that is no stream of events."""
_ANSWERS = ("choices", "output", "content")
"""Where each API has what is said."""
_OF_ANSWERS = frozenset({"choices", "type", "usage", "id"})
_OF_ERRORS = frozenset({"detail", "message", "errors"})


class ServerError(Exception):
    """The server answers with an error, as a status or inside of a stream.

    Attributes:
        refusal: What it says.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"HTTP {refusal.status}")
        self.refusal = refusal

    @property
    def status_code(self) -> int:
        """The HTTP status, or the one that an error in a stream names."""
        return self.refusal.status


class Disconnected(Exception):
    """No answer can be had, or the rest of one: no connection, silence, or what is no HTTP."""


class Unreadable(Exception):
    """The answer is larger than it may be, or packed, which was not asked for."""


class JsonServer:
    """The connections to one server; the first request opens them, in the loop that makes it.

    Args:
        base_url: In front of all paths; ends in /v1.
        key: Of the account; may be replaced.
    """

    def __init__(self, base_url: str, key: str, idle_s: float) -> None:
        self.key = key
        self.session: aiohttp.ClientSession | None = None
        self.base_url = base_url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=min(idle_s, CONNECT_TIMEOUT_S), sock_read=idle_s
        )

    async def get(self, path: str) -> object:
        """Return the parsed answer to a question; its text where it is no JSON.

        Raises:
            ServerError: It says no.
            Disconnected: It says nothing.
            Unreadable: It says too much.
            JSONDecodeError: It says JSON, and it is none.
        """
        async with self._answer("GET", path) as answer:
            return await _read(answer)

    async def post(self, path: str, body: bytes) -> object:
        """Return the parsed answer to a request, as `get` does, with the same errors."""
        async with self._answer("POST", path, body) as answer:
            return await _read(answer)

    @asynccontextmanager
    async def events(
        self, path: str, body: bytes, ends: Collection[str] = ()
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Make a request, and yield the parsed events of its answer, which may be anything.

        Whoever leaves before the last event closes the connection. `ends` are the types of events
        that nothing follows, where no `[DONE]` says so.

        Raises:
            ServerError: It says no; also while the events are read.
            Disconnected: The connection is lost; likewise.
            Unreadable: An event is too large; likewise.
            JSONDecodeError: An event is no JSON.
        """
        async with self._answer("POST", path, body) as answer:
            yield _events(answer, ends)

    async def close(self) -> None:
        """Give back the connections."""
        if self.session is not None:
            await self.session.close()

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Authorization": f"Bearer {self.key or 'none'}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        with _transport_errors():
            async with self._opened().request(
                method, f"{self.base_url}{path}", data=body, headers=headers
            ) as answer:
                # A few compressed bytes can be gigabytes once they are read.
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise Unreadable("the answer is compressed, which was not asked for")
                if answer.status >= _FIRST_ERROR:
                    body = await _whole(answer.content.iter_any())
                    raise ServerError(refusals.read(answer.status, answer.headers, body))
                yield answer

    def _opened(self) -> aiohttp.ClientSession:
        if self.session is None:
            self.session = aiohttp.ClientSession(
                # How many turns run at once is limited elsewhere.
                connector=aiohttp.TCPConnector(limit=0, ssl=tls_for(self.base_url)),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                headers={**HEADERS, "Accept": "application/json", "User-Agent": "parley"},
                auto_decompress=False,
                proxy=proxy_for(self.base_url),
            )
        return self.session


@contextmanager
def _transport_errors() -> Iterator[None]:
    try:
        yield
    except UnusableEnvironment as exc:
        raise Disconnected(str(exc)) from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise Disconnected(in_words(exc)) from exc


async def _read(answer: aiohttp.ClientResponse) -> object:
    text = await _whole(answer.content.iter_any())
    return json.loads(text) if "json" in answer.content_type else text.decode()


async def _whole(pieces: AsyncIterable[bytes]) -> bytes:
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > MAX_BYTES:
            raise Unreadable(f"the answer has more than {MAX_BYTES:,} bytes")
    return bytes(body)


def _unlisted(said: Any) -> Any:
    """Return what is said; Gemini wraps a refusal in a list."""
    return said[0] if isinstance(said, list) and len(said) == 1 else said


async def _events(answer: aiohttp.ClientResponse, ends: Collection[str]) -> AsyncIterator[Any]:
    with _transport_errors():
        async for event in events_of(answer.content.iter_any(), ends):
            yield event


async def events_of(pieces: AsyncIterable[bytes], ends: Collection[str] = ()) -> AsyncIterator[Any]:
    """Yield the events of a body, or the one answer in JSON that it is, whatever it says it is.

    `ends` and errors are as for `JsonServer.events`.
    """
    first = b""
    # DeepSeek and OpenRouter send blank lines ahead of an answer in one piece.
    async for piece in pieces:
        first += piece
        if first.strip():
            break
    if first.lstrip()[:1] in _JSON:
        yield _answered(_unlisted(json.loads(await _whole(_from(first, pieces)))))
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


def _answered(said: Any) -> Any:
    """Return the JSON that a server sends in place of a stream, if it is an answer.

    Raises:
        ServerError: It is an error, whatever its form.
    """
    if not (isinstance(said, dict) and any(said.get(each) for each in _ANSWERS)):
        raise ServerError(refusals.read_event(said))
    return said


def _is_failure(event: dict[str, Any]) -> bool:
    """Whether an event of a stream is an error, in the forms of several servers."""
    if event.get("error") or event.get("object") == "error":
        return True
    return _OF_ANSWERS.isdisjoint(event) and not _OF_ERRORS.isdisjoint(event)


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # Half a surrogate pair is none for it: the other half comes with the next event.
        return json.loads(data)


async def _drain(pieces: AsyncIterable[bytes]) -> None:
    """Read the end of a body: only then the connection is free for the next request.

    All was said: what becomes of the connection does not matter any more.
    """
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in pieces:
                pass


async def data_of(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each event of a body that comes in pieces, however they are cut.

    Lines end in LF or CRLF, as those of every known server do.

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
