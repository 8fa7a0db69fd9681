"""The parts of the Bot API's JSON that Parley reads; what is not used is not looked at.

Types are strict, so that a broken update is noticed; new kinds of content never spoil a text. All
offsets of Telegram count UTF-16 units.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from adapters.wire import Text, WirePart


class User(WirePart):
    """A person or a bot."""

    id: int
    is_bot: bool = False
    first_name: Text = ""
    last_name: Text = ""
    username: Text = ""

    @property
    def name(self) -> str:
        """What people see in front of what this account says."""
        return f"{self.first_name} {self.last_name}".strip() or self.username or str(self.id)


class Chat(WirePart):
    """A chat; `type` is private, group, supergroup or channel."""

    id: int
    type: str
    title: Text = ""

    @property
    def name(self) -> str:
        """What people see as its title."""
        return self.title or str(self.id)


class Entity(WirePart):
    """Something special in a text, such as a mention."""

    type: str
    offset: int = Field(ge=0)
    length: int = Field(ge=0)
    user: User | None = None
    url: Text = ""


class Quote(WirePart):
    """The part of a message that a reply picked out."""

    text: Text = ""
    entities: list[Entity] = Field(default_factory=list)


class FilePart(WirePart):
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
        """What was written: the text, or the caption of a file."""
        return self.text or self.caption

    @property
    def marks(self) -> list[Entity]:
        """The entities of `words`."""
        return self.entities if self.text else self.caption_entities


class MessageOrigin(WirePart):
    """Who wrote a message that was forwarded or is quoted from another chat.

    Of somebody who hides it only a name is told, which anybody can choose.
    """

    sender_user: User | None = None
    sender_user_name: Text = ""
    sender_chat: Chat | None = None
    chat: Chat | None = None
    author_signature: Text = ""

    @property
    def name(self) -> str:
        """What people see as the author, in one line."""
        told = self.sender_user or self.sender_chat or self.chat
        names = (told.name if told else self.sender_user_name, self.author_signature)
        return " ".join(", ".join(filter(None, names)).split()) or "unknown"

    @property
    def author(self) -> str | None:
        """The id of the person, group or channel; None where it is not told."""
        told = self.sender_user or self.sender_chat or self.chat
        return None if told is None else str(told.id)


class ExternalReply(Content):
    """A message of another chat that is replied to; its text comes as the quote."""

    origin: MessageOrigin = MessageOrigin()


class Replied(Content):
    """The message that was replied to."""

    sender: User | None = Field(default=None, alias="from")
    sender_chat: Chat | None = None
    forward_origin: MessageOrigin | None = None
    via_bot: User | None = None
    forum_topic_created: Any = None


# Posts of a channel have no sender; they are left aside like those of other bots.
_NOBODY = User(id=0, is_bot=True)


class Message(Content):
    """A message; of one with a pressed button little may be known."""

    message_id: int
    chat: Chat
    sender: User = Field(default=_NOBODY, alias="from")
    sender_chat: Chat | None = None
    author_signature: Text = ""
    is_automatic_forward: bool = False
    message_thread_id: int | None = None
    is_topic_message: bool = False
    reply_to_message: Replied | None = None
    external_reply: ExternalReply | None = None
    forward_origin: MessageOrigin | None = None
    via_bot: User | None = None
    quote: Quote | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None

    @property
    def thread(self) -> int | None:
        """The forum topic; a plain chain of replies has a thread id as well, and is none."""
        return self.message_thread_id if self.is_topic_message else None


class CallbackQuery(WirePart):
    """A pressed button."""

    id: Text = Field(min_length=1)
    sender: User = Field(alias="from")
    message: Message | None = None
    data: Text | None = None


class MemberStatus(WirePart):
    """What a member of a chat may do there."""

    status: str


class Membership(WirePart):
    """The bot was added to a chat, thrown out or blocked."""

    chat: Chat
    new_chat_member: MemberStatus


class Update(WirePart):
    """One update; it has exactly one of the optional parts."""

    update_id: int
    message: Message | None = None
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None
    my_chat_member: Membership | None = None


def cut(text: str, start: int, end: int | None) -> str:
    """Return the part of a text between two offsets in UTF-16 units."""
    # Python counts code points: behind an emoji its indices are not Telegram's.
    units = text.encode("utf-16-le")
    return units[2 * start : None if end is None else 2 * end].decode("utf-16-le", "replace")


def marked(text: str, mark: Entity) -> str:
    """Return what an entity covers."""
    return cut(text, mark.offset, mark.offset + mark.length)


def with_links(text: str, marks: Sequence[Entity], start: int = 0) -> str:
    """Return a text from an offset on, with the address of each link behind its words."""
    parts: list[str] = []
    ends = sorted((mark.offset + mark.length, mark.url) for mark in marks if mark.url)
    for end, url in ends:
        said = cut(text, start, end)
        if end > start and not said.endswith(url):
            parts.append(f"{said} ({url})")
            start = end
    return "".join(parts) + cut(text, start, None)
