"""Decoded Telegram updates with the fields that Parley uses.

Offsets count UTF-16 units.
"""

from typing import Any

from pydantic import Field, ValidationError

from adapters.messages import Poison, Text, WirePart, describe_flaw, poison, raw_json

PLATFORM = "telegram"


class User(WirePart):
    """A person or a bot."""

    id: int
    is_bot: bool = False
    first_name: Text = ""
    last_name: Text = ""
    username: Text = ""

    @property
    def name(self) -> str:
        """The displayed name."""
        return f"{self.first_name} {self.last_name}".strip() or self.username or str(self.id)


class Chat(WirePart):
    """A chat; `type` is private, group, supergroup or channel."""

    id: int
    type: str
    title: Text = ""

    @property
    def name(self) -> str:
        """The displayed title."""
        return self.title or str(self.id)


class Entity(WirePart):
    """A marked part of a text, such as a mention."""

    type: str
    offset: int = Field(ge=0)
    length: int = Field(ge=0)
    user: User | None = None
    url: Text = ""


class Quote(WirePart):
    """The quoted part of a message in a reply."""

    text: Text = ""
    entities: list[Entity] = Field(default_factory=list)


class FilePart(WirePart):
    """A file of any kind: photo size, document, voice message, sticker."""

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
    """A message's text and files."""

    message_id: int = 0
    media_group_id: Text = ""
    text: Text = ""
    caption: Text = ""
    entities: list[Entity] = Field(default_factory=list)
    caption_entities: list[Entity] = Field(default_factory=list)
    photo: list[FilePart] = Field(default_factory=list)
    document: FilePart | None = None
    voice: FilePart | None = None
    audio: FilePart | None = None
    video: FilePart | None = None
    video_note: FilePart | None = None
    animation: FilePart | None = None
    sticker: FilePart | None = None

    @property
    def words(self) -> str:
        """The text or a file's caption."""
        return self.text or self.caption

    @property
    def marks(self) -> list[Entity]:
        """The entities of `words`."""
        return self.entities if self.text else self.caption_entities


class MessageOrigin(WirePart):
    """The author of a message forwarded or quoted from another chat.

    A hidden account is only a name, which is not trustworthy.
    """

    sender_user: User | None = None
    sender_user_name: Text = ""
    sender_chat: Chat | None = None
    chat: Chat | None = None
    author_signature: Text = ""

    @property
    def name(self) -> str:
        """The author's displayed name, in one line."""
        told = self.sender_user or self.sender_chat or self.chat
        names = (told.name if told else self.sender_user_name, self.author_signature)
        return " ".join(", ".join(filter(None, names)).split()) or "unknown"

    @property
    def author(self) -> str | None:
        """The id of the user, group or channel; None if hidden."""
        told = self.sender_user or self.sender_chat or self.chat
        return None if told is None else str(told.id)


class _ExternalReply(Content):
    """A replied-to message of another chat; its text comes as the quote."""

    origin: MessageOrigin = MessageOrigin()


class Replied(Content):
    """The replied-to message."""

    sender: User | None = Field(default=None, alias="from")
    sender_chat: Chat | None = None
    forward_origin: MessageOrigin | None = None
    via_bot: User | None = None
    forum_topic_created: Any = None


# Channel posts have no sender; they are ignored like other bots' messages.
_NOBODY = User(id=0, is_bot=True)


class Message(Content):
    """A message; one with a pressed button may lack most fields."""

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
        """The forum topic, if any; a plain reply chain also has a thread id."""
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
    """The bot was added to a chat, removed or blocked."""

    chat: Chat
    new_chat_member: _MemberStatus


class Update(WirePart):
    """An update, with exactly one of the optional parts."""

    update_id: int
    message: Message | None = None
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None
    my_chat_member: _Membership | None = None

    @property
    def said(self) -> Message | None:
        """The new or edited message."""
        return self.message or self.edited_message


def decoded(update: Any, account: str) -> Update | Poison:
    """Decode the JSON of an update."""
    try:
        return Update.model_validate(update)
    except ValidationError as exc:
        return unread(update, account, describe_flaw(exc))


def unread(update: Any, account: str, reason: str) -> Poison:
    """Wrap an unreadable update; its key is its number, if any."""
    number = update_id(update)
    key = "" if number is None else f"u{number}"
    return poison(source_name(account), raw_json(update), reason, key)


def update_id(update: Any) -> int | None:
    """Return the number of an update, or None."""
    number = update.get("update_id") if isinstance(update, dict) else None
    # `True` is an int, too.
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def source_name(account: str) -> str:
    """Return the source name of an account's updates, for its cursor and poison."""
    return f"{PLATFORM}:{account}"
