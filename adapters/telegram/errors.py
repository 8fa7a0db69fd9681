"""Maps the SDK's exceptions to the adapters' error tree; the only place that reads their texts."""

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

# Raised before the first byte of the request was sent.
_NOT_SENT = (
    aiohttp.ConnectionTimeoutError,
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)
# A proxy in front of Telegram forwarded the request but got no usable response.
_OF_A_PROXY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT})
_TOO_BIG = "file is too big"
_FOR_NOW = "temporarily unavailable"
_GONE = ("message to edit not found", "message can't be edited", "message_id_invalid")


class TooManyRequests(TelegramError):
    """Flood control (429); `retry_after_s` is None without a requested pause."""

    def __init__(self, retry_after_s: float | None) -> None:
        super().__init__(f"Too many requests: retry after {retry_after_s} s")
        self.retry_after_s = retry_after_s


class ServerTrouble(NetworkError):
    """An error response of the server itself (413, 5xx) or not in the Bot API's format."""

    def __init__(self, status: int) -> None:
        super().__init__(f"The server answered with HTTP status {status}")
        self.status = status


class MalformedAnswer(TelegramError):
    """The server reported success in an unreadable format."""


class Flooded(SendDelayed):
    """Telegram requested a pause; delays by Parley's budgets are plain SendDelayed."""


class Troubled(SendDelayed):
    """A server error after which nothing was shown."""


class MessageGone(SendRejected):
    """The message to edit no longer exists: send its text as a new message."""


@contextmanager
def mapped_receiving(token: str) -> Iterator[None]:
    """Map SDK exceptions while receiving to AdapterDisconnected or AdapterRefused."""
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
    """Map SDK exceptions on a new message to SendDelayed, -Unknown or -Rejected.

    A group that became a supergroup raises ChatMoved.
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
    """Like `mapped_send`, but never SendUnknown, since an edit can be repeated.

    "Message is not modified" is a success: the text is already shown.
    """
    try:
        yield
    # BadRequest first: it is a subclass of NetworkError.
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
    """Map SDK and transport exceptions on a download to FetchDelayed or -Rejected."""
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
        # A request's deadline and a closed client raise OSErrors.
        raise FetchDelayed(redact(str(exc), token) or in_words(exc)) from exc
    except UNREADABLE as exc:
        raise FetchDelayed("Telegram's answer cannot be understood") from exc


def redact(text: str, token: str) -> str:
    """Remove the token from a text."""
    return text.replace(token, "***")


def _why_no_file(reason: str) -> str:
    if _TOO_BIG in reason.lower():
        return "Telegram lets bots have files of up to 20 MB only"
    return f"Telegram does not hand out the file ({reason})"


def _maybe_shown(exc: TelegramError) -> bool:
    """Whether a failed request may have been executed.

    Error responses have no cause; a broken connection's cause is the transport's exception.
    """
    # The message was sent; only its id is lost.
    if isinstance(exc, MalformedAnswer):
        return True
    if isinstance(exc, ServerTrouble) and exc.status in _OF_A_PROXY:
        return True
    # The SDK makes both NetworkErrors although Telegram responded.
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
    # Fixable errors such as a revoked token: do not bury messages for them.
    return SendDelayed(reason)
