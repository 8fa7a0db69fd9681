"""Checks each request of the web chat before its handler sees it.

A request needs a session cookie or the token; the Unix socket is protected by its file permissions.
Other sites are refused: host names that lead to this machine (DNS rebinding), a foreign Origin, a
form without Parley's header. The page and its files are public, so that users can sign in.
"""

import ipaddress
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from http import HTTPStatus
from logging import INFO, WARNING
from math import inf
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

import structlog
from aiohttp import web

from adapters.door import (
    FIRST_OWNER,
    OWNER,
    Door,
    LimitReached,
    Proof,
    ProviderAnswer,
    ProviderUnreachable,
    Requester,
    SignedIn,
    SignedInAlready,
    SignInRefused,
    Visitor,
)
from adapters.messages import Address
from adapters.registry import BUILT_IN, DEFAULT_ACCOUNT
from adapters.web.platform import OWN_NAME, WebSettings
from adapters.web.proxies import caller_of, connection_of, over_unix_socket
from adapters.web.requests import (
    API_HEADERS,
    BUSY,
    CROWDED,
    PAGE_HEADERS,
    Refusal,
    checked_id,
    json_response,
    read_json,
)

log = structlog.get_logger()

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

COOKIE_S = 400 * 86_400
"""The longest lifetime in browsers. Only the database row ends a session."""

SIGN_IN = (
    "Sign in first: open the link that the command parley open prints on Parley's machine, or that"
    " you were invited with. The token works as well."
)
ERRAND_S = 600
"""Time limit for a user at the identity provider, in seconds."""
REFUSED_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title} &ndash; Parley</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="stylesheet" href="/static/base.css">
<link rel="stylesheet" href="/static/style.css">
<body class="refused"><main>
<h1>{title}</h1>
<p>{text}</p>
{rest}</main></body>
</html>
"""
OF_SETTINGS = frozenset({"host_refused", "origin_refused", "proxy_not_trusted"})
"""Refusals caused for all users by a wrong setting of Parley or a proxy."""
WARNED_EVERY_S = 600.0
NOT_STORED = "storage_unavailable"
TOO_OFTEN = "too_many_requests"
TITLES = {
    NOT_STORED: "The database does not answer",
    TOO_OFTEN: "Please wait a little",
    BUSY: "Parley is busy",
}
CROWDED_S = 10
"""Seconds to wait before a retry when all connections are busy."""
SIGN_IN_BYTES = 10_000
"""Most bytes of a sign-in request, which anyone may post."""
NOT_SIGNED_IN = frozenset({401, 429, 503})
"""Statuses after which a user may retry or sign in differently."""


@dataclass(slots=True)
class Visit:
    """A request's origin, stored for its handler; a public request has no visitor."""

    caller: Requester
    cookie: str = ""
    visitor: Visitor | None = None


VISIT = web.RequestKey("visit", Visit)


class Guard:
    """Wraps handlers, so that a refused request never reaches its handler."""

    def __init__(self, door: Door, settings: WebSettings) -> None:
        self._door = door
        self._trusted = settings.trusted
        self._public_port = settings.public_port
        self._warned: dict[str, float] = {}

    def protect(self, handler: Handler, *, public: bool = False, forms: bool = False) -> Handler:
        """Wrap a handler in all checks.

        Args:
            public: Whether it needs no sign-in.
            forms: Whether it serves pages with forms and checks their tokens itself. After a
                sign-in users return to the page.
        """

        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                request[VISIT] = visit = Visit(caller_of(request, self._trusted))
                check_origin(request, visit.caller, forms=forms)
                await self._admit(request, visit, public=public)
                if not public:
                    visitor = visitor_of(request)
                    if visitor.role != OWNER.role:
                        refuse_if_crowded(request)
                    reads = request.method in {"GET", "HEAD"}
                    self._door.limits.ask(visitor, visit.caller, reads=reads)
                return await handler(request)
            except LimitReached as limit:
                status, code = (503, BUSY) if limit.busy else (429, TOO_OFTEN)
                refusal = Refusal(status, code, str(limit), retry_after_s=limit.retry_after_s)
            except Refusal as exc:
                refusal = exc
            except ConnectionError:
                if request.transport is not None:
                    raise
                # The connection broke within the request's body or the response.
                refusal = Refusal(400, "connection_closed", "The connection is gone.")
            self._report(request, refusal)
            return answer_to(request, refusal, leads_back=forms)

        return guarded

    async def sign_in(self, request: web.Request) -> web.Response:
        """Start a session for a link's secret or the token."""
        fields, _ = await read_json(request, SIGN_IN_BYTES)
        kinds: tuple[Proof, ...] = ("link", "token")
        shown = [(kind, fields[kind]) for kind in kinds if isinstance(fields.get(kind), str)]
        if len(shown) != 1:
            raise Refusal(400, "bad_sign_in", "Send either link or token, a string.")
        visit, [(proof, secret)] = request[VISIT], shown
        instead_of = str(fields.get("instead_of", ""))
        try:
            signed_in = await self._door.sign_in(proof, secret, visit.caller, instead_of)
        except SignInRefused as exc:
            raise _refusal(exc, f"wrong_{proof}") from exc
        except SignedInAlready as exc:
            told = {"error": "signed_in_already", "message": str(exc)}
            return json_response(told | {"name": exc.name, "link_for": exc.link_for}, 409)
        return _with_cookie(web.Response(status=204, headers=API_HEADERS), request, signed_in)

    async def ways_in(self, _request: web.Request) -> web.Response:
        """Return the identity provider's host, or null."""
        return json_response({"provider": self._door.provider})

    async def lead_out(self, request: web.Request) -> web.Response:
        """Return the provider's address, and set the cookie for the way back.

        POST, so that another site's link cannot start a sign-in that replaces the user.
        """
        visit = request[VISIT]
        refuse_if_crowded(request)
        with _unreachable():
            errand = await self._door.lead_out()
        response = json_response({"url": errand.url})
        # Lax: the browser must send it when it comes from the provider's site.
        _set_cookie(response, visit, f"{visit.cookie}_oidc", errand.secret, ERRAND_S, "Lax")
        return response

    async def come_back(self, request: web.Request) -> web.Response:
        """Start a session for a user sent back by the identity provider; redirect to the page."""
        visit, told = request[VISIT], request.query
        refuse_if_crowded(request)
        sent = request.cookies.get(f"{visit.cookie}_oidc", "")
        answer = ProviderAnswer(sent, *(told.get(name, "") for name in ("state", "code", "iss")))
        try:
            with _unreachable():
                signed_in = await self._door.come_back(answer, visit.caller)
        except SignInRefused as exc:
            raise _refusal(exc, "wrong_answer") from exc
        response = web.Response(status=303, headers=API_HEADERS | {"Location": "/"})
        _delete_cookie(response, visit, f"{visit.cookie}_oidc")
        return _with_cookie(response, request, signed_in)

    async def sign_out(self, request: web.Request) -> web.Response:
        """End the browser's session, if any."""
        visit = request[VISIT]
        if visit.caller.session:
            await self._door.sign_out(visit.caller)
        response = web.Response(status=204, headers=API_HEADERS)
        _delete_cookie(response, visit, visit.cookie)
        return response

    async def still(self, request: web.Request) -> bool:
        """Whether a stream's session is still valid."""
        session, visitor = request[VISIT].caller.session, visitor_of(request)
        return not visitor.has_session or await self._door.session(session) is not None

    async def visitor(self, request: web.Request) -> Visitor | None:
        """Return the user of a public request; None if a protected handler would refuse it."""
        try:
            visit = Visit(caller_of(request, self._trusted))
            check_origin(request, visit.caller)
            await self._admit(request, visit, public=False)
        except Refusal:
            return None
        return visit.visitor

    async def _admit(self, request: web.Request, visit: Visit, *, public: bool) -> None:
        caller = visit.caller
        if over_unix_socket(request):
            visit.visitor = OWNER
            return
        visit.cookie = cookie_name(request, caller, self._public_port)
        visit.caller = caller = replace(caller, session=request.cookies.get(visit.cookie, ""))
        scheme, _, offered = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and not public:
            # Other sites cannot know the token, so the Host is not checked.
            try:
                visit.visitor = await self._door.token(offered.strip(), caller)
            except SignInRefused as exc:
                raise _refusal(exc, "wrong_token") from exc
            return
        if not caller.proxied:
            check_loopback(request, self._public_port)
        if not public and caller.session:
            visit.visitor = await self._door.session(caller.session)

    def _report(self, request: web.Request, refusal: Refusal) -> None:
        address, proxy, visit = request.remote or "", None, request.get(VISIT)
        if visit is not None and visit.caller.proxied:
            address, proxy = visit.caller.address, address
        code, now = refusal.code, time.monotonic()
        # Strangers can cause any number of refusals, so not every one is a warning.
        warns = code in OF_SETTINGS and now - self._warned.get(code, -inf) >= WARNED_EVERY_S
        if warns:
            self._warned[code] = now
        level, status = WARNING if warns else INFO, refusal.status
        log.log(
            level, "web_request_refused", address=address, code=code, proxy=proxy, status=status
        )


def refuse_if_crowded(request: web.Request) -> None:
    """Refuse slow requests while only the reserve of connections is left."""
    if request.get(CROWDED, False):
        text = "Too many people are here at the moment. Please wait a little."
        raise Refusal(503, BUSY, text, retry_after_s=CROWDED_S)


def visitor_of(request: web.Request) -> Visitor:
    """Return the signed-in user of a request."""
    visitor = request[VISIT].visitor
    if visitor is None:
        raise Refusal(401, "sign_in_needed", SIGN_IN)
    return visitor


def place_of(request: web.Request) -> Address:
    """Return the user's chat named by the path.

    Other users' chats are out of reach: an invited user's chats start with the user's name and a
    slash, and a name in a path has no slash.
    """
    chat = checked_id(request.match_info["chat"], "chat")
    sender = visitor_of(request).sender
    own = chat if sender == FIRST_OWNER else f"{sender}/{chat}"
    return Address(BUILT_IN, DEFAULT_ACCOUNT, own)


def named(chat: str) -> str:
    """Return the id of a chat in its user's paths."""
    return chat.rpartition("/")[2]


def _refusal(refused: SignInRefused, code: str) -> Refusal:
    if refused.retry_after_s is None:
        return Refusal(401, code, str(refused))
    return Refusal(429, "too_many_tries", str(refused), retry_after_s=refused.retry_after_s)


def answer_to(request: web.Request, refusal: Refusal, *, leads_back: bool = False) -> web.Response:
    """Return a refusal as JSON, or as a page for a browser's navigation.

    `leads_back`: users sign in at the web chat, which then returns them to the address.
    """
    by_person = request.method == "GET" or leads_back
    if not by_person or "text/html" not in request.headers.get("Accept", ""):
        body = {"error": refusal.code, "message": str(refusal)}
        response = json_response(body, refusal.status)
        response.headers.update(refusal.headers)
        return response
    if leads_back and refusal.status == HTTPStatus.UNAUTHORIZED and request.method == "GET":
        there = f"/?next={quote(request.path_qs, safe='')}"
        return web.Response(status=303, headers=API_HEADERS | {"Location": there})
    again = refusal.status in NOT_SIGNED_IN
    title = "You are not signed in" if again else "Parley does not answer here"
    title = TITLES.get(refusal.code, title)
    visit = request.get(VISIT)
    has_chat = again or (visit is not None and visit.visitor is not None)
    rest = '<p><a class="button" href="/">Back to Parley</a></p>\n' if has_chat else ""
    return web.Response(
        text=REFUSED_PAGE.format(title=title, text=escape(str(refusal)), rest=rest),
        status=refusal.status,
        content_type="text/html",
        headers=PAGE_HEADERS | refusal.headers,
    )


@contextmanager
def _unreachable() -> Iterator[None]:
    try:
        yield
    except ProviderUnreachable as exc:
        raise Refusal(503, "provider_unreachable", str(exc)) from exc


def _with_cookie(response: web.Response, request: web.Request, signed_in: SignedIn) -> web.Response:
    visit = request[VISIT]
    # Strict: a link on another site must not send the session.
    _set_cookie(response, visit, visit.cookie, signed_in.secret, COOKIE_S, "Strict")
    return response


def _set_cookie(
    response: web.Response, visit: Visit, name: str, value: str, life_s: int, samesite: str
) -> None:
    # HttpOnly, since no script needs it.
    rules: dict[str, Any] = {"secure": visit.caller.secure, "httponly": True, "samesite": samesite}
    response.set_cookie(name, value, max_age=life_s, path="/", **rules)


def _delete_cookie(response: web.Response, visit: Visit, name: str) -> None:
    # Only a secure cookie can set or delete a `__Host-` cookie.
    response.del_cookie(name, path="/", secure=visit.caller.secure, httponly=True)


def cookie_name(request: web.Request, caller: Requester, public_port: int | None = None) -> str:
    """Return the name of the session's cookie.

    Behind TLS no other host and no plain page can set or replace it (`__Host-`). Without TLS,
    browsers send cookies to all ports of a machine, so the name contains the port. Behind a proxy
    or balancer it is the port that the browser sees, since the next request may reach another
    replica.
    """
    if caller.secure:
        return "__Host-parley"
    here, seen = connection_of(request).getsockname()[1], _port_of(caller.host)
    return f"parley_{seen if caller.proxied or seen == public_port else here}"


def _port_of(host: str) -> int:
    try:
        return urlsplit(f"//{host}").port or 80
    except ValueError:
        return 80


def check_loopback(request: web.Request, public_port: int | None = None) -> None:
    """Refuse a local connection unless its Host is a loopback name with our port.

    Our port is the served one, or that of `web.public_url` on this machine. Otherwise a foreign
    page could resolve its own name to 127.0.0.1 (DNS rebinding).
    """
    address, port = connection_of(request).getsockname()[:2]
    if not ipaddress.ip_address(address).is_loopback:
        return
    host = request.headers.get("Host", "")
    ports = [port] if public_port is None else [port, public_port]
    if not any(names_loopback(host, each) for each in ports):
        text = (
            "Open the web chat under the address Parley printed. If this is your proxy's name, have"
            " the proxy set X-Forwarded-For and X-Forwarded-Proto, and add its address to"
            " web.trusted_proxies in parley.yaml."
        )
        raise Refusal(403, "host_refused", text)


def names_loopback(host: str, port: int) -> bool:
    """Whether a Host header names this machine and this port (80 if it names none)."""
    try:
        parts = urlsplit(f"//{host}")
        name, named_port = parts.hostname or "", parts.port or 80
        here = name in {"localhost", OWN_NAME} or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
    return here and named_port == port


def check_origin(request: web.Request, caller: Requester, *, forms: bool = False) -> None:
    """Refuse requests from other sites: a foreign Origin, or a form without Parley's header.

    Pages cannot reach the Unix socket. With `forms`, a form with an Origin needs no header.
    """
    if over_unix_socket(request):
        return
    origin = request.headers.get("Origin")
    # Under TLS, a plain page of the same name may come from a man in the middle.
    schemes = ("https",) if caller.secure else ("http", "https")
    if origin is not None and origin not in {f"{scheme}://{caller.host}" for scheme in schemes}:
        text = (
            "Another site's page may not use this web chat. If this is your proxy's name, have the"
            " proxy pass the Host header on, and add its address to web.trusted_proxies."
        )
        raise Refusal(403, "origin_refused", text)
    if request.method in {"GET", "HEAD"}:
        return
    if forms and origin is not None:
        return
    # Another site's form cannot set either without a CORS preflight.
    if request.headers.get("X-Parley") != "1" and request.content_type != "application/json":
        text = "Send Content-Type: application/json or X-Parley: 1."
        raise Refusal(403, "mark_missing", text)
