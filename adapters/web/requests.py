"""Requests of the web chat: who may ask, what a request says, and how it is refused.

Each handler is guarded before it sees the request. Without a token only this machine is served, and
only under a loopback name: a foreign name that resolves to 127.0.0.1 (DNS rebinding) is refused.
With a token any name is served to whoever knows it. The Unix socket is protected by its file's
permissions alone. The page and its files hold nothing secret and need no token.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import orjson
import structlog
from aiohttp import web
from pydantic import SecretStr

from adapters.messages import Attachment

log = structlog.get_logger()

API_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
MAX_BODY_BYTES = 1_500_000
MAX_TEXT_CHARS = 200_000
BODY_TIMEOUT_S = 60.0

_NUMBER = re.compile(r"[0-9]{1,18}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
PAGE = Path(__file__).parent / "page"
PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
        " object-src 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

COOKIE = "parley_session"
COOKIE_DAYS = 90


class Refusal(Exception):
    """The request is answered with `status` and a JSON error, and nothing was changed.

    `code` is for programs, the text for people; a client repeats only what got 408, 429 or 5xx.
    """

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


def json_response(data: object, status: int = 200) -> web.Response:
    """Return an API response that no cache keeps."""
    return web.Response(
        body=orjson.dumps(data),
        status=status,
        content_type="application/json",
        headers=API_HEADERS,
    )


def refusal_response(refusal: Refusal) -> web.Response:
    """Return the JSON form of a refusal."""
    return json_response({"error": refusal.code, "message": str(refusal)}, refusal.status)


@dataclass(frozen=True, slots=True)
class PostedMessage:
    """What a client posted.

    Attributes:
        raw: The JSON text as received; of a form what it would be without the bytes of files.
        edits: The id of the message that it changes; None for a new one.
    """

    id: str
    text: str
    raw: str
    files: tuple[Attachment, ...] = ()
    edits: str | None = None


def chat_of(request: web.Request) -> str:
    """Return the chat that the path names.

    Raises:
        Refusal: It is not an id of 1 to 64 letters, digits, `_` and `-`.
    """
    return checked_id(request.match_info["chat"], "chat")


async def posted_message(request: web.Request) -> PostedMessage:
    """Read a message; its id names it within the chat, so that a repeated post is known.

    Raises:
        Refusal: Too large, not JSON, or a field is missing or has a wrong form.
    """
    body = await read_json(request)
    edits = body.fields.get("edits")
    return PostedMessage(
        id=checked_id(body.fields.get("id"), "id"),
        text=checked_text(body.fields.get("text")),
        raw=body.raw,
        edits=None if edits is None else checked_id(edits, "edits"),
    )


def file_of(request: web.Request) -> int:
    """Return the number of the file that the path names.

    Raises:
        Refusal: It is none.
    """
    number = request.match_info["file"]
    if not _NUMBER.fullmatch(number):
        raise Refusal(404, "no_such_file", "There is no such file.")
    return int(number)


async def posted_token(request: web.Request) -> str:
    """Read the token of a login.

    Raises:
        Refusal: Too large, not JSON, or without a token.
    """
    token = (await read_json(request)).fields.get("token")
    if not isinstance(token, str):
        raise Refusal(400, "bad_token", "token is a string.")
    return token


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A JSON object, parsed and as received."""

    fields: dict[str, Any]
    raw: str


async def read_json(request: web.Request) -> JsonBody:
    """Read a body that is one JSON object of at most 1.5 MB.

    Raises:
        Refusal: 408 too slow, 413 too large, 400 not a JSON object.
    """
    body = await _read_body(request)
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise Refusal(400, "bad_json", f"The body is not JSON: {exc}.") from exc
    if not isinstance(fields, dict):
        raise Refusal(400, "bad_json", "The body is not a JSON object.")
    return JsonBody(fields, body.decode())


async def _read_body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read_limited(request)
    except TimeoutError as exc:
        raise Refusal(408, "body_too_slow", "The request did not arrive in time.") from exc


async def _read_limited(request: web.Request) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            text = f"A request has at most {MAX_BODY_BYTES:,} bytes."
            raise Refusal(413, "body_too_large", text)
    return bytes(body)


def checked_id(value: object, name: str) -> str:
    """Return an id.

    Raises:
        Refusal: It has not 1 to 64 letters, digits, hyphens and underscores; `name` is told.
    """
    if not isinstance(value, str) or not _ID.fullmatch(value):
        text = f"{name} has 1 to 64 letters, digits, hyphens and underscores."
        raise Refusal(400, f"bad_{name}", text)
    return value


def checked_text(value: object, *, may_be_empty: bool = False) -> str:
    """Return the text of a message.

    Raises:
        Refusal: Not a string, too long, or empty where that may not be.
    """
    if not isinstance(value, str):
        raise Refusal(400, "bad_text", "text is a string.")
    if not value.strip() and not may_be_empty:
        raise Refusal(400, "empty_text", "The message is empty.")
    if len(value) > MAX_TEXT_CHARS:
        text = f"The message has {len(value):,} characters; at most {MAX_TEXT_CHARS:,} are taken."
        raise Refusal(422, "text_too_long", text)
    return value


async def index(_request: web.Request) -> web.StreamResponse:
    """Serve the page."""
    return web.FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)


async def static(request: web.Request) -> web.StreamResponse:
    """Serve one of the page's files, by its plain name.

    Raises:
        Refusal: There is no such file.
    """
    name = request.match_info["name"]
    # A list of names cannot be climbed out of, as a path can.
    if name not in {file.name for file in PAGE.iterdir()}:
        raise Refusal(404, "no_such_file", "There is no such file.")
    return web.FileResponse(PAGE / name, headers=PAGE_HEADERS)


class Guard:
    """Wraps handlers; a refused request gets a JSON error and never reaches its handler."""

    def __init__(self, token: SecretStr | None) -> None:
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
            # No script of the page needs it.
            httponly=True,
            # A link on another site must not come with the session.
            samesite="Strict",
        )
        return response

    def _admit(self, request: web.Request, *, public: bool) -> None:
        if over_unix_socket(request):
            return
        # DNS rebinding: a foreign page may make its own name lead to 127.0.0.1.
        if self._token is None:
            check_loopback(request)
        check_origin(request)
        if self._token is not None and not public and not self._knows_token(request, self._token):
            raise Refusal(401, "login_needed", "Log in with the token of this web chat.")

    def _knows_token(self, request: web.Request, token: bytes) -> bool:
        # In headers, bytes that are no UTF-8 come as surrogates: `encode` alone would fail.
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
    # A form of another site can set neither without asking first (CORS).
    if request.headers.get("X-Parley") != "1" and request.content_type != "application/json":
        text = "Send Content-Type: application/json or X-Parley: 1."
        raise Refusal(403, "mark_missing", text)


def _socket(request: web.Request) -> socket.socket:
    if request.transport is None:
        raise Refusal(400, "connection_closed", "The connection is gone.")
    found: socket.socket = request.transport.get_extra_info("socket")
    return found
