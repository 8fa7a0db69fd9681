"""Maps what slack_sdk raises to what became of a call; the only place that reads Slack's codes.

CallFailed
├── Limited      too many calls: the same again after `retry_after_s`
├── NotTaken     the request did not leave, or Slack says that it did not carry it out for now
├── Unanswered   the request went out; nobody knows whether it was carried out
└── CallRefused  Slack says no, with a `code`
"""

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

# Raised by aiohttp before the first byte of the request has left.
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
"""Codes of a wrong or revoked token. It can be fixed, so nothing is buried for them."""
_MENDABLE = CREDENTIALS | frozenset({
    "missing_scope",
    "no_permission",
    "access_denied",
    "accesslimited",
    "ekm_access_denied",
    "org_login_required",
    "team_access_not_granted",
    "two_factor_setup_required",
})


class CallFailed(Exception):
    """A call of the Web API failed; `code` is Slack's word for it, or ours."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Limited(CallFailed):
    """Too many calls; `retry_after_s` is what Slack asked for, if it said so."""

    def __init__(self, code: str, retry_after_s: float | None) -> None:
        super().__init__(code)
        self.retry_after_s = retry_after_s


class NotTaken(CallFailed):
    """Nothing was carried out; the same call can succeed later."""


class Unanswered(CallFailed):
    """The call may have been carried out."""


class CallRefused(CallFailed):
    """Slack will not do it."""


@contextmanager
def mapped() -> Iterator[None]:
    """Turn what the SDK raises into a CallFailed, without its texts: they quote whole answers."""
    try:
        yield
    except SlackApiError as exc:
        raise _of_answer(exc) from None
    except aiohttp.RedirectClientError as exc:
        # Some of these are InvalidURL too, but an answer has led there: the request has left.
        raise Unanswered(in_words(exc)) from exc
    except _NOT_SENT as exc:
        raise NotTaken(in_words(exc)) from exc
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise Unanswered(in_words(exc)) from exc
    except (SlackClientError, *UNREADABLE) as exc:
        raise Unanswered("malformed answer") from exc


def send_error(exc: CallFailed) -> AdapterError:
    """Return what a failed post means for its outbox row."""
    reason = f"Slack: {exc.code}"
    match exc:
        case Limited():
            return SendDelayed(reason, exc.retry_after_s)
        case Unanswered():
            return SendUnknown(reason)
        case CallRefused() if exc.code not in _MENDABLE:
            return SendRejected(reason)
    return SendDelayed(reason)


def edit_error(exc: CallFailed) -> AdapterError:
    """Like `send_error`; an edit can be repeated, so nothing about it is ever unknown."""
    error = send_error(exc)
    return SendDelayed(str(error)) if isinstance(error, SendUnknown) else error


def receiving_error(exc: CallFailed, setting: str) -> AdapterError:
    """Return what a failed call means for the receiving half.

    Args:
        setting: Name of the credential that was used.
    """
    if isinstance(exc, CallRefused) and exc.code in CREDENTIALS | {"missing_scope"}:
        return AdapterRefused(f"Slack refuses platforms.slack.{setting}: {exc.code}")
    return AdapterDisconnected(f"Slack: {exc.code}")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return what an answer says about when to come again."""
    named = {name.lower(): value for name, value in headers.items()}
    try:
        return max(float(named["retry-after"]), 0.0)
    except (LookupError, ValueError):
        return None


def _of_answer(exc: SlackApiError) -> CallFailed:
    """Tell apart what an answer says; where it was not even JSON the response is aiohttp's own."""
    response = exc.response
    status: int = getattr(response, "status_code", 0) or getattr(response, "status", 0)
    data = getattr(response, "data", None)
    code = data.get("error") if isinstance(data, dict) else None
    if status == HTTPStatus.TOO_MANY_REQUESTS or code in _LIMITED:
        return Limited(str(code or "ratelimited"), retry_after_s(response.headers))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or code in _IN_DOUBT:
        return Unanswered(str(code or f"HTTP status {status}"))
    if not isinstance(code, str):
        return Unanswered(f"malformed answer with HTTP status {status}")
    return NotTaken(code) if code in _NOT_NOW else CallRefused(code)
