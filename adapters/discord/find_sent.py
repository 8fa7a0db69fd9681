"""Looks up in a channel's history what an earlier attempt, or process, may have posted."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from adapters.discord.buttons import Callback, snowflake_at
from adapters.discord.client import PAGE, Api
from adapters.discord.errors import CodedRefusal
from adapters.discord.render import RESENT_MARK
from adapters.discord.threads import channel_of
from adapters.errors import SendRejected
from adapters.messages import MessageRef, Outgoing
from adapters.rendering.chunks import PREVIEW_END

# How far the clocks may differ; an equal answer of before the row must not be taken for it.
_SKEW_S = 2.0
_MOST_PAGES = 5


async def find_sent(
    api: Api, channel: str, message: Outgoing, others: frozenset[str]
) -> str | None:
    """Return the id of the message that shows a row, None if there is none.

    Args:
        message: The row; only what was said since it was entered, and after what it answers, is
            looked at.
        others: Ids of messages that are known to show other rows.

    Raises:
        SendDelayed: The history cannot be read now.
        CodedRefusal: The bot may not read it.
    """
    callback = Callback.parse(message.reply_to)
    answered = _id_of((callback.id if callback else message.reply_to) or message.address.thread)
    after = max(snowflake_at(time.time() - message.age_s - _SKEW_S), answered)
    async with aclosing(_since(api, channel, after)) as history:
        async for shown in history:
            if shown["id"] not in others and _shows(shown, message, api.user):
                return str(shown["id"])
    return None


async def find_unfinished(
    api: Api, question: MessageRef, nonce: str, others: frozenset[str]
) -> str | None:
    """Return the id of the preview that was begun for a question, None if there is none.

    The history tells no nonces, so it is known by what only a preview is: a message of the bot
    behind the question, not finished, which names no other question.

    Args:
        others: Ids of messages that are known to be something else.

    Raises:
        SendDelayed: The history cannot be read now.
        SendRejected: It cannot be said: the history cannot be read, it is too long, or several
            messages may be the one.
    """
    after = _id_of(question.message_ref or question.address.thread)
    if not after:
        raise SendRejected("what was asked has no place in the history")
    found, read = [], 0
    async for shown in _since(api, channel_of(question.address), after):
        read += 1
        if shown["id"] not in others and _is_unfinished(shown, question, nonce, api.user):
            found.append(str(shown["id"]))
    if len(found) > 1 or (not found and read == _MOST_PAGES * PAGE):
        raise SendRejected(f"{len(found)} of {read} messages may be the preview")
    return found[0] if found else None


def _is_unfinished(shown: Any, question: MessageRef, nonce: str, user: str) -> bool:
    if shown["author"]["id"] != user or not shown["content"].endswith(PREVIEW_END):
        return False
    if told := shown.get("nonce"):
        return str(told) == nonce
    named = (shown.get("message_reference") or {}).get("message_id")
    return named is None or named == question.message_ref


def _id_of(ref: str | None) -> int:
    return int(ref) if ref is not None and ref.isdecimal() else 0


async def _since(api: Api, channel: str, after: int) -> AsyncGenerator[Any, None]:
    """Yield what was said behind a message, oldest first, some pages at most.

    Raises:
        CodedRefusal: The bot may not read the history.
    """
    for number in range(_MOST_PAGES):
        page = await api.history(channel, after)
        # A channel with a hidden history looks as quiet as one that is.
        # Source: https://discord.com/developers/docs/resources/message#get-channel-messages
        if not page and number == 0 and not await api.history(channel, 0, limit=1):
            raise CodedRefusal("the bot may not read the history", 0)
        for shown in page:
            yield shown
        if len(page) < PAGE:
            return
        after = int(page[-1]["id"])


def _shows(shown: Any, message: Outgoing, user: str) -> bool:
    """Whether a message is the row's: by its nonce where Discord tells it, else by its content."""
    if shown["author"]["id"] != user:
        return False
    if nonce := shown.get("nonce"):
        return str(nonce) == message.nonce
    if message.file is not None:
        sizes = [file["size"] for file in shown.get("attachments", ())]
        return sizes == [len(message.file.content)]
    content = shown["content"].strip().removeprefix(RESENT_MARK)
    return bool(content == message.payload.strip())
