"""Maps exceptions of discord.py and its transport to the adapters' error tree."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import aiohttp
import discord

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

# Source: https://discord.com/developers/docs/topics/opcodes-and-status-codes#json
UNKNOWN_CHANNEL = 10003
UNKNOWN_MESSAGE = 10008
UNKNOWN_WEBHOOK = 10015
UNKNOWN_INTERACTION = 10062
ALREADY_ANSWERED = 40060
MISSING_ACCESS = 50001
MISSING_PERMISSIONS = 50013
INVALID_TOKEN = 50027
THREAD_ARCHIVED = 50083
THREAD_EXISTS = 160004
TITLE_REFUSED = {50035, 200_000, 200_001, 240_000}
"""A malformed name, or one blocked by the server's or Discord's filters."""

_REASONS = {
    UNKNOWN_CHANNEL: "the channel or thread does not exist any more",
    UNKNOWN_MESSAGE: "the message does not exist any more",
    MISSING_ACCESS: "the bot has no access to this channel",
    50007: "this person takes no direct messages from the bot",
    MISSING_PERMISSIONS: "the bot lacks a permission in this channel",
    THREAD_ARCHIVED: "the thread is archived",
    40005: "the file is too large for this server",
    160005: "the thread is locked",
    160006: "the server has as many active threads as it may",
    160007: "the server has as many active announcement threads as it may",
}
UNKNOWN_BOT = "Discord does not know this bot; correct platforms.discord.token"
# Source: https://discord.com/developers/docs/topics/opcodes-and-status-codes#gateway
_REFUSALS = {
    4004: UNKNOWN_BOT,
    4010: "Discord does not know such a shard; correct platforms.discord.shards",
    4011: "the bot is in too many servers for its connections; raise platforms.discord.shards",
    4012: "Discord does not speak this version of its gateway any more; update Parley",
    4013: "Discord does not know the intents the bot asks for",
    4014: (
        "the bot may not read message contents: switch the Message Content intent on in the"
        " developer portal, or set platforms.discord.message_content: false"
    ),
}
# Final only with a Discord code; a proxy's error page says nothing about the chat.
_FINAL = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
}
# Slow mode, a channel's write limit, a temporarily disabled feature, a Discord outage.
_PASSING = {20016, 20028, 40006, 40333}
# Raised before the first byte of the request was sent.
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
_TRANSPORT = (discord.DiscordException, aiohttp.ClientError, OSError)
# The SDK also raises an AttributeError when the very first connection fails.
_UNREADABLE = (*UNREADABLE, zlib.error)


class CodedRefusal(SendRejected):
    """A refusal by Discord itself, with its JSON error code (0 if none)."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


@contextmanager
def mapped_receiving() -> Iterator[None]:
    """Map SDK exceptions while receiving to AdapterDisconnected or AdapterRefused."""
    try:
        yield
    # Subclasses of ClientException come first.
    except discord.LoginFailure as exc:
        raise AdapterRefused(_REFUSALS[4004]) from exc
    except discord.PrivilegedIntentsRequired as exc:
        raise AdapterRefused(_REFUSALS[4014]) from exc
    except discord.ConnectionClosed as exc:
        if refusal := _REFUSALS.get(exc.code):
            raise AdapterRefused(refusal) from exc
        raise AdapterDisconnected(f"Discord closed the connection with code {exc.code}") from exc
    except _TRANSPORT as exc:
        raise AdapterDisconnected(_text(exc)) from exc
    except _UNREADABLE as exc:
        raise AdapterDisconnected("Discord cannot be understood") from exc


@contextmanager
def mapped_call(*, once: bool = False) -> Iterator[None]:
    """Map SDK exceptions on a request to SendDelayed, -Unknown or -Rejected.

    Args:
        once: Whether the request must not be repeated; raises SendUnknown if it may have been
            executed.
    """
    doubt = SendUnknown if once else SendDelayed
    try:
        yield
    except _TRANSPORT as exc:
        error = _send_error(exc)
        raise (SendUnknown(str(error)) if once and _maybe_done(exc) else error) from exc
    except _UNREADABLE as exc:
        raise doubt("Discord's answer cannot be understood") from exc


def _maybe_done(exc: Exception) -> bool:
    """Whether a failed request may have been executed."""
    if isinstance(exc, discord.HTTPException):
        # The SDK may have retried: the last attempt's result says nothing about the first.
        return exc.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    # A redirect shows that the request was sent.
    if isinstance(exc, aiohttp.RedirectClientError):
        return True
    return not isinstance(exc, (discord.DiscordException, *_NOT_SENT))


def _send_error(exc: Exception) -> AdapterError:
    if isinstance(exc, discord.RateLimited):
        return SendDelayed("Discord asks for a pause", exc.retry_after)
    if not isinstance(exc, discord.HTTPException):
        return SendDelayed(_text(exc))
    # Discord returns 400 or 403 although the same request works later.
    if exc.code in _PASSING:
        return SendDelayed(_reason(exc))
    final = (exc.status in _FINAL and exc.code) or exc.code == INVALID_TOKEN
    if final or exc.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return CodedRefusal(_reason(exc), exc.code)
    # Includes a revoked token, which can be fixed: do not bury messages for it.
    return SendDelayed(_reason(exc))


def _reason(exc: discord.HTTPException) -> str:
    if not exc.code:
        return f"HTTP status {exc.status}"
    said = _REASONS.get(exc.code) or " ".join(exc.text.split())[:200]
    return f"{said} (Discord's code {exc.code})"


def _text(exc: BaseException) -> str:
    if isinstance(exc, discord.HTTPException):
        return _reason(exc)
    # Other transport errors quote the URL, which may contain an interaction's token.
    told = isinstance(exc, OSError | discord.DiscordException) and str(exc)
    return in_words(exc, quoted=bool(told))
