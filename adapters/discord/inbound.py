"""Message JSON → `InboundMessage`, `Poison` or None; pure."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import BeforeValidator, Field, ValidationError

from adapters.discord.platform import DiscordSettings
from adapters.messages import (
    UNKNOWN_AUTHOR,
    Address,
    Addressing,
    Attachment,
    ChatKind,
    InboundMessage,
    Poison,
    Text,
    WirePart,
    describe_flaw,
    file_kind,
    file_name,
    others,
    poison,
    quote,
    quoted_lines,
    raw_json,
)
from adapters.rendering.chunks import is_blank

MAX_TITLE_CHARS = 60
PLAIN_TITLE = "Conversation"
"""Title of a thread whose first message has none."""
_MARKUP = re.compile(r"<(@!?|@&|#)(\d{1,20})>")
_EMOJI = re.compile(r"<a?:(\w{2,32}):\d{1,20}>")
_COMMAND = re.compile(r"<(/[^:>]{1,100}):\d{1,20}>")
_SNOWFLAKE = r"^\d{1,20}$"
# Messages and replies; all other types are service messages (pins, joins, threads, boosts).
_SAID = {0, 19}
# The reference type of a forwarded message; a reply has another.
_FORWARD = 1
# Source: https://discord.com/developers/docs/resources/message#message-object-message-flags
_IS_VOICE = 1 << 13
_HAS_THREAD = 1 << 5
# Source: https://discord.com/developers/docs/resources/channel#channel-object-channel-types
_DM = 1
_THREADS = {10, 11, 12}
# Text and announcement channels; only here can a message open a thread.
OPENS_THREADS = {0, 5}


def as_id(value: Any) -> Any:
    """Return an id as a string; some servers send numbers."""
    return str(value) if type(value) is int else value


Id = Annotated[str, BeforeValidator(as_id), Field(pattern=_SNOWFLAKE)]


class GuildMember(WirePart):
    """A user's membership in a server, with the name there."""

    nick: Text | None = None


class User(WirePart):
    """An account of a person or a bot."""

    id: Id
    username: Text = ""
    global_name: Text | None = None
    bot: bool = False
    system: bool = False
    member: GuildMember | None = None

    @property
    def name(self) -> str:
        """The displayed name."""
        nick = self.member.nick if self.member else None
        return nick or self.global_name or self.username or self.id


class _AttachedFile(WirePart):
    id: Id
    filename: Text = ""
    size: int | None = None
    content_type: str | None = None
    url: str = ""
    waveform: str | None = None


class _EmbedField(WirePart):
    name: Text = ""
    value: Text = ""


class _EmbedPart(WirePart):
    name: Text = ""
    text: Text = ""


class Embed(WirePart):
    """A card below a message: a bot's own ("rich"), or Discord's preview of a link."""

    type: Text = "rich"
    author: _EmbedPart = _EmbedPart()
    title: Text = ""
    url: Text = ""
    description: Text = ""
    fields: list[_EmbedField] = Field(default_factory=list)
    footer: _EmbedPart = _EmbedPart()

    @property
    def words(self) -> str:
        """All text of the embed in order, with the title's address."""
        # The address of a link preview is in the message itself.
        is_link = self.title and self.url and self.type == "rich"
        title = f"{self.title} ({self.url})" if is_link else self.title
        fields = (f"{field.name}: {field.value}" for field in self.fields)
        said = (self.author.name, title, self.description, *fields, self.footer.text)
        return "\n".join(filter(None, said))


class Content(WirePart):
    """The common fields of messages and forwarded messages."""

    content: Text = ""
    embeds: list[Embed] = Field(default_factory=list)
    mentions: list[User] = Field(default_factory=list)
    attachments: list[_AttachedFile] = Field(default_factory=list)
    sticker_items: list[Any] = Field(default_factory=list)
    flags: int = 0


class _MessageSnapshot(WirePart):
    message: Content


class Replied(Content):
    """A replied-to message."""

    id: Id | None = None
    author: User | None = None
    message_snapshots: list[_MessageSnapshot] = Field(default_factory=list)

    @property
    def forwarded(self) -> list[Content]:
        """The forwarded messages, whose authors Discord does not name."""
        return [each.message for each in self.message_snapshots]


class Reference(WirePart):
    """A reference to another message."""

    type: int = 0


class Message(Replied):
    """A message from the gateway or the history."""

    id: Id
    channel_id: Id
    author: User
    type: int = 0
    member: GuildMember | None = None
    mention_roles: list[Id] = Field(default_factory=list)
    webhook_id: Id | None = None
    edited_timestamp: str | None = None
    message_reference: Reference | None = None
    referenced_message: Replied | None = None
    poll: Any = None
    activity: Any = None


@dataclass(frozen=True, slots=True)
class ChannelKind:
    """The kind of a channel.

    Attributes:
        parent: The parent channel of a thread.
        opens_threads: Whether the bot can open a thread from a message here.
        guild: The server's id, if known.
    """

    dm: bool = False
    parent: str | None = None
    opens_threads: bool = True
    guild: str | None = None


DM = ChannelKind(dm=True, opens_threads=False)


def kind_of(data: Any) -> ChannelKind:
    """Return the kind of a channel object from the HTTP API or an interaction."""
    kind = data["type"]
    if kind == _DM:
        return DM
    parent = data.get("parent_id") if kind in _THREADS else None
    opens = kind in OPENS_THREADS
    return ChannelKind(parent=parent, opens_threads=opens, guild=data.get("guild_id"))


NameOf = Callable[[str], str | None]
"""Returns the name of a role ("@&<id>") or channel ("#<id>"), or None."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading bot and the channel of a message.

    A mention of one of the bot's roles counts as a mention of the bot.
    """

    settings: DiscordSettings
    bot: str
    kind: ChannelKind
    roles: frozenset[str] = frozenset()
    name_of: NameOf = lambda _: None


def to_inbound(
    data: Any, reading: Reading, *, edited: bool = False
) -> InboundMessage | Poison | None:
    """Read a message; return Poison if undecodable, None if no person wrote it.

    Messages to others are read, but not those of bots, webhooks and Discord. An edit returns None
    if the text did not change, as when a link preview was added.
    """
    # Updates without an author are partial; those without an edit time come from Discord.
    is_partial = not isinstance(data, dict) or "author" not in data
    if edited and (is_partial or not data.get("edited_timestamp")):
        return None
    try:
        message = Message.model_validate(data)
    except ValidationError as exc:
        return unread(data, reading.settings.name, describe_flaw(exc))
    if not _is_persons(message, reading):
        return None
    # Without the intent, other messages arrive empty.
    is_readable = reading.settings.message_content or reading.kind.dm
    if not (is_readable or _mentions(message, reading)):
        return None
    return _inbound(data, message, reading, edited=edited)


def unread(data: Any, account: str, reason: str) -> Poison:
    """Wrap an unreadable event; its key is its id, if any."""
    number = snowflake_of(data)
    channel = data.get("channel_id") if isinstance(data, dict) else None
    key = "" if number is None else f"p{number}"
    return poison(source_name(account, str(channel)), raw_json(data), reason, key)


def snowflake_of(data: Any) -> int | None:
    """Return the id of an object, or None."""
    text = as_id(data.get("id")) if isinstance(data, dict) else None
    return int(text) if isinstance(text, str) and re.match(_SNOWFLAKE, text) else None


def source_name(account: str, channel: str) -> str:
    """Return the source name of a channel or thread, for its cursor."""
    return f"discord:{account}:{channel}"


def title_of(text: str) -> str:
    """Return a thread title from a message's first words, without quotes."""
    said = " ".join(line for line in text.splitlines() if not line.startswith("> "))
    words = " ".join(_MARKUP.sub("", said).split())
    if len(words) > MAX_TITLE_CHARS:
        cut = words[:MAX_TITLE_CHARS]
        words = f"{cut.rsplit(' ', 1)[0] if ' ' in cut else cut}…"
    return PLAIN_TITLE if is_blank(words) else words


def _is_persons(message: Message, reading: Reading) -> bool:
    """Whether a person or an allowed bot wrote the message."""
    author = message.author
    is_said = message.type in _SAID and not message.webhook_id and not author.system
    if not is_said or author.id == reading.bot:
        return False
    return not author.bot or author.id in reading.settings.allow_bots


def _inbound(data: Any, message: Message, reading: Reading, *, edited: bool) -> InboundMessage:
    addressed = _addressed(message, reading)
    # An edit need not mention the bot again: a message that opened a thread belongs to it.
    has_thread = addressed == "direct" or (edited and bool(message.flags & _HAS_THREAD))
    opens = has_thread and reading.settings.threads and reading.kind.opens_threads
    account, opened = reading.settings.name, message.id if opens else None
    address = address_in(message.channel_id, account, reading.kind, opened)
    text = _said(message, reading)
    known = {message.author.id, reading.bot}
    authors: list[str | None] = [UNKNOWN_AUTHOR] if message.forwarded else []
    # Commands contain no quotes.
    is_command = text.startswith("/")
    if not is_command:
        replied = _words_replied_to(message)
        # A link preview is another author's text.
        cards = [each.words for each in message.embeds if each.type != "rich" and each.words]
        quoted = _forwarded(message) or quote(replied)
        text = "\n\n".join(filter(None, (quoted, text, *map(quote, cards))))
        authors += [*_authors_replied_to(message, replied), *([UNKNOWN_AUTHOR] if cards else [])]
    files = _files(message, known, of_replied=addressed != "overheard" and not is_command)
    return InboundMessage(
        address=address,
        chat_kind=chat_kind(address, reading.kind),
        sender=message.author.id,
        sender_name=(message.member and message.member.nick) or message.author.name,
        text=text,
        dedupe_key=f"{message.id}:e{message.edited_timestamp}" if edited else message.id,
        raw=raw_json(data),
        message_ref=message.id,
        kind="edit" if edited else "message",
        attachments=files,
        authors=others([*authors, *(author for file in files for author in file.authors)], known),
        unreadable=_unreadable(message, text, files),
        addressed=addressed,
    )


def address_in(
    channel: str, account: str, channel_kind: ChannelKind, opened: str | None = None
) -> Address:
    """Return a message's address in a channel, a thread, or the thread it opens."""
    if channel_kind.parent is not None:
        return Address("discord", account, channel_kind.parent, channel)
    return Address("discord", account, channel, opened)


def chat_kind(address: Address, channel_kind: ChannelKind) -> ChatKind:
    """Return the conversation kind of an address."""
    if channel_kind.dm:
        return "dm"
    return "group" if address.thread is None else "thread"


def _addressed(message: Message, reading: Reading) -> Addressing:
    replied = message.referenced_message
    to = replied.author.id if replied and replied.author else None
    if reading.kind.dm or _mentions(message, reading) or to == reading.bot:
        return "direct"
    to_others = message.mentions or message.mention_roles or to not in {None, message.author.id}
    return "overheard" if reading.kind.parent is None or to_others else "thread"


def _mentions(message: Message, reading: Reading) -> bool:
    named = any(user.id == reading.bot for user in message.mentions)
    return named or not reading.roles.isdisjoint(message.mention_roles)


def _said(message: Message, reading: Reading) -> str:
    """Return a message's text without a leading bot mention, with names instead of ids."""
    bot = reading.bot
    mine = {f"@{bot}", f"@!{bot}"} | {f"@&{role}" for role in reading.roles}
    cards = (each.words for each in message.embeds if each.type == "rich")
    text = "\n\n".join(filter(None, (message.content, *cards)))
    first = _MARKUP.match(text.lstrip())
    if first is not None and first[0][1:-1] in mine:
        text = text.lstrip()[first.end() :].lstrip(" \t\n,:") or text
    return _named(text, message, reading.name_of)


def _named(text: str, said: Content, name_of: NameOf = lambda _: None) -> str:
    """Replace Discord's markup by displayed text."""
    users = {user.id: user.name for user in said.mentions}

    def name(mark: re.Match[str]) -> str:
        kind, number = mark[1].rstrip("!"), mark[2]
        found = users.get(number) if kind == "@" else name_of(f"{kind}{number}")
        return mark[0] if found is None else f"{kind[0]}{found}"

    return _COMMAND.sub(r"\1", _EMOJI.sub(r":\1:", _MARKUP.sub(name, text)))


def _words(said: Content) -> str:
    """Return the text of a quoted or forwarded message."""
    parts = (_named(said.content, said), *(each.words for each in said.embeds))
    return "\n".join(filter(None, parts)).strip()


def _words_replied_to(message: Message) -> str:
    """Return the text of the replied-to message, including forwarded text."""
    replied = message.referenced_message
    if replied is None or not message.content:
        return ""
    return "\n".join(filter(None, map(_words, (replied, *replied.forwarded))))


def _forwarded(message: Message) -> str:
    """Return the forwarded text, quoted in full."""
    if message.message_reference is None or message.message_reference.type != _FORWARD:
        return ""
    return quoted_lines("\n".join(map(_words, message.forwarded)).strip().splitlines())


def _authors_replied_to(message: Message, words: str) -> list[str | None]:
    """Return the authors of quoted text, if any; None for an unknown author."""
    replied = message.referenced_message
    if replied is None or not words:
        return []
    forwarded = [UNKNOWN_AUTHOR] if replied.forwarded else []
    return [None if replied.author is None else replied.author.id, *forwarded]


def _files(message: Message, known: Collection[str], *, of_replied: bool) -> tuple[Attachment, ...]:
    """Return the files of a message, its forwards and, with text, the replied-to message."""
    found: list[tuple[_AttachedFile, str, tuple[str, ...]]]
    unknown, replied = (UNKNOWN_AUTHOR,), message.referenced_message
    found = [(file, message.id, ()) for file in message.attachments]
    forwarded = (file for it in message.forwarded for file in it.attachments)
    found += [(file, message.id, unknown) for file in forwarded]
    if of_replied and replied is not None and replied.id is not None and message.content.strip():
        author = others([replied.author.id if replied.author else None], known)
        found += [(file, replied.id, author) for file in replied.attachments]
        found += [
            (file, replied.id, unknown) for it in replied.forwarded for file in it.attachments
        ]
    return tuple(_attachment(file, message, number, authors) for file, number, authors in found)


def _attachment(
    file: _AttachedFile, message: Message, number: str, authors: tuple[str, ...]
) -> Attachment:
    mime = (file.content_type or "").partition(";")[0].strip()
    is_voice = message.flags & _IS_VOICE and mime.startswith("audio/")
    channel = message.channel_id
    location = {"channel": channel, "message": number, "id": file.id, "url": file.url}
    return Attachment(
        name=file_name(file.filename) or "file",
        kind="voice" if is_voice or file.waveform is not None else file_kind(mime),
        mime=mime,
        size_bytes=file.size,
        ref=orjson.dumps(location).decode(),
        authors=authors,
    )


def _unreadable(message: Message, text: str, files: tuple[Attachment, ...]) -> str | None:
    if any(each.sticker_items for each in (message, *message.forwarded)):
        return "a sticker"
    if message.poll is not None:
        return "a poll"
    if message.activity is not None:
        return "an invitation to an activity"
    return None if text.strip() or files else "an empty message"
