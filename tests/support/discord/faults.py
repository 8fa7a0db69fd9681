"""What can go wrong with a request to the Discord double, and its answers of the form {code, …}."""

from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]


class Refusal(Exception):
    """An answer of Discord that is an error.

    Source: https://docs.discord.com/developers/topics/opcodes-and-status-codes#json
    """

    def __init__(self, status: int, code: int, message: str, errors: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: Json = {"message": message, "code": code}
        if errors:
            self.body["errors"] = errors


def bad_field(name: str, code: str, message: str) -> Refusal:
    """Return "Invalid Form Body" for one field."""
    errors = {name: {"_errors": [{"code": code, "message": message}]}}
    return Refusal(400, 50035, "Invalid Form Body", errors)


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request.

    Attributes:
        kind: error (answered with `status` and `code`, nothing done), html (an error page of a
            proxy), limit (429, see `flood`), cut (carried out, then the connection is dropped
            without an answer), late (carried out, then answered like html), drop (dropped before
            anything is done), junk (carried out, answered with invalid JSON), reply (carried out,
            answered with `body`), slow (`delay_s` later, without fault).
    """

    kind: Literal["error", "html", "limit", "cut", "late", "drop", "junk", "reply", "slow"]
    status: int = 500
    code: int = 0
    message: str = "500: Internal Server Error"
    delay_s: float = 0.0
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


def flood(retry_after_s: float, *, everywhere: bool = False, via: bool = True) -> Fault:
    """Return a 429; without the header `Via` it comes from Cloudflare and has no usable body."""
    headers = {"Retry-After": str(max(1, round(retry_after_s)))}
    if not via:
        return Fault("limit", 429, 0, "error code: 1015", retry_after_s, None, headers)
    headers |= {"Via": "1.1 google", "X-RateLimit-Scope": "global" if everywhere else "shared"}
    if everywhere:
        headers["X-RateLimit-Global"] = "true"
    body = {
        "message": "You are being rate limited.",
        "retry_after": retry_after_s,
        "global": everywhere,
    }
    return Fault("limit", 429, 0, "", retry_after_s, body, headers)


SERVER_ERROR = Fault("error", 500)
UNAVAILABLE = Fault("error", 503, 0, "503: Service Unavailable")
HTML_502 = Fault("html", 502)
CUT = Fault("cut")
LATE_502 = Fault("late", 502)
DROP = Fault("drop")
JUNK = Fault("junk")
NO_ACCESS = Fault("error", 403, 50001, "Missing Access")
NO_PERMISSION = Fault("error", 403, 50013, "Missing Permissions")
