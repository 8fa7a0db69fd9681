"""Reads what was said while the bot was away: Discord has no acknowledgements.

Each channel and thread that the bot has seen has a cursor; its history goes on from there.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import structlog

from adapters.base import Intake
from adapters.discord.client import PAGE, Api, answer_to
from adapters.discord.errors import CodedRefusal
from adapters.discord.inbound import snowflake_of, source_name
from adapters.messages import Cursor
from adapters.pacing import Pacer

log = structlog.get_logger()

RECENT = 200
"""Channels that are looked through after a RESUME; Discord itself has sent what was missed."""
_CURSORS_AT_ONCE = 200

Store = Callable[[str, list[Any], int], Awaitable[None]]
"""Commits messages of a channel, oldest first, and its cursor."""


class Backfill:
    """Fills the gaps of one account.

    Args:
        account: The bot's name in the settings.
        api: Reads the histories.
        intake: Knows the cursors.
        pacer: The budgets of the account; reading steps back behind messages.
        store: Commits what was found.
    """

    def __init__(self, account: str, api: Api, intake: Intake, pacer: Pacer, store: Store) -> None:
        self._account = account
        self._api = api
        self._intake = intake
        self._pacer = pacer
        self._store = store
        self._gone: set[str] = set()
        self._gaps: dict[str, int] = {}

    async def look(self, newest: Mapping[str, int | None], *, resumed: bool) -> list[str]:
        """Return the channels that `fill` has something to do for, the liveliest first.

        A channel without a cursor gets one: it is read from now on. If it is newer than all that
        was ever read, it was opened while the bot was away, and is read from its beginning.

        Args:
            newest: The channels that the bot sees with their newest message, if that is known;
                those that have nothing new are left out.
            resumed: Discord has sent again what was missed: only the liveliest are looked at.
        """
        prefix = source_name(self._account, "")
        positions = await self._intake.positions(prefix)
        known = {name.removeprefix(prefix): at for name, at in positions.items()}
        last = max(known.values(), default=None)
        fresh = [name for name in newest if name not in known]
        # One less: the first message of a forum post has the id of the post.
        opened = {name: int(name) - 1 for name in fresh if last is not None and int(name) > last}
        await self._begin({name: newest[name] for name in fresh if name not in opened})
        # What the directory does not tell (direct chats, archived threads) may have news.
        stale = {name: at for name, at in known.items() if (newest.get(name) or at + 1) > at}
        left = [gap for gap in (stale | opened).items() if gap[0] not in self._gone]
        # Where somebody spoke lately somebody is likely to wait.
        left.sort(key=lambda gap: gap[1], reverse=True)
        for channel, after in left[: RECENT if resumed else None]:
            self._gaps.setdefault(channel, after)
        return list(self._gaps)

    async def fill(self, channel: str) -> None:
        """Commit what was said in a channel while the bot was away, however long Discord takes."""
        after = self._gaps.pop(channel, None)
        found = 0
        while after is not None:
            page = await self._page(channel, after)
            if page:
                after = max(after, *(snowflake_of(message) or 0 for message in page))
                await self._store(channel, page, after)
                found += len(page)
            if len(page) < PAGE:
                break
        if found:
            log.info("discord_backfilled", channel=channel, messages=found)

    async def _begin(self, channels: Mapping[str, int | None]) -> None:
        """Set the cursors of channels that are seen for the first time.

        The newest come first: should the rest be lost, it does not look newer than all there is.
        """
        cursors = [
            Cursor(source_name(self._account, name), at or int(name))
            for name, at in channels.items()
        ]
        cursors.sort(key=lambda cursor: cursor.position, reverse=True)
        for start in range(0, len(cursors), _CURSORS_AT_ONCE):
            await self._intake.accept([], cursors=cursors[start : start + _CURSORS_AT_ONCE])

    async def _page(self, channel: str, after: int) -> list[Any]:
        """Return the next messages, oldest first; none if the channel is gone."""
        read = partial(self._read, channel, after)
        try:
            return await answer_to(read, channel=channel, action="history")
        except CodedRefusal as exc:
            self._gone.add(channel)
            log.info("discord_channel_forgotten", channel=channel, reason=str(exc))
            return []

    async def _read(self, channel: str, after: int) -> list[Any]:
        with await self._pacer.wait_signal(channel):
            return await self._api.history(channel, after, PAGE)
