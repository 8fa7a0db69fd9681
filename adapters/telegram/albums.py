"""Albums: each picture is a message of its own, and one of them has the caption.

Telegram sends the messages of a chat one by one to a webhook, each after the 200 for the one
before, so none can be held back until its album is complete. Each is stored as it comes; its file
is fetched once the album is complete. A turn waits for the files of all messages that wait in its
chat, so it begins with the whole album, after a kill too.
Source: https://github.com/tdlib/telegram-bot-api, WebhookActor.cpp, `queue_updates_`.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from adapters.base import Clock, Recent

PAUSE_S = 1.0
"""An album that did not grow for so long is complete."""
_REMEMBERED = 256


@dataclass(slots=True)
class Album:
    """The received part of one album.

    Attributes:
        grew_at: When its newest picture came, by the clock of `Albums`.
        is_direct: One of its captions is for the bot, so the whole album is.
        overheard: The updates that came before that caption.
    """

    grew_at: float
    is_direct: bool = False
    overheard: list[Any] = field(default_factory=list)


class Albums:
    """The latest albums of one account."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: Recent[tuple[str, str], Album] = Recent(_REMEMBERED)

    def of(self, chat: str, group: str) -> Album:
        """Return an album; an unknown one begins now."""
        if (album := self._known.get((chat, group))) is None:
            album = self._known[chat, group] = Album(self._clock())
        return album

    def grown(self, chat: str, group: str) -> Album:
        """Note another picture of an album; return the album."""
        album = self.of(chat, group)
        album.grew_at = self._clock()
        return album

    async def complete(self, chat: str, group: str) -> None:
        """Wait until an album is complete."""
        left_s = self.of(chat, group).grew_at + PAUSE_S - self._clock()
        if left_s > 0:
            await asyncio.sleep(left_s)
            await self.complete(chat, group)
