"""Files that the web chat hands out."""

import socket
from contextlib import ExitStack

import aiohttp
import pytest

from adapters.messages import OutgoingFile
from gateway.access.rate_limits import BODY_BYTES_OF_USER
from tests.adapters.web.conftest import Serve, Served, until
from tests.support.door import TOKEN

PNG = OutgoingFile("a.png", "image/png", b"\x89PNG")
HTML = OutgoingFile('ä "x".html', "text/html", b"<script>alert(1)</script>")


async def test_a_picture_is_shown_inline(chat: Served) -> None:
    """With its type, and nothing in it may run."""
    chat.history.keep("c1", PNG)
    async with chat.client.get("/api/chats/c1/files/1") as response:
        assert (response.status, await response.read()) == (200, PNG.content)
        assert response.content_type == "image/png"
        assert response.headers["Content-Disposition"] == "inline; filename*=UTF-8''a.png"
        assert response.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("mime", ["text/html", "image/svg+xml", "", "no type\r\nX: y"])
async def test_anything_else_is_a_download(chat: Served, mime: str) -> None:
    """Whatever it says of itself: a page of a stranger never opens in the browser."""
    chat.history.keep("c1", OutgoingFile(HTML.name, mime, HTML.content))
    async with chat.client.get("/api/chats/c1/files/1") as response:
        assert response.content_type == "application/octet-stream"
        named = "attachment; filename*=UTF-8''%C3%A4%20%22x%22.html"
        assert response.headers["Content-Disposition"] == named
        assert await response.read() == HTML.content


@pytest.mark.parametrize("path", ["c2/files/1", "c1/files/2", "c1/files/-1", "c1/files/1x"])
async def test_only_files_of_the_chat_are_found(chat: Served, path: str) -> None:
    """Not those of another one, and none by another form of the number."""
    chat.history.keep("c1", PNG)
    async with chat.client.get(f"/api/chats/{path}") as response:
        assert response.status == 404
        assert (await response.json())["error"] == "no_such_file"


async def test_files_are_behind_the_guard(serve: Serve) -> None:
    """Who is not signed in gets no file."""
    chat = await serve(signed_in=False)
    chat.history.keep("c1", PNG)
    async with chat.client.get("/api/chats/c1/files/1") as response:
        assert response.status == 401


async def test_a_file_that_is_not_taken_counts(chat: Served) -> None:
    """It is in memory until then, and counts for the user's limit of bytes."""
    size = BODY_BYTES_OF_USER // 2 - 1
    chat.history.keep("c1", OutgoingFile("a.zip", "", bytes(size)))
    asks = f"GET /api/chats/c1/files/1 HTTP/1.1\r\nHost: 127.0.0.1:{chat.port}\r\n"
    asks += f"Authorization: Bearer {TOKEN}\r\n\r\n"
    limits, path = chat.door.limits, "/api/chats/c1/files/1"
    with ExitStack() as opened:
        for _ in range(2):
            lazy = opened.enter_context(socket.create_connection(("127.0.0.1", chat.port), 30))
            lazy.sendall(asks.encode())
        await until(lambda: limits._bytes.get("web") == 2 * size)
        async with chat.client.get(path) as response:
            assert (response.status, response.headers.get("Retry-After")) == (503, "5")
    await until(lambda: not limits._bytes)
    async with chat.client.head(path) as response:
        assert (response.status, response.headers["Content-Length"]) == (200, str(size))
    async with chat.client.get(path) as response:
        assert (response.status, len(await response.read())) == (200, size)


async def test_who_takes_a_file_too_slowly_gets_no_more_of_it(
    chat: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends, and its bytes no longer count."""
    monkeypatch.setattr("adapters.web.adapter.SEND_S", 0.0)
    chat.history.keep("c1", OutgoingFile("a.zip", "", bytes(30_000_000)))
    with pytest.raises(aiohttp.ClientError):
        async with chat.client.get("/api/chats/c1/files/1") as response:
            await response.read()
    assert chat.door.limits._bytes == {}
