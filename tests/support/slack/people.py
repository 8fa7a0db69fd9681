"""What people do in the workspace, and the events that Slack makes of it."""

from collections.abc import Sequence
from typing import Any, Literal

from tests.support.slack import events
from tests.support.slack.delivery import Delivering, Delivery
from tests.support.slack.faults import Json
from tests.support.slack.webapi import WebApi
from tests.support.slack.workspace import (
    Channel,
    ChannelKind,
    File,
    Identity,
    Message,
    Person,
    Workspace,
)

ANN = "U0ANN"
"""A person who is in every new workspace."""
BOB = "U0BOB"
OTHER_BOT = "U0OTHER"
GENERAL = "C0GENERAL"
"""A channel in every new workspace; the bot is in it."""
ANNS_DM = "D0ANN"


class People:
    """The people's side of the server.

    Attributes:
        api: The Web API: scopes, limits, recorded statuses, titles, uploads, posts per channel.
        delivering: Socket Mode and HTTP deliveries: connections, acknowledgements, `url`, times.
        echo: Whether the app gets its own posts and edits as events, as Slack does it.
        violations: What a correct app never does; tests assert that it is empty.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.echo = True
        self.violations: list[str] = []
        self.workspace = Workspace(identity)
        self.api = WebApi(self.workspace, self.violations)
        self.api.on_new, self.api.on_change = self._echo_new, self._echo_change
        self.api.on_delete = self._echo_delete
        self.delivering = Delivering(identity, self.violations)
        self._furnish()

    def _furnish(self) -> None:
        self.workspace.add_person(Person(ANN, "ann"))
        self.workspace.add_person(Person(BOB, "bob"))
        self.workspace.add_person(Person(OTHER_BOT, "otherbot", "B0OTHER"))
        self.add_channel(GENERAL, "channel", "general")
        self.add_channel(ANNS_DM, "im", user=ANN)

    def add_channel(
        self, channel: str, kind: ChannelKind = "channel", name: str = "", user: str | None = None
    ) -> Channel:
        """Add a channel that the bot is in, or a direct one with `user`."""
        self.workspace.channels[channel] = Channel(channel, kind, name or channel.lower(), user)
        return self.workspace.channels[channel]

    def add_file(self, name: str, content: bytes, mime: str, **changes: Any) -> File:
        """Add a file that a message may carry; `changes` are further fields of it."""
        file_id = f"F0IN{self.workspace.number()}"
        file = File(file_id, name, mime, content, len(content), ANN)
        for field_name, value in changes.items():
            setattr(file, field_name, value)
        self.workspace.files[file_id] = file
        return file

    def write(
        self,
        channel: str,
        text: str,
        user: str = ANN,
        *,
        thread: str | None = None,
        mention: bool = False,
        first: Literal["message", "app_mention"] = "message",
        files: Sequence[File] = (),
        subtype: str | None = None,
        tell: bool = True,
    ) -> str:
        """Let somebody write; returns the timestamp.

        A `mention` of the bot is put in front, and in a channel makes a second event; `first` says
        which of the two comes first. Without `tell` there are no events: the app was not there.
        """
        if mention:
            text = f"<@{self.identity.user}> {text}"
        person = self.workspace.people[user]
        message = Message(channel, self.workspace.new_ts(), user, text, person.bot)
        message.app = "A0OTHER" if person.bot else None
        message.thread, message.files = thread, list(files)
        message.subtype = subtype or ("file_share" if files else None)
        self.workspace.all_messages.append(message)
        for file in files:
            file.shares.append((channel, message.ts))
        if tell:
            self._tell_of(message, mention=mention, first=first)
        return message.ts

    def bot_writes(self, channel: str, text: str, thread: str | None = None) -> str:
        """Let a message of the bot stand there that it does not know of; returns its timestamp."""
        identity = self.identity
        message = Message(channel, self.workspace.new_ts(), identity.user, text, identity.bot)
        message.app, message.thread = identity.app, thread
        self.workspace.all_messages.append(message)
        return message.ts

    def edit(self, channel: str, ts: str, text: str) -> None:
        """Let somebody change what they wrote."""
        message = self.workspace.get(channel, ts)
        before = events.message_json(self.workspace, message, root=self.api.root)
        message.text, message.edited_ts = text, self.workspace.new_ts()
        message.edits += 1
        self.tell(events.changed_event(self.workspace, message, before, self.api.root))

    def unfurl(self, channel: str, ts: str) -> None:
        """Let Slack add the preview of a link: a change that nobody made."""
        message = self.workspace.get(channel, ts)
        before = events.message_json(self.workspace, message, root=self.api.root)
        message.attachments.append({"id": 1, "from_url": "https://example.com", "text": "unfurled"})
        self.tell(events.changed_event(self.workspace, message, before, self.api.root))

    def delete(self, channel: str, ts: str, *, tell: bool = True) -> None:
        """Let somebody delete a message, of the bot's too."""
        message = self.workspace.get(channel, ts)
        before = events.message_json(self.workspace, message, root=self.api.root)
        self.workspace.delete(message)
        if tell:
            self.tell(events.deleted_event(self.workspace, message, before))

    def press(self, channel: str, ts: str, label: str, user: str = ANN) -> Delivery:
        """Let somebody press a button of the bot."""
        message = self.workspace.get(channel, ts)
        root = self.api.root
        payload = events.block_actions(self.workspace, message, label, user, root)
        return self.delivering.deliver("interactive", payload)

    def slash(self, channel: str, text: str, user: str = ANN, command: str = "/parley") -> Delivery:
        """Let somebody use a slash command; nobody else sees it."""
        root = self.api.root
        payload = events.slash_command(self.workspace, channel, user, (command, text), root)
        return self.delivering.deliver("slash_commands", payload)

    def open_assistant(self, channel: str = ANNS_DM) -> str:
        """Let somebody open a new assistant thread in a direct channel; returns its timestamp."""
        identity = self.identity
        root = Message(channel, self.workspace.new_ts(), identity.user, "New Assistant Thread")
        root.bot, root.app, root.subtype = identity.bot, identity.app, "assistant_app_thread"
        self.workspace.all_messages.append(root)
        where = self.workspace.channels[channel]
        self.tell(events.thread_started_event(self.workspace, where, root.ts))
        return root.ts

    def stop_stream(self, channel: str, ts: str) -> None:
        """Let somebody press Stop on a streaming message."""
        stream = self.workspace.get(channel, ts).stream
        assert stream is not None
        stream.stopped_by_user, stream.open = True, False

    def _tell_of(self, message: Message, *, mention: bool, first: str) -> None:
        told = [events.message_event(self.workspace, message, self.api.root)]
        if mention and self.workspace.channels[message.channel].kind != "im":
            told.append(events.mention_event(self.workspace, message, self.api.root))
        for event in told if first == "message" else reversed(told):
            self.tell(event)

    def tell(self, event: Json) -> None:
        """Deliver an event of any shape; `event_ts` is needed."""
        payload = events.event_callback(self.workspace, event)
        self.delivering.deliver("events_api", payload)

    def _echo_new(self, message: Message) -> None:
        if self.echo:
            self.tell(events.message_event(self.workspace, message, self.api.root))

    def _echo_change(self, message: Message, before: Json) -> None:
        if self.echo:
            self.tell(events.changed_event(self.workspace, message, before, self.api.root))

    def _echo_delete(self, message: Message, before: Json) -> None:
        if self.echo:
            self.tell(events.deleted_event(self.workspace, message, before))
