"""Guild, channels, people and messages of the Discord double, and their JSON.

Ids are `int` here and decimal strings on the wire, as in Discord's documentation.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]

EPOCH_MS = 1_420_070_400_000
SHARD_SHIFT = 22
TEXT, DM, PUBLIC_THREAD, FORUM = 0, 1, 11, 15
DEFAULT, JOIN, THREAD_CREATED, REPLY, SLASH, STARTER = 0, 7, 18, 19, 20, 21
HAS_THREAD, EPHEMERAL, LOADING, VOICE = 1 << 5, 1 << 6, 1 << 7, 1 << 13
CREATE_PUBLIC_THREADS = 1 << 35
_MENTION = re.compile(r"<@!?(\d+)>")


@dataclass(eq=False)
class Person:
    """An account: a person's or a bot's."""

    id: int
    name: str
    bot: bool = False

    @property
    def ref(self) -> str:
        return str(self.id)

    def json(self) -> Json:
        return {
            "id": str(self.id),
            "username": self.name.lower(),
            "global_name": self.name,
            "discriminator": "0000" if self.bot else "0",
            "avatar": None,
            "bot": self.bot,
            "flags": 0,
            "public_flags": 0,
        }

    def member(self) -> Json:
        """Return the partial member object that goes with a message: it has no user."""
        return {
            "nick": None,
            "roles": [],
            "joined_at": "2024-01-01T00:00:00.000000+00:00",
            "deaf": False,
            "mute": False,
            "flags": 0,
            "pending": False,
            "permissions": "2248473465835073",
        }


@dataclass(eq=False)
class Bot(Person):
    """A bot with its application, whose id is that of its user.

    Attributes:
        privileged: Whether the message content intent is switched on in the portal.
        commands: Its global commands, as last synced.
    """

    bot: bool = True
    token: str = ""
    privileged: bool = True
    revoked: bool = False
    commands: list[Json] = field(default_factory=list)


@dataclass(eq=False)
class Channel:
    """A text channel, forum, thread, forum post or direct chat.

    Attributes:
        forbidden: Permissions that bots lack here: view, send, history, threads, react, files.
        closed: Of a direct chat: the person does not take messages.
    """

    id: int
    kind: int
    name: str
    guild: int | None
    parent: "Channel | None" = None
    owner: int = 0
    archived: bool = False
    locked: bool = False
    deleted: bool = False
    closed: bool = False
    auto_archive_min: int = 1440
    people: tuple[Person, ...] = ()
    forbidden: set[str] = field(default_factory=set)
    messages: list["Message"] = field(default_factory=list)

    @property
    def ref(self) -> str:
        return str(self.id)

    @property
    def is_thread(self) -> bool:
        return self.kind == PUBLIC_THREAD

    @property
    def texts(self) -> list[str]:
        """The contents that stand in the channel, system messages left out."""
        return [message.content for message in self.messages if message.kind in {0, 19, 20}]

    def json(self) -> Json:
        last = str(self.messages[-1].id) if self.messages else None
        data: Json = {"id": str(self.id), "type": self.kind, "last_message_id": last, "flags": 0}
        if self.kind == DM:
            return data | {"recipients": [p.json() for p in self.people if not p.bot]}
        data |= {"guild_id": str(self.guild), "name": self.name, "rate_limit_per_user": 0}
        return data | (self._thread_json() if self.is_thread else self._guild_json())

    def _thread_json(self) -> Json:
        parent = self.parent
        count = sum(message.kind != STARTER for message in self.messages)
        return {
            "parent_id": None if parent is None else str(parent.id),
            "owner_id": str(self.owner),
            "message_count": count,
            "total_message_sent": count,
            "member_count": 1,
            "thread_metadata": {
                "archived": self.archived,
                "locked": self.locked,
                "auto_archive_duration": self.auto_archive_min,
                "archive_timestamp": stamp(self.id),
                "create_timestamp": stamp(self.id),
            },
        }

    def _overwrites(self) -> list[Json]:
        """Of what bots may not do here, only threads are told: the rest they find out."""
        if "threads" not in self.forbidden:
            return []
        denied = str(CREATE_PUBLIC_THREADS)
        return [{"id": str(self.guild), "type": 0, "allow": "0", "deny": denied}]

    def _guild_json(self) -> Json:
        common: Json = {
            "position": 0,
            "parent_id": None,
            "topic": None,
            "nsfw": False,
            "permission_overwrites": self._overwrites(),
        }
        if self.kind == FORUM:
            common |= {"available_tags": [], "default_reaction_emoji": None}
            common |= {"default_sort_order": None, "default_forum_layout": 0}
        return common


@dataclass(eq=False)
class File:
    """An attachment."""

    id: int
    name: str
    mime: str
    content: bytes
    extra: Json = field(default_factory=dict)


@dataclass(eq=False)
class Message:
    """A message as last edited.

    Attributes:
        reactions: (emoji, id of who reacted), in order of time.
        extra: Further fields of its JSON (stickers, poll, …).
    """

    id: int
    channel: Channel
    author: Person
    content: str
    kind: int = DEFAULT
    files: list[File] = field(default_factory=list)
    components: list[Json] = field(default_factory=list)
    embeds: list[Json] = field(default_factory=list)
    reply_to: "Message | None" = None
    reference: Json | None = None
    pinged: list[Person] = field(default_factory=list)
    edited_at: str | None = None
    edits: int = 0
    flags: int = 0
    nonce: Any = None
    thread: Channel | None = None
    interaction: Json | None = None
    reactions: list[tuple[str, int]] = field(default_factory=list)
    webhook: int | None = None
    extra: Json = field(default_factory=dict)

    @property
    def ref(self) -> str:
        return str(self.id)

    @property
    def buttons(self) -> list[Json]:
        """Its buttons, row by row."""
        return [button for row in self.components for button in row.get("components", [])]

    @property
    def emojis(self) -> list[str]:
        """The reactions, without who reacted."""
        return [emoji for emoji, _ in self.reactions]


class World:
    """Everything that exists; knows nothing of sockets."""

    def __init__(self) -> None:
        self.cdn = ""
        self.link_epoch = 1
        self.oldest_link_epoch = 1
        self.people: dict[int, Person] = {}
        self.channels: dict[int, Channel] = {}
        self.files: dict[int, File] = {}
        self._last_id = 0
        self.guild = self.new_id()
        self.guilds = [self.guild]

    def add_guild(self, shard: int, of: int) -> int:
        """Make a guild of whose events one of so many shards tells."""
        at = (self.new_id() >> SHARD_SHIFT) + 1
        at += (shard - at) % of
        self._last_id = at << SHARD_SHIFT
        self.guilds.append(self._last_id)
        return self._last_id

    def new_id(self) -> int:
        """Return a snowflake, larger than every one before."""
        now = (int(time.time() * 1000) - EPOCH_MS) << 22
        self._last_id = max(now, self._last_id + 1)
        return self._last_id

    def channel_of(self, channel_id: int) -> Channel | None:
        """Return a channel that was not deleted, nor its parent."""
        channel = self.channels.get(channel_id)
        if channel is None or channel.deleted:
            return None
        return None if channel.parent is not None and channel.parent.deleted else channel

    def threads(self, guild: int) -> list[Channel]:
        """Return the threads of a guild that are not archived, oldest first."""
        its = [c for c in self.channels.values() if c.guild == guild and c.is_thread]
        return [thread for thread in its if self.channel_of(thread.id) and not thread.archived]

    def mentioned(self, message: Message) -> list[Person]:
        """Return whom a message mentions or answers, each once."""
        found = [self.people.get(int(number)) for number in _MENTION.findall(message.content)]
        return list(dict.fromkeys([p for p in found if p is not None] + message.pinged))

    def url(self, channel: Channel, file: File) -> str:
        """Return a link that works until links expire."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", file.name)
        until = f"{int(time.time()) + 86_400:x}"
        path = f"{self.cdn}/attachments/{channel.id}/{file.id}/{name}"
        return f"{path}?ex={until}&is={until}&hm={self.link_epoch:064x}&"

    def message_json(self, message: Message, *, nested: bool = False, new: bool = False) -> Json:
        """Return a message as REST answers it; the gateway adds guild_id and member.

        Only a `new` message has its nonce: the history does not tell it.
        """
        data: Json = {
            "id": str(message.id),
            "channel_id": str(message.channel.id),
            "type": message.kind,
            "author": message.author.json(),
            "content": message.content,
            "timestamp": stamp(message.id),
            "edited_timestamp": message.edited_at,
            "tts": False,
            "mention_everyone": "@everyone" in message.content and not message.author.bot,
            "mentions": [person.json() for person in self.mentioned(message)],
            "mention_roles": [],
            "attachments": [self._file_json(message.channel, file) for file in message.files],
            "embeds": message.embeds,
            "components": message.components,
            "pinned": False,
            "flags": message.flags,
        }
        self._add_optional(data, message)
        if new and message.nonce is not None:
            data["nonce"] = message.nonce
        if not nested and message.kind in {REPLY, STARTER}:
            answered = message.reply_to
            gone = answered is None or answered not in answered.channel.messages
            data["referenced_message"] = (
                None if gone or answered is None else self.message_json(answered, nested=True)
            )
        return data | message.extra

    def _add_optional(self, data: Json, message: Message) -> None:
        if message.reference is not None:
            data["message_reference"] = message.reference
        if message.thread is not None:
            data["thread"] = message.thread.json()
        if message.interaction is not None:
            data["interaction_metadata"] = message.interaction
        if message.webhook is not None:
            data["webhook_id"] = str(message.webhook)
        if message.reactions:
            data["reactions"] = _reactions_json(message.emojis)

    def _file_json(self, channel: Channel, file: File) -> Json:
        url = self.url(channel, file)
        data = {
            "id": str(file.id),
            "filename": file.name,
            "size": len(file.content),
            "url": url,
            "proxy_url": url,
        }
        return data | ({"content_type": file.mime} if file.mime else {}) | file.extra

    def guild_json(self, guild: int, bots: Iterable[Bot]) -> Json:
        """Return what GUILD_CREATE brings."""
        its = [c for c in self.channels.values() if self.channel_of(c.id) and c.guild == guild]
        everyone = {
            "id": str(guild),
            "name": "@everyone",
            "color": 0,
            "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
            "hoist": False,
            "position": 0,
            "permissions": "2248473465835073",
            "managed": False,
            "mentionable": False,
            "flags": 0,
        }
        members = [bot.member() | {"user": bot.json()} for bot in bots]
        return {
            "id": str(guild),
            "name": "Loopback",
            "icon": None,
            "owner_id": "1",
            "unavailable": False,
            "large": False,
            "member_count": len(self.people),
            "joined_at": "2024-01-01T00:00:00.000000+00:00",
            "features": [],
            "emojis": [],
            "stickers": [],
            "roles": [everyone],
            "members": members,
            "channels": [c.json() for c in its if not c.is_thread],
            "threads": [c.json() for c in self.threads(guild)],
            "presences": [],
            "voice_states": [],
            "stage_instances": [],
            "guild_scheduled_events": [],
            "soundboard_sounds": [],
            "verification_level": 0,
            "default_message_notifications": 0,
            "explicit_content_filter": 0,
            "mfa_level": 0,
            "nsfw_level": 0,
            "premium_tier": 0,
            "preferred_locale": "en-US",
            "afk_timeout": 300,
            "afk_channel_id": None,
            "system_channel_id": None,
            "system_channel_flags": 0,
            "rules_channel_id": None,
            "application_id": None,
        }


def stamp(snowflake: int) -> str:
    """Return when an id was given out, as ISO 8601."""
    seconds = ((snowflake >> 22) + EPOCH_MS) / 1000
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def edited_at(snowflake: int) -> str:
    """Return the time of an edit, with microseconds that no other edit has."""
    return f"{stamp(snowflake)[:-9]}{snowflake % 1000:03d}+00:00"


def without_content(data: Json) -> Json:
    """Return a message as an application without the message content intent gets it."""
    empty: Json = {"content": "", "embeds": [], "attachments": [], "components": []}
    hidden = {name: value for name, value in data.items() if name != "poll"} | empty
    if isinstance(hidden.get("referenced_message"), dict):
        hidden["referenced_message"] = hidden["referenced_message"] | empty
    return hidden


def may_read(bot: Bot, message: Message, mentioned: list[Person]) -> bool:
    """Whether a bot without the message content intent gets this message's content."""
    return message.author is bot or message.channel.kind == DM or bot in mentioned


def _reactions_json(emojis: list[str]) -> list[Json]:
    return [
        {
            "emoji": {"id": None, "name": emoji},
            "count": emojis.count(emoji),
            "count_details": {"burst": 0, "normal": emojis.count(emoji)},
            "me": True,
            "me_burst": False,
            "burst_colors": [],
        }
        for emoji in dict.fromkeys(emojis)
    ]
