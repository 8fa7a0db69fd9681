"""JsonServer: events however they are cut, proxies of the environment, connections."""

import json
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from agent.models.openai.transport import JsonServer, data_of
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer

LINES = st.sampled_from([
    b"",
    b"data: one",
    b"data:two",
    b"data:  two blanks",
    b"data",
    b": a comment",
    b":",
    b"event: message",
    b"id: 7",
    b"datum: no data",
])
ENDS = st.sampled_from([b"\n", b"\r\n"])


async def events_of(*pieces: bytes) -> list[bytes]:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return [event async for event in data_of(body())]


@given(st.lists(LINES), ENDS, st.data())
async def test_a_cut_changes_nothing(lines: list[bytes], end: bytes, data: st.DataObject) -> None:
    """A body in any pieces has the events of its lines; what no blank line ends is none."""
    body = b"".join(line + end for line in lines)
    places = sorted(data.draw(st.sets(st.integers(0, len(body)))))
    cuts = [0, *places, len(body)]
    pieces = [body[a:b] for a, b in pairwise(cuts) if a < b]
    expected, begun = [], []
    for line in lines:
        if line.startswith(b"data:") or line == b"data":
            begun.append(line.removeprefix(b"data").removeprefix(b":").removeprefix(b" "))
        elif not line and begun:
            expected.append(b"\n".join(begun))
            begun = []
    assert await events_of(*pieces) == expected


async def test_requests_go_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request line that the proxy gets names the server."""
    seen: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append(str(request.url))
        return web.json_response({"data": []})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    monkeypatch.delenv("no_proxy", raising=False)
    server = JsonServer("http://model.example/v1", lambda: "key", 5)
    try:
        assert await server.ask("/models") == {"data": []}
    finally:
        await server.close()
        await runner.cleanup()
    assert seen == ["http://model.example/v1/models"]


async def test_one_connection_serves_one_call_after_another() -> None:
    """The end of a stream is read, so that its connection is free for the next request."""
    async with OpenAIServer(default=Reply(text="ok")) as double:
        server = JsonServer(double.url, lambda: "key", 5)
        body = json.dumps({
            "model": "local-1",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 9,
            "stream": True,
            "stream_options": {"include_usage": True},
        })
        for _ in range(3):
            async with server.events("/chat/completions", body.encode()) as events:
                assert [event async for event in events]
        await server.close()
        assert double.connections == 1
