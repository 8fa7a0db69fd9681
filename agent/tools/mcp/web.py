"""A server at a web address (step 6): the SDK's streamable HTTP, with answers of bounded size."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client
from typing_extensions import override

from agent.settings import McpServerSettings
from agent.tools.mcp.streams import MAX_MESSAGE_BYTES

CONNECT_WITHIN_S = 30.0


@asynccontextmanager
async def connected(server: McpServerSettings) -> AsyncIterator[Any]:
    """Yield the streams of messages; nothing is sent before the first one."""
    headers = {name: value.get_secret_value() for name, value in server.headers.items()}
    # Compressed answers could be of any size.
    headers["Accept-Encoding"] = "identity"
    timeout = httpx2.Timeout(CONNECT_WITHIN_S, read=server.timeout_s + CONNECT_WITHIN_S)
    transport = Bounded(httpx2.AsyncHTTPTransport())
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, transport=transport) as client,
        streamable_http_client(
            server.url or "", http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as streams,
    ):
        yield streams


class Bounded(httpx2.AsyncBaseTransport):
    """Ends answers that are too long; streams of events are bounded one by one by the SDK."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("the answer is compressed, which was not asked for")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Counted(response.stream)
        return response

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
    """The body of an answer, as far as it may go."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE_BYTES
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise httpx2.StreamError(f"the answer has more than {MAX_MESSAGE_BYTES:,} bytes")
            yield chunk

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()
