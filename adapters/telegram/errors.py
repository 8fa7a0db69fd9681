"""Maps the SDK's exceptions to the adapters' tree; the only place that reads their texts."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import aiohttp
import httpx
import structlog
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    TelegramError,
)

from adapters.errors import (
    UNREADABLE,
    AdapterDisconnected,
    AdapterError,
    AdapterRefused,
    ChatMoved,
    FetchDelayed,
    FetchRejected,
    SendDelayed,
    SendRejected,
    SendUnknown,
)
from agent.network import in_words

log = structlog.get_logger()

# Raised before the first byte of the request has left.
_NOT_SENT = (
    aiohttp.ConnectionTimeoutError,
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)
# A proxy in front of Telegram has passed the request on, and got no usable answer.
_OF_A_PROXY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT})
_TOO_BIG = "file is too big"
_FOR_NOW = "temporarily unavailable"
_GONE = ("message to edit not found", "message can't be edited", "message_id_invalid")


class TooManyRequests(TelegramError):
    """Flood control (429); `retry_after_s` is None if Telegram named no pause."""

    def __init__(self, retry_after_s: float | None) -> None:
        super().__init__(f"Too many requests: retry after {retry_after_s} s")
        self.retry_after_s = retry_after_s


class ServerTrouble(NetworkError):
    """An error answer that is the server's own (413, 5xx) or not in the Bot API's form."""

    def __init__(self, status: int) -> None:
        super().__init__(f"The server answered with HTTP status {status}")
        self.status = status


class MalformedAnswer(TelegramError):
    """The server reported success in a form that cannot be understood."""


class Flooded(SendDelayed):
    """Telegram asked for a pause; delays by Parley's own budgets are plain SendDelayed."""


class Troubled(SendDelayed):
    """An error of the server's own, which says that nothing was shown."""


class MessageGone(SendRejected):
    """The message to edit does not exist any more: its text must be a new message."""


@contextmanager
def mapped_receiving(token: str) -> Iterator[None]:
    """Turn what the SDK raises while receiving into AdapterDisconnected or AdapterRefused."""
    try:
        yield
    except InvalidToken as exc:
        refusal = "Telegram does not know this bot; correct platforms.telegram.token"
        raise AdapterRefused(refusal) from exc
    except Conflict as exc:
        log.warning("telegram_poll_conflicted", reason=redact(exc.message, token))
        reason = f"another program receives for this bot: {redact(exc.message, token)}"
        raise AdapterDisconnected(reason) from exc
    except TelegramError as exc:
        raise AdapterDisconnected(redact(str(exc), token)) from exc
    except UNREADABLE as exc:
        raise AdapterDisconnected("Telegram's answer cannot be understood") from exc


@contextmanager
def mapped_send(token: str) -> Iterator[None]:
    """Turn what the SDK raises on a new message into a SendDelayed, -Unknown or -Rejected.

    A group that has become a supergroup is a ChatMoved.
    """
    try:
        yield
    except TelegramError as exc:
        reason = redact(str(exc), token)
        if _maybe_shown(exc):
            raise SendUnknown(reason) from exc
        raise _send_error(exc, reason) from exc
    except UNREADABLE as exc:
        raise SendUnknown("Telegram's answer cannot be understood") from exc


@contextmanager
def mapped_edit(token: str) -> Iterator[None]:
    """Like `mapped_send`, but never unknown: an edit can be repeated.

    "Message is not modified" is a success: the text is shown already. MessageGone: it is not there.
    """
    try:
        yield
    # BadRequest first: it is a NetworkError, and that a TelegramError.
    except BadRequest as exc:
        reason = redact(exc.message, token)
        if "message is not modified" in reason.lower():
            return
        if any(text in reason.lower() for text in _GONE):
            raise MessageGone(reason) from exc
        raise SendRejected(reason) from exc
    except TelegramError as exc:
        raise _send_error(exc, redact(str(exc), token)) from exc
    except UNREADABLE as exc:
        raise SendDelayed("Telegram's answer cannot be understood") from exc


@contextmanager
def mapped_fetch(token: str) -> Iterator[None]:
    """Turn what the SDK and the transport raise on a download into a FetchDelayed or -Rejected."""
    try:
        yield
    except BadRequest as exc:
        reason = redact(exc.message, token)
        if _FOR_NOW in reason.lower():
            raise FetchDelayed(reason) from exc
        raise FetchRejected(_why_no_file(reason)) from exc
    except Forbidden as exc:
        raise FetchRejected(_why_no_file(redact(exc.message, token))) from exc
    except (TelegramError, httpx.HTTPError, OSError) as exc:
        # The deadline of a request and the end of its client are OSErrors.
        raise FetchDelayed(redact(str(exc), token) or in_words(exc)) from exc
    except UNREADABLE as exc:
        raise FetchDelayed("Telegram's answer cannot be understood") from exc


def redact(text: str, token: str) -> str:
    """Return the text without the token."""
    return text.replace(token, "***")


def _why_no_file(reason: str) -> str:
    if _TOO_BIG in reason.lower():
        return "Telegram lets bots have files of up to 20 MB only"
    return f"Telegram does not hand out the file ({reason})"


def _maybe_shown(exc: TelegramError) -> bool:
    """Whether the request may have been carried out although it failed.

    Error answers have no cause; a broken connection has the transport's exception as its cause.
    """
    # A success: the message is shown, only its id is lost.
    if isinstance(exc, MalformedAnswer):
        return True
    if isinstance(exc, ServerTrouble) and exc.status in _OF_A_PROXY:
        return True
    # Both are NetworkErrors of the SDK although Telegram has answered.
    if isinstance(exc, BadRequest | ServerTrouble) or not isinstance(exc, NetworkError):
        return False
    return exc.__cause__ is not None and not isinstance(exc.__cause__, _NOT_SENT)


def _send_error(exc: TelegramError, reason: str) -> AdapterError:
    if isinstance(exc, TooManyRequests):
        return Flooded(reason, exc.retry_after_s)
    if isinstance(exc, ChatMigrated):
        return ChatMoved(str(exc.new_chat_id))
    if isinstance(exc, BadRequest | Forbidden):
        return SendRejected(reason)
    if isinstance(exc, ServerTrouble) and exc.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return SendRejected("the file is too large for the server")
    if isinstance(exc, ServerTrouble):
        return Troubled(reason)
    # Such as a revoked token: it can be fixed, so nothing is buried for it.
    return SendDelayed(reason)
