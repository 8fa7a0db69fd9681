"""Who is let in: sessions, the token, the Unix socket; loopback names, the own origin."""

import socket
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from adapters.door import (
    OWNER,
    Errand,
    ProviderAnswer,
    ProviderUnreachable,
    SignInRefused,
    Visitor,
)
from adapters.web.adapter import WebAdapter
from adapters.web.guard import names_loopback
from adapters.web.platform import WebSettings
from gateway.access import rate_limits
from tests.adapters.web.conftest import Serve, Served
from tests.adapters.web.streams import listen
from tests.support.door import TOKEN, MemoryDoor, web_host
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
        ("parley.localhost:8765", True),
        ("evil.localhost:8765", False),
        ("parley.localhost.evil.example:8765", False),
        ("parley.localhost:8766", False),
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


async def test_behind_a_balancer_its_port_is_served_too(serve: Serve) -> None:
    """One that hands on connections as they are; its cookie is one for all replicas."""
    served = await serve(signed_in=False, public_url="http://127.0.0.1:4321/")
    body, there = {"token": TOKEN}, {"Host": "127.0.0.1:4321"}
    async with served.client.post("/api/sign-in", json=body, headers=there) as response:
        assert response.status == 204
        cookie = response.cookies["parley_4321"]
    known = {"Cookie": f"parley_4321={cookie.value}"}
    assert await status(served, **known, **there) == 200
    assert await status(served, **known, Host="127.0.0.1:4322") == 403
    assert await status(served, **known, Host="evil.example:4321") == 403


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://127.0.0.1:4321/", 4321),
        ("http://localhost", 80),
        ("http://[::1]:90/", 90),
        ("https://127.0.0.1:4321/", None),
        ("http://chat.example:4321/", None),
        (None, None),
    ],
)
def test_the_port_of_a_public_address_counts_on_this_machine(
    url: str | None, port: int | None
) -> None:
    """What is somebody else's address says nothing about connections from here."""
    assert WebSettings(public_url=url).public_port == port


async def test_a_foreign_host_signs_nobody_in(serve: Serve) -> None:
    """Not even to try a token."""
    served = await serve(signed_in=False)
    headers = {"Host": f"evil.example:{served.port}"}
    async with served.client.post("/api/sign-in", json={"token": TOKEN}, headers=headers) as answer:
        assert answer.status == 403
    assert served.door.callers == []


async def test_a_foreign_origin_is_refused(chat: Served) -> None:
    """Another site's script may not read or post."""
    assert await status(chat, Origin="http://evil.example") == 403
    assert await status(chat, Origin="null") == 403
    headers = {"Origin": "http://evil.example"}
    async with chat.client.post(POST, json=MESSAGE, headers=headers) as response:
        assert (await response.json())["error"] == "origin_refused"
    assert chat.history.messages == []


async def test_a_wrong_setting_is_a_warning_once(chat: Served) -> None:
    """Strangers can have as many requests refused as they like; what they do is none at all."""
    with capture_logs() as logs:
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}) * 2:
            assert await status(chat, **headers) == 403
        assert await status(chat, Authorization="Bearer wrong") == 401
    told = [(line["code"], line["log_level"]) for line in logs]
    assert told == [
        ("origin_refused", "warning"),
        ("host_refused", "warning"),
        ("origin_refused", "info"),
        ("host_refused", "info"),
        ("wrong_token", "info"),
    ]


@pytest.mark.parametrize(
    ("settings", "page"),
    [
        ({}, "http://parley.localhost:4321/"),
        ({"host": "localhost"}, "http://parley.localhost:4321/"),
        ({"host": "::"}, "http://parley.localhost:4321/"),
        ({"host": "::1"}, "http://parley.localhost:4321/"),
        ({"host": "127.0.0.2"}, "http://127.0.0.2:4321/"),
        ({"host": "192.0.2.1"}, "http://192.0.2.1:4321/"),
        ({"host": "2001:db8::1"}, "http://[2001:db8::1]:4321/"),
        ({"public_url": "https://chat.example"}, "https://chat.example/"),
    ],
)
def test_the_printed_address_has_a_name_of_its_own(settings: dict[str, str], page: str) -> None:
    """A browser sends a cookie to all ports of its host name; other servers here get none."""
    assert WebSettings.model_validate(settings).page(4321) == page


async def test_under_the_own_name_somebody_signs_in(serve: Serve) -> None:
    """Host, Origin and session are those of the printed address."""
    served = await serve(signed_in=False)
    own = f"parley.localhost:{served.port}"
    headers = {"Host": own, "Origin": f"http://{own}"}
    async with served.client.post("/api/sign-in", json={"token": TOKEN}, headers=headers) as answer:
        assert answer.status == 204
        cookie = answer.cookies[f"parley_{served.port}"]
    assert cookie["domain"] == ""
    shown = {"Cookie": f"parley_{served.port}={cookie.value}"}
    assert await status(served, "/api/me", **headers, **shown) == 200
    other = {"Host": own, "Origin": f"http://127.0.0.1:{served.port}"}
    assert await status(served, "/api/me", **other, **shown) == 403


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


async def test_nobody_is_anonymous(serve: Serve) -> None:
    """Also on this machine, under its own name: what is not signed in gets nothing."""
    served = await serve(signed_in=False)
    for path in ("/api/chats", "/api/me", "/api/chats/c1/events", "/api/chats/c1/files/1"):
        assert await status(served, path) == 401
    async with served.client.post(POST, json=MESSAGE) as response:
        assert response.status == 401
        assert (await response.json())["error"] == "sign_in_needed"
    assert served.history.messages == []


async def test_the_token_opens_the_api_to_programs(serve: Serve) -> None:
    """Under any host name, as the owner."""
    served = await serve(signed_in=False)
    assert await status(served, Authorization="Bearer wrong") == 401
    assert await status(served, Authorization=f"Basic {TOKEN}") == 401
    assert await status(served, Authorization=f"Bearer {TOKEN}", Host="chat.example") == 200


@pytest.mark.parametrize("address", ["/api/chats?token={}", "/api/me?access_token={}"])
async def test_a_token_in_the_address_opens_nothing(serve: Serve, address: str) -> None:
    """Addresses stand in logs and histories."""
    served = await serve(signed_in=False)
    assert await status(served, address.format(TOKEN)) == 401


async def test_the_page_is_reachable_for_everybody(serve: Serve) -> None:
    """It holds nothing secret, and is there to sign in with."""
    served = await serve(signed_in=False)
    assert await status(served, "/") == 200
    assert await status(served, "/static/app.js") == 200


@pytest.mark.parametrize("proof", ["token", "link"])
async def test_signing_in_sets_a_cookie_that_opens_the_api(serve: Serve, proof: str) -> None:
    """The cookie is out of reach for scripts and other sites, and holds neither token nor link."""
    served = await serve(signed_in=False)
    served.door.links["once"] = OWNER
    shown = {"token": TOKEN, "link": "once"}[proof]
    async with served.client.post("/api/sign-in", json={proof: shown}) as response:
        assert response.status == 204
        cookie = response.cookies[f"parley_{served.port}"]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert shown not in cookie.value
    assert await status(served) == 200
    served.client.session.cookie_jar.clear()
    assert await status(served, Cookie=f"parley_{served.port}={cookie.value}") == 200
    assert await status(served, Cookie=f"parley_{served.port}=forged") == 401


async def test_a_link_of_another_user_asks_before_it_replaces_who_is_signed_in(
    chat: Served,
) -> None:
    """Its sender could read what the user writes next; the question does not use it up."""
    [mine] = chat.door.sessions
    chat.door.links["anns"] = Visitor("ann", "ann", "member")
    async with chat.client.post("/api/sign-in", json={"link": "anns"}) as response:
        told = await response.json()
    assert (response.status, told["error"]) == (409, "signed_in_already")
    assert (told["name"], told["link_for"]) == ("owner", "ann")
    assert list(chat.door.sessions) == [mine]
    agreed = {"link": "anns", "instead_of": "owner"}
    foreign = {"Origin": "http://evil.example"}
    async with chat.client.post("/api/sign-in", json=agreed, headers=foreign) as response:
        assert response.status == 403
    async with chat.client.post("/api/sign-in", json=agreed) as response:
        assert response.status == 204
    assert [each.name for each in chat.door.sessions.values()] == ["ann"]
    chat.door.links["again"] = Visitor("ann", "ann", "member")
    async with chat.client.post("/api/sign-in", json={"link": "again"}) as response:
        assert response.status == 204


async def test_each_sign_in_is_a_new_session(chat: Served) -> None:
    """That of before ends: who had fixed it on the browser has nothing of it."""
    before = list(chat.door.sessions)
    async with chat.client.post("/api/sign-in", json={"token": TOKEN}) as response:
        assert response.status == 204
    assert len(before) == len(chat.door.sessions) == 1
    assert before != list(chat.door.sessions)


async def test_signing_out_ends_the_session(chat: Served) -> None:
    """Its cookie opens nothing any more, whoever has a copy."""
    [secret] = chat.door.sessions
    async with chat.client.post("/logout", json={}) as response:
        assert response.status == 204
        assert response.cookies[f"parley_{chat.port}"]["max-age"] == "0"
    assert await status(chat, Cookie=f"parley_{chat.port}={secret}") == 401


async def test_a_stream_ends_with_its_session(chat: Served) -> None:
    """Nothing more is shown to who was signed out."""
    async with listen(chat) as events:
        await events.until("synced")
        chat.door.sessions.clear()
        await chat.answer("not for them")
        assert await events.ended()


@pytest.mark.parametrize("body", [{"token": "wrong"}, {"token": "t0k\u00e9n"}, {"link": "wrong"}])
async def test_a_wrong_proof_is_refused(serve: Serve, body: dict[str, str]) -> None:
    """A failed sign-in sets no cookie."""
    served = await serve(signed_in=False)
    async with served.client.post("/api/sign-in", json=body) as response:
        assert response.status == 401
        assert not response.cookies


async def test_too_many_wrong_tries_are_told_when_to_come_back(serve: Serve) -> None:
    """With the usual status and header, for programs as well."""
    served = await serve(signed_in=False)
    served.door.refuses = SignInRefused("Too many.", 60)
    async with served.client.post("/api/sign-in", json={"token": TOKEN}) as response:
        assert (response.status, response.headers.get("Retry-After")) == (429, "60")
    assert await status(served, Authorization=f"Bearer {TOKEN}") == 429


@pytest.mark.parametrize("body", [{"token": 7}, {}, {"token": "a", "link": "b"}])
async def test_a_sign_in_needs_one_proof_in_text(serve: Serve, body: dict[str, object]) -> None:
    """Anything else is a malformed request."""
    served = await serve(signed_in=False)
    async with served.client.post("/api/sign-in", json=body) as response:
        assert response.status == 400


async def test_a_foreign_origin_is_refused_in_spite_of_the_token(serve: Serve) -> None:
    """Whatever a browser adds by itself does not open the door to other sites."""
    served = await serve(signed_in=False)
    headers = {"Authorization": f"Bearer {TOKEN}", "Origin": "https://evil.example"}
    async with served.client.get("/api/chats", headers=headers) as response:
        assert response.status == 403


async def test_chats_belong_to_their_user(chat: Served) -> None:
    """Two may call theirs by one name; neither lists, reads or writes the other's."""
    assert await chat.post("mine", chat="c1", key="m1") == 202
    chat.sign_in(Visitor("ann", "ann", "member"))
    async with listen(chat, "c1") as events:
        assert [each.name for each in await events.until("synced")] == ["gauge", "synced"]
    assert await chat.post("hers", chat="c1", key="m1") == 202
    async with chat.client.get("/api/chats") as response:
        told = await response.json()
    assert [(each["chat"], each["title"]) for each in told["chats"]] == [("c1", "hers")]
    ann = {"name": "ann", "role": "member", "has_session": True, "console": False}
    assert told["you"] == ann
    assert [(m.sender, m.address.chat) for m in chat.history.messages] == [
        ("web", "c1"),
        ("ann", "ann/c1"),
    ]
    assert await status(chat, "/api/chats/web%2Fc1/events") == 400


async def test_the_unix_socket_needs_no_token(tmp_path: Path) -> None:
    """Whoever may open the socket file is let in as the owner; its permissions protect it."""
    history = MemoryHistory()
    adapter = WebAdapter(WebSettings(), web_host(history))
    app = web.Application()
    app.add_routes(adapter.routes())
    runner = web.AppRunner(app)
    await runner.setup()
    path = str(tmp_path / "parley.sock")
    await web.UnixSite(runner, path).start()
    async with aiohttp.ClientSession(
        "http://gateway", connector=aiohttp.UnixConnector(path=path)
    ) as http:
        async with http.post(POST, json=MESSAGE) as response:
            assert response.status == 202
        # A proxy that can open it would make everybody owner.
        forwarded = {"X-Forwarded-For": "192.0.2.1"}
        async with http.post(POST, json=MESSAGE, headers=forwarded) as response:
            assert response.status == 403
    assert history.messages[0].sender == "web"
    await runner.cleanup()


async def test_the_connections_own_port_counts(serve: Serve) -> None:
    """The port is taken from the socket, so a port chosen by the system works too."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        foreign = other.getsockname()[1]
    served = await serve()
    assert await status(served, Host=f"localhost:{foreign}") == 403
    served.client.session.cookie_jar.clear()
    assert await status(served, "/", Host=f"localhost:{served.port}") == 200


async def test_a_person_gets_a_page_and_a_program_json(chat: Served) -> None:
    """By what they accept; nothing of the request is repeated as markup."""
    headers = {"Host": f"evil.example:{chat.port}", "Accept": "text/html"}
    async with chat.client.get("/", headers=headers) as response:
        assert (response.status, response.content_type) == (403, "text/html")
        assert "web.trusted_proxies" in await response.text()


PROVIDER = "https://id.example.org/authorize?state=s"
BACK = "/sign-in/oidc/callback"


async def with_provider(serve: Serve) -> Served:
    """Serve a web chat whose provider is up; nobody is signed in."""
    door = MemoryDoor()
    door.provider, door.errand = "id.example.org", Errand(PROVIDER, "secret-of-the-errand")
    return await serve(signed_in=False, door=door)


async def test_a_browser_goes_to_the_provider_and_comes_back(serve: Serve) -> None:
    """Its errand's cookie comes along from there, the session's to no other site; all lead to /."""
    served = await with_provider(serve)
    async with served.client.get("/api/sign-in") as response:
        assert await response.json() == {"provider": "id.example.org"}
    async with served.client.post("/api/sign-in/oidc", json={}) as response:
        assert (response.status, await response.json()) == (200, {"url": PROVIDER})
        errand = response.cookies[f"parley_{served.port}_oidc"]
    assert (errand["samesite"], errand["httponly"], errand["max-age"]) == ("Lax", True, "600")
    told = {"state": "s", "code": "c", "iss": "i", "next": "https://evil.example", "to": "//evil"}
    async with served.client.get(BACK, params=told, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, "/")
        session = response.cookies[f"parley_{served.port}"]
        assert response.cookies[f"parley_{served.port}_oidc"]["max-age"] == "0"
    assert served.door.answers == [ProviderAnswer("secret-of-the-errand", "s", "c", "i")]
    assert session["samesite"] == "Strict"
    assert await status(served, "/api/me") == 200


async def test_who_comes_back_without_the_cookie_gets_a_page(serve: Serve) -> None:
    """It says what to do, and shows nothing of what was sent as markup."""
    served = await with_provider(serve)
    headers = {"Accept": "text/html"}
    async with served.client.get(f"{BACK}?state=<b>&code=c", headers=headers) as response:
        page = await response.text()
    assert (response.status, response.content_type) == (401, "text/html")
    assert "You are not signed in" in page
    assert "<b>" not in page
    assert f"parley_{served.port}" not in response.cookies


async def test_a_provider_that_is_down_is_told(serve: Serve) -> None:
    """On the way there and on the way back; other ways in still work."""
    served = await with_provider(serve)
    served.door.errand = ProviderUnreachable("id.example.org does not answer.")
    for method, path in (("POST", "/api/sign-in/oidc"), ("GET", BACK)):
        headers = {"Accept": "text/html", "X-Parley": "1"}
        async with served.client.request(method, path, headers=headers) as response:
            assert response.status == 503
            assert "id.example.org does not answer." in await response.text()
    async with served.client.post("/api/sign-in", json={"token": TOKEN}) as response:
        assert response.status == 204


async def test_without_a_provider_there_is_no_such_page(serve: Serve) -> None:
    """And the page offers none."""
    served = await serve(signed_in=False)
    async with served.client.post("/api/sign-in/oidc", json={}) as response:
        assert response.status == 404
    assert await status(served, BACK) == 404
    async with served.client.get("/api/sign-in") as response:
        assert await response.json() == {"provider": None}


async def test_no_link_leads_to_the_provider(serve: Serve) -> None:
    """A link of another site could replace the signed-in user; nor does the way back."""
    served = await with_provider(serve)
    for method, path in (("GET", "/api/sign-in/oidc"), ("HEAD", BACK)):
        async with served.client.request(method, path) as response:
            assert response.status == 405
    foreign = {"Origin": "http://evil.example"}
    async with served.client.post("/api/sign-in/oidc", json={}, headers=foreign) as response:
        assert response.status == 403
    async with served.client.post("/api/sign-in/oidc", data=b"a=b") as response:
        assert response.status == 403


GINA = Visitor("gina", "gina", "guest")


async def test_a_loop_of_requests_is_told_to_wait(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs get 429 with a time, people a page that says so; other users are served."""
    monkeypatch.setattr(rate_limits, "REQUESTS_PER_SPAN", 3)
    served = await serve()
    served.sign_in(GINA)
    assert [await status(served) for _ in range(4)] == [200, 200, 200, 429]
    async with served.client.get("/api/me", headers={"Accept": "text/html"}) as response:
        assert int(response.headers["Retry-After"]) in range(1, 12)
        assert "<h1>Please wait a little</h1>" in await response.text()
    assert await served.post("hi") == 202
    assert await status(served, "/") == 200
    assert await status(served, Authorization=f"Bearer {TOKEN}") == 200


async def test_the_reserve_of_connections_is_for_owners(serve: Serve) -> None:
    """And for the sign-in page; other users get a time to try again."""
    served = await serve(crowded=True)
    assert [await status(served, path) for path in ("/", "/api/sign-in", "/api/me")] == [200] * 3
    served.sign_in(GINA)
    async with served.client.get("/api/chats/c1/events") as response:
        assert (response.status, response.headers.get("Retry-After")) == (503, "10")
        assert (await response.json())["error"] == "busy"
    assert await served.post("hi") == 503


async def test_a_provider_is_not_asked_in_the_reserve(serve: Serve) -> None:
    """Any link can lead there, and the provider may answer slowly."""
    door = MemoryDoor()
    door.provider, door.errand = "id.example", Errand("https://id.example/", "s")
    served = await serve(crowded=True, door=door)
    async with served.client.post("/api/sign-in/oidc", json={}) as response:
        assert response.status == 503
    assert (await status(served, BACK), door.answers) == (503, [])


async def test_what_is_posted_to_sign_in_is_short(chat: Served) -> None:
    """Any visitor may post it, so that its limit is low."""
    body = {"token": "x" * 10_000}
    async with chat.client.post("/api/sign-in", json=body) as response:
        assert (response.status, (await response.json())["error"]) == (413, "body_too_large")
