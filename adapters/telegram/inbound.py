"""Update JSON → `InboundMessage`, `Move`, `Poison` or None; does no I/O.

All offsets of Telegram count UTF-16 units.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import structlog
from pydantic import Field, ValidationError
from telegram.constants import MessageType

from adapters.messages import (
    Address,
    Addressing,
    Attachment,
    AttachmentKind,
    ChatKind,
    InboundMessage,
    Move,
    Poison,
    Text,
    WirePart,
    file_kind,
    file_name,
    filled,
    flaw,
    others,
    poison,
    quote,
    quoted_lines,
    raw_json,
)
from adapters.telegram.albums import Albums

log = structlog.get_logger()

PLATFORM = "telegram"
PRESS_PREFIX = "cb:"
"""Begins the dedupe key of a pressed button."""
_CHAT_TYPES = frozenset({"private", "group", "supergroup"})

Inbound = InboundMessage | Move | Poison | None
# A venue contains a location too: the more specific one comes first.
_UNREADABLE = {
    "live_photo": "a live photo",
    "sticker": "an animated sticker",
    "venue": "a place",
    "location": "a location",
    "contact": "a contact",
    "poll": "a poll",
    "dice": "a dice",
    "game": "a game",
    "story": "a story",
    "paid_media": "paid media",
    "checklist": "a checklist",
    "invoice": "an invoice",
    "giveaway": "a giveaway",
}
# Kinds of messages for the SDK that only say more about a message.
_DETAILS = frozenset({
    "business_connection_id",
    "effect_id",
    "reply_to_story",
    "sender_boost_count",
    "sender_business_bot",
    "suggested_post_info",
})


class User(WirePart):
    """A person or a bot."""

    id: int
    is_bot: bool = False
    first_name: Text = ""
    last_name: Text = ""
    username: Text = ""

    @property
    def name(self) -> str:
        """The name that people see."""
        return f"{self.first_name} {self.last_name}".strip() or self.username or str(self.id)


class Chat(WirePart):
    """A chat; `type` is private, group, supergroup or channel."""

    id: int
    type: str
    title: Text = ""

    @property
    def name(self) -> str:
        """The title that people see."""
        return self.title or str(self.id)


class Entity(WirePart):
    """Something special in a text, such as a mention."""

    type: str
    offset: int = Field(ge=0)
    length: int = Field(ge=0)
    user: User | None = None
    url: Text = ""


class Quote(WirePart):
    """The part of a message that a reply quotes."""

    text: Text = ""
    entities: list[Entity] = Field(default_factory=list)


class _FilePart(WirePart):
    """Any kind of file: photo size, document, voice message, sticker."""

    file_id: Text = Field(min_length=1)
    file_unique_id: Text = ""
    file_size: int | None = None
    file_name: Text = ""
    mime_type: Text = ""
    title: Text = ""
    width: int = 0
    height: int = 0
    is_animated: bool = False
    is_video: bool = False


class Content(WirePart):
    """A message's words and files."""

    message_id: int = 0
    media_group_id: Text = ""
    text: Text = ""
    caption: Text = ""
    entities: list[Entity] = Field(default_factory=list)
    caption_entities: list[Entity] = Field(default_factory=list)
    photo: list[_FilePart] = Field(default_factory=list)
    document: _FilePart | None = None
    voice: _FilePart | None = None
    audio: _FilePart | None = None
    video: _FilePart | None = None
    video_note: _FilePart | None = None
    animation: _FilePart | None = None
    sticker: _FilePart | None = None

    @property
    def words(self) -> str:
        """The text, or the caption of a file."""
        return self.text or self.caption

    @property
    def marks(self) -> list[Entity]:
        """The entities of `words`."""
        return self.entities if self.text else self.caption_entities


class MessageOrigin(WirePart):
    """The author of a message that was forwarded or is quoted from another chat.

    A user who hides the account is only a name, which anybody can choose.
    """

    sender_user: User | None = None
    sender_user_name: Text = ""
    sender_chat: Chat | None = None
    chat: Chat | None = None
    author_signature: Text = ""

    @property
    def name(self) -> str:
        """The author's name that people see, in one line."""
        told = self.sender_user or self.sender_chat or self.chat
        names = (told.name if told else self.sender_user_name, self.author_signature)
        return " ".join(", ".join(filter(None, names)).split()) or "unknown"

    @property
    def author(self) -> str | None:
        """The id of the user, group or channel, or None if it is hidden."""
        told = self.sender_user or self.sender_chat or self.chat
        return None if told is None else str(told.id)


class _ExternalReply(Content):
    """A message of another chat that is replied to; its text comes as the quote."""

    origin: MessageOrigin = MessageOrigin()


class Replied(Content):
    """The message that was replied to."""

    sender: User | None = Field(default=None, alias="from")
    sender_chat: Chat | None = None
    forward_origin: MessageOrigin | None = None
    via_bot: User | None = None
    forum_topic_created: Any = None


# Posts of a channel have no sender; they are ignored like those of other bots.
_NOBODY = User(id=0, is_bot=True)


class Message(Content):
    """A message; one with a pressed button may have few of the fields."""

    message_id: int
    chat: Chat
    sender: User = Field(default=_NOBODY, alias="from")
    sender_chat: Chat | None = None
    author_signature: Text = ""
    is_automatic_forward: bool = False
    message_thread_id: int | None = None
    is_topic_message: bool = False
    reply_to_message: Replied | None = None
    external_reply: _ExternalReply | None = None
    forward_origin: MessageOrigin | None = None
    via_bot: User | None = None
    quote: Quote | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None

    @property
    def thread(self) -> int | None:
        """The forum topic; a plain chain of replies has a thread id, too, but is not one."""
        return self.message_thread_id if self.is_topic_message else None


class CallbackQuery(WirePart):
    """A pressed button."""

    id: Text = Field(min_length=1)
    sender: User = Field(alias="from")
    message: Message | None = None
    data: Text | None = None


class _MemberStatus(WirePart):
    status: str


class _Membership(WirePart):
    """The bot was added to a chat, thrown out or blocked."""

    chat: Chat
    new_chat_member: _MemberStatus


class Update(WirePart):
    """One update; it has exactly one of the optional parts."""

    update_id: int
    message: Message | None = None
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None
    my_chat_member: _Membership | None = None


# Service messages ("has joined the group"), which no person wrote.
_SERVICE = frozenset(map(str, MessageType)) - {*Content.model_fields, *_UNREADABLE} - _DETAILS


@dataclass(frozen=True, slots=True)
class BotIdentity:
    """The bot by getMe; `username` without the @."""

    id: int
    username: str


class UpdateReader:
    """Reads the updates of one account.

    Args:
        allow_bots: Ids of bots whose messages are read like those of users.
    """

    def __init__(
        self, account: str, bot: BotIdentity, allow_bots: frozenset[str], albums: Albums
    ) -> None:
        self._account = account
        self.bot = bot
        self._allow_bots = allow_bots
        self._albums = albums

    def read(self, updates: Sequence[Any]) -> list[tuple[Any, Inbound]]:
        """Read updates: each is returned with its item.

        If an album's caption is for the bot its earlier updates are returned again, in front.
        """
        decoded = [(update, self._decode(update)) for update in updates]
        earlier = [update for _, each in decoded for update in self._note_album(each)]
        decoded = [*((update, self._decode(update)) for update in earlier), *decoded]
        return [
            (update, self._item(update, each) if isinstance(each, Update) else each)
            for update, each in decoded
        ]

    def _decode(self, update: Any) -> Update | Poison:
        try:
            return Update.model_validate(update)
        except ValidationError as exc:
            return self._poison(update, flaw(exc))

    def _poison(self, update: Any, reason: str) -> Poison:
        number = update_id(update)
        key = "" if number is None else f"u{number}"
        return poison(source_name(self._account), raw_json(update), reason, key)

    def _note_album(self, decoded: Update | Poison) -> list[Any]:
        """Note a picture of an album; return the earlier ones if its caption is for the bot."""
        message = decoded.message if isinstance(decoded, Update) else None
        if message is None or not message.media_group_id:
            return []
        album = self._albums.grown(str(message.chat.id), message.media_group_id)
        if addressed(message, self.bot) != "direct":
            return []
        album.is_direct = True
        return album.overheard

    def _item(self, update: Any, decoded: Update) -> Inbound:
        if decoded.callback_query is not None:
            return self._press(update, decoded.callback_query)
        if decoded.my_chat_member is not None:
            change = decoded.my_chat_member
            status = change.new_chat_member.status
            log.info("telegram_membership_changed", chat=str(change.chat.id), status=status)
        message = decoded.message or decoded.edited_message
        # Posts of a channel have no user as their sender.
        if message is None or message.chat.type == "channel":
            return None
        if message.chat.type not in _CHAT_TYPES:
            return self._poison(update, f"chat type {message.chat.type!r} is unknown")
        return self._message(update, message)

    def _message(self, update: Any, message: Message) -> Inbound:
        content = filled(update.get("message") or update["edited_message"])
        is_edit = update.get("message") is None
        if move := self._move(message):
            return move
        who = self._speaker(message)
        if who is None or not _SERVICE.isdisjoint(content):
            return None
        # A live location moves its point on the map by edits.
        if is_edit and "location" in content:
            return None
        # A message's number is its own only within its chat.
        key = f"{message.chat.id}:{message.message_id}"
        told = self._addressed(update, message)
        known = {who[0], str(self.bot.id)}
        files = _files(message, told, known)
        return InboundMessage(
            address=self._address(message),
            chat_kind=_chat_kind(message),
            sender=who[0],
            sender_name=who[1],
            text=_spoken(message, self.bot),
            # A message may be edited again and again; each edit is an update of its own.
            dedupe_key=f"{key}:e{update['update_id']}" if is_edit else key,
            raw=raw_json(update),
            message_ref=str(message.message_id),
            kind="edit" if is_edit else "message",
            attachments=files,
            authors=others(_authors(message, self.bot, files), known),
            unreadable=unreadable(content, message),
            addressed=told,
        )

    def _press(self, update: Any, query: CallbackQuery) -> InboundMessage | None:
        """Return the button's text as a message, or None if its message is unknown (any more)."""
        if query.message is None or not query.data or query.message.chat.type not in _CHAT_TYPES:
            return None
        return InboundMessage(
            address=self._address(query.message),
            chat_kind=_chat_kind(query.message),
            sender=str(query.sender.id),
            sender_name=query.sender.name,
            text=query.data,
            dedupe_key=f"{PRESS_PREFIX}{query.id}",
            raw=raw_json(update),
            pressed=True,
        )

    def _move(self, message: Message) -> Move | None:
        """Read that a group became a supergroup with another id; both chats have such a message."""
        old, new = message.chat.id, message.migrate_to_chat_id
        if message.migrate_from_chat_id is not None:
            old, new = message.migrate_from_chat_id, message.chat.id
        if new is None:
            return None
        return Move(PLATFORM, self._account, str(old), str(new))

    def _speaker(self, message: Message) -> tuple[str, str] | None:
        """Return the sender's id and name; None for bots and for posts of channels.

        A user who writes in the name of a group or channel has the id of that.
        """
        # Telegram copies a channel's posts into its discussion group.
        if message.is_automatic_forward:
            return None
        # Its `from` is then a placeholder of Telegram (GroupAnonymousBot).
        if (chat := message.sender_chat) is not None:
            return str(chat.id), message.author_signature or chat.name
        user = message.sender
        if user.id == self.bot.id or (user.is_bot and str(user.id) not in self._allow_bots):
            return None
        return str(user.id), user.name

    def _addressed(self, update: Any, message: Message) -> Addressing:
        told = addressed(message, self.bot)
        if told == "direct" or not message.media_group_id:
            return told
        album = self._albums.of(str(message.chat.id), message.media_group_id)
        if album.is_direct:
            return "direct"
        album.overheard.append(update)
        return told

    def _address(self, message: Message) -> Address:
        thread = None if message.thread is None else str(message.thread)
        # An answer without the topic would land in "General".
        return Address(PLATFORM, self._account, str(message.chat.id), thread)


def update_id(update: Any) -> int | None:
    """Return the number of an update, or None."""
    number = update.get("update_id") if isinstance(update, dict) else None
    # `True` is an int as well.
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def source_name(account: str) -> str:
    """Return the name of an account's update stream, for its cursor and its poison."""
    return f"{PLATFORM}:{account}"


def _files(message: Message, told: Addressing, known: set[str]) -> tuple[Attachment, ...]:
    """Return the file of a message, else that of the message it replies to."""
    if own := attachments(message):
        return _made_by(own, _origins(message), known)
    if told != "direct" or not message.words.strip() or message.words.startswith("/"):
        return ()
    return _made_by(attachments(message.reply_to_message), _authors_replied_to(message), known)


def _made_by(
    files: tuple[Attachment, ...], authors: list[str | None], known: set[str]
) -> tuple[Attachment, ...]:
    return tuple(replace(file, authors=others(authors, known)) for file in files)


def _authors(message: Message, bot: BotIdentity, files: tuple[Attachment, ...]) -> list[str | None]:
    """Return the authors of the forwarded text, the quotes and the files of a message."""
    of_files = [author for file in files for author in file.authors]
    is_quoted = not message.forward_origin and _quoted(_without_name(message, bot), message)
    return [*_origins(message), *(_authors_replied_to(message) if is_quoted else []), *of_files]


def _origins(message: Message | Replied) -> list[str | None]:
    """Return the authors of a message besides its sender: of a forwarded one, an inline bot."""
    origin, bot = message.forward_origin, message.via_bot
    forwarded = [] if origin is None else [origin.author]
    return forwarded if bot is None else [*forwarded, str(bot.id)]


def _authors_replied_to(message: Message) -> list[str | None]:
    """Return the authors of the message that is replied to; None for an unknown one."""
    replied = message.reply_to_message
    if replied is None:
        return [message.external_reply.origin.author if message.external_reply else None]
    said_by = replied.sender_chat or replied.sender
    return [None if said_by is None else str(said_by.id), *_origins(replied)]


def _chat_kind(message: Message) -> ChatKind:
    if message.chat.type == "private":
        return "dm"
    return "group" if message.thread is None else "thread"


def addressed(message: Message, bot: BotIdentity) -> Addressing:
    """Return "direct" for a message to the bot, "overheard" for another one in a group.

    To the bot are: a command that names no other bot, a mention, a reply to one of its messages.
    A forum topic is a channel, not a thread of the bot.
    """
    if message.chat.type == "private":
        return "direct"
    target = _command_target(message)
    if target is not None:
        return "direct" if target in {"", bot.username.casefold()} else "overheard"
    mentioned = any(_mentions(message.words, mark, bot) for mark in message.marks)
    to_bot = mentioned or _replies_to(bot, message.reply_to_message)
    return "direct" if to_bot else "overheard"


def _spoken(message: Message, bot: BotIdentity) -> str:
    """Return the text for the agent: without the bot's name, behind the quote it replies to.

    A forwarded message is quoted in full.
    """
    if message.forward_origin is not None:
        lines = with_links(message.words, message.marks).splitlines()
        return quoted_lines([f"{message.forward_origin.name}:", *lines])
    text, replied = _without_name(message, bot), message.reply_to_message
    origin = replied.forward_origin if replied else None
    said = _quoted(text, message)
    return f"{quote(said, origin.name if origin else '')}\n\n{text}" if said else text


def _command_target(message: Message) -> str | None:
    """Return the bot that a leading command names: "" for none, None if it is not a command."""
    for mark in message.marks:
        if mark.type == "bot_command" and mark.offset == 0:
            return _marked(message.words, mark).partition("@")[2].casefold()
    return None


def _mentions(text: str, mark: Entity, bot: BotIdentity) -> bool:
    # A mention of a user without a user name contains the user.
    if mark.type == "text_mention":
        return mark.user is not None and mark.user.id == bot.id
    named = _marked(text, mark).casefold() == f"@{bot.username}".casefold()
    return mark.type == "mention" and named


def _replies_to(bot: BotIdentity, replied: Replied | None) -> bool:
    # In a forum every message replies to the one that created its topic, maybe the bot's own.
    if replied is None or replied.sender is None or replied.forum_topic_created is not None:
        return False
    return replied.sender.id == bot.id


def _without_name(message: Message, bot: BotIdentity) -> str:
    """Return the text without a leading @bot, and a leading /command@bot without its @bot."""
    text = message.words
    for mark in message.marks:
        if mark.type == "bot_command" and mark.offset == 0:
            command, _, target = _marked(text, mark).partition("@")
            mine = target.casefold() in {"", bot.username.casefold()}
            end = mark.offset + mark.length
            return command + with_links(text, message.marks, end) if mine else text
        if _mentions(text, mark, bot) and not _cut(text, 0, mark.offset).strip():
            rest = with_links(text, message.marks, mark.offset + mark.length)
            return rest.lstrip(" \t\n,:") or text
    return with_links(text, message.marks)


def _quoted(text: str, message: Message) -> str:
    """Return the text that is replied to; "" in front of a command or without a text."""
    if not text or text.startswith("/"):
        return ""
    picked, replied = message.quote, message.reply_to_message
    if picked is not None and picked.text:
        return with_links(picked.text, picked.entities).strip()
    return with_links(replied.words, replied.marks).strip() if replied else ""


def unreadable(content: dict[str, Any], message: Message) -> str | None:
    """Name the part of a message that is neither text nor a file, or None."""
    if attachments(message):
        return None
    for field, name in _UNREADABLE.items():
        if field in content:
            return name
    if message.words.strip():
        return None
    return "an empty message" if "text" in content else "a message of an unknown kind"


def handle_of(attachment: Attachment) -> tuple[str, str]:
    """Return the file id for getFile, and the id of the file's album; "" without one."""
    handle: dict[str, str] = orjson.loads(attachment.ref)
    return handle["file_id"], handle.get("album", "")


def attachments(message: Content | None) -> tuple[Attachment, ...]:
    """Return the file of a message, if any; an album is several messages."""
    if message is None:
        return ()
    # Telegram lists a picture in several sizes.
    photo = max(
        message.photo, key=lambda it: (it.width * it.height, it.file_size or 0), default=None
    )
    sticker, audio = message.sticker, message.audio
    if sticker is not None and (sticker.is_animated or sticker.is_video):
        # Animated ones are Lottie or WEBM, which no model reads.
        sticker = None
    moving = message.video or message.animation or message.video_note
    files: tuple[tuple[_FilePart | None, AttachmentKind, str, str, str], ...] = (
        (photo, "image", "photo", ".jpg", "image/jpeg"),
        (moving, "video", "video", ".mp4", "video/mp4"),
        (message.voice, "voice", "voice", ".ogg", "audio/ogg"),
        (audio, "audio", "audio", ".mp3", "audio/mpeg"),
        (sticker, "image", "sticker", ".webp", "image/webp"),
        # The last one: an animation has a document, too, with less about it.
        (message.document, "file", "file", "", ""),
    )
    for file, kind, word, ending, mime in files:
        if file is not None:
            name = f"{file.title or f'{word}_{message.message_id}'}{ending}"
            handle = {"file_id": file.file_id, "file_unique_id": file.file_unique_id}
            if message.media_group_id:
                handle["album"] = message.media_group_id
            own = Attachment(
                name=file_name(file.file_name) or file_name(name),
                kind=file_kind(file.mime_type) if kind == "file" else kind,
                mime=file.mime_type or mime,
                size_bytes=file.file_size,
                ref=orjson.dumps(handle).decode(),
            )
            return (own,)
    return ()


def _cut(text: str, start: int, end: int | None) -> str:
    """Return the part of a text between two offsets in UTF-16 units."""
    units = text.encode("utf-16-le")
    return units[2 * start : None if end is None else 2 * end].decode("utf-16-le", "replace")


def _marked(text: str, mark: Entity) -> str:
    return _cut(text, mark.offset, mark.offset + mark.length)


def with_links(text: str, marks: Sequence[Entity], start: int = 0) -> str:
    """Return a text from an offset on, with the address of each link behind its label."""
    parts: list[str] = []
    ends = sorted((mark.offset + mark.length, mark.url) for mark in marks if mark.url)
    for end, url in ends:
        said = _cut(text, start, end)
        if end > start and not said.endswith(url):
            parts.append(f"{said} ({url})")
            start = end
    return "".join(parts) + _cut(text, start, None)
