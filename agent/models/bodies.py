"""How much of an HTTP body is read (step 6): no event, error page or list may fill the memory.

The SDKs collect an event until its blank line and read every other body as a whole. What a stream
of many small events brings is bounded where it is read: agent/models/draft.py.
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
from typing_extensions import override

MAX_BYTES = 8_000_000
"""Of one event, or of a body that is no stream of events: eight times the longest known list of
models (OpenRouter's). Whoever sends an answer as one event does not come near either.
"""
HEADERS = {"Accept-Encoding": "identity"}
"""Of every request: compressed bodies could be of any size."""

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_END = 4


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
