"""Looks up in a channel what an earlier attempt, or process, may have posted."""

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from adapters.errors import AdapterError, SendDelayed, SendRejected
from adapters.messages import Address, MessageRef, Outgoing
from adapters.slack.client import Client, nonce_of
from adapters.slack.errors import Coded, code_of, mapped

STREAMED = "stream:"
"""Begins the ref of a preview that is, or was, Slack's own text stream."""
_MOST_PAGES = 10
_MARGIN_S = 600.0
"""How far Slack's clock and the database's may be apart."""
_TIMESTAMP = re.compile(r"\d{1,12}\.\d{1,9}")
_NO_ACCESS = frozenset({"missing_scope", "not_in_channel", "access_denied", "no_permission"})
_THREAD_GONE = frozenset({"thread_not_found", "message_not_found"})


class HistoryUnreadable(Exception):
    """The bot may not read there: nobody can say what was posted."""


async def find(
    client: Client, message: Outgoing, now: float, is_it: Callable[[dict[str, Any]], bool]
) -> str | None:
    """Return the timestamp of a row's message, which a test finds; None if there is none.

    Raises:
        SendDelayed: It cannot be said now.
        HistoryUnreadable: It can never be said.
    """
    oldest = f"{max(now - message.age_s - _MARGIN_S, 0.0):.6f}"
    async with aclosing(_since(client, message.address, oldest)) as history:
        async for shown in history:
            if is_it(shown):
                return str(shown["ts"])
    return None


async def find_unfinished(
    client: Client, question: MessageRef, nonce: str, user: str, others: frozenset[str]
) -> str | None:
    """Return the ref of the preview that was begun for a question, None if there is none.

    A posted one has its nonce. A stream cannot carry one before its end: it is the bot's message
    behind the question that has none at all. A file that is shown has none either.

    Args:
        user: The bot's own.
        others: Timestamps of messages that are known to be something else.

    Raises:
        SendDelayed: The history cannot be read now.
        SendRejected: It cannot be said: the bot may not read there, it is too much, or several
            messages may be the one.
    """
    asked = question.message_ref or question.address.thread or ""
    if not _TIMESTAMP.fullmatch(asked):
        raise SendRejected("what was asked has no place in the history")
    try:
        history = [shown async for shown in _since(client, question.address, asked)]
    except HistoryUnreadable as exc:
        raise SendRejected("the history cannot be read") from exc
    own = [each for each in history if each.get("user") == user]
    for shown in own:
        if nonce_of(shown) == nonce:
            return str(shown["ts"])
    # The metadata of a stream comes with its end.
    texts = [shown for shown in own if nonce_of(shown) is None and not shown.get("files")]
    unmarked = {str(shown["ts"]) for shown in texts} - others
    streams = [ts for ts in unmarked if float(ts) > float(asked)]
    if question.address.thread is None or not streams:
        return None
    if len(streams) > 1:
        raise SendRejected(f"{len(streams)} messages may be the preview")
    return STREAMED + streams[0]


async def _since(
    client: Client, address: Address, oldest: str
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield what was said at an address since then, some pages at most.

    Raises:
        SendDelayed: It cannot be read now.
        HistoryUnreadable: It can never be read, or there is more.
    """
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        place = address.chat, address.thread
        try:
            page = await client.history(
                *place, oldest=oldest, cursor=cursor, include_all_metadata=True
            )
        except Coded as exc:
            # An app without the scope for histories works; it then marks what it sends again.
            if exc.code in _NO_ACCESS:
                raise HistoryUnreadable from exc
            if exc.code in {"channel_not_found", "thread_not_found"}:
                return
            raise SendDelayed(str(exc)) from exc
        for shown in page.get("messages") or ():
            if isinstance(shown, dict):
                yield shown
        cursor = (page.get("response_metadata") or {}).get("next_cursor")
        if not cursor:
            return
    raise HistoryUnreadable


async def is_thread_gone(client: Client, channel: str, thread: str) -> bool:
    """Whether a thread's first message was deleted; False where that cannot be said."""
    try:
        with mapped():
            await client.web.conversations_replies(channel=channel, ts=thread, limit=1)
    except AdapterError as exc:
        return code_of(exc) in _THREAD_GONE
    return False
