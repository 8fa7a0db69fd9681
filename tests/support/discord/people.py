"""What people do at the Discord double: write, edit, open threads, press buttons, use commands."""

from typing import Any

from tests.support.discord.gateway import GUILDS, Gateway
from tests.support.discord.interactions import Interaction, Interactions, command_data
from tests.support.discord.rest import Rest
from tests.support.discord.world import (
    DEFAULT,
    FORUM,
    JOIN,
    PUBLIC_THREAD,
    REPLY,
    TEXT,
    THREAD_CREATED,
    VOICE,
    Bot,
    Channel,
    Message,
    Person,
    World,
    edited_at,
)

Files = tuple[tuple[str, str, bytes], ...]


class People:
    """A guild with one bot, Ann and one channel, and what happens in it, and in other guilds.

    Attributes:
        bot: The first bot.
        ann: A person in the guild.
        general: A text channel.
        gateway: Sessions and the faults of the websocket.
        rest: Counters and windows of the routes (nonce_window_s, max_threads, syncs, typing).
        interactions: Slash commands and pressed buttons with their answers.
    """

    def __init__(
        self, world: World, bots: dict[str, Bot], gateway: Gateway, bot: tuple[str, str]
    ) -> None:
        self._world = world
        self._bots = bots
        self.gateway = gateway
        self.rest = Rest(world, gateway)
        self.interactions = Interactions(world, gateway, self.rest)
        self.bot = self.add_bot(*bot)
        self.ann = self.add_person("Ann")
        self.general = self.add_channel("general")

    @property
    def guild(self) -> int:
        """The id of the first guild."""
        return self._world.guild

    def add_guild(self, shard: int, of: int) -> int:
        """Make another guild, whose events come over one of so many shards; the bots join it."""
        guild = self._world.add_guild(shard, of)
        self.gateway.emit_guild(guild)
        return guild

    def add_bot(self, token: str, name: str, *, privileged: bool = True) -> Bot:
        """Make another bot, a member of the guild."""
        bot = Bot(self._world.new_id(), name, token=token, privileged=privileged)
        self._world.people[bot.id] = self._bots[token] = bot
        return bot

    def add_person(self, name: str, *, bot: bool = False) -> Person:
        """Make a person, or somebody else's bot."""
        person = Person(self._world.new_id(), name, bot)
        self._world.people[person.id] = person
        return person

    def add_channel(self, name: str, *, forum: bool = False, guild: int | None = None) -> Channel:
        """Make a text channel or a forum; bots that are connected hear of it."""
        channel = self.rest.add_channel(FORUM if forum else TEXT, name, guild=guild)
        self.gateway.emit("CHANNEL_CREATE", channel.json(), GUILDS)
        return channel

    def direct(self, person: Person | None = None, bot: Bot | None = None) -> Channel:
        """Return the direct chat of a person (Ann) with a bot (the first)."""
        return self.rest.direct(bot or self.bot, person or self.ann)

    def channel(self, ref: str | int) -> Channel:
        """Return a channel or thread by its id."""
        return self._world.channels[int(ref)]

    def thread_of(self, message: Message) -> Channel:
        """Return the thread that was opened on a message."""
        assert message.thread is not None, "no thread was opened"
        return message.thread

    def write(
        self,
        channel: Channel,
        text: str,
        *,
        author: Person | None = None,
        mention: Bot | bool = False,
        reply_to: Message | None = None,
        ping: bool = True,
        files: Files = (),
        voice: bool = False,
        **extra: Any,
    ) -> Message:
        """Let a person write; `extra` goes into the JSON.

        `mention` begins the text with a mention of that bot (True: the first); `ping`: a reply also
        mentions who is answered, as Discord does by default; `files`: (name, type, bytes) each.
        """
        if mention:
            bot = self.bot if mention is True else mention
            text = f"<@{bot.id}> {text}"
        kind = DEFAULT if reply_to is None else REPLY
        message = Message(self._world.new_id(), channel, author or self.ann, text, kind)
        message.files = [self.rest.file(*part) for part in files]
        message.extra = extra
        if voice:
            message.flags |= VOICE
            for file in message.files:
                file.extra = {"duration_secs": 1.5, "waveform": "AAAA"}
        if reply_to is not None:
            self._quote(message, reply_to, ping=ping)
        if channel.archived:
            channel.archived = False
            self.gateway.emit("THREAD_UPDATE", channel.json(), GUILDS)
        self.rest.post(message)
        return message

    def edit(self, message: Message, text: str) -> None:
        """Let its author change a message."""
        message.content = text
        message.edits += 1
        message.edited_at = edited_at(self._world.new_id())
        self.gateway.emit_message("MESSAGE_UPDATE", message)

    def unfurl(self, message: Message) -> None:
        """Let Discord add a link's preview: an update that is no edit."""
        message.embeds = [{"type": "link", "url": "https://example.org", "title": "Example"}]
        self.gateway.emit_message("MESSAGE_UPDATE", message)

    def delete(self, message: Message) -> None:
        """Delete a message."""
        self.rest.remove(message)

    def join(self, channel: Channel, person: Person | None = None) -> Message:
        """Let Discord announce a new member: a system message."""
        message = Message(self._world.new_id(), channel, person or self.ann, "", JOIN)
        self.rest.post(message)
        return message

    def open_thread(self, message: Message, name: str = "topic") -> Channel:
        """Let Ann open a thread on a message."""
        return self.rest.thread_from(message, {"name": name}, self.ann)

    def open_loose_thread(self, channel: Channel, name: str) -> Channel:
        """Let Ann open a thread without a message; the channel gets a system message."""
        thread = self._add_thread(channel, name, self._world.new_id())
        note = Message(self._world.new_id(), channel, self.ann, name, THREAD_CREATED)
        note.reference = {"type": 0, "channel_id": thread.ref, "guild_id": str(self.guild)}
        self.rest.post(note)
        return thread

    def post(self, forum: Channel, title: str, text: str, **how: Any) -> Message:
        """Let a person open a forum post; its first message has the post's own id."""
        thread = self._add_thread(forum, title, self._world.new_id())
        mention = how.pop("mention", False)
        if mention:
            text = f"<@{self.bot.id}> {text}"
        message = Message(thread.id, thread, how.pop("author", self.ann), text)
        message.files = [self.rest.file(*part) for part in how.pop("files", ())]
        self.rest.post(message)
        return message

    def archive(self, thread: Channel, *, locked: bool = False) -> None:
        """Archive a thread; a locked one is not opened by writing."""
        thread.archived, thread.locked = True, locked
        self.gateway.emit("THREAD_UPDATE", thread.json(), GUILDS)

    def delete_channel(self, channel: Channel) -> None:
        """Delete a channel or thread."""
        channel.deleted = True
        name = "THREAD_DELETE" if channel.is_thread else "CHANNEL_DELETE"
        self.gateway.emit(name, channel.json(), GUILDS)

    def slash(
        self,
        name: str,
        text: str = "",
        *,
        channel: Channel | None = None,
        author: Person | None = None,
        bot: Bot | None = None,
    ) -> Interaction:
        """Let a person use a slash command that the bot has registered."""
        bot = bot or self.bot
        command = next((c for c in bot.commands if c["name"] == name), None)
        assert command is not None, f"/{name} is not registered"
        data = command_data(command, text)
        place, person = channel or self.general, author or self.ann
        return self._interact(Interaction(0, "", bot, person, place, 2, data))

    def press(self, message: Message, label: str, *, author: Person | None = None) -> Interaction:
        """Let a person press a button of a message."""
        button = next((b for b in message.buttons if b.get("label") == label), None)
        assert button is not None, f"no button {label!r} on {message.components}"
        assert not button.get("disabled"), f"the button {label!r} is disabled"
        assert isinstance(message.author, Bot)
        data = {"custom_id": button["custom_id"], "component_type": 2}
        person, place = author or self.ann, message.channel
        return self._interact(Interaction(0, "", message.author, person, place, 3, data, message))

    def expire_links(self) -> None:
        """Let every attachment link given out so far be dead."""
        self._world.link_epoch += 1
        self._world.oldest_link_epoch = self._world.link_epoch

    def revoke(self, bot: Bot | None = None) -> None:
        """Reset a bot's token: 401 everywhere, and the gateway closes with 4004."""
        revoked = bot or self.bot
        revoked.revoked = True
        self.gateway.close_all(4004, revoked)

    def _quote(self, message: Message, answered: Message, *, ping: bool) -> None:
        message.reply_to = answered
        message.reference = {
            "type": 0,
            "message_id": answered.ref,
            "channel_id": answered.channel.ref,
        }
        if answered.channel.guild:
            message.reference["guild_id"] = str(answered.channel.guild)
        message.pinged = [answered.author] if ping else []

    def _add_thread(self, parent: Channel, name: str, thread_id: int) -> Channel:
        fields = {"parent": parent, "owner": self.ann.id, "channel_id": thread_id}
        thread = self.rest.add_channel(PUBLIC_THREAD, name, **fields)
        self.gateway.emit("THREAD_CREATE", thread.json() | {"newly_created": True}, GUILDS)
        return thread

    def _interact(self, interaction: Interaction) -> Interaction:
        interaction.id = self._world.new_id()
        interaction.token = f"aW50ZXJhY3Rpb246{interaction.id}"
        return self.interactions.begin(interaction)
