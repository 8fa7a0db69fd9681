"""A decoded update → `InboundMessage`, `Move`, `Poison` or None; pure.

Telegram's offsets count UTF-16 units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
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
    file_kind,
    file_name,
    filled,
    others,
    quote,
    quoted_lines,
    raw_json,
)
from adapters.telegram.updates import (
    PLATFORM,
    CallbackQuery,
    Content,
    Entity,
    FilePart,
    Message,
    Replied,
    Update,
    unread,
)

log = structlog.get_logger()

PRESS_PREFIX = "cb:"
"""Prefix of a button press's dedupe key."""
_CHAT_TYPES = frozenset({"private", "group", "supergroup"})

Inbound = InboundMessage | Move | Poison | None
# A venue also contains a location, so the more specific kind comes first.
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
# SDK message types that only describe a message further.
_DETAILS = frozenset({
    "business_connection_id",
    "effect_id",
    "reply_to_story",
    "sender_boost_count",
    "sender_business_bot",
    "suggested_post_info",
})


# Service messages ("has joined the group"), not written by a person.
_SERVICE = frozenset(map(str, MessageType)) - {*Content.model_fields, *_UNREADABLE} - _DETAILS


@dataclass(frozen=True, slots=True)
class BotIdentity:
    """The bot as returned by getMe; `username` without the @."""

    id: int
    username: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading bot; messages from the bots of `allow_bots` (ids) are read like users'."""

    account: str
    bot: BotIdentity
    allow_bots: frozenset[str]

    def address(self, message: Message) -> Address:
        """Return a message's address; without its topic an answer would land in "General"."""
        thread = None if message.thread is None else str(message.thread)
        return Address(PLATFORM, self.account, str(message.chat.id), thread)


def to_inbound(
    update: Any, decoded: Update, reading: Reading, *, is_direct: bool = False
) -> Inbound:
    """Read an update; `is_direct`: an album's caption addresses the bot."""
    if decoded.callback_query is not None:
        return _press(update, decoded.callback_query, reading)
    if decoded.my_chat_member is not None:
        change = decoded.my_chat_member
        status = change.new_chat_member.status
        log.info("telegram_membership_changed", chat=str(change.chat.id), status=status)
    message = decoded.said
    # Channel posts have no user as sender.
    if message is None or message.chat.type == "channel":
        return None
    if message.chat.type not in _CHAT_TYPES:
        return unread(update, reading.account, f"chat type {message.chat.type!r} is unknown")
    return _move(message, reading) or _message(update, message, reading, is_direct=is_direct)


def _message(
    update: Any, message: Message, reading: Reading, *, is_direct: bool
) -> InboundMessage | None:
    content = filled(update.get("message") or update["edited_message"])
    is_edit = update.get("message") is None
    who, bot = _speaker(message, reading), reading.bot
    if who is None or not _SERVICE.isdisjoint(content):
        return None
    # A live location is updated by edits.
    if is_edit and "location" in content:
        return None
    # A message number is unique only within its chat.
    key = f"{message.chat.id}:{message.message_id}"
    told = "direct" if is_direct else addressed(message, bot)
    known = {who[0], str(bot.id)}
    files = _files(message, told, known)
    return InboundMessage(
        address=reading.address(message),
        chat_kind=_chat_kind(message),
        sender=who[0],
        sender_name=who[1],
        text=_spoken(message, bot),
        # A message may be edited repeatedly; each edit is a separate update.
        dedupe_key=f"{key}:e{update['update_id']}" if is_edit else key,
        raw=raw_json(update),
        message_ref=str(message.message_id),
        kind="edit" if is_edit else "message",
        attachments=files,
        authors=others(_authors(message, bot, files), known),
        unreadable=unreadable(content, message),
        addressed=told,
    )


def _press(update: Any, query: CallbackQuery, reading: Reading) -> InboundMessage | None:
    """Return a press as a message with the button's text; None if its message is unknown."""
    if query.message is None or not query.data or query.message.chat.type not in _CHAT_TYPES:
        return None
    return InboundMessage(
        address=reading.address(query.message),
        chat_kind=_chat_kind(query.message),
        sender=str(query.sender.id),
        sender_name=query.sender.name,
        text=query.data,
        dedupe_key=f"{PRESS_PREFIX}{query.id}",
        raw=raw_json(update),
        pressed=True,
    )


def _move(message: Message, reading: Reading) -> Move | None:
    """Read a group's move to a supergroup with a new id; both chats get such a message."""
    old, new = message.chat.id, message.migrate_to_chat_id
    if message.migrate_from_chat_id is not None:
        old, new = message.migrate_from_chat_id, message.chat.id
    return None if new is None else Move(PLATFORM, reading.account, str(old), str(new))


def _speaker(message: Message, reading: Reading) -> tuple[str, str] | None:
    """Return the sender's id and name; None for bots and channel posts.

    A user who writes on behalf of a group or channel has its id.
    """
    # Telegram copies channel posts into the discussion group.
    if message.is_automatic_forward:
        return None
    # `from` is then a placeholder (GroupAnonymousBot).
    if (chat := message.sender_chat) is not None:
        return str(chat.id), message.author_signature or chat.name
    user, own = message.sender, reading.bot.id
    if user.id == own or (user.is_bot and str(user.id) not in reading.allow_bots):
        return None
    return str(user.id), user.name


def _files(message: Message, told: Addressing, known: set[str]) -> tuple[Attachment, ...]:
    """Return a message's file, or else the file of the message it replies to."""
    if own := attachments(message, others(_origins(message), known)):
        return own
    if told != "direct" or not message.words.strip() or message.words.startswith("/"):
        return ()
    return attachments(message.reply_to_message, others(_authors_replied_to(message), known))


def _authors(message: Message, bot: BotIdentity, files: tuple[Attachment, ...]) -> list[str | None]:
    """Return the authors of a message's forwarded text, quotes and files."""
    of_files = [author for file in files for author in file.authors]
    is_quoted = not message.forward_origin and _quoted(_without_name(message, bot), message)
    return [*_origins(message), *(_authors_replied_to(message) if is_quoted else []), *of_files]


def _origins(message: Message | Replied) -> list[str | None]:
    """Return a message's other authors: the original author of a forward, an inline bot."""
    origin, bot = message.forward_origin, message.via_bot
    forwarded = [] if origin is None else [origin.author]
    return forwarded if bot is None else [*forwarded, str(bot.id)]


def _authors_replied_to(message: Message) -> list[str | None]:
    """Return the authors of the replied-to message; None for an unknown one."""
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
    """Return "direct" for a message to the bot, "overheard" for another in a group.

    Addressed to the bot: a command that names no other bot, a mention, a reply to one of its
    messages. A forum topic is a channel, not the bot's thread.
    """
    if message.chat.type == "private":
        return "direct"
    if (named := _command(message)) is not None:
        return "direct" if named[1] in {"", bot.username.casefold()} else "overheard"
    mentioned = any(_mentions(message.words, mark, bot) for mark in message.marks)
    to_bot = mentioned or _replies_to(bot, message.reply_to_message)
    return "direct" if to_bot else "overheard"


def _spoken(message: Message, bot: BotIdentity) -> str:
    """Return the text for the agent: without the bot's name, after the quoted text.

    A forwarded message is quoted in full.
    """
    if message.forward_origin is not None:
        lines = with_links(message.words, message.marks).splitlines()
        return quoted_lines([f"{message.forward_origin.name}:", *lines])
    text, replied = _without_name(message, bot), message.reply_to_message
    origin = replied.forward_origin if replied else None
    said = _quoted(text, message)
    return f"{quote(said, origin.name if origin else '')}\n\n{text}" if said else text


def _command(message: Message) -> tuple[str, str, int] | None:
    """Return the leading command, the bot it names ("" for none), and its end offset."""
    for mark in message.marks:
        if mark.type == "bot_command" and mark.offset == 0:
            command, _, target = _marked(message.words, mark).partition("@")
            return command, target.casefold(), mark.length
    return None


def _mentions(text: str, mark: Entity, bot: BotIdentity) -> bool:
    # A mention of a user without a username contains the user.
    if mark.type == "text_mention":
        return mark.user is not None and mark.user.id == bot.id
    named = _marked(text, mark).casefold() == f"@{bot.username}".casefold()
    return mark.type == "mention" and named


def _replies_to(bot: BotIdentity, replied: Replied | None) -> bool:
    # In a forum every message replies to the message that created its topic, which may be the
    # bot's.
    if replied is None or replied.sender is None or replied.forum_topic_created is not None:
        return False
    return replied.sender.id == bot.id


def _without_name(message: Message, bot: BotIdentity) -> str:
    """Remove a leading @bot, and the @bot of a leading /command@bot."""
    text, marks = message.words, message.marks
    if (named := _command(message)) is not None:
        command, target, end = named
        is_mine = target in {"", bot.username.casefold()}
        return command + with_links(text, marks, end) if is_mine else text
    for mark in marks:
        if _mentions(text, mark, bot) and not _cut(text, 0, mark.offset).strip():
            rest = with_links(text, marks, mark.offset + mark.length)
            return rest.lstrip(" \t\n,:") or text
    return with_links(text, marks)


def _quoted(text: str, message: Message) -> str:
    """Return the replied-to text; "" for a command or without text."""
    if not text or text.startswith("/"):
        return ""
    picked, replied = message.quote, message.reply_to_message
    if picked is not None and picked.text:
        return with_links(picked.text, picked.entities).strip()
    return with_links(replied.words, replied.marks).strip() if replied else ""


def unreadable(content: dict[str, Any], message: Message) -> str | None:
    """Return the kind of content that is neither text nor a file, or None."""
    if attachments(message):
        return None
    for field, name in _UNREADABLE.items():
        if field in content:
            return name
    if message.words.strip():
        return None
    return "an empty message" if "text" in content else "a message of an unknown kind"


def handle_of(attachment: Attachment) -> tuple[str, str]:
    """Return the file id for getFile, and the album's id or ""."""
    handle: dict[str, str] = orjson.loads(attachment.ref)
    return handle["file_id"], handle.get("album", "")


def attachments(message: Content | None, authors: tuple[str, ...] = ()) -> tuple[Attachment, ...]:
    """Return a message's file, if any; an album is several messages."""
    if message is None:
        return ()
    # Telegram lists several sizes of a picture.
    photo = max(
        message.photo, key=lambda it: (it.width * it.height, it.file_size or 0), default=None
    )
    sticker, audio = message.sticker, message.audio
    if sticker is not None and (sticker.is_animated or sticker.is_video):
        # Animated stickers are Lottie or WEBM, which models cannot read.
        sticker = None
    moving = message.video or message.animation or message.video_note
    files: tuple[tuple[FilePart | None, AttachmentKind, str, str, str], ...] = (
        (photo, "image", "photo", ".jpg", "image/jpeg"),
        (moving, "video", "video", ".mp4", "video/mp4"),
        (message.voice, "voice", "voice", ".ogg", "audio/ogg"),
        (audio, "audio", "audio", ".mp3", "audio/mpeg"),
        (sticker, "image", "sticker", ".webp", "image/webp"),
        # Last, since an animation also has a document with less detail.
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
                authors=authors,
            )
            return (own,)
    return ()


def _cut(text: str, start: int, end: int | None) -> str:
    """Return a text's part between two UTF-16 offsets."""
    units = text.encode("utf-16-le")
    return units[2 * start : None if end is None else 2 * end].decode("utf-16-le", "replace")


def _marked(text: str, mark: Entity) -> str:
    return _cut(text, mark.offset, mark.offset + mark.length)


def with_links(text: str, marks: Sequence[Entity], start: int = 0) -> str:
    """Return a text from an offset, with each link's address after its label."""
    parts: list[str] = []
    ends = sorted((mark.offset + mark.length, mark.url) for mark in marks if mark.url)
    for end, url in ends:
        said = _cut(text, start, end)
        if end > start and not said.endswith(url):
            parts.append(f"{said} ({url})")
            start = end
    return "".join(parts) + _cut(text, start, None)
