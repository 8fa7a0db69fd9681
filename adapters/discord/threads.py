"""Channels and threads: the kinds of channels, and the threads of conversations.

A thread has the id of the message that opened it.
"""

from contextlib import suppress
from functools import partial
from typing import Any

import discord
import structlog

from adapters.base import Intake, Recent
from adapters.discord.client import MESSAGE, Api, PendingKeys, answer_to
from adapters.discord.errors import (
    THREAD_EXISTS,
    TITLE_REFUSED,
    UNKNOWN_CHANNEL,
    CodedRefusal,
    mapped_call,
)
from adapters.discord.inbound import (
    DM,
    OPENS_THREADS,
    PLAIN_TITLE,
    ChannelKind,
    kind_of,
    source_name,
    title_of,
)
from adapters.errors import AdapterError
from adapters.messages import Address

log = structlog.get_logger()

AUTO_ARCHIVE_MIN = 1440
"""Minutes of inactivity; Discord accepts 60, 1440, 4320 and 10080."""
_REMEMBERED = 10_000


class ChannelKinds:
    """The kinds of channels, from the connections' directories or one request."""

    def __init__(self, api: Api, shards: int = 1) -> None:
        self._shards = shards
        self._directories: dict[int, discord.Client] = {}
        self._api = api
        self._asked: Recent[str, ChannelKind] = Recent(_REMEMBERED)

    @property
    def is_whole(self) -> bool:
        """Whether this process has the whole directory, that is, all connections."""
        return len(self._directories) == self._shards

    def use(self, shard: int, client: discord.Client) -> None:
        """Use this connection's directory instead of the previous one's."""
        self._directories[shard] = client

    async def of(self, channel: str) -> ChannelKind:
        """Return the kind of a channel, waiting for Discord if needed."""
        if (known := self.known(channel)) is not None:
            return known
        ask = partial(self._ask, channel)
        return await answer_to(ask, channel=channel, action="channel")

    def known(self, channel: str) -> ChannelKind | None:
        """Return the known kind of a channel, or None."""
        for client in self._directories.values():
            if (found := client.get_channel(int(channel))) is not None:
                return _from_directory(found)
        return self._asked.get(channel)

    async def reference(self, address: Address, ref: str | None) -> dict[str, Any]:
        """Return the reference to the answered message, where several people talk."""
        if ref is None or address.thread is not None or not ref.isdecimal():
            return {}
        channel_kind = self.known(address.chat)
        if channel_kind is None and not self.is_whole:
            # Another process may have its connection and directory.
            channel_kind = await self._ask(address.chat)
        if channel_kind is None or channel_kind.dm:
            return {}
        return {"message_reference": {"message_id": ref, "fail_if_not_exists": False}}

    def learn(self, channel: str, channel_kind: ChannelKind) -> None:
        """Remember the kind of an event's channel."""
        self._asked[channel] = channel_kind

    async def _ask(self, channel: str) -> ChannelKind:
        found = ChannelKind()
        # Messages have priority over this request. An unreadable channel is remembered, too.
        with suppress(CodedRefusal), await self._api.pacer.wait_signal(channel), mapped_call():
            found = kind_of(await self._api.get("/channels/{channel_id}", channel_id=channel))
        self.learn(channel, found)
        return found


def _from_directory(channel: Any) -> ChannelKind:
    if isinstance(channel, discord.Thread):
        return ChannelKind(
            parent=str(channel.parent_id), opens_threads=False, guild=str(channel.guild.id)
        )
    if isinstance(channel, discord.abc.GuildChannel):
        me = channel.guild.me
        mine = channel.permissions_for(me) if me else None
        may_open = mine is None or (mine.create_public_threads and mine.send_messages_in_threads)
        opens = channel.type.value in OPENS_THREADS and may_open
        return ChannelKind(opens_threads=opens, guild=str(channel.guild.id))
    # Bots cannot join group chats, so a channel without a server is a direct chat.
    return DM


class Threads:
    """Opens the threads of one account; `pending` are in progress."""

    def __init__(self, api: Api, intake: Intake) -> None:
        self.pending = PendingKeys()
        self._api = api
        self._intake = intake
        self._seen: Recent[str, None] = Recent(_REMEMBERED)

    def note(self, thread: str) -> None:
        """Remember that a thread exists or existed, so that it is not opened again."""
        self._seen[thread] = None

    async def open_for(self, address: Address, text: str) -> None:
        """Open the thread of a committed message, best effort; `send` tries again."""
        try:
            await self._open(address, title_of(text))
        except AdapterError as exc:
            chat, thread = address.chat, address.thread
            reason = str(exc)
            log.warning("discord_thread_not_opened", chat=chat, thread=thread, reason=reason)
        finally:
            self.pending.end(address.thread or "")

    async def reopen(self, address: Address) -> None:
        """Open a thread unknown to Discord, unless it existed and was deleted.

        Raises:
            SendRejected: The thread can never be opened.
            SendDelayed: The thread cannot be opened now.
        """
        thread = address.thread or ""
        # Its cursor starts at its own id (`Ingest`) and moves with its first message.
        position = await self._intake.position(source_name(address.account, thread))
        if thread in self._seen or (position is not None and position > int(thread)):
            raise CodedRefusal("the thread was deleted", UNKNOWN_CHANNEL)
        with mapped_call():
            starter = await self._api.message(address.chat, thread)
            title = title_of(str(starter["content"]))
        await self._open(address, title)

    async def _open(self, address: Address, title: str) -> None:
        """Open a thread, with a neutral title if Discord refuses the message's words."""
        try:
            await self._create(address, title)
        except CodedRefusal as exc:
            if exc.code not in TITLE_REFUSED or title == PLAIN_TITLE:
                raise
            await self._create(address, PLAIN_TITLE)

    async def _create(self, address: Address, title: str) -> None:
        thread = address.thread or ""
        wish = {"name": title, "auto_archive_duration": AUTO_ARCHIVE_MIN}
        ids = {"channel_id": address.chat, "message_id": thread}
        try:
            with await self._api.pacer.wait_signal(address.chat), mapped_call():
                await self._api.call("POST", MESSAGE + "/threads", wish, **ids)
        except CodedRefusal as exc:
            # Another attempt or a person was faster; use that thread.
            if exc.code != THREAD_EXISTS:
                raise
        self.note(thread)


def channel_of(address: Address) -> str:
    """Return the channel or thread id of an address."""
    return address.thread or address.chat
