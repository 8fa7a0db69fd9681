"""Update JSON → `InboundMessage`, `Poison` or None (step 1 of the path); pure but for one log line.

Only the fields used here are decoded, so that new kinds of content never spoil a readable text.
All offsets of Telegram count UTF-16 units.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from adapters.messages import Address, ChatKind, InboundMessage, Poison

log = structlog.get_logger()

MAX_QUOTE_CHARS = 500
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")

# A venue holds a location and an animation a document too: the more telling one comes first.
_UNREADABLE = {
    "photo": "a photo",
    "live_photo": "a live photo",
    "video": "a video",
    "animation": "an animation",
    "voice": "a voice message",
    "audio": "an audio file",
    "video_note": "a video message",
    "document": "a file",
    "sticker": "a sticker",
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
# Source: python-telegram-bot 22.8, telegram.ext.filters.StatusUpdate.
_SERVICE = frozenset({
    "boost_added",
    "channel_chat_created",
    "chat_background_set",
    "chat_owner_changed",
    "chat_owner_left",
    "chat_shared",
    "checklist_tasks_added",
    "checklist_tasks_done",
    "connected_website",
    "delete_chat_photo",
    "direct_message_price_changed",
    "forum_topic_closed",
    "forum_topic_created",
    "forum_topic_edited",
    "forum_topic_reopened",
    "general_forum_topic_hidden",
    "general_forum_topic_unhidden",
    "gift",
    "gift_upgrade_sent",
    "giveaway_completed",
    "giveaway_created",
    "giveaway_winners",
    "group_chat_created",
    "left_chat_member",
    "managed_bot_created",
    "message_auto_delete_timer_changed",
    "migrate_from_chat_id",
    "migrate_to_chat_id",
    "new_chat_members",
    "new_chat_photo",
    "new_chat_title",
    "paid_message_price_changed",
    "passport_data",
    "pinned_message",
    "poll_option_added",
    "poll_option_deleted",
    "proximity_alert_triggered",
    "refunded_payment",
    "successful_payment",
    "suggested_post_approval_failed",
    "suggested_post_approved",
    "suggested_post_declined",
    "suggested_post_paid",
    "suggested_post_refunded",
    "supergroup_chat_created",
    "unique_gift",
    "users_shared",
    "video_chat_ended",
    "video_chat_participants_invited",
    "video_chat_scheduled",
    "video_chat_started",
    "web_app_data",
    "write_access_allowed",
})


@dataclass(frozen=True, slots=True)
class BotIdentity:
    """Who the bot is, from getMe; `username` without the @."""

    id: int
    username: str


def to_inbound(update: Any, account: str, bot: BotIdentity) -> InboundMessage | Poison | None:
    """Return what an update says, Poison if it cannot be decoded, None if it is not for the bot.

    In groups only what is addressed to the bot counts: a command, a mention, a reply to the bot.
    """
    try:
        decoded = _Update.model_validate(update)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        return poison(update, account, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    message = decoded.message or decoded.edited_message
    if message is None or message.chat.type == "channel":
        return None
    if message.chat.type not in {"private", "group", "supergroup"}:
        return poison(update, account, f"chat type {message.chat.type!r} is unknown")
    content = update["message" if decoded.message else "edited_message"]
    if message.migrate_to_chat_id is not None:
        _log_migration(message.chat.id, message.migrate_to_chat_id)
    if not _SERVICE.isdisjoint(content) or not _is_for(bot, message):
        return None
    return _inbound(update, content, message, account, bot)


def poison(update: Any, account: str, reason: str) -> Poison:
    """Return an update as Poison; it is named by its id, or by its bytes where it has none."""
    raw = json.dumps(update, separators=(",", ":"))
    number = update_id(update)
    key = f"x{hashlib.sha256(raw.encode()).hexdigest()[:32]}" if number is None else f"u{number}"
    return Poison(source=source_name(account), dedupe_key=key, raw=raw, reason=reason)


def update_id(update: Any) -> int | None:
    """Return the number of an update, None where it has none."""
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def source_name(account: str) -> str:
    """Return the name of an account's update stream, for its cursor and its poison."""
    return f"telegram:{account}"


def _storable(text: str) -> str:
    """Replace what no database takes; each stays one UTF-16 unit, so that offsets hold."""
    return _NOT_STORABLE.sub("\ufffd", text)


_Text = Annotated[str, AfterValidator(_storable)]


class _Part(BaseModel):
    """Base of the decoded parts: strict types, fields that are not used are not looked at."""

    model_config = ConfigDict(strict=True, frozen=True)


class _User(_Part):
    id: int
    is_bot: bool = False
    first_name: _Text = ""
    last_name: _Text = ""
    username: str = ""


class _Chat(_Part):
    id: int
    type: str


class _Entity(_Part):
    type: str
    offset: int = Field(ge=0)
    length: int = Field(ge=0)
    user: _User | None = None


class _Quote(_Part):
    text: _Text = ""


class _Replied(_Part):
    sender: _User | None = Field(default=None, alias="from")
    text: _Text = ""
    caption: _Text = ""
    forum_topic_created: Any = None


# Posts of a channel have no sender; they are left aside like those of other bots.
_NOBODY = _User(id=0, is_bot=True)


class _Message(_Part):
    message_id: int
    chat: _Chat
    sender: _User = Field(default=_NOBODY, alias="from")
    text: _Text = ""
    caption: _Text = ""
    entities: list[_Entity] = []
    caption_entities: list[_Entity] = []
    message_thread_id: int | None = None
    is_topic_message: bool = False
    reply_to_message: _Replied | None = None
    quote: _Quote | None = None
    edit_date: int | None = None
    migrate_to_chat_id: int | None = None

    @property
    def words(self) -> str:
        return self.text or self.caption

    @property
    def marks(self) -> list[_Entity]:
        return self.entities if self.text else self.caption_entities


class _Update(_Part):
    update_id: int
    message: _Message | None = None
    edited_message: _Message | None = None


def _log_migration(chat: int, new_chat: int) -> None:
    log.warning("telegram_chat_migrated", chat=str(chat), new_chat=str(new_chat))


def _is_for(bot: BotIdentity, message: _Message) -> bool:
    if message.sender.is_bot:
        return False
    target = _command_target(message)
    if target is not None and target not in {"", bot.username.casefold()}:
        return False
    if message.chat.type == "private" or target is not None:
        return True
    mentioned = any(_mentions(message.words, mark, bot) for mark in message.marks)
    return mentioned or _replies_to(bot, message.reply_to_message)


def _command_target(message: _Message) -> str | None:
    """Return who a leading command names: "" for nobody, None if the text is no command."""
    for mark in message.marks:
        if mark.type == "bot_command" and mark.offset == 0:
            return _marked(message.words, mark).partition("@")[2].casefold()
    return None


def _mentions(text: str, mark: _Entity, bot: BotIdentity) -> bool:
    if mark.type == "text_mention":
        return mark.user is not None and mark.user.id == bot.id
    named = _marked(text, mark).casefold() == f"@{bot.username}".casefold()
    return mark.type == "mention" and named


def _replies_to(bot: BotIdentity, replied: _Replied | None) -> bool:
    """Whether the reply is one to the bot.

    In a forum every message replies to the one that created its topic, maybe the bot's own.
    """
    if replied is None or replied.sender is None or replied.forum_topic_created is not None:
        return False
    return replied.sender.id == bot.id


def _inbound(
    update: Any, content: dict[str, Any], message: _Message, account: str, bot: BotIdentity
) -> InboundMessage:
    is_edit = update.get("message") is None
    key = f"{message.chat.id}:{message.message_id}"
    thread = message.message_thread_id if message.is_topic_message else None
    return InboundMessage(
        address=Address("telegram", account, str(message.chat.id), _text(thread)),
        chat_kind=_chat_kind(message.chat, thread),
        sender=str(message.sender.id),
        sender_name=_name(message.sender),
        text=_with_quote(_without_address(message, bot), message),
        dedupe_key=f"{key}:e{message.edit_date or 0}" if is_edit else key,
        raw=json.dumps(update, separators=(",", ":")),
        message_ref=str(message.message_id),
        kind="edit" if is_edit else "message",
        unreadable=_unreadable(content, message),
    )


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _chat_kind(chat: _Chat, thread: int | None) -> ChatKind:
    if chat.type == "private":
        return "dm"
    return "group" if thread is None else "thread"


def _name(user: _User) -> str:
    return f"{user.first_name} {user.last_name}".strip() or user.username or str(user.id)


def _without_address(message: _Message, bot: BotIdentity) -> str:
    """Return the text without a leading @bot, and a leading /command@bot without its @bot."""
    text = message.words
    for mark in message.marks:
        if mark.type == "bot_command" and mark.offset == 0:
            return _marked(text, mark).partition("@")[0] + _after(text, mark)
        if _mentions(text, mark, bot) and not _before(text, mark).strip():
            return _after(text, mark).lstrip(" \t\n,:") or text
    return text


def _with_quote(text: str, message: _Message) -> str:
    """Put what was replied to in front, except in front of a command or of no text at all."""
    replied = message.reply_to_message
    said = message.quote.text if message.quote else ""
    said = (said or (replied.text or replied.caption if replied else "")).strip()
    if not said or not text or text.startswith("/"):
        return text
    if len(said) > MAX_QUOTE_CHARS:
        said = f"{said[: MAX_QUOTE_CHARS - 1]}…"
    quoted = "\n".join(f"> {line}" for line in said.splitlines())
    return f"{quoted}\n\n{text}"


def _unreadable(content: dict[str, Any], message: _Message) -> str | None:
    for field, name in _UNREADABLE.items():
        if field in content:
            return name
    if message.words.strip():
        return None
    return "an empty message" if "text" in content else "a message of an unknown kind"


def _marked(text: str, mark: _Entity) -> str:
    return _cut(text, mark.offset, mark.offset + mark.length)


def _before(text: str, mark: _Entity) -> str:
    return _cut(text, 0, mark.offset)


def _after(text: str, mark: _Entity) -> str:
    return _cut(text, mark.offset + mark.length, None)


def _cut(text: str, start: int, end: int | None) -> str:
    units = text.encode("utf-16-le")
    return units[2 * start : None if end is None else 2 * end].decode("utf-16-le", "replace")
