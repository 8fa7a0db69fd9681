"""Files that the web chat hands out."""

import pytest

from adapters.errors import FetchDelayed
from adapters.messages import OutgoingFile
from tests.adapters.web.conftest import Serve, Served

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


async def test_a_file_that_cannot_be_had_now_is_asked_for_again(
    chat: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object store is down: that is no reason to believe that there is no such file."""

    async def file(*_: object) -> None:
        raise FetchDelayed("the object store does not answer")

    monkeypatch.setattr(chat.history, "file", file)
    async with chat.client.get("/api/chats/c1/files/1") as response:
        assert response.status == 503
        assert (await response.json())["error"] == "file_delayed"
