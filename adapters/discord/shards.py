"""Shards: the connections over which a bot in many servers receives.

Discord spreads a bot's servers over as many connections as the bot asks for; from 2,500 servers on
it takes no single one. Direct chats come over the first. Each connection is received for by one
process at a time, and they are spread over the processes that there are.

Source: https://docs.discord.com/developers/events/gateway#sharding
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from adapters.base import Clock

IDENTIFY_EVERY_S = 5.0
"""Discord lets one connection of a bot identify in this time."""
_ID_BITS_OF_TIME = 22


@dataclass(frozen=True, slots=True)
class Shard:
    """One of the connections of a bot.

    Attributes:
        number: From 0 on.
        of: How many there are.
    """

    number: int = 0
    of: int = 1

    def tells_of(self, guild: str | None) -> bool:
        """Whether events of a server come over it; None for what belongs to none."""
        its = (int(guild) >> _ID_BITS_OF_TIME) % self.of if guild else 0
        return self.number == its


class IdentifyTurns:
    """Has the connections of one bot in this process identify one after the other.

    Another process may identify at the same moment: Discord refuses one of the two then, and the
    SDK tries again after 5 s.
    """

    def __init__(
        self,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._line = asyncio.Lock()
        self._free_at = float("-inf")

    async def wait(self, shard: Shard) -> None:
        """Return when a connection may identify; at once where it is the only one."""
        if shard.of == 1:
            return
        async with self._line:
            await self._sleep(max(self._free_at - self._clock(), 0.0))
            self._free_at = self._clock() + IDENTIFY_EVERY_S
