"""Finds a message whose sending is in doubt in the channel's history (step 9)."""

import time
from typing import Any

from adapters.discord.api import PAGE, Api
from adapters.discord.errors import mapped_call
from adapters.discord.interactions import Callback, snowflake_at
from adapters.messages import Outgoing

# How far the clocks may differ; an equal answer of before the row must not be taken for it.
_SKEW_S = 2.0
_MOST_PAGES = 5


async def find_sent(
    api: Api, channel: str, message: Outgoing, others: frozenset[str]
) -> str | None:
    """Return the id of the message that shows a row, None if there is none.

    Args:
        api: Reads the history.
        channel: Where the row belongs.
        message: The row; only what was said since it was entered, and after what it answers, is
            looked at.
        others: Ids of messages that are known to show other rows.

    Raises:
        SendDelayed: The history cannot be read now.
        SendRejected: It can never be read.
    """
    after = max(snowflake_at(time.time() - message.age_s - _SKEW_S), _answered(message))
    for _ in range(_MOST_PAGES):
        page = await _read(api, channel, after)
        for shown in page:
            if shown["id"] not in others and _shows(shown, message, api.user):
                return str(shown["id"])
        if len(page) < PAGE:
            break
        after = int(page[-1]["id"])
    return None


def _answered(message: Outgoing) -> int:
    """Return the id of what a row answers, 0 where it answers nothing."""
    callback = Callback.parse(message.reply_to)
    ref = (callback.id if callback else message.reply_to) or message.address.thread or "0"
    return int(ref) if ref.isdecimal() else 0


async def _read(api: Api, channel: str, after: int) -> list[Any]:
    """Return the messages that follow, oldest first."""
    params = {"after": str(after), "limit": PAGE}
    with mapped_call():
        page = await api.get("/channels/{channel_id}/messages", params=params, channel_id=channel)
        return sorted(page, key=lambda shown: int(shown["id"]))


def _shows(shown: Any, message: Outgoing, user: str) -> bool:
    """Whether a message is the row's: by its nonce where Discord tells it, else by its content."""
    if shown["author"]["id"] != user:
        return False
    if nonce := shown.get("nonce"):
        return str(nonce) == message.nonce
    if message.file is not None:
        sizes = [file["size"] for file in shown.get("attachments", ())]
        return sizes == [len(message.file.content)]
    return bool(shown["content"].strip() == message.payload.strip())
