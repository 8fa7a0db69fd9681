"""Looks up in a channel what an earlier attempt may have posted (step 8)."""

from collections.abc import Callable
from typing import Any, cast

from adapters.errors import SendDelayed
from adapters.messages import Outgoing
from adapters.slack.client import Client
from adapters.slack.errors import CallFailed, Limited, Refused, mapped

_PAGE = 200
_MOST_PAGES = 10
_MARGIN_S = 600.0
"""How far Slack's clock and the database's may be apart."""
_NO_ACCESS = frozenset({"missing_scope", "not_in_channel", "access_denied", "no_permission"})

_THREAD_GONE = frozenset({"thread_not_found", "message_not_found"})


class Unreadable(Exception):
    """The bot may not read there: nobody can say what was posted."""


async def find(
    client: Client, message: Outgoing, now: float, is_it: Callable[[dict[str, Any]], bool]
) -> dict[str, Any] | None:
    """Return the message at an outbox row's address that a test finds; None if there is none.

    Raises:
        SendDelayed: It cannot be said now.
        Unreadable: It can never be said.
    """
    oldest = f"{max(now - message.age_s - _MARGIN_S, 0.0):.6f}"
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await _page(client, message, oldest, cursor)
        for shown in page.get("messages") or ():
            if isinstance(shown, dict) and is_it(shown):
                return shown
        cursor = (page.get("response_metadata") or {}).get("next_cursor")
        if not cursor:
            return None
    raise Unreadable


async def _page(
    client: Client, message: Outgoing, oldest: str, cursor: str | None
) -> dict[str, Any]:
    address = message.address
    try:
        with mapped():
            if address.thread is None:
                page = await client.web.conversations_history(
                    channel=address.chat,
                    oldest=oldest,
                    limit=_PAGE,
                    cursor=cursor,
                    include_all_metadata=True,
                )
            else:
                page = await client.web.conversations_replies(
                    channel=address.chat,
                    ts=address.thread,
                    oldest=oldest,
                    limit=_PAGE,
                    cursor=cursor,
                    include_all_metadata=True,
                )
            return cast("dict[str, Any]", page.data)
    except Refused as exc:
        if exc.code in _NO_ACCESS:
            raise Unreadable from exc
        if exc.code in {"channel_not_found", "thread_not_found"}:
            return {}
        raise SendDelayed(f"Slack: {exc.code}") from exc
    except CallFailed as exc:
        retry_after_s = exc.retry_after_s if isinstance(exc, Limited) else None
        raise SendDelayed(f"Slack: {exc.code}", retry_after_s) from exc


async def is_thread_gone(client: Client, channel: str, thread: str) -> bool:
    """Whether a thread's first message was deleted; False where that cannot be said."""
    try:
        with mapped():
            await client.web.conversations_replies(channel=channel, ts=thread, limit=1)
    except CallFailed as exc:
        return exc.code in _THREAD_GONE
    return False
