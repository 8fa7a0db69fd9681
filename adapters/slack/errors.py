"""Maps slack_sdk's exceptions to the adapters' errors; the only place that reads Slack's codes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError

from adapters.errors import (
    UNREADABLE,
    AdapterDisconnected,
    AdapterError,
    AdapterRefused,
    SendDelayed,
    SendRejected,
    SendUnknown,
)
from agent.network import in_words

# Raised by aiohttp before the first byte of the request was sent.
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
_LIMITED = frozenset({"ratelimited", "rate_limited"})
# "It's possible some aspect of the operation succeeded before the error was raised."
# Source: https://docs.slack.dev/reference/methods/chat.postMessage#errors
_IN_DOUBT = frozenset({"internal_error", "fatal_error", "service_unavailable"})
_NOT_NOW = frozenset({
    "request_timeout",
    "update_failed",
    "external_channel_migrating",
    "streaming_state_conflict",
    "team_added_to_org",
    "message_limit_exceeded",
})
CREDENTIALS = frozenset({
    "invalid_auth",
    "not_authed",
    "account_inactive",
    "token_revoked",
    "token_expired",
    "not_allowed_token_type",
    "missing_args",
})
"""Codes of a wrong or revoked token, which can be fixed: do not bury messages for them."""
_FIXABLE = CREDENTIALS | frozenset({
    "missing_scope",
    "no_permission",
    "access_denied",
    "accesslimited",
    "ekm_access_denied",
    "org_login_required",
    "team_access_not_granted",
    "two_factor_setup_required",
})


class Limited(SendDelayed):
    """Slack requested a pause; delays by Parley's budgets are plain SendDelayed."""


class Coded(AdapterError):
    """A refusal by Slack, with its `code`."""

    def __init__(self, code: str) -> None:
        super().__init__(f"Slack: {code}")
        self.code = code


class Fixable(Coded, SendDelayed):
    """A refusal that an operator can fix: messages are not buried."""


class Refused(Coded, SendRejected):
    """A permanent refusal."""


def code_of(exc: AdapterError) -> str:
    """Return Slack's error code, "" for other errors."""
    return exc.code if isinstance(exc, Coded) else ""


@contextmanager
def mapped(*, once: bool = False) -> Iterator[None]:
    """Map SDK exceptions to adapter errors, without their texts, which quote responses.

    Args:
        once: Whether a repeat is forbidden; SendUnknown if the call may have been executed.
    """
    doubt = SendUnknown if once else SendDelayed
    try:
        yield
    except SlackApiError as exc:
        raise _of_answer(exc, doubt) from None
    except aiohttp.RedirectClientError as exc:
        # Some of these are also InvalidURL, but after a redirect, so the request was sent.
        raise doubt(f"Slack: {in_words(exc)}") from exc
    except _NOT_SENT as exc:
        raise SendDelayed(f"Slack: {in_words(exc)}") from exc
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise doubt(f"Slack: {in_words(exc)}") from exc
    except (SlackClientError, *UNREADABLE) as exc:
        raise doubt("Slack: malformed answer") from exc


@contextmanager
def mapped_receiving(setting: str) -> Iterator[None]:
    """Map a call's exceptions while receiving to AdapterDisconnected or AdapterRefused.

    A refusal names the setting of the used credential.
    """
    try:
        with mapped():
            yield
    except (SendDelayed, Refused) as exc:
        if code_of(exc) in CREDENTIALS | {"missing_scope"}:
            why = f"Slack refuses platforms.slack.{setting}: {code_of(exc)}"
            raise AdapterRefused(why) from exc
        raise AdapterDisconnected(str(exc)) from exc


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the pause requested by a response, or None."""
    named = {name.lower(): value for name, value in headers.items()}
    try:
        return max(float(named["retry-after"]), 0.0)
    except (LookupError, ValueError):
        return None


def _of_answer(exc: SlackApiError, doubt: type[SendUnknown] | type[SendDelayed]) -> AdapterError:
    # The response is aiohttp's if it was not JSON.
    response = exc.response
    status: int = getattr(response, "status_code", 0) or getattr(response, "status", 0)
    data = getattr(response, "data", None)
    code = data.get("error") if isinstance(data, dict) else None
    if status == HTTPStatus.TOO_MANY_REQUESTS or code in _LIMITED:
        return Limited(f"Slack: {code or 'ratelimited'}", retry_after_s(response.headers))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or code in _IN_DOUBT:
        return doubt(f"Slack: {code or f'HTTP status {status}'}")
    if not isinstance(code, str):
        return doubt(f"Slack: malformed answer with HTTP status {status}")
    if code in _NOT_NOW:
        return SendDelayed(f"Slack: {code}")
    return Fixable(code) if code in _FIXABLE else Refused(code)
