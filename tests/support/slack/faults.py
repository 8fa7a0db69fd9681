"""What can go wrong with one request to the Slack double; see `SlackServer.fail`."""

from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

Json = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request.

    Attributes:
        kind: error (HTTP 200, `ok: false` with `error`), status (HTTP `status` with a JSON body),
            html (an error page of a proxy), cut (carried out, then the connection is dropped
            without an answer), drop (dropped before anything is done), junk (carried out, answered
            with invalid JSON), slow (`delay_s` later, without fault), limited (429 with
            `Retry-After: retry_after_s`).
        fields: What an error says beside its name.
    """

    kind: Literal["error", "status", "html", "cut", "drop", "junk", "slow", "limited"]
    error: str = "internal_error"
    status: int = 500
    retry_after_s: int = 1
    delay_s: float = 0.0
    fields: Json = field(default_factory=dict)


def refused(error: str, **fields: Any) -> Fault:
    """Return a logical error: HTTP 200 with `ok: false`."""
    return Fault("error", error=error, fields=fields)


def flood(retry_after_s: int = 1) -> Fault:
    """Return a 429."""
    return Fault("limited", retry_after_s=retry_after_s)


def slow(delay_s: float) -> Fault:
    """Return a delay without fault."""
    return Fault("slow", delay_s=delay_s)


SERVER_ERROR = Fault("status", status=500, error="internal_error")
UNAVAILABLE = Fault("status", status=503, error="service_unavailable")
HTML_502 = Fault("html", status=502)
CUT = Fault("cut")
DROP = Fault("drop")
JUNK = Fault("junk")


class ApiError(Exception):
    """An answer of the form {"ok": false, "error": …} with HTTP 200."""

    def __init__(self, error: str, **fields: Any) -> None:
        super().__init__(error)
        self.error = error
        self.fields = fields


def answer(result: Json) -> web.Response:
    """Return a success."""
    return web.json_response({"ok": True} | result)


def refusal(error: str, fields: Json | None = None, status: int = 200) -> web.Response:
    """Return a logical error."""
    return web.json_response({"ok": False, "error": error} | (fields or {}), status=status)


def before(request: web.Request, fault: Fault | None) -> web.Response | None:
    """Return the answer of a fault that lets nothing happen."""
    if fault is None:
        return None
    if fault.kind == "error":
        return refusal(fault.error, fault.fields)
    if fault.kind == "status":
        return refusal(fault.error, status=fault.status)
    if fault.kind == "limited":
        limited = refusal("ratelimited", status=429)
        limited.headers["Retry-After"] = str(fault.retry_after_s)
        return limited
    if fault.kind == "html":
        page = f"<html><h1>{fault.status} Bad Gateway</h1></html>"
        return web.Response(text=page, status=fault.status, content_type="text/html")
    return _hang_up(request) if fault.kind == "drop" else None


def after(request: web.Request, fault: Fault | None) -> web.Response | None:
    """Return the answer of a fault that comes after the request was carried out."""
    if fault is not None and fault.kind == "junk":
        return web.Response(text='{"ok": true, "ts', content_type="application/json")
    return _hang_up(request) if fault is not None and fault.kind == "cut" else None


def _hang_up(request: web.Request) -> web.Response:
    """Drop the connection; the answer returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
