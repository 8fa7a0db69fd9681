"""What models behind an HTTP API share: the key, and how a failed request becomes a ModelError."""

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
    RateLimited,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import ModelSettings

_LONGEST_REASON = 300
# What these say is clear, whatever else the answer holds.
CLEAR_STATUS: dict[int, type[ModelError]] = {
    401: CredentialsRefused,
    402: CredentialsRefused,
    403: CredentialsRefused,
    404: ModelNotFound,
    408: ModelUnreachable,
    409: ModelUnreachable,
    413: ContextOverflow,
    429: RateLimited,
    529: RateLimited,
}


def api_key(settings: "ModelSettings") -> str:
    """Return the configured key, "" if there is none.

    Raises:
        CredentialsRefused: The key holds characters that no HTTP header can carry.
    """
    key = settings.api_key.get_secret_value().strip() if settings.api_key else ""
    if key and not (key.isascii() and key.isprintable()):
        raise CredentialsRefused("model.api_key holds characters that no key has")
    return key


def required_key(settings: "ModelSettings", variable: str = "") -> str:
    """Return the configured key.

    Raises:
        CredentialsRefused: There is none; the message names the setting and the variable.
    """
    key = api_key(settings)
    if not key:
        place = f"model.api_key or {variable}" if variable else "model.api_key"
        raise CredentialsRefused(f"provider {settings.provider} needs a key: set {place}")
    return key


def error_class(status: int) -> type[ModelError]:
    """Return what an HTTP status means where the provider says nothing more precise."""
    default = BadRequest if 400 <= status < 500 else ModelUnreachable
    return CLEAR_STATUS.get(status, default)


def build_error(kind: type[ModelError], reason: str, headers: "Mapping[str, str]") -> ModelError:
    """Return an error of this kind; a RateLimited one carries what the headers ask for."""
    if issubclass(kind, RateLimited):
        return kind(reason, retry_after_s(headers))
    return kind(reason)


def describe(status: int | None, kind: str | None, message: str | None, key: str) -> str:
    """Return a short line about a failure, without the key even where the provider echoes it."""
    parts = [f"HTTP {status}" if status else "", kind or "", message or ""]
    line = " ".join(": ".join(part for part in parts if part).split())
    if key:
        line = line.replace(key, "[key]")
    return line[:_LONGEST_REASON]


def retry_after_s(headers: "Mapping[str, str]") -> float | None:
    """Return the seconds to wait that the headers ask for, at least 0; None if they do not say.

    Source: RFC 9110 §10.2.3 (seconds or a date); `retry-after-ms` is OpenAI's finer form.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    return seconds if seconds is not None else _seconds_until(text)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return max(value, 0.0) if math.isfinite(value) else None


def _seconds_until(text: str | None) -> float | None:
    try:
        moment = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - datetime.now(UTC)).total_seconds(), 0.0)
