"""A strict MCP server over streamable HTTP, with sessions, as of protocol 2025-06-18."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.support.mcp_server import Server

SESSION = "session-1"
TOKEN = "Bearer very-secret-token"


class HttpServer:
    """The server, and what happened at it.

    Attributes:
        url: Where it listens.
        events: What happened, in order.
        violations: What a correct client never does.
        gone: The session is not known any more, for one request.
        compressed: Answers are.
    """

    def __init__(self) -> None:
        self.inner = Server({})
        self.url = ""
        self.events: list[str] = []
        self.violations: list[str] = []
        self.gone = False
        self.compressed = False
        self._changed = asyncio.Event()

    def note(self, event: str) -> None:
        """Take note of something."""
        self.events.append(event)
        self._changed.set()

    async def until(self, event: str) -> None:
        """Wait until something has happened."""
        async with asyncio.timeout(30):
            while event not in self.events:
                self._changed.clear()
                await self._changed.wait()

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Take one message."""
        if request.headers.get("Authorization") != TOKEN:
            return web.Response(status=401)
        accepted = request.headers.get("Accept", "")
        if "application/json" not in accepted or "text/event-stream" not in accepted:
            self.violations.append(f"Accept: {accepted}")
        message = await request.json()
        method = message["method"]
        if method == "server/discover":
            return self.error(message, -32601, "no such method", status=404)
        if method != "initialize" and (problem := self.misses(request)):
            return problem
        if "id" not in message:
            self.note(method)
            self.inner.notified(method, message.get("params", {}))
            return web.Response(status=202)
        return await self.answer(request, message)

    def misses(self, request: web.Request) -> web.Response | None:
        """Return what a request without a session gets."""
        if self.gone:
            self.gone = False
            return web.Response(status=404)
        if request.headers.get("Mcp-Session-Id") != SESSION:
            self.violations.append("no session id")
            return web.Response(status=400)
        if request.headers.get("MCP-Protocol-Version") != "2025-06-18":
            self.violations.append("no protocol version")
        return None

    async def answer(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        """Answer a request: calls as a stream of events, the rest as JSON."""
        method, params = message["method"], message.get("params", {})
        name = params.get("name", "")
        self.note(f"{method} {name}".strip())
        result = self.inner.answer(method, params)
        if result is None:
            await asyncio.sleep(3600)
        body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        if name == "echo":
            return await self.stream(request, body)
        headers = {"Mcp-Session-Id": SESSION} if method == "initialize" else {}
        response = web.json_response(body, headers=headers)
        if self.compressed:
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Answer with one event."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"event: message\ndata: {json.dumps(body)}\n\n".encode())
        return response

    def error(
        self, message: dict[str, Any], code: int, text: str, *, status: int
    ) -> web.StreamResponse:
        """Refuse a request."""
        error = {"code": code, "message": text}
        body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
        return web.json_response(body, status=status)

    async def delete(self, request: web.Request) -> web.Response:
        """End the session."""
        self.note(f"ended {request.headers.get('Mcp-Session-Id')}")
        return web.Response()

    async def get(self, _request: web.Request) -> web.Response:
        """Offer no stream of its own."""
        return web.Response(status=405)


@asynccontextmanager
async def mcp_over_http() -> AsyncIterator[HttpServer]:
    """Run the server while the body runs; it fails where a client did what it must not."""
    server = HttpServer()
    app = web.Application()
    app.router.add_post("/mcp", server.post)
    app.router.add_delete("/mcp", server.delete)
    app.router.add_get("/mcp", server.get)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    try:
        yield server
    finally:
        await runner.cleanup()
    assert server.violations == []
