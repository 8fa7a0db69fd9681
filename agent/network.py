"""The environment's proxy and certificates, for all clients; failures described for people.

No client reads the environment itself: SDKs differ in the variables, in the syntax of NO_PROXY and
in how they fail. See docs/operations.md, *Behind an HTTP proxy or a private CA*.
"""

import functools
import os
import re
import ssl
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

MAX_BYTES = 8_000_000
"""Largest event or non-streamed body: eight times the longest known model list (OpenRouter's)."""
_PORTS = {"http": 80, "https": 443}
_SCHEMES = {"ws": "http", "wss": "https"}
_CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
)
"""Locations of system certificates. Source: the paths that Go reads (crypto/x509/root_linux.go)."""


class UnusableEnvironment(Exception):
    """An environment variable is unusable; the text names it, without any password."""


def proxy_for(url: str) -> str | None:
    """Return the proxy address for a URL, or None to connect directly.

    `<scheme>_proxy` takes precedence over `all_proxy`, lower case over upper case.

    Raises:
        UnusableEnvironment: It is not the address of an HTTP proxy.
    """
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    name, proxy = _named(f"{scheme}_proxy", "all_proxy")
    host = (parts.hostname or "").rstrip(".")
    if not proxy or _goes_direct(host, parts.port or _PORTS.get(scheme)):
        return None
    return _usable(name, proxy)


def tls_for(url: str) -> ssl.SSLContext:
    """Return the TLS context for a URL; may raise `UnusableEnvironment` for an https URL."""
    try:
        return certificates()
    except UnusableEnvironment:
        if urlsplit(url).scheme in {"https", "wss"}:
            raise
        # It trusts no certificate.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@functools.cache
def certificates() -> ssl.SSLContext:
    """Read the trusted certificates once per process, since it takes 30 ms.

    SSL_CERT_FILE and SSL_CERT_DIR replace the system's; REQUESTS_CA_BUNDLE adds to them.

    Raises:
        UnusableEnvironment: One of these variables contains a path that cannot be read.
    """
    context = ssl.create_default_context()
    known = ssl.get_default_verify_paths()
    if not (known.cafile or known.capath):
        # A Python built on another system has other default paths.
        for each in filter(os.path.isfile, _CA_FILES):
            context.load_verify_locations(each)
    for name in _CA_VARIABLES:
        # OpenSSL ignores unreadable paths, and then trusts nothing.
        for path in filter(None, os.environ.get(name, "").split(os.pathsep)):
            _trust(context, name, path)
    return context


def troubles() -> Iterator[str]:
    """Yield a sentence for each kind of unusable variable."""
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        name, proxy = _named(variable)
        try:
            if proxy:
                _usable(name, proxy)
        except UnusableEnvironment as exc:
            yield str(exc)
    try:
        certificates()
    except UnusableEnvironment as exc:
        yield str(exc)


def _named(*variables: str) -> tuple[str, str]:
    """Return name and value of the first variable that is set, in lower or upper case."""
    for name in (name for each in variables for name in (each, each.upper())):
        if value := os.environ.get(name, "").strip():
            return name, value
    return "", ""


def _usable(name: str, proxy: str) -> str:
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    kind = proxy.partition("://")[0].lower()
    if kind not in _PORTS:
        raise UnusableEnvironment(
            f"{name} names a {kind} proxy, which Parley cannot use; set an HTTP proxy, or unset it"
        )
    try:
        parts = urlsplit(proxy)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        # Its value may contain a password.
        raise UnusableEnvironment(f"{name} is not an address of a proxy, like http://host:3128")
    return proxy


def _goes_direct(host: str, port: int | None) -> bool:
    entries = re.split(r"[\s,]+", _named("no_proxy")[1].lower())
    return any(_matches(entry, host, port) for entry in entries if entry)


def _matches(entry: str, host: str, port: int | None) -> bool:
    """Return whether a NO_PROXY entry (`*`, domain, address, network, port) matches a host."""
    if entry == "*":
        return True
    if "]:" in entry or entry.count(":") == 1:
        entry, _, only = entry.rpartition(":")
        if only != str(port):
            return False
    # An IPv6 address may have brackets.
    entry = entry.replace("[", "").replace("]", "")
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        domain = entry.removeprefix("*").strip(".")
        return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _trust(context: ssl.SSLContext, name: str, path: str) -> None:
    try:
        if Path(path).is_dir():
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except OSError as exc:
        is_empty = isinstance(exc, ssl.SSLError)
        why = "it holds no certificates" if is_empty else exc.strerror
        raise UnusableEnvironment(f"{name} names {path}, which cannot be read: {why}") from exc


NO_ANSWER = "no answer in time"
_WORDS = (
    (r"Timeout", NO_ANSWER),
    (r"Cert", "its certificate is not trusted"),
    (r"SSL|TLS", "no encrypted connection was made"),
    (r"DNS|gaierror", "its host name was not found"),
    (r"Proxy", "the proxy cannot be used"),
    (r"Refused", "the connection was refused"),
    (r"Connect|Disconnect|Network|BrokenPipe", "the connection broke"),
    (r"U(?:RL|rl)", "its address is not valid"),
    (r"Redirect", "it refers to other addresses without end"),
    (r"Decode|Protocol|ContentType|JSON|Payload", "its answer cannot be read"),
)
"""Matched against class names, which are similar in all libraries."""
_CLASS = re.compile(r"<class '[\w.]+'>|\b(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Timeout)\b:?")


def in_words(failure: BaseException, *, quoted: bool = False) -> str:
    """Describe a failure to a person, without class names.

    Args:
        quoted: Whether its text may be shown; some texts contain an address or header with a
            secret.
    """
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    text = " ".join(_CLASS.sub("", str(failure)).split()).strip(" :()'\"")
    if quoted and text:
        return text[:300]
    names = ""
    each: BaseException | None = failure
    while each is not None:
        names += " ".join(kind.__name__ for kind in type(each).__mro__)
        each = each.__cause__ or each.__context__
    told = (words for pattern, words in _WORDS if re.search(pattern, names))
    number = failure.errno if isinstance(failure, OSError) else None
    return next(told, os.strerror(number) if number else "an unexpected error")
