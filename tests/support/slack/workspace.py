"""The state behind the Slack double: channels, people, messages, threads, files. No network."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.slack.blocks import button_labels, markup_of
from tests.support.slack.faults import ApiError, Json

ChannelKind = Literal["channel", "group", "im", "mpim"]


@dataclass(frozen=True)
class Identity:
    """The app that is tested: one installation in one workspace."""

    bot_token: str = "xoxb-1-loopback-BOT"
    app_token: str = "xapp-1-A0APP-loopback"
    signing_secret: str = "loopback-signing-secret"
    team: str = "T0TEAM"
    app: str = "A0APP"
    bot: str = "B0BOT"
    user: str = "U0BOT"
    name: str = "parley"


@dataclass
class Person:
    """Somebody in the workspace; `bot` is the bot id of another app's bot."""

    id: str
    name: str
    bot: str | None = None


@dataclass
class Channel:
    """A conversation in Slack's sense; `user` is the other side of a direct one."""

    id: str
    kind: ChannelKind
    name: str
    user: str | None = None
    member: bool = True
    archived: bool = False


@dataclass
class File:
    """A file, from a person or from the bot.

    Attributes:
        claimed_bytes: What Slack says its size is.
        stub: Events carry only its id, as of a file of Slack Connect.
    """

    id: str
    name: str
    mime: str
    content: bytes
    claimed_bytes: int
    user: str
    title: str = ""
    shares: list[tuple[str, str]] = field(default_factory=list)
    stub: bool = False
    gone: bool = False


@dataclass
class Message:
    """A message as it stands now.

    Attributes:
        text: Slack's `text`: all that is shown where there are neither blocks nor markdown.
        markdown: Of a message posted with markdown_text or streamed.
        stream: How it was opened and whether it still streams; None for any other message.
        edits: How often it was changed after it was posted (appends are not counted).
        edited_ts: When its author changed it last.
    """

    channel: str
    ts: str
    user: str
    text: str
    bot: str | None = None
    app: str | None = None
    thread: str | None = None
    subtype: str | None = None
    markdown: str | None = None
    blocks: list[Json] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    attachments: list[Json] = field(default_factory=list)
    metadata: Json | None = None
    reactions: dict[str, list[str]] = field(default_factory=dict)
    edits: int = 0
    edited_ts: str | None = None
    stream: "Stream | None" = None
    tombstone: bool = False

    @property
    def shown(self) -> str:
        """What people read: blocks win over text, as in Slack's clients."""
        if self.markdown is not None:
            return self.markdown
        return markup_of(self.blocks) or self.text

    @property
    def buttons(self) -> list[str]:
        """The labels of its buttons."""
        return button_labels(self.blocks)


@dataclass
class Stream:
    """The state of chat.startStream … chat.stopStream; the mode is that of the first content."""

    opened_at: float
    mode: Literal["markdown_text", "chunks"] | None = None
    open: bool = True
    stopped_by_user: bool = False
    appends: int = 0


class Workspace:
    """One workspace; ids and timestamps are unique in it and grow."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.channels: dict[str, Channel] = {}
        self.people: dict[str, Person] = {}
        self.files: dict[str, File] = {}
        self.all_messages: list[Message] = []
        self._last_us = 0
        self._numbers = 0
        self.add_person(Person(identity.user, identity.name, identity.bot))

    def add_person(self, person: Person) -> None:
        """Make somebody known."""
        self.people[person.id] = person

    def number(self) -> int:
        """Return the next number of this workspace."""
        self._numbers += 1
        return self._numbers

    def new_ts(self) -> str:
        """Return a new timestamp: now, and later than any before."""
        self._last_us = max(self._last_us + 1, int(time.time() * 1_000_000))
        return f"{self._last_us // 1_000_000}.{self._last_us % 1_000_000:06d}"

    def channel(self, channel_id: Any, *, write: bool = False) -> Channel:
        """Return a channel that the bot may read, or write in."""
        channel = self.channels.get(str(channel_id))
        if channel is None:
            raise ApiError("channel_not_found")
        if not channel.member:
            raise ApiError("not_in_channel" if channel.kind == "channel" else "channel_not_found")
        if write and channel.archived:
            raise ApiError("is_archived")
        return channel

    def find(self, channel: str, ts: Any) -> Message | None:
        """Return the message with this timestamp, if it is there."""
        for message in self.all_messages:
            if (message.channel, message.ts) == (channel, str(ts)):
                return message
        return None

    def get(self, channel: str, ts: Any) -> Message:
        """Return a message that was not deleted, or answer message_not_found."""
        message = self.find(channel, ts)
        if message is None or message.tombstone:
            raise ApiError("message_not_found")
        return message

    def replies(self, channel: str, thread: str) -> list[Message]:
        """Return the replies in a thread, in order, without its parent."""
        return [m for m in self.all_messages if (m.channel, m.thread) == (channel, thread)]

    def in_channel(self, channel: str, thread: str | None = None) -> list[Message]:
        """Return what stands in a channel or thread, in order."""
        return [
            message
            for message in self.all_messages
            if (message.channel, message.thread) == (channel, thread) and not message.tombstone
        ]

    def delete(self, message: Message) -> None:
        """Delete a message; the parent of replies leaves a tombstone."""
        if self.replies(message.channel, message.ts):
            message.text, message.subtype, message.tombstone = "", "tombstone", True
        else:
            self.all_messages.remove(message)

    def thread_exists(self, channel: str, thread: str) -> bool:
        """Whether replies to this timestamp appear in a thread."""
        parent = self.find(channel, thread)
        return parent is not None and parent.thread is None

    def own(self) -> Iterator[Message]:
        """Yield everything that the bot has posted, in order."""
        return (message for message in self.all_messages if message.bot == self.identity.bot)
