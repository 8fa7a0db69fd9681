"""Limit the responses that httpx2 clients read into memory."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
from typing_extensions import override

from agent.network import MAX_BYTES


async def bound(response: httpx2.Response) -> None:
    """Bound a response before its body is read; a hook of httpx2's client.

    Event streams are bounded per event by their readers.

    Raises:
        RemoteProtocolError: The body is compressed.
        StreamError: Raised later, while reading a body that is too large. MCP's SDK fails the call
            with it.
    """
    # A few compressed bytes can expand to gigabytes.
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.RemoteProtocolError("the answer is compressed, although not requested")
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        response.stream = _Bounded(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        async for chunk in self._inner:
            seen += len(chunk)
            if seen > MAX_BYTES:
                raise httpx2.StreamError(f"the answer has more than {MAX_BYTES:,} bytes")
            yield chunk

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()
