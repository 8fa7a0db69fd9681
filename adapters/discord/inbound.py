"""Message JSON → `InboundMessage`, `Poison` or None; pure.

Only the fields used here are decoded, so that new kinds of content never spoil a readable text.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import BeforeValidator, Field, ValidationError

from adapters.messages import (
    UNKNOWN_AUTHOR,
    Address,
    Addressing,
    Attachment,
    AttachmentKind,
    ChatKind,
    InboundMessage,
    Poison,
)
from adapters.rendering.chunks import is_blank
from adapters.wire import (
    Text,
    WirePart,
    file_kind,
    file_name,
    flaw,
    others,
    poison,
    quote,
    quoted_lines,
    raw_json,
)

MAX_TITLE_CHARS = 60
PLAIN_TITLE = "Conversation"
"""Of a thread whose first message gives no title."""
_MARKUP = re.compile(r"<(@!?|@&|#)(\d{1,20})>")
_EMOJI = re.compile(r"<a?:(\w{2,32}):\d{1,20}>")
_COMMAND = re.compile(r"<(/[^:>]{1,100}):\d{1,20}>")
_SNOWFLAKE = r"^\d{1,20}$"
# What people say; every other type is a service message (pins, joins, opened threads, boosts).
_SAID = {0, 19}
# Of a message's reference: it is forwarded. A reply has another type.
_FORWARD = 1
# Source: https://discord.com/developers/docs/resources/message#message-object-message-flags
_IS_VOICE = 1 << 13
_HAS_THREAD = 1 << 5
# Source: https://discord.com/developers/docs/resources/channel#channel-object-channel-types
_DM = 1
_THREADS = {10, 11, 12}
# Text and announcement channels; in others no thread can be opened from a message.
OPENS_THREADS = {0, 5}


def as_id(value: Any) -> Any:
    """Return an id as text; some servers send numbers."""
    return str(value) if type(value) is int else value


Id = Annotated[str, BeforeValidator(as_id), Field(pattern=_SNOWFLAKE)]


class GuildMember(WirePart):
    """What a person is called in one server."""

    nick: Text | None = None


class User(WirePart):
    """An account: a person's or a bot's."""

    id: Id
    username: Text = ""
    global_name: Text | None = None
    bot: bool = False
    system: bool = False
    member: GuildMember | None = None

    @property
    def name(self) -> str:
        """What people see in front of what this account says."""
        nick = self.member.nick if self.member else None
        return nick or self.global_name or self.username or self.id


class AttachedFile(WirePart):
    """An attachment; without a URL it is looked up in its message."""

    id: Id
    filename: Text = ""
    size: int | None = None
    content_type: str | None = None
    url: str = ""
    waveform: str | None = None


class EmbedField(WirePart):
    """A named value in an embed."""

    name: Text = ""
    value: Text = ""


class EmbedPart(WirePart):
    """Whom an embed names above its title, or what it says at its foot."""

    name: Text = ""
    text: Text = ""


class Embed(WirePart):
    """A card below a message: a bot's own ("rich"), or what Discord shows of a linked page."""

    type: Text = "rich"
    author: EmbedPart = EmbedPart()
    title: Text = ""
    url: Text = ""
    description: Text = ""
    fields: list[EmbedField] = Field(default_factory=list)
    footer: EmbedPart = EmbedPart()

    @property
    def words(self) -> str:
        """All that people read in it, in its order, and where its title leads."""
        # The address of a linked page is in the message itself.
        is_link = self.title and self.url and self.type == "rich"
        title = f"{self.title} ({self.url})" if is_link else self.title
        fields = (f"{field.name}: {field.value}" for field in self.fields)
        said = (self.author.name, title, self.description, *fields, self.footer.text)
        return "\n".join(filter(None, said))


class Content(WirePart):
    """What a message and a forwarded one have in common."""

    content: Text = ""
    embeds: list[Embed] = Field(default_factory=list)
    mentions: list[User] = Field(default_factory=list)
    attachments: list[AttachedFile] = Field(default_factory=list)
    sticker_items: list[Any] = Field(default_factory=list)
    flags: int = 0


class MessageSnapshot(WirePart):
    """A forwarded message."""

    message: Content


class Replied(Content):
    """A message that is answered."""

    id: Id | None = None
    author: User | None = None
    message_snapshots: list[MessageSnapshot] = Field(default_factory=list)


class Reference(WirePart):
    """What another message is to this one."""

    type: int = 0


class Message(Content):
    """A message as the gateway and the history tell it."""

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
    message_snapshots: list[MessageSnapshot] = Field(default_factory=list)
    poll: Any = None
    activity: Any = None


@dataclass(frozen=True, slots=True)
class ChannelKind:
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


DM = ChannelKind(dm=True, opens_threads=False)


def kind_of(data: Any) -> ChannelKind:
    """Return what a channel object of the HTTP API or of an interaction describes."""
    kind = data["type"]
    if kind == _DM:
        return DM
    parent = data.get("parent_id") if kind in _THREADS else None
    opens = kind in OPENS_THREADS
    return ChannelKind(parent=parent, opens_threads=opens, guild=data.get("guild_id"))


@dataclass(frozen=True, slots=True)
class Bot:
    """Who the bot is, and what its block says about reading.

    Attributes:
        listens_to: Ids of other bots that are listened to like people.
    """

    account: str
    id: str
    threads: bool = True
    message_content: bool = True
    listens_to: frozenset[str] = frozenset()


NameOf = Callable[[str], str | None]
"""Returns the name of what Discord's markup names by an id, if it is known."""


def _no_name(_mark: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class MessageContext:
    """Where a message was said, as far as it does not say so itself.

    Attributes:
        roles: The bot's roles there; mentioning one of them is mentioning the bot.
        name_of: Returns the name of a role ("@&<id>") or channel ("#<id>"), if it is known.
    """

    channel_kind: ChannelKind
    roles: frozenset[str] = frozenset()
    name_of: NameOf = _no_name


def to_inbound(
    data: Any, bot: Bot, context: MessageContext, *, edited: bool = False
) -> InboundMessage | Poison | None:
    """Return what a message says, Poison if it cannot be decoded, None if nobody said it.

    Everything that people say is returned, with whom it is for; not what the bot itself, other
    bots, webhooks or Discord say.

    Args:
        data: The message object of the gateway or of the channel's history.
        edited: It is the new version of a message; None if it differs by less than its text, as
            when a link preview was added.
    """
    if edited and not _is_edit(data):
        return None
    try:
        message = Message.model_validate(data)
    except ValidationError as exc:
        return unread(data, bot.account, flaw(exc))
    if not _is_said(message, bot) or not _is_readable(message, bot, context):
        return None
    return _inbound(data, message, bot, context, edited=edited)


def unread(data: Any, account: str, reason: str) -> Poison:
    """Return an event as Poison, named by its id if it has one."""
    number = snowflake_of(data)
    channel = data.get("channel_id") if isinstance(data, dict) else None
    key = "" if number is None else f"p{number}"
    return poison(source_name(account, str(channel)), raw_json(data), reason, key)


def snowflake_of(data: Any) -> int | None:
    """Return the id of an object, None where it has none."""
    text = as_id(data.get("id")) if isinstance(data, dict) else None
    return int(text) if isinstance(text, str) and re.match(_SNOWFLAKE, text) else None


def source_name(account: str, channel: str) -> str:
    """Return the name of a channel's or thread's stream of messages, for its cursor."""
    return f"discord:{account}:{channel}"


def title_of(text: str) -> str:
    """Return a name for the thread that a message opens: its first words, without a quote."""
    said = " ".join(line for line in text.splitlines() if not line.startswith("> "))
    words = " ".join(_MARKUP.sub("", said).split())
    if len(words) > MAX_TITLE_CHARS:
        cut = words[:MAX_TITLE_CHARS]
        words = f"{cut.rsplit(' ', 1)[0] if ' ' in cut else cut}…"
    return PLAIN_TITLE if is_blank(words) else words


def _is_edit(data: Any) -> bool:
    """Updates without an author are partial; without a time they are Discord's own additions."""
    return isinstance(data, dict) and bool(data.get("edited_timestamp")) and "author" in data


def _is_said(message: Message, bot: Bot) -> bool:
    author = message.author
    if message.type not in _SAID or message.webhook_id or author.system or author.id == bot.id:
        return False
    return not author.bot or author.id in bot.listens_to


def _is_readable(message: Message, bot: Bot, context: MessageContext) -> bool:
    """Whether Discord lets the bot read it: without the intent other messages come empty."""
    return bot.message_content or context.channel_kind.dm or _mentions(message, bot, context)


def _inbound(
    data: Any, message: Message, bot: Bot, context: MessageContext, *, edited: bool
) -> InboundMessage:
    addressed = _addressed(message, bot, context)
    # An edit need not name the bot again: what opened a thread goes on in it.
    has_thread = addressed == "direct" or (edited and bool(message.flags & _HAS_THREAD))
    opens = has_thread and bot.threads and context.channel_kind.opens_threads
    address = address_in(
        message.channel_id, bot.account, context.channel_kind, message.id if opens else None
    )
    text = _with_quote(_plain_text(message, bot, context), message)
    # Discord does not say who wrote what is forwarded.
    forwarded = (UNKNOWN_AUTHOR,) if message.message_snapshots else ()
    known = {message.author.id, bot.id}
    replied = None if addressed == "overheard" or text.startswith("/") else _replied(message)
    files = [
        *(_attachment(file, message, message.id, ()) for file in message.attachments),
        *(
            _attachment(file, message, message.id, forwarded)
            for each in message.message_snapshots
            for file in each.message.attachments
        ),
        *_files_of(replied, message, known),
    ]
    return InboundMessage(
        address=address,
        chat_kind=chat_kind(address, context.channel_kind),
        sender=message.author.id,
        sender_name=(message.member and message.member.nick) or message.author.name,
        text=text,
        dedupe_key=f"{message.id}:e{message.edited_timestamp}" if edited else message.id,
        raw=raw_json(data),
        message_ref=message.id,
        kind="edit" if edited else "message",
        attachments=tuple(files),
        authors=others(
            [
                *forwarded,
                *_authors_replied_to(text, message),
                *(author for file in files for author in file.authors),
                *([UNKNOWN_AUTHOR] if _previews(text, message) else []),
            ],
            known,
        ),
        unreadable=_unreadable(message, text, files),
        addressed=addressed,
    )


def address_in(
    channel: str, account: str, channel_kind: ChannelKind, opened: str | None = None
) -> Address:
    """Return the address of what is said in a channel or thread.

    A thread that is opened from a message has the message's id.
    """
    if channel_kind.parent is not None:
        return Address("discord", account, channel_kind.parent, channel)
    return Address("discord", account, channel, opened)


def chat_kind(address: Address, channel_kind: ChannelKind) -> ChatKind:
    """Return what kind of conversation an address holds."""
    if channel_kind.dm:
        return "dm"
    return "group" if address.thread is None else "thread"


def _addressed(message: Message, bot: Bot, context: MessageContext) -> Addressing:
    if context.channel_kind.dm or _mentions(message, bot, context) or _replies_to(message, bot):
        return "direct"
    others = bool(message.mentions or message.mention_roles) or _replies_to_another(message)
    return "overheard" if context.channel_kind.parent is None or others else "thread"


def _mentions(message: Message, bot: Bot, context: MessageContext) -> bool:
    named = any(user.id == bot.id for user in message.mentions)
    return named or not context.roles.isdisjoint(message.mention_roles)


def _replies_to(message: Message, bot: Bot) -> bool:
    replied = message.referenced_message
    return replied is not None and replied.author is not None and replied.author.id == bot.id


def _replies_to_another(message: Message) -> bool:
    """Whether a person answers somebody else; the bot was looked for before."""
    replied = message.referenced_message
    author = None if replied is None else replied.author
    return author is not None and author.id != message.author.id


def _plain_text(message: Message, bot: Bot, context: MessageContext) -> str:
    """Return the text without a leading mention of the bot, and with names for all others."""
    mine = {f"@{bot.id}", f"@!{bot.id}"} | {f"@&{role}" for role in context.roles}
    text = "\n\n".join(filter(None, (message.content, *_own_cards(message))))
    first = _MARKUP.match(text.lstrip())
    if first is not None and first[0][1:-1] in mine:
        text = text.lstrip()[first.end() :].lstrip(" \t\n,:") or text
    return _named(text, message, context.name_of)


def _named(text: str, said: Content, name_of: NameOf = _no_name) -> str:
    """Replace Discord's markup by what people see in its place."""
    users = {user.id: user.name for user in said.mentions}

    def name(mark: re.Match[str]) -> str:
        kind, number = mark[1].rstrip("!"), mark[2]
        found = users.get(number) if kind == "@" else name_of(f"{kind}{number}")
        return mark[0] if found is None else f"{kind[0]}{found}"

    return _COMMAND.sub(r"\1", _EMOJI.sub(r":\1:", _MARKUP.sub(name, text)))


def _with_quote(text: str, message: Message) -> str:
    """Put what was replied to or forwarded in front, except in front of a command."""
    if text.startswith("/"):
        return text
    parts = (_quoted(message), text, *_previews(text, message))
    return "\n\n".join(part for part in parts if part)


def _own_cards(message: Message) -> list[str]:
    """Return the embeds that the author wrote."""
    return [each.words for each in message.embeds if each.type == "rich"]


def _previews(text: str, message: Message) -> list[str]:
    """Return the texts of link previews as quotes of somebody else; none for a command."""
    cards = [each.words for each in message.embeds if each.type != "rich" and each.words]
    return [] if text.startswith("/") else [quote(each) for each in cards]


def _words(said: Content) -> str:
    """Return what people read in a message of somebody else."""
    parts = (_named(said.content, said), *(each.words for each in said.embeds))
    return "\n".join(filter(None, parts)).strip()


def _words_replied_to(message: Message) -> str:
    """Return the words of the message that is answered, or of what that one forwards."""
    replied = message.referenced_message
    if replied is None or not message.content:
        return ""
    return "\n".join(
        filter(None, map(_words, (replied, *(each.message for each in replied.message_snapshots))))
    )


def _replied(message: Message) -> Replied | None:
    """Return the message whose files are meant, if one is answered with words."""
    return message.referenced_message if message.content.strip() else None


def _files_of(
    replied: Replied | None, message: Message, known: Collection[str]
) -> list[Attachment]:
    """Return the files of the message that is answered, or of what that one forwards."""
    if replied is None or replied.id is None:
        return []
    author = replied.author.id if replied.author else UNKNOWN_AUTHOR
    files = [(file, author) for file in replied.attachments]
    for each in replied.message_snapshots:
        files += [(file, UNKNOWN_AUTHOR) for file in each.message.attachments]
    return [
        _attachment(file, message, replied.id, others([author], known)) for file, author in files
    ]


def _quoted(message: Message) -> str:
    """Return what was forwarded, whole, or what was replied to, shortened."""
    if message.message_reference is not None and message.message_reference.type == _FORWARD:
        forwarded = [_words(each.message) for each in message.message_snapshots]
        return quoted_lines("\n".join(forwarded).strip().splitlines())
    return quote(_words_replied_to(message))


def _authors_replied_to(text: str, message: Message) -> list[str | None]:
    """Return who wrote what a message replies to, where that is quoted; None if it is not told."""
    replied = message.referenced_message
    if replied is None or not _words_replied_to(message) or text.startswith("/"):
        return []
    forwarded = [UNKNOWN_AUTHOR] if replied.message_snapshots else []
    return [None if replied.author is None else replied.author.id, *forwarded]


def _attachment(
    file: AttachedFile, message: Message, number: str, authors: tuple[str, ...]
) -> Attachment:
    """Return a file of the message with this number, which is the message or in its channel."""
    mime = (file.content_type or "").partition(";")[0].strip()
    channel = message.channel_id
    location = {"channel": channel, "message": number, "id": file.id, "url": file.url}
    return Attachment(
        name=file_name(file.filename) or "file",
        kind=_kind(file, mime, message),
        mime=mime,
        size_bytes=file.size,
        ref=orjson.dumps(location).decode(),
        authors=authors,
    )


def _kind(file: AttachedFile, mime: str, message: Message) -> AttachmentKind:
    if file.waveform is not None or (message.flags & _IS_VOICE and mime.startswith("audio/")):
        return "voice"
    return file_kind(mime)


def _unreadable(message: Message, text: str, files: list[Attachment]) -> str | None:
    if any(it.sticker_items for it in (message, *(s.message for s in message.message_snapshots))):
        return "a sticker"
    if message.poll is not None:
        return "a poll"
    if message.activity is not None:
        return "an invitation to an activity"
    return None if text.strip() or files else "an empty message"
