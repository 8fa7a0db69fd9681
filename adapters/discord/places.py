"""What kind of place a channel id names: a direct chat, a channel, or a thread of a channel."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import discord

from adapters.discord.api import Api
from adapters.discord.errors import Refusal, mapped_call

_REMEMBERED = 10_000
_DM = 1
_THREADS = {10, 11, 12}
# Text and announcement channels; in others no thread can be opened from a message.
_OPENS_THREADS = {0, 5}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message was said.

    Attributes:
        parent: Of a thread: its channel.
        opens_threads: A thread can be opened from a message here.
        guild: The server's id, where it is known.
    """

    dm: bool = False
    parent: str | None = None
    opens_threads: bool = True
    guild: str | None = None


DM = Place(dm=True, opens_threads=False)


class Places:
    """The directory of one account: the gateway's own where it knows, else asked for once.

    Attributes:
        client: The current connection, if there is one.
    """

    def __init__(self, api: Api) -> None:
        self.client: discord.Client | None = None
        self._api = api
        self._asked: OrderedDict[str, Place] = OrderedDict()

    async def of(self, channel: str) -> Place:
        """Return what the id names.

        Raises:
            SendDelayed: Discord cannot be asked.
        """
        known = self.known(channel)
        return known if known is not None else await self._ask(channel)

    def known(self, channel: str) -> Place | None:
        """Return what the id names if that is known already."""
        found = self.client.get_channel(int(channel)) if self.client else None
        return self._asked.get(channel) if found is None else _from_directory(found)

    def learn(self, channel: str, place: Place) -> None:
        """Remember what an event said about a channel."""
        self._asked[channel] = place
        if len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)

    async def _ask(self, channel: str) -> Place:
        try:
            with mapped_call():
                data = await self._api.get("/channels/{channel_id}", channel_id=channel)
                place = place_of(data)
        except Refusal:
            place = Place()
        self.learn(channel, place)
        return place


def place_of(data: Any) -> Place:
    """Return what a channel object of the HTTP API or of an interaction describes."""
    kind = data["type"]
    if kind == _DM:
        return DM
    parent = data.get("parent_id") if kind in _THREADS else None
    opens = kind in _OPENS_THREADS
    return Place(parent=parent, opens_threads=opens, guild=data.get("guild_id"))


def _from_directory(channel: Any) -> Place:
    if isinstance(channel, discord.Thread):
        return Place(
            parent=str(channel.parent_id), opens_threads=False, guild=str(channel.guild.id)
        )
    if isinstance(channel, discord.abc.GuildChannel):
        opens = channel.type.value in _OPENS_THREADS
        return Place(opens_threads=opens, guild=str(channel.guild.id))
    return DM
