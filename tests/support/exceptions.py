"""The exceptions of client libraries: a table of outcomes is held against all of their classes."""

from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import client_exceptions

KEY: Any = SimpleNamespace(host="h", port=1, ssl=True, is_ssl=True)
REQUEST: Any = SimpleNamespace(real_url="http://h/", method="POST", url="http://h/", headers={})
REFUSED = OSError("refused")
NOT_SENT: list[Exception] = [
    aiohttp.ClientConnectorError(KEY, REFUSED),
    aiohttp.ClientConnectorDNSError(KEY, REFUSED),
    aiohttp.ClientProxyConnectionError(KEY, REFUSED),
    aiohttp.ClientSSLError(KEY, REFUSED),
    aiohttp.ClientConnectorSSLError(KEY, REFUSED),
    aiohttp.ClientConnectorCertificateError(KEY, ValueError("expired")),
    client_exceptions.UnixClientConnectorError("/socket", KEY, REFUSED),
    aiohttp.ConnectionTimeoutError(),
    aiohttp.InvalidURL("h"),
    aiohttp.InvalidUrlClientError("h"),
]
"""What aiohttp raises before the first byte of a request has left."""
MAYBE_SENT: list[Exception] = [
    aiohttp.ClientError(),
    aiohttp.ClientResponseError(REQUEST, ()),
    aiohttp.ContentTypeError(REQUEST, ()),
    aiohttp.WSServerHandshakeError(REQUEST, ()),
    aiohttp.ClientHttpProxyError(REQUEST, ()),
    aiohttp.TooManyRedirects(REQUEST, ()),
    aiohttp.ClientConnectionError(),
    aiohttp.ClientConnectionResetError(),
    aiohttp.ClientOSError(),
    aiohttp.ServerConnectionError(),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ServerTimeoutError(),
    aiohttp.SocketTimeoutError(),
    aiohttp.ServerFingerprintMismatch(b"a", b"b", "h", 1),
    aiohttp.ClientPayloadError(),
    client_exceptions.UploadAbortedError(),
    aiohttp.RedirectClientError("h"),
    aiohttp.InvalidUrlRedirectClientError("h"),
    aiohttp.NonHttpUrlClientError("h"),
    aiohttp.NonHttpUrlRedirectClientError("h"),
    OSError(),
    ConnectionResetError(),
    ConnectionAbortedError(),
    BrokenPipeError(),
    TimeoutError(),
    # What an answer of the wrong shape raises inside of an SDK.
    KeyError("id"),
    IndexError(),
    TypeError(),
    ValueError(),
    AttributeError(),
]
"""What is raised when a request may have been carried out."""


def below(base: type[BaseException]) -> Iterator[type[BaseException]]:
    """Yield a class and all classes below it that its own library has, each once."""
    library = base.__module__.partition(".")[0]
    found = {base}
    waiting = [base]
    while waiting:
        known = waiting.pop()
        if known.__module__.partition(".")[0] == library:
            yield known
        fresh = [each for each in known.__subclasses__() if each not in found]
        found.update(fresh)
        waiting.extend(fresh)


def missing_in(table: Collection[type[BaseException]], *bases: type[BaseException]) -> list[str]:
    """Return which classes at or below these bases a table leaves out."""
    known = {each for base in bases for each in below(base)}
    return sorted(each.__name__ for each in known - set(table))


def raised_by(function: Callable[..., object], *arguments: object) -> type[Exception] | None:
    """Return the class of what a call raises; None where it returns."""
    try:
        function(*arguments)
    except Exception as exc:  # noqa: BLE001 - whatever it is, the test compares it
        return type(exc)
    return None
