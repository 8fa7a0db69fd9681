"""Update JSON → `InboundMessage`, `Move`, `Poison` or None (step 1 of the path); does no I/O."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import structlog
from pydantic import ValidationError

from adapters.messages import (
    Address,
    Addressing,
    Attachment,
    ChatKind,
    InboundMessage,
    Move,
    Poison,
)
from adapters.telegram.addressing import BotIdentity, addressed, spoken
from adapters.telegram.content import attachments, is_live_location, is_service, unreadable
from adapters.telegram.wire import CallbackQuery, Chat, Membership, Message, Update, User, filled

log = structlog.get_logger()

PLATFORM = "telegram"
PRESS_PREFIX = "cb:"
"""Begins the dedupe key of a pressed button."""
_CHAT_TYPES = frozenset({"private", "group", "supergroup"})
_REMEMBERED_ALBUMS = 256
_JSON = json.JSONEncoder(separators=(",", ":"))

Item = InboundMessage | Move | Poison | None


class Reader:
    """Reads the updates of one account.

    An album comes as several messages, of which only one has a caption: what that one says to the
    bot is said with all of them. So the last few albums are remembered, and a batch is looked
    through for them before it is read.

    Args:
        account: The account's name.
        bot: Who the bot is.
        allow_bots: Ids of bots that are listened to like people.
    """

    def __init__(
        self, account: str, bot: BotIdentity, allow_bots: frozenset[str] = frozenset()
    ) -> None:
        self._account = account
        self.bot = bot
        self._allow_bots = allow_bots
        self._albums: OrderedDict[tuple[int, str | None], None] = OrderedDict()

    def read(self, updates: Sequence[Any]) -> list[Item]:
        """Return what each update says: Poison if it cannot be decoded, None if nobody spoke."""
        decoded = [self._decode(update) for update in updates]
        for each in decoded:
            if isinstance(each, Update) and each.message is not None:
                self._note_album(each.message)
        return [
            self._item(update, each) if isinstance(each, Update) else each
            for update, each in zip(updates, decoded, strict=True)
        ]

    def _decode(self, update: Any) -> Update | Poison:
        try:
            return Update.model_validate(update)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            return poison(update, self._account, reason)

    def _note_album(self, message: Message) -> None:
        if message.media_group_id is None or addressed(message, self.bot) != "direct":
            return
        self._albums[message.chat.id, message.media_group_id] = None
        if len(self._albums) > _REMEMBERED_ALBUMS:
            self._albums.popitem(last=False)

    def _item(self, update: Any, decoded: Update) -> Item:
        if decoded.callback_query is not None:
            return self._press(update, decoded.callback_query)
        if decoded.my_chat_member is not None:
            _log_membership(decoded.my_chat_member)
        message = decoded.message or decoded.edited_message
        if message is None or message.chat.type == "channel":
            return None
        if message.chat.type not in _CHAT_TYPES:
            reason = f"chat type {message.chat.type!r} is unknown"
            return poison(update, self._account, reason)
        return self._message(update, message)

    def _message(self, update: Any, message: Message) -> Item:
        content = filled(update.get("message") or update["edited_message"])
        is_edit = update.get("message") is None
        if move := self._move(message):
            return move
        who = self._speaker(message)
        if who is None or is_service(content) or (is_edit and is_live_location(content)):
            return None
        key = f"{message.chat.id}:{message.message_id}"
        told = self._addressed(message)
        return InboundMessage(
            address=self._address(message),
            chat_kind=_chat_kind(message),
            sender=who[0],
            sender_name=who[1],
            text=spoken(message, self.bot),
            dedupe_key=f"{key}:e{update['update_id']}" if is_edit else key,
            raw=_raw(update),
            message_ref=str(message.message_id),
            kind="edit" if is_edit else "message",
            attachments=attachments(message) or _answered_files(message, told),
            unreadable=unreadable(content, message),
            addressed=told,
        )

    def _press(self, update: Any, query: CallbackQuery) -> InboundMessage | None:
        """A button says its text; one of a message nobody knows (any more) says nothing."""
        if query.message is None or not query.data or query.message.chat.type not in _CHAT_TYPES:
            return None
        return InboundMessage(
            address=self._address(query.message),
            chat_kind=_chat_kind(query.message),
            sender=str(query.sender.id),
            sender_name=_name(query.sender),
            text=query.data,
            dedupe_key=f"{PRESS_PREFIX}{query.id}",
            raw=_raw(update),
            pressed=True,
        )

    def _move(self, message: Message) -> Move | None:
        """Both chats tell of it, the old one and the new one."""
        old, new = message.chat.id, message.migrate_to_chat_id
        if message.migrate_from_chat_id is not None:
            old, new = message.migrate_from_chat_id, message.chat.id
        if new is None:
            return None
        return Move(PLATFORM, self._account, str(old), str(new))

    def _speaker(self, message: Message) -> tuple[str, str] | None:
        """Return id and name of who speaks; None for bots, the own one, and posts of channels.

        Who speaks in a group's or a channel's name (an anonymous administrator) has its id.
        """
        if message.is_automatic_forward:
            return None
        if message.sender_chat is not None:
            return str(message.sender_chat.id), _title(message.sender_chat, message)
        user = message.sender
        if user.id == self.bot.id or (user.is_bot and str(user.id) not in self._allow_bots):
            return None
        return str(user.id), _name(user)

    def _addressed(self, message: Message) -> Addressing:
        album = message.chat.id, message.media_group_id
        return "direct" if album in self._albums else addressed(message, self.bot)

    def _address(self, message: Message) -> Address:
        thread = None if message.thread is None else str(message.thread)
        return Address(PLATFORM, self._account, str(message.chat.id), thread)


def poison(update: Any, account: str, reason: str) -> Poison:
    """Return an update as Poison; it is named by its id, or by its bytes where it has none."""
    raw = _raw(update)
    number = update_id(update)
    key = f"x{hashlib.sha256(raw.encode()).hexdigest()[:32]}" if number is None else f"u{number}"
    return Poison(source=source_name(account), dedupe_key=key, raw=raw, reason=reason)


def update_id(update: Any) -> int | None:
    """Return the number of an update, None where it has none."""
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def source_name(account: str) -> str:
    """Return the name of an account's update stream, for its cursor and its poison."""
    return f"{PLATFORM}:{account}"


def _raw(update: Any) -> str:
    return _JSON.encode(update)


def _answered_files(message: Message, told: Addressing) -> tuple[Attachment, ...]:
    """Return the file of what a question is a reply to: "@bot, what is this?"."""
    if told != "direct" or not message.words.strip() or message.words.startswith("/"):
        return ()
    return attachments(message.reply_to_message)


def _chat_kind(message: Message) -> ChatKind:
    if message.chat.type == "private":
        return "dm"
    return "group" if message.thread is None else "thread"


def _name(user: User) -> str:
    return f"{user.first_name} {user.last_name}".strip() or user.username or str(user.id)


def _title(chat: Chat, message: Message) -> str:
    return message.author_signature or chat.title or str(chat.id)


def _log_membership(change: Membership) -> None:
    log.info(
        "telegram_membership_changed",
        chat=str(change.chat.id),
        status=change.new_chat_member.status,
    )
