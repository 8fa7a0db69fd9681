"""Messages that come with files."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from adapters.door import OWNER, Visitor
from adapters.web import adapter
from gateway.access.rate_limits import BODY_BYTES_OF_USER
from tests.adapters.web.conftest import Serve, Served, until
from tests.support.door import MAX_FILE_BYTES, TOKEN

PATH = "/api/chats/c1/messages"
MARK = {"X-Parley": "1"}
JSON = {"Content-Type": "application/json"}


def form(text: str | None = "look", key: str = "m1", **files: bytes) -> aiohttp.FormData:
    """Return a form as a browser makes it; a file's name is its keyword, `_` for the dot."""
    data = aiohttp.FormData(default_to_multipart=True)
    data.add_field("id", key)
    if text is not None:
        data.add_field("text", text)
    for name, content in files.items():
        mime = "image/png" if name.endswith("_png") else "text/plain"
        data.add_field("file", content, filename=name.replace("_", "."), content_type=mime)
    return data


async def post(chat: Served, data: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    async with chat.client.post(PATH, data=data, headers=MARK | headers) as response:
        return response.status, await response.json()


async def test_files_are_handed_to_the_intake_with_their_bytes(chat: Served) -> None:
    """Names, kinds, types, sizes and contents; the raw message tells all but the contents."""
    assert await post(chat, form(a_png=b"\x89PNG", b_txt=b"hi")) == (
        202,
        {"outcome": "queued", "seq": 1},
    )
    [message] = chat.history.messages
    picture, text = message.attachments
    assert (picture.name, picture.kind, picture.mime) == ("a.png", "image", "image/png")
    assert (text.name, text.kind, text.content, text.size_bytes) == ("b.txt", "file", b"hi", 2)
    assert (message.text, message.dedupe_key, message.message_ref) == ("look", "c1:m1", "m1")
    assert json.loads(message.raw) == {
        "id": "m1",
        "text": "look",
        "files": [{"name": "a.png", "size": 4}, {"name": "b.txt", "size": 2}],
    }


async def test_a_files_name_may_be_written_anyhow(chat: Served) -> None:
    """What of it is no UTF-8 is replaced, in its type as well."""
    field = b'--x\r\nContent-Disposition: form-data; name="id"\r\n\r\nm1\r\n'
    file = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a\xff.txt"\r\n'
    body = field + file + b"Content-Type: text/\xff\r\n\r\nhi\r\n--x--\r\n"
    status, _ = await post(chat, body, **{"Content-Type": "multipart/form-data; boundary=x"})
    assert status == 202
    [file_] = chat.history.messages[0].attachments
    assert (file_.name, file_.mime) == ("a?.txt", "text/?")


@pytest.mark.parametrize("text", ["", None])
async def test_files_need_no_text(chat: Served, text: str | None) -> None:
    """A picture alone is a message."""
    status, _ = await post(chat, form(text, a_png=b"x"))
    assert (status, chat.history.messages[0].text) == (202, "")


async def test_a_form_without_files_needs_a_text(chat: Served) -> None:
    """An empty message is refused, whichever way it comes."""
    status, answer = await post(chat, form(" "))
    assert (status, answer["error"]) == (400, "empty_text")


async def test_a_repeated_upload_is_taken_once(chat: Served) -> None:
    """Its id is the dedupe key, as for a text."""
    for _ in range(2):
        assert (await post(chat, form(a_txt=b"x")))[0] == 202
    assert len(chat.history.messages) == 1


async def test_few_forms_are_stored_at_once(chat: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait with their files read, and all are accepted in the end."""
    go, accept, storing = asyncio.Event(), chat.history.accept, list[str]()
    read, reads = adapter.posted_form, list[None]()

    async def slowly(messages: Any) -> Any:
        storing.append(messages[0].dedupe_key)
        await go.wait()
        return await accept(messages)

    async def counted(*given: Any) -> Any:
        posted = await read(*given)
        reads.append(None)
        return posted

    monkeypatch.setattr(chat.history, "accept", slowly)
    monkeypatch.setattr(adapter, "posted_form", counted)
    async with asyncio.TaskGroup() as tasks:
        posts = [tasks.create_task(post(chat, form(key=f"m{n}", a_txt=b"x"))) for n in range(4)]
        await until(lambda: len(reads) == 4 and len(storing) >= adapter.FORMS_AT_ONCE)
        assert len(storing) == adapter.FORMS_AT_ONCE
        go.set()
    assert [each.result()[0] for each in posts] == [202] * 4


async def test_the_files_of_a_message_are_measured_together(serve: Serve) -> None:
    """As much as the limit is taken, a byte more is not."""
    chat = await serve(max_file_bytes=10)
    assert (await post(chat, form(a_txt=b"12345", b_txt=b"12345")))[0] == 202
    status, answer = await post(chat, form(key="m2", a_txt=b"12345", b_txt=b"123456"))
    assert (status, answer["error"]) == (413, "body_too_large")
    assert len(chat.history.messages) == 1


async def test_a_message_has_ten_files_at_most(chat: Served) -> None:
    """The eleventh is one too many."""
    ten = {f"f{n}_txt": b"x" for n in range(10)}
    assert (await post(chat, form(**ten)))[0] == 202
    status, answer = await post(chat, form(key="m2", **ten, last_txt=b"x"))
    assert (status, answer["error"]) == (413, "too_many_files")


async def test_no_files_are_taken_where_the_limit_is_none(serve: Serve) -> None:
    """`attachments.max_bytes: 0` turns them off, and the page is told."""
    chat = await serve(max_file_bytes=0)
    status, answer = await post(chat, form(a_txt=b""))
    assert (status, answer["error"]) == (413, "no_files")
    async with chat.client.get("/api/chats") as response:
        assert (await response.json())["max_file_bytes"] == 0


async def test_a_long_field_is_refused_before_it_is_read_whole(chat: Served) -> None:
    """Text is bounded as it is in JSON."""
    status, answer = await post(chat, form("x" * 1_000_001))
    assert (status, answer["error"]) == (413, "body_too_large")
    status, answer = await post(chat, form("x" * 200_001))
    assert (status, answer["error"]) == (422, "text_too_long")


NESTED = b"--a\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b--\r\n\r\n--a--\r\n"
NOT_TEXT = b'--a\r\nContent-Disposition: form-data; name="id"\r\n\r\n\xff\r\n--a--\r\n'


@pytest.mark.parametrize("body", [b"nothing of the kind", NESTED, NOT_TEXT, b"--a\r\n\r\ncut off"])
async def test_a_malformed_form_is_refused(chat: Served, body: bytes) -> None:
    """It is answered, not a server error."""
    status, answer = await post(chat, body, **{"Content-Type": "multipart/form-data; boundary=a"})
    assert (status, answer["error"]) in {(400, "bad_form"), (400, "bad_id")}
    assert chat.history.messages == []


async def test_a_form_of_another_site_is_refused(chat: Served) -> None:
    """Any page can make a browser post a form, but not with our mark."""
    async with chat.client.post(PATH, data=form(a_txt=b"x")) as response:
        assert response.status == 403
    assert chat.history.messages == []


BEGIN = b'--x\r\nContent-Disposition: form-data; name="id"\r\n\r\nm1\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
END = b"\r\n--x--\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def begun(chat: Served, announced: int, sent: bytes = b"") -> AsyncIterator[Streams]:
    """Announce a form of so many bytes, and send its beginning."""
    reader, writer = await asyncio.open_connection("127.0.0.1", chat.port)
    lines = [
        f"POST {PATH} HTTP/1.1",
        f"Host: 127.0.0.1:{chat.port}",
        f"Authorization: Bearer {TOKEN}",
        "X-Parley: 1",
        "Content-Type: multipart/form-data; boundary=x",
        f"Content-Length: {announced}",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def head(reader: asyncio.StreamReader) -> str:
    """Return the first line and the headers of an answer."""
    async with asyncio.timeout(30):
        return (await reader.readuntil(b"\r\n\r\n")).decode()


async def test_announced_bytes_count_at_once(chat: Served) -> None:
    """Of one user: one too many is refused before its first byte, with a time to try again."""
    count = BODY_BYTES_OF_USER // MAX_FILE_BYTES
    async with AsyncExitStack() as opened:
        for _ in range(count):
            await opened.enter_async_context(begun(chat, MAX_FILE_BYTES, BEGIN))
        await until(lambda: chat.door.limits._bytes.get("web") == count * MAX_FILE_BYTES)
        async with begun(chat, MAX_FILE_BYTES) as (reader, _):
            told = await head(reader)
        assert told.startswith("HTTP/1.1 503 ")
        assert "Retry-After: 5" in told
    await until(lambda: not chat.door.limits._bytes)
    assert (await post(chat, form(a_txt=b"x")))[0] == 202


async def test_bytes_that_nobody_announced_count_as_they_come(chat: Served) -> None:
    """In chunks without a length; texts and forms."""

    async def pieces() -> AsyncIterator[bytes]:
        yield BEGIN + FILE
        for _ in range(5):
            yield b"a" * 100_000
        yield END

    with chat.door.limits.room(OWNER) as reach:
        reach(BODY_BYTES_OF_USER - 300_000)
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        status, answer = await post(chat, pieces(), **kind)
        assert (status, answer["error"]) == (503, "busy")
        status, answer = await post(chat, json.dumps({"id": "m1", "text": "x" * 150_000}), **JSON)
        assert status == 202
        reach(BODY_BYTES_OF_USER - 100_000)
        status, answer = await post(chat, json.dumps({"id": "m2", "text": "x" * 150_000}), **JSON)
        assert (status, answer["error"]) == (503, "busy")


async def test_what_is_announced_too_large_is_not_read(chat: Served) -> None:
    """The answer comes before the body."""
    async with begun(chat, MAX_FILE_BYTES + 2_000_000) as (reader, _):
        assert (await head(reader)).startswith("HTTP/1.1 413 ")


async def test_the_rate_is_looked_at_before_the_body(chat: Served) -> None:
    """Of a member; an owner has none."""
    chat.history.wait = 12.3
    assert (await post(chat, form(a_txt=b"x")))[0] == 202
    chat.sign_in(Visitor("ann", "ann", "member"))
    async with chat.client.post(PATH, data=form(key="m2", a_txt=b"x"), headers=MARK) as response:
        assert (response.status, response.headers.get("Retry-After")) == (429, "13")
    assert len(chat.history.messages) == 1
    assert await chat.post("/stop", key="m3") == 202
