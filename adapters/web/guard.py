"""Who may talk to the web chat: checked around each handler, before it sees the request.

Without a token only this machine is served, and only under a loopback name: a foreign name that
resolves to 127.0.0.1 (DNS rebinding) is refused. With a token any name is served to whoever knows
it. The Unix socket is protected by its file's permissions alone.
"""

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from adapters.web.errors import API_HEADERS, Refusal, refusal_response

if TYPE_CHECKING:
    from pydantic import SecretStr

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

COOKIE = "parley_session"
COOKIE_DAYS = 90

log = structlog.get_logger()


class Guard:
    """Wraps handlers; a refused request gets a JSON error and never reaches its handler."""

    def __init__(self, token: "SecretStr | None") -> None:
        self._token = token.get_secret_value().encode() if token else None

    def protect(self, handler: Handler, *, public: bool = False) -> Handler:
        """Return the handler behind all checks; `public` ones need no token."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                self._admit(request, public=public)
                return await handler(request)
            except Refusal as refusal:
                log.info("web_request_refused", code=refusal.code, status=refusal.status)
                return refusal_response(refusal)

        return guarded

    def log_in(self, offered: str) -> web.Response:
        """Return the response that sets the session cookie.

        Raises:
            Refusal: The token is wrong, or the web chat has none.
        """
        if self._token is None:
            raise Refusal(400, "no_token", "This web chat needs no token.")
        if not hmac.compare_digest(offered.encode(), self._token):
            log.warning("web_login_refused")
            raise Refusal(401, "wrong_token", "That token is not right.")
        response = web.Response(status=204, headers=API_HEADERS)
        response.set_cookie(
            COOKIE,
            session_value(self._token),
            max_age=COOKIE_DAYS * 86_400,
            httponly=True,
            samesite="Strict",
        )
        return response

    def _admit(self, request: web.Request, *, public: bool) -> None:
        if over_unix_socket(request):
            return
        if self._token is None:
            check_loopback(request)
        check_origin(request)
        if self._token is not None and not public and not self._knows_token(request, self._token):
            raise Refusal(401, "login_needed", "Log in with the token of this web chat.")

    def _knows_token(self, request: web.Request, token: bytes) -> bool:
        scheme, _, offered = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(offered.strip().encode(errors="replace"), token)
        cookie = request.cookies.get(COOKIE, "")
        return hmac.compare_digest(cookie.encode(errors="replace"), session_value(token).encode())


def session_value(token: bytes) -> str:
    """Return what the cookie holds: derived from the token, so that the token is not stored."""
    return hmac.new(token, b"parley web session", hashlib.sha256).hexdigest()


def over_unix_socket(request: web.Request) -> bool:
    """Tell whether the request came through the socket file in PARLEY_HOME."""
    return _socket(request).family == socket.AF_UNIX


def check_loopback(request: web.Request) -> None:
    """Refuse any Host but a loopback name with the port that this connection came in on."""
    port = _socket(request).getsockname()[1]
    if not names_loopback(request.headers.get("Host", ""), port):
        raise Refusal(403, "host_refused", "Open the web chat under the address Parley printed.")


def names_loopback(host: str, port: int) -> bool:
    """Tell whether a Host header means this machine and this port (80 where it names none)."""
    try:
        parts = urlsplit(f"//{host}")
        name, named_port = parts.hostname or "", parts.port or 80
        here = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
    return here and named_port == port


def check_origin(request: web.Request) -> None:
    """Refuse what another site's page sends: a foreign Origin, or a form without our marks."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
        raise Refusal(403, "origin_refused", "Another site's page may not use this web chat.")
    if request.method in {"GET", "HEAD"}:
        return
    if request.headers.get("X-Parley") != "1" and request.content_type != "application/json":
        text = "Send Content-Type: application/json or X-Parley: 1."
        raise Refusal(403, "mark_missing", text)


def _socket(request: web.Request) -> socket.socket:
    if request.transport is None:
        raise Refusal(400, "connection_closed", "The connection is gone.")
    found: socket.socket = request.transport.get_extra_info("socket")
    return found
