"""What the JSON API takes, refuses, and hands to the intake."""

import asyncio
import json
import socket
from contextlib import ExitStack
from io import BytesIO

import aiohttp
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from yarl import URL

from adapters.messages import Address, OutgoingFile
from gateway.access.rate_limits import BODY_BYTES_OF_USER
from tests.adapters.web.conftest import Serve, Served, serving, until
from tests.support.door import TOKEN

PATH = "/api/chats/c1/messages"
JSON = {"Content-Type": "application/json"}


async def test_a_message_is_handed_to_the_intake(chat: Served) -> None:
    """A post becomes one authenticated inbound message that keeps the request as it came."""
    raw = '{"id": "m1", "text":  "Grüße\\nan alle"}'
    async with chat.client.post(PATH, data=raw.encode(), headers=JSON) as response:
        assert response.status == 202
        assert await response.json() == {"outcome": "queued", "seq": 1}
    [message] = chat.history.messages
    assert message.address == Address("web", "default", "c1")
    assert (message.text, message.dedupe_key, message.raw) == ("Grüße\nan alle", "c1:m1", raw)
    assert (message.chat_kind, message.sender, message.sender_name) == ("dm", "web", "owner")
    assert message.authenticated


async def test_an_edit_names_the_message_that_it_changes(chat: Served) -> None:
    """A message goes by its posted id; an edit has an id of its own for the dedupe key."""
    await chat.post("helo")
    body = {"id": "m2", "text": "hello", "edits": "m1"}
    async with chat.client.post(PATH, json=body) as response:
        assert response.status == 202
    first, edit = chat.history.messages
    assert (first.kind, first.message_ref) == ("message", "m1")
    assert (edit.kind, edit.message_ref, edit.dedupe_key) == ("edit", "m1", "c1:m2")


async def test_a_repeated_post_is_taken_once(chat: Served) -> None:
    """The same id again is answered with 202 and adds nothing."""
    assert [await chat.post("hi"), await chat.post("hi")] == [202, 202]
    assert len(chat.history.messages) == 1


async def test_the_same_id_in_another_chat_is_another_message(chat: Served) -> None:
    """Ids name messages within their chat only."""
    await chat.post("hi", chat="c1")
    await chat.post("hi", chat="c2")
    assert len(chat.history.messages) == 2


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{nope", 400, "bad_json"),
        (b"[1]", 400, "bad_json"),
        (b"[" * 100_000, 400, "bad_json"),
        (b'{"id":"m","text":"\xff"}', 400, "bad_json"),
        (b'{"id":"m","text":"\\ud800"}', 400, "bad_json"),
        (b'{"text":"hi"}', 400, "bad_id"),
        (b'{"id":"a b","text":"hi"}', 400, "bad_id"),
        (b'{"id":7,"text":"hi"}', 400, "bad_id"),
        (b'{"id":"m"}', 400, "bad_text"),
        (b'{"id":"m","text":"hi","edits":7}', 400, "bad_edits"),
        (b'{"id":"m","text":["hi"]}', 400, "bad_text"),
        (b'{"id":"m","text":" \\n "}', 400, "empty_text"),
        (json.dumps({"id": "m", "text": "x" * 200_001}).encode(), 422, "text_too_long"),
        (json.dumps({"id": "m", "text": "x" * 1_500_000}).encode(), 413, "body_too_large"),
    ],
)
async def test_a_malformed_post_is_refused(
    chat: Served, body: bytes, status: int, code: str
) -> None:
    """What cannot be taken gets a JSON error with a reason, and nothing is stored."""
    async with chat.client.post(PATH, data=BytesIO(body), headers=JSON) as response:
        assert response.status == status
        error = await response.json()
    assert error["error"] == code
    assert error["message"]
    assert chat.history.messages == []


async def test_the_longest_message_is_taken(chat: Served) -> None:
    """200,000 characters of four bytes each pass the limit on bytes."""
    body = '{"id":"m1","text":"' + "\U0001f980" * 200_000 + '"}'
    async with chat.client.post(PATH, data=body.encode(), headers=JSON) as response:
        assert response.status == 202


@pytest.mark.parametrize("name", ["a.b", "x" * 65, "%00"])
async def test_a_chat_has_a_plain_id(chat: Served, name: str) -> None:
    """An id of other characters is refused before anything is read."""
    async with chat.client.get(f"/api/chats/{name}/events") as response:
        assert response.status == 400
        assert (await response.json())["error"] == "bad_chat"


async def test_chats_are_listed(chat: Served) -> None:
    """The list names each chat with its title and time."""
    await chat.post("Hello there", chat="c9")
    async with chat.client.get("/api/chats") as response:
        assert response.headers["Cache-Control"] == "no-store"
        [summary] = (await response.json())["chats"]
    assert (summary["chat"], summary["title"]) == ("c9", "Hello there")
    assert summary["updated_at"].startswith("2026-")


async def test_a_failing_intake_is_a_server_error(
    chat: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was not stored is not acknowledged, so the client sends it again."""

    async def full(*_args: object, **_more: object) -> list[object]:
        raise OSError(28, "disk full")

    monkeypatch.setattr(chat.history, "accept", full)
    assert await chat.post("hi") == 500


async def test_the_page_comes_with_a_strict_policy(chat: Served) -> None:
    """No script or style but the served files runs, and no site may frame the page."""
    async with chat.client.get("/") as response:
        assert response.content_type == "text/html"
        policy = response.headers["Content-Security-Policy"]
        html = await response.text()
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "<style" not in html
    assert " style=" not in html
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("style.css", "text/css"),
        ("app.js", "text/javascript"),
        ("favicon.svg", "image/svg+xml"),
    ],
)
async def test_static_files_are_revalidated(chat: Served, name: str, content_type: str) -> None:
    """Each file has an ETag, and one that did not change is not sent again."""
    async with chat.client.get(f"/static/{name}") as first:
        found = first.content_type.replace("application/javascript", "text/javascript")
        assert (first.status, found) == (200, content_type)
        assert first.headers["Cache-Control"] == "no-cache"
        headers = {"If-None-Match": first.headers["ETag"]}
    async with chat.client.get(f"/static/{name}", headers=headers) as second:
        assert second.status == 304


@pytest.mark.parametrize("name", ["nope.js", "..%2fadapter.py"])
async def test_only_the_pages_files_are_served(chat: Served, name: str) -> None:
    """Nothing outside of the page's folder can be named."""
    async with chat.client.get(f"/static/{name}") as response:
        assert response.status == 404


ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = ("id", "text", "edits", "link", "token")
BODIES = st.one_of(
    st.binary(max_size=20),
    st.builds(
        lambda fields: json.dumps(fields).encode(),
        st.one_of(ANY, st.dictionaries(st.sampled_from(NAMES), st.one_of(ANY, st.just("m1")))),
    ),
)
FORM = "multipart/form-data"
KINDS = st.sampled_from(["application/json", FORM, f"{FORM}; boundary=x", ""])
POSTS = st.sampled_from([
    *("/api/sign-in", "/logout"),
    *("/api/chats/c1/messages", "/api/chats/%00/messages", "/api/chats/a%2Fb/messages"),
])
PATHS = st.builds(
    "/api/chats/{}/{}".format,
    st.sampled_from(["c1", "%00", "a%2Fb"]),
    st.one_of(
        st.builds("files/{}".format, st.integers()),
        st.builds("events?inbox={}&outbox={}".format, st.integers(), st.just("x")),
    ),
)


@pytest.mark.thorough
@settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.lists(st.tuples(POSTS, KINDS, BODIES), min_size=40), st.lists(PATHS, min_size=20))
def test_no_request_breaks_the_api(posts: list[tuple[str, str, bytes]], paths: list[str]) -> None:
    """Whatever is sent is done or refused in words; the server never fails."""

    async def told() -> list[int]:
        async with serving() as start:
            served = await start()
            statuses = []
            for path, kind, body in posts:
                served.sign_in()
                headers = {"X-Parley": "1", "Content-Type": kind}
                url = URL(served.url(path), encoded=True)
                async with served.client.session.post(url, data=body, headers=headers) as response:
                    statuses.append(response.status)
            for path in paths:
                url = URL(served.url(path), encoded=True)
                async with served.client.session.get(url) as response:
                    statuses.append(response.status)
            return statuses

    assert [status for status in asyncio.run(told()) if status >= 500] == []


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
