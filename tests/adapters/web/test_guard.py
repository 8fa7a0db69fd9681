"""Who is let in: loopback names, own origin, the token, the Unix socket."""

import socket
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from adapters.web.adapter import WebAdapter
from adapters.web.platform import WebSettings
from adapters.web.requests import names_loopback
from tests.adapters.web.conftest import Serve, Served
from tests.support.history import MemoryHistory

POST = "/api/chats/c1/messages"
MESSAGE = {"id": "m1", "text": "hi"}


async def status(served: Served, path: str = "/api/chats", **headers: str) -> int:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    async with served.client.get(path, headers=named) as response:
        return response.status


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:8765", True),
        ("LOCALHOST:8765", True),
        ("127.0.0.1:8765", True),
        ("127.8.9.1:8765", True),
        ("[::1]:8765", True),
        ("localhost:8766", False),
        ("localhost", False),
        ("localhost:x", False),
        ("evil.example:8765", False),
        ("127.0.0.1.evil.example:8765", False),
        ("192.168.0.4:8765", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_a_host_is_loopback_with_the_served_port(host: str, allowed: bool) -> None:
    """Only a name of this machine with the right port passes, whatever it resolves to."""
    assert names_loopback(host, 8765) is allowed


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/chats", "/api/chats/c1/events"])
async def test_a_foreign_host_is_refused(chat: Served, path: str) -> None:
    """A name that an attacker points at 127.0.0.1 reaches no handler."""
    assert await status(chat, path, Host=f"evil.example:{chat.port}") == 403


async def test_a_foreign_origin_is_refused(chat: Served) -> None:
    """Another site's script may not read or post."""
    assert await status(chat, Origin="http://evil.example") == 403
    assert await status(chat, Origin="null") == 403
    headers = {"Origin": "http://evil.example"}
    async with chat.client.post(POST, json=MESSAGE, headers=headers) as response:
        assert (await response.json())["error"] == "origin_refused"
    assert chat.history.messages == []


async def test_the_own_origin_is_let_in(chat: Served) -> None:
    """The page's own requests carry its origin."""
    assert await status(chat, Origin=f"http://127.0.0.1:{chat.port}") == 200


async def test_a_form_of_another_site_is_refused(chat: Served) -> None:
    """A post without JSON type and without our header is what a plain form can send."""
    async with chat.client.post(POST, data=b'{"id":"m","text":"hi"}') as response:
        assert response.status == 403
    async with chat.client.post(
        POST, data=b'{"id":"m","text":"hi"}', headers={"X-Parley": "1"}
    ) as response:
        assert response.status == 202


async def test_the_token_opens_the_api(serve: Serve) -> None:
    """With a token set the API needs it, and any host name is served."""
    served = await serve(token="s3cret")
    assert await status(served) == 401
    assert await status(served, Authorization="Bearer wrong") == 401
    assert await status(served, Authorization="Basic s3cret") == 401
    assert await status(served, Authorization="Bearer s3cret", Host="chat.example") == 200


async def test_the_login_form_is_reachable_without_token(serve: Serve) -> None:
    """The page and its files are public, so that there is something to log in with."""
    served = await serve(token="s3cret")
    assert await status(served, "/") == 200
    assert await status(served, "/static/app.js") == 200


async def test_a_login_sets_a_cookie_that_opens_the_api(serve: Serve) -> None:
    """The cookie is out of reach for scripts and other sites, and does not hold the token."""
    served = await serve(token="s3cret")
    async with served.client.post("/api/login", json={"token": "s3cret"}) as response:
        assert response.status == 204
        cookie = response.cookies["parley_session"]
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
    assert "s3cret" not in cookie.value
    assert await status(served) == 200
    served.client.session.cookie_jar.clear()
    assert await status(served, Cookie=f"parley_session={cookie.value}") == 200
    assert await status(served, Cookie="parley_session=forged") == 401


@pytest.mark.parametrize("body", [{"token": "wrong"}, {"token": "s3cret\u00e9"}])
async def test_a_wrong_token_is_refused(serve: Serve, body: dict[str, str]) -> None:
    """A failed login sets no cookie."""
    served = await serve(token="s3cret")
    async with served.client.post("/api/login", json=body) as response:
        assert response.status == 401
        assert "parley_session" not in response.cookies


async def test_a_login_needs_a_token_in_text(serve: Serve) -> None:
    """A token of another type is a malformed request."""
    served = await serve(token="s3cret")
    async with served.client.post("/api/login", json={"token": 7}) as response:
        assert response.status == 400


async def test_there_is_nothing_to_log_in_to_without_a_token(chat: Served) -> None:
    """An open web chat says so instead of accepting any token."""
    async with chat.client.post("/api/login", json={"token": "x"}) as response:
        assert (await response.json())["error"] == "no_token"


async def test_a_foreign_origin_is_refused_in_spite_of_the_token(serve: Serve) -> None:
    """A cookie that a browser adds by itself does not open the door to other sites."""
    served = await serve(token="s3cret")
    headers = {"Authorization": "Bearer s3cret", "Origin": "https://evil.example"}
    async with served.client.get("/api/chats", headers=headers) as response:
        assert response.status == 403


async def test_the_unix_socket_needs_no_token(tmp_path: Path) -> None:
    """Whoever may open the socket file is let in; its permissions protect it."""
    history = MemoryHistory()
    adapter = WebAdapter(WebSettings(token="s3cret"), history, history)
    app = web.Application()
    app.add_routes(adapter.routes())
    runner = web.AppRunner(app)
    await runner.setup()
    path = str(tmp_path / "parley.sock")
    await web.UnixSite(runner, path).start()
    connector = aiohttp.UnixConnector(path=path)
    async with (
        aiohttp.ClientSession("http://gateway", connector=connector) as http,
        http.post(POST, json=MESSAGE) as response,
    ):
        assert response.status == 202
    await runner.cleanup()


async def test_the_connections_own_port_counts(serve: Serve) -> None:
    """The port is taken from the socket, so a port chosen by the system works too."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        foreign = other.getsockname()[1]
    served = await serve()
    assert await status(served, Host=f"localhost:{served.port}") == 200
    assert await status(served, Host=f"localhost:{foreign}") == 403
