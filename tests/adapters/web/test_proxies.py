"""Where a request comes from: what proxies say, and whom that is believed from."""

from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from structlog.testing import capture_logs

from adapters.web.platform import networks
from adapters.web.proxies import (
    Hop,
    _parsed,
    forwarding_header,
    furthest,
    hops_of,
    is_within,
)
from tests.adapters.web.conftest import Serve, Served
from tests.support.door import TOKEN


def asked(*headers: tuple[str, str]) -> Any:
    return make_mocked_request("GET", "/", headers=CIMultiDict(headers))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:4711", "192.0.2.1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("unknown", None),
        ("_hidden", None),
        ("", None),
        ("192.0.2.1, 10.0.0.1", None),
    ],
)
def test_addresses_come_with_ports_and_brackets(text: str, address: str | None) -> None:
    """A word that hides somebody is no address."""
    found = _parsed(text)
    assert (None if found is None else str(found)) == address


@pytest.mark.parametrize(
    "name",
    [
        "Forwarded",
        "Via",
        "X-Real-IP",
        "X-Forwarded-For",
        "x-forwarded-else",
        "CF-Connecting-IP",
    ],
)
def test_what_a_proxy_adds_is_known(name: str) -> None:
    """Whatever its letters."""
    assert forwarding_header(asked(("Host", "h"), (name, "x"))) == name


def test_a_browser_adds_nothing_of_a_proxy() -> None:
    """Its usual headers pass."""
    usual = [("Host", "h"), ("Accept", "*/*"), ("User-Agent", "x"), ("X-Parley", "1")]
    assert forwarding_header(asked(*usual)) is None


def test_hops_come_with_their_scheme_and_host() -> None:
    """One value for all, or one for each."""
    one = asked(("X-Forwarded-For", "192.0.2.1"), ("X-Forwarded-Proto", "https"))
    assert hops_of(one) == [Hop("192.0.2.1", "https", "")]
    each = asked(
        ("X-Forwarded-For", "192.0.2.1"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("X-Forwarded-Proto", "https, http"),
        ("X-Forwarded-Host", "chat.example"),
    )
    assert hops_of(each) == [
        Hop("192.0.2.1", "https", "chat.example"),
        Hop("10.0.0.1", "http", "chat.example"),
    ]
    standard = 'for="[2001:db8::1]:80";proto=https;host=chat.example, for=10.0.0.1'
    assert hops_of(asked(("Forwarded", standard))) == [
        Hop("[2001:db8::1]:80", "https", "chat.example"),
        Hop("10.0.0.1"),
    ]
    both = asked(("Forwarded", "for=6.6.6.6"), ("X-Forwarded-For", "192.0.2.1"))
    assert hops_of(both) == [Hop("192.0.2.1")]


@pytest.mark.parametrize(
    ("hops", "client"),
    [
        (["192.0.2.1"], "192.0.2.1"),
        (["6.6.6.6", "192.0.2.1"], "192.0.2.1"),
        (["6.6.6.6", "192.0.2.1", "10.0.0.2"], "192.0.2.1"),
        (["6.6.6.6", "unknown"], "10.0.0.1"),
        (["6.6.6.6", "unknown", "10.0.0.2"], "10.0.0.2"),
        (["10.0.0.3", "10.0.0.2"], "10.0.0.3"),
        ([], "10.0.0.1"),
    ],
)
def test_the_client_is_the_last_one_whom_no_proxy_of_ours_is(hops: list[str], client: str) -> None:
    """What stands left of it anybody may have written."""
    peer, trusted = _parsed("10.0.0.1"), networks(["10.0.0.0/8"])
    assert peer is not None
    found, _ = furthest(peer, [Hop(each) for each in hops], trusted)
    assert str(found) == client


def test_networks_are_of_one_kind() -> None:
    """An IPv4 network holds no IPv6 address."""
    named = networks(["10.0.0.7/8", " ::1 "])
    addresses = [_parsed(each) for each in ("10.1.1.1", "::1", "11.0.0.1", "::2")]
    assert [each is not None and is_within(each, named) for each in addresses] == [
        True,
        True,
        False,
        False,
    ]


async def test_an_unknown_proxy_is_refused_by_name(chat: Served) -> None:
    """Every route, the page too, says which setting is missing."""
    for path in ("/", "/static/app.js", "/api/chats"):
        async with chat.client.get(path, headers={"X-Forwarded-For": "192.0.2.1"}) as response:
            assert response.status == 403
            told = await response.json()
        assert told["error"] == "proxy_not_trusted"
        assert 'web: {trusted_proxies: ["127.0.0.1"]}' in told["message"]


async def test_behind_a_trusted_proxy_any_name_is_served(serve: Serve) -> None:
    """The client's address and scheme are what the proxy says; the cookie is for TLS alone."""
    served = await serve(signed_in=False, trusted_proxies=("127.0.0.1",))
    proxied = {
        "Host": "chat.example",
        "Origin": "https://chat.example",
        "X-Forwarded-For": "6.6.6.6, 192.0.2.1",
        "X-Forwarded-Proto": "https",
    }
    body = {"token": TOKEN}
    async with served.client.post("/api/sign-in", json=body, headers=proxied) as response:
        assert response.status == 204
        cookie = response.cookies["__Host-parley"]
    assert (cookie["secure"], cookie["path"], cookie["domain"]) == (True, "/", "")
    assert served.door.callers[0].address == "192.0.2.1"
    known = {"Cookie": f"__Host-parley={cookie.value}"}
    async with served.client.get("/api/me", headers=proxied | known) as response:
        assert (await response.json())["name"] == "owner"
    del proxied["X-Forwarded-Proto"]
    async with served.client.get("/api/me", headers=proxied | known) as response:
        assert response.status == 401


@pytest.mark.parametrize(
    ("host", "port"), [("chat.example:8080", 8080), ("chat.example", 80), ("[::1]:90", 90)]
)
async def test_behind_a_plain_proxy_the_cookie_is_named_after_its_port(
    serve: Serve, host: str, port: int
) -> None:
    """It is the one that the browser sees, also where the next request comes to another replica."""
    served = await serve(signed_in=False, trusted_proxies=("127.0.0.1",))
    proxied = {"Host": host, "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "http"}
    body = {"token": TOKEN}
    async with served.client.post("/api/sign-in", json=body, headers=proxied) as response:
        assert response.status == 204
        assert list(response.cookies) == [f"parley_{port}"]


@pytest.mark.parametrize(
    ("origin", "passes"),
    [
        ("https://chat.example", True),
        ("http://chat.example", False),
        ("ftp://chat.example", False),
        ("chat.example", False),
        ("https://chat.example.evil.example", False),
    ],
)
async def test_behind_tls_a_plain_page_is_another_site(
    serve: Serve, origin: str, passes: bool
) -> None:
    """Whoever sits on the way can serve one under the same name."""
    served = await serve(signed_in=False, trusted_proxies=("127.0.0.1",))
    forwarded = {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https"}
    headers = {"Host": "chat.example", "Origin": origin, **forwarded}
    body = {"token": TOKEN}
    async with served.client.post("/api/sign-in", json=body, headers=headers) as response:
        assert response.status == (204 if passes else 403)
        assert passes or (await response.json())["error"] == "origin_refused"


async def test_a_refusal_is_logged_with_the_client_and_its_proxy(serve: Serve) -> None:
    """Of what no trusted proxy brought there is one address."""
    served = await serve(signed_in=False, trusted_proxies=("127.0.0.1",))
    with capture_logs() as logs:
        for headers in (
            {"X-Forwarded-For": "192.0.2.1"},
            {"X-Forwarded-For": "192.0.2.1", "Origin": "http://evil.example"},
            {},
        ):
            async with served.client.get("/api/me", headers=headers) as response:
                assert response.status in {401, 403}
    seen = [(each["code"], each["address"], each["proxy"]) for each in logs]
    assert seen == [
        ("sign_in_needed", "192.0.2.1", "127.0.0.1"),
        ("origin_refused", "192.0.2.1", "127.0.0.1"),
        ("sign_in_needed", "127.0.0.1", None),
    ]
