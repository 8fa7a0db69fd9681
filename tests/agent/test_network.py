"""Proxies and certificates as the environment names them, for whichever client asks."""

import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import httpx
import pytest

from agent.network import (
    UnusableEnvironment,
    certificates,
    in_words,
    proxy_for,
    tls_for,
    troubles,
)

PROXY = "http://proxy:3128"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is set, and certificates are read anew."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in CA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    certificates.cache_clear()
    yield
    certificates.cache_clear()


def environment(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Set `NAME=value` pairs."""
    for pair in text.split(" ; "):
        name, _, value = pair.partition("=")
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("named", "url", "proxy"),
    [
        ("https_proxy=", "https://api.example", None),
        (f"https_proxy={PROXY}", "https://api.example/v1", PROXY),
        (f"HTTPS_PROXY={PROXY}", "wss://gateway.example/?v=10", PROXY),
        (f"https_proxy={PROXY}", "http://api.example", None),
        (f"http_proxy={PROXY}", "ws://127.0.0.1:1", PROXY),
        (f"ALL_PROXY={PROXY}", "https://api.example", PROXY),
        (f"https_proxy={PROXY} ; HTTPS_PROXY=http://other:1", "https://api.example", PROXY),
        (f"all_proxy=http://other:1 ; HTTPS_PROXY={PROXY}", "https://api.example", PROXY),
        ("https_proxy=proxy:3128", "https://api.example", PROXY),
        ("https_proxy=me:pass@proxy:3128", "https://api.example", "http://me:pass@proxy:3128"),
        (f"https_proxy= {PROXY} ", "https://api.example", PROXY),
        ("https_proxy=http://[::1]:3128", "https://api.example", "http://[::1]:3128"),
        # What is reached directly needs no proxy that can be used.
        ("all_proxy=socks5://127.0.0.1:9 ; no_proxy=127.0.0.1", "http://127.0.0.1:8081", None),
        ("https_proxy=socks5h://127.0.0.1:9", "http://127.0.0.1:8081", None),
    ],
)
def test_the_environment_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, named: str, url: str, proxy: str | None
) -> None:
    """By scheme before `all_proxy`, lower case before upper case, with or without `http://`."""
    environment(monkeypatch, named)
    assert proxy_for(url) == proxy


@pytest.mark.parametrize(
    ("entries", "url", "direct"),
    [
        ("*", "https://api.example", True),
        ("example.org", "https://example.org", True),
        ("example.org", "https://api.example.org", True),
        ("example.org", "https://badexample.org", False),
        (".example.org", "https://api.example.org", True),
        ("*.example.org", "https://api.example.org", True),
        ("Example.ORG", "https://api.example.org.", True),
        ("a.example, example.org", "https://example.org", True),
        ("a.example example.org", "https://example.org", True),
        ("example.org:8443", "https://example.org", False),
        ("example.org:8443", "https://example.org:8443", True),
        ("example.org:443", "https://example.org", True),
        ("127.0.0.1", "https://127.0.0.1:8443", True),
        ("127.0.0.1,[::1]", "https://[::1]:1", True),
        ("::1", "https://[::1]", True),
        ("0:0:0:0:0:0:0:1", "https://[::1]", True),
        ("[::1]:8443", "https://[::1]:8443", True),
        ("[::1]:8443", "https://[::1]:8444", False),
        ("10.0.0.0/8", "https://10.20.30.40", True),
        ("10.0.0.0/8", "https://11.0.0.1", False),
        ("10.0.0.0/8", "https://ten.example", False),
        ("10.0.0.7/8", "https://10.1.1.1", True),
        ("fd00::/8", "https://[fd12::1]", True),
        ("10.0.0.0/8", "https://[fd12::1]", False),
        (",, ,", "https://api.example", False),
        ("http://example.org:x", "https://api.example", False),
        ("[::1", "https://api.example", False),
    ],
)
def test_no_proxy_names_what_is_reached_directly(
    monkeypatch: pytest.MonkeyPatch, entries: str, url: str, direct: bool
) -> None:
    """Domains, addresses, networks, ports and `*`; what is malformed matches nothing."""
    monkeypatch.setenv("https_proxy", PROXY)
    monkeypatch.setenv("NO_PROXY", entries)
    assert (proxy_for(url) is None) == direct


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("ALL_PROXY=socks5://me:secret@127.0.0.1:9", "ALL_PROXY names a socks5 proxy"),
        ("https_proxy=socks5h://127.0.0.1:9", "https_proxy names a socks5h proxy"),
        ("HTTPS_PROXY=socks4://127.0.0.1:9", "HTTPS_PROXY names a socks4 proxy"),
        ("https_proxy=http://me:secret@[::1", "https_proxy is not an address of a proxy"),
        ("https_proxy=http://me:secret@proxy:99999", "https_proxy is not an address"),
        ("https_proxy=http://me:secret@proxy:secret", "https_proxy is not an address"),
        ("https_proxy=http://", "https_proxy is not an address"),
        ("https_proxy=me:secret@:3128", "https_proxy is not an address"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, named: str, said: str
) -> None:
    """By the variable, never by its value."""
    environment(monkeypatch, named)
    with pytest.raises(UnusableEnvironment, match=said) as found:
        proxy_for("https://api.example")
    assert "secret" not in str(found.value)
    assert list(troubles()) == [str(found.value)]


@pytest.mark.parametrize("name", CA_VARIABLES)
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificates_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, content: str | None
) -> None:
    """A file that is not there, or holds none; who speaks plain HTTP needs none."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(name, str(path))
    with pytest.raises(UnusableEnvironment, match=f"{name} names {path}"):
        tls_for("https://api.example")
    assert len(list(troubles())) == 1
    assert tls_for("http://api.example").get_ca_certs() == []


def test_the_bundle_of_requests_is_trusted_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the system's certificates, which the other two variables replace."""
    import certifi  # noqa: PLC0415

    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", "")
    bare = certificates().cert_store_stats()["x509_ca"]
    certificates.cache_clear()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())
    assert certificates().cert_store_stats()["x509_ca"] > bare
    assert certificates().verify_mode == ssl.CERT_REQUIRED


def raised(failure: Exception, cause: BaseException | None) -> Exception:
    failure.__cause__ = cause
    return failure


FAILURES = [
    (TimeoutError(), "no answer in time"),
    (aiohttp.ServerDisconnectedError("b'key'"), "the connection broke"),
    (aiohttp.InvalidURL("https://x/key"), "its address is not valid"),
    (raised(httpx.ConnectError("key"), ConnectionRefusedError(111, "x")), "connection was refused"),
    (raised(httpx.ReadTimeout("key"), TimeoutError()), "no answer in time"),
    (raised(httpx.ConnectError("key"), socket.gaierror(-2, "x")), "host name was not found"),
    (raised(httpx.ConnectError("key"), ssl.SSLError(1, "key")), "no encrypted connection"),
    (ExceptionGroup("key", [ConnectionResetError(104, "x")]), "the connection broke"),
    (PermissionError(13, "Permission denied", "/key"), "Permission denied"),
    (KeyError("key"), "an unexpected error"),
]


@pytest.mark.parametrize(("failure", "told"), FAILURES)
def test_a_failure_is_told_without_its_class_and_text(failure: Exception, told: str) -> None:
    """Its text may hold an address with a token."""
    text = in_words(failure)
    assert told in text
    assert not re.search(r"key|Error|Timeout|[A-Z]\w+[A-Z]", text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("MCPError: Connection closed", "Connection closed"),
        ("sqlalchemy.exc.OperationalError: no such table", "no such table"),
        ("<class 'httpx.ReadTimeout'>", "an unexpected error"),
        ("", "an unexpected error"),
        ("All connection attempts failed", "All connection attempts failed"),
        ("httpx.ReadTimeout", "an unexpected error"),
    ],
)
def test_a_text_that_may_be_shown_is_without_classes(text: str, told: str) -> None:
    """Libraries quote each other."""
    assert in_words(RuntimeError(text), quoted=True) == told
