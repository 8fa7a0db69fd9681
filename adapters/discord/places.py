"""What kind of place a channel id names: a direct chat, a channel, or a thread of a channel."""

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any

import discord

from adapters.discord.api import Api
from adapters.discord.errors import Refusal, mapped_call
from adapters.discord.patience import answer_to
from adapters.messages import Address
from adapters.pacing import Pacer

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
        opens_threads: A thread can be opened from a message here, and the bot may do so.
        guild: The server's id, where it is known.
    """

    dm: bool = False
    parent: str | None = None
    opens_threads: bool = True
    guild: str | None = None


DM = Place(dm=True, opens_threads=False)


class Places:
    """The directory of one account: the gateway's own where it knows, else asked for once.

    Args:
        api: Is asked.
        pacer: The budgets of the account; asking steps back behind messages.

    Attributes:
        client: The current connection, if there is one.
    """

    def __init__(self, api: Api, pacer: Pacer) -> None:
        self.client: discord.Client | None = None
        self._api = api
        self._pacer = pacer
        self._asked: OrderedDict[str, Place] = OrderedDict()

    async def of(self, channel: str) -> Place:
        """Return what the id names, however long Discord takes to tell."""
        known = self.known(channel)
        if known is not None:
            return known
        place = await answer_to(partial(self._ask, channel), channel=channel, action="channel")
        self.learn(channel, place)
        return place

    def known(self, channel: str) -> Place | None:
        """Return what the id names if that is known already."""
        found = self.client.get_channel(int(channel)) if self.client else None
        return self._asked.get(channel) if found is None else _from_directory(found)

    def reference(self, address: Address, ref: str | None) -> dict[str, Any]:
        """Return what makes a message name the one that it answers; empty where nobody needs that.

        In a channel several people talk at once.
        """
        if ref is None or address.thread is not None or not ref.isdecimal():
            return {}
        place = self.known(address.chat)
        if place is None or place.dm:
            return {}
        return {"message_reference": {"message_id": ref, "fail_if_not_exists": False}}

    def learn(self, channel: str, place: Place) -> None:
        """Remember what an event said about a channel."""
        self._asked[channel] = place
        if len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)

    async def _ask(self, channel: str) -> Place:
        try:
            with await self._pacer.wait_signal(channel), mapped_call():
                return place_of(await self._api.get("/channels/{channel_id}", channel_id=channel))
        except Refusal:
            return Place()


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
        opens = channel.type.value in _OPENS_THREADS and _may_open_threads(channel)
        return Place(opens_threads=opens, guild=str(channel.guild.id))
    return DM


def _may_open_threads(channel: discord.abc.GuildChannel) -> bool:
    if channel.guild.me is None:
        return True
    mine = channel.permissions_for(channel.guild.me)
    return mine.create_public_threads and mine.send_messages_in_threads
