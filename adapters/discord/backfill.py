"""Reads what was said while the bot was away (step 1): Discord has no acknowledgements.

Each channel and thread that the bot has seen has a cursor; its history goes on from there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from adapters.base import Intake
from adapters.discord.api import PAGE, Api
from adapters.discord.errors import Refusal, mapped_call
from adapters.discord.inbound import snowflake_of, source_name
from adapters.errors import SendDelayed
from adapters.messages import Cursor
from adapters.pacing import Pacer

log = structlog.get_logger()

MOST_CHANNELS = 200
"""Channels and threads that are looked through, those with the newest messages first."""
MOST_PAGES = 10
"""Pages of 100 messages that are read from one channel."""
_AT_ONCE = 8
_LONGEST_PAUSE_S = 60.0

Store = Callable[[str, list[Any], int], Awaitable[None]]
"""Commits messages of a channel, oldest first, and its cursor."""


class Backfill:
    """The gaps of one account.

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
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def gaps(self, newest: Mapping[str, int | None]) -> list[tuple[str, int]]:
        """Return the channels to look through, and after which message each.

        A channel without a cursor gets one: it is read from now on. If it is newer than all that
        was ever read, it was opened while the bot was away, and is read from its beginning.

        Args:
            newest: The channels that the bot sees with their newest message, if that is known;
                those that have nothing new are left out.
        """
        prefix = source_name(self._account, "")
        positions = await self._intake.positions(prefix)
        known = {name.removeprefix(prefix): at for name, at in positions.items()}
        last = max(known.values(), default=None)
        fresh = [name for name in newest if name not in known]
        opened = {name: int(name) - 1 for name in fresh if last is not None and int(name) > last}
        await self._begin({name: newest[name] for name in fresh if name not in opened})
        stale = {name: at for name, at in known.items() if (newest.get(name) or at + 1) > at}
        left = [gap for gap in (stale | opened).items() if gap[0] not in self._gone]
        left.sort(key=lambda gap: gap[1], reverse=True)
        if len(left) > MOST_CHANNELS:
            log.warning("discord_backfill_limited", channels=len(left), most=MOST_CHANNELS)
        return left[:MOST_CHANNELS]

    async def fill(self, channel: str, after: int) -> None:
        """Commit what was said in a channel after a message, however long Discord takes."""
        found = 0
        for _ in range(MOST_PAGES):
            page = await self._page(channel, after)
            if page:
                after = max(after, *(snowflake_of(message) or 0 for message in page))
                await self._store(channel, page, after)
                found += len(page)
            if len(page) < PAGE:
                break
        else:
            log.warning("discord_backfill_cut", channel=channel, messages=found)
        if found:
            log.info("discord_backfilled", channel=channel, messages=found)

    async def _begin(self, channels: Mapping[str, int | None]) -> None:
        """Set the cursors of channels that are seen for the first time."""
        cursors = [
            Cursor(source_name(self._account, name), at or int(name))
            for name, at in channels.items()
        ]
        if cursors:
            await self._intake.accept([], cursors=cursors)

    async def _page(self, channel: str, after: int) -> list[Any]:
        """Return the next messages, oldest first; none if the channel is gone."""
        pause_s = 1.0
        while True:
            try:
                async with self._slots:
                    return await self._read(channel, after)
            except Refusal as exc:
                self._gone.add(channel)
                log.info("discord_channel_forgotten", channel=channel, reason=str(exc))
                return []
            except SendDelayed as exc:
                wait_s = exc.retry_after_s or pause_s
                log.warning("discord_backfill_delayed", channel=channel, reason=str(exc))
                await asyncio.sleep(wait_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _read(self, channel: str, after: int) -> list[Any]:
        params = {"after": str(after), "limit": PAGE}
        with await self._pacer.wait_signal(channel), mapped_call():
            page = await self._api.get(
                "/channels/{channel_id}/messages", params=params, channel_id=channel
            )
            return sorted(page, key=lambda message: int(message["id"]))
