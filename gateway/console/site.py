"""The console's site: pages from templates, forms with tokens, one-time messages.

The web chat's guard admits only owners to /admin. One function builds all routes, so no page can
bypass the guard.

Templates escape all values and fail if one is missing. Scripts and styles are separate files
(Content-Security-Policy), and pages cannot be framed.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from adapters.door import OWNER
from adapters.web.guard import VISIT, Guard, visitor_of
from adapters.web.requests import PAGE_HEADERS, Refusal
from agent.safety.redaction import Redactor
from gateway.console import presentation
from gateway.console.pages import conversations, overview, people, system
from gateway.console.register import (
    HOME,
    MENU_GROUPS,
    REGISTER,
    Ask,
    Inside,
    Missing,
    Moved,
    Registered,
    Result,
    Shown,
    action,
)
from gateway.errors import GatewayError, NotFound, StorageError
from gateway.settings.loading import secret_values
from gateway.settings.references import references_in
from gateway.settings.tree import Settings

log = structlog.get_logger()

PAGES = (overview, conversations, people, system)
"""All modules with pages, in menu order; importing one registers its pages."""

HERE = Path(__file__).parent
STATIC = HERE / "static"
HEADERS = PAGE_HEADERS | {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With "no-referrer", browsers send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
}
FORM = "application/x-www-form-urlencoded"
TOKEN_FIELD = "form_token"  # noqa: S105 - a field's name
THEMES = ("light", "dark", "auto")
THEME_COOKIE = "parley_theme"
SAID_COOKIE = "parley_console_said"
SAID_S = 60
SAID_BYTES = 2_600
"""Longest one-time message; with base64 and a signature it fits into a 4,096-byte cookie."""
_ANY = "surrogatepass"
"""Headers may contain undecodable bytes."""
OWNERS_ONLY = "The console is for owners of this Parley. Your chats are on the page before it."
STALE = "This form is of another session, or too old. Nothing was changed; please try again."


class Console:
    """Serves the registered pages behind the web chat's guard."""

    def __init__(self, inside: Inside, guard: Guard) -> None:
        self._inside = inside
        self._guard = guard
        token = inside.settings.web.token
        # Replicas share the token, so they accept each other's forms.
        key = token.get_secret_value() if token else secrets.token_hex(32)
        self._key = hashlib.sha256(b"console " + key.encode()).digest()
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._redactor = Redactor()
        self._templates.filters["redacted"] = self._redactor.text
        self._told_by: Settings | None = None
        self._go_by(inside.settings)

    def _go_by(self, settings: Settings) -> None:
        """Apply settings for time formats and masked secrets; former secrets stay masked."""
        if settings is not self._told_by:
            self._templates.filters.update(presentation.filters(settings.sessions.timezone))
            self._redactor.learn(secret_values(settings))
            for _, secret in references_in(settings):
                secret.tell(self._redactor.learn)
            self._told_by = settings

    def routes(self) -> list[web.RouteDef]:
        """Return the guarded routes; the last two answer unknown paths."""
        known = [(each.method, each.path, each) for each in REGISTER]
        unknown = [(method, f"{HOME}/{{tail:.*}}", None) for method in ("GET", "POST")]
        return [
            (web.get if method == "GET" else web.post)(
                path, self._guard.protect(partial(self._answer, entry), forms=True)
            )
            for method, path, entry in (*known, *unknown)
        ]

    async def _answer(self, entry: Registered | None, request: web.Request) -> web.StreamResponse:
        if visitor_of(request).role != OWNER.role:
            raise Refusal(403, "owners_only", OWNERS_ONLY)
        if request.path.startswith(f"{HOME}/static/") and request.method != "POST":
            return _static(request.path.rpartition("/")[2])
        form = await self._form(request) if request.method == "POST" else {}
        try:
            return await self._found(entry, request, form)
        except Missing as missing:
            status, heading, text = 404, "Nothing is here", str(missing)
        except StorageError as exc:
            log.warning("request_not_stored", path=request.path, error=str(exc))
            status, heading, text = 503, "The database does not answer", f"{exc}."
        except GatewayError as exc:
            status, heading, text = 409, "That cannot be done", str(exc)
        shown = Shown("trouble.html", {"heading": heading, "text": text})
        return await self._page(request, None, shown, status)

    async def _found(
        self, entry: Registered | None, request: web.Request, form: Mapping[str, str]
    ) -> web.StreamResponse:
        if entry is None:
            raise Missing("There is no such page.")
        ask = Ask(request, self._inside, visitor_of(request), request.match_info, form)
        try:
            result = await entry.handler(ask)
        except NotFound as exc:
            if entry.method == "POST":
                raise
            # For example, the row before a list page was deleted.
            raise Missing("That row is not on the list any more.") from exc
        if isinstance(result, Shown):
            return await self._page(request, entry, result, 409 if result.refused else 200)
        return self._moved(request, result) if isinstance(result, Moved) else result

    async def _form(self, request: web.Request) -> Mapping[str, str]:
        """Return the form fields after checking the session's token."""
        if request.content_type != FORM:
            raise Refusal(415, "no_form", "The console takes forms alone.")
        fields = {
            name: value for name, value in (await request.post()).items() if isinstance(value, str)
        }
        offered = fields.pop(TOKEN_FIELD, "")
        if not hmac.compare_digest(offered.encode(), self._token(request).encode()):
            raise Refusal(403, "form_refused", STALE)
        return fields

    def _token(self, request: web.Request) -> str:
        """Return the form token, bound to visitor and session."""
        visit = request[VISIT]
        return self._signed("form", f"{visitor_of(request).sender}\0{visit.caller.session}")

    def _signed(self, what: str, text: str) -> str:
        signed = f"{what}\0{text}".encode(errors=_ANY)
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest()

    def _moved(self, request: web.Request, moved: Moved) -> web.Response:
        response = _redirect(moved.to)
        if moved.said:
            text = f"{'!' if moved.failed else ''}{moved.said}".encode()
            fitting = text[:SAID_BYTES].decode(errors="ignore").encode()
            packed = base64.urlsafe_b64encode(fitting).decode()
            value = f"{packed}.{self._signed(self._token(request), packed)}"
            _set_cookie(response, request, SAID_COOKIE, value, SAID_S)
        return response

    def _said(self, request: web.Request) -> str:
        """Return the previous action's message; empty without one or for a forged cookie."""
        packed, _, mark = request.cookies.get(SAID_COOKIE, "").partition(".")
        # Only ASCII strings can be compared, but a cookie may contain anything.
        wanted = self._signed(self._token(request), packed)
        if not hmac.compare_digest(mark.encode(errors=_ANY), wanted.encode()):
            return ""
        return base64.urlsafe_b64decode(packed).decode()

    async def _page(
        self, request: web.Request, entry: Registered | None, shown: Shown, status: int = 200
    ) -> web.Response:
        self._go_by(self._inside.settings)
        kept, here = self._said(request), _place_in_menu(request.path)
        said = f"!{shown.refused}" if shown.refused else kept
        theme = request.cookies.get(THEME_COOKIE, "")
        token = Markup('<input type="hidden" name="{}" value="{}">')
        around = {
            "title": shown.title or (entry.title if entry else shown.values["heading"]),
            "menu": _menu(),
            "here": here,
            "visitor": visitor_of(request),
            "theme": theme if theme in THEMES else "auto",
            "zone": self._inside.settings.sessions.timezone,
            "said": said.lstrip("!"),
            "failed": said.startswith("!"),
            "form_token": token.format(TOKEN_FIELD, self._token(request)),
            # A posted form is not an address to return to.
            "address": (here or HOME) if request.method == "POST" else request.path_qs,
        }
        template = self._templates.get_template(shown.template)
        # In a thread, since a long conversation takes time to render.
        text = await asyncio.to_thread(partial(template.render, around | dict(shown.values)))
        response = web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)
        if kept:
            response.del_cookie(SAID_COOKIE, path=HOME)
        return response


@action(f"{HOME}/theme")
async def choose_theme(ask: Ask) -> Result:
    """Store the theme in a browser cookie."""
    theme = ask.form.get("theme", "")
    response = _redirect(ask.form.get("back", HOME))
    if theme in THEMES:
        _set_cookie(response, ask.request, THEME_COOKIE, theme, 31_536_000)
    return response


def _redirect(to: str) -> web.Response:
    return web.Response(status=303, headers=HEADERS | {"Location": within(to)})


def _set_cookie(
    response: web.Response, request: web.Request, name: str, value: str, life_s: int
) -> None:
    secure = request[VISIT].caller.secure
    rules: dict[str, Any] = {"secure": secure, "httponly": True, "samesite": "Strict"}
    response.set_cookie(name, value, max_age=life_s, path=HOME, **rules)


def within(address: str) -> str:
    """Return a console address; replace any other address by the first page."""
    parts = urlsplit(address)
    inside = parts.path == HOME or parts.path.startswith(f"{HOME}/")
    is_plain = address.isprintable() and "\\" not in address
    return address if inside and is_plain and not parts.scheme and not parts.netloc else HOME


def _menu() -> list[tuple[str, list[Registered]]]:
    # In the order of `PAGES`, regardless of the import order.
    names = [module.__name__ for module in PAGES]
    shown = sorted(
        (each for each in REGISTER if each.group),
        key=lambda each: names.index(each.handler.__module__),
    )
    groups = ((group, [each for each in shown if each.group == group]) for group in MENU_GROUPS)
    return [(group, entries) for group, entries in groups if entries]


def _place_in_menu(path: str) -> str:
    """Return the path of a page's menu entry."""
    above = (
        each.path
        for each in REGISTER
        if each.group and (path == each.path or path.startswith(f"{each.path}/"))
    )
    return max(above, key=len, default="")


def _static(name: str) -> web.StreamResponse:
    # Compared with existing names, so that a path cannot leave the folder.
    if name not in {file.name for file in STATIC.iterdir()}:
        raise Refusal(404, "no_such_file", "There is no such file.")
    return web.FileResponse(STATIC / name, headers=HEADERS | {"Cache-Control": "no-cache"})
