"""The REST routes of the Discord double that a bot's messages, threads and reactions need.

Source: https://docs.discord.com/developers/reference and the pages of the resources
"""

import time
from dataclasses import dataclass
from typing import Any

from tests.support.discord.bodies import (
    Body,
    check_commands,
    check_message,
    check_thread,
)
from tests.support.discord.faults import Refusal, bad_field
from tests.support.discord.gateway import (
    DIRECT_REACTIONS,
    GUILD_REACTIONS,
    GUILDS,
    Gateway,
)
from tests.support.discord.world import (
    DEFAULT,
    DM,
    FORUM,
    HAS_THREAD,
    PUBLIC_THREAD,
    REPLY,
    STARTER,
    TEXT,
    Bot,
    Channel,
    File,
    Json,
    Message,
    Person,
    World,
    edited_at,
    may_read,
    without_content,
)

_SYSTEM_KINDS = frozenset({7, 18, 21})


@dataclass(frozen=True)
class Asked:
    """One request: by whom, for what (the variables of the path), with which query and body."""

    bot: Bot
    path: dict[str, str]
    query: dict[str, str]
    body: Body

    def number(self, name: str) -> int:
        """Return an id of the path."""
        text = self.path[name]
        if not text.isdecimal():
            raise bad_field(name, "NUMBER_TYPE_COERCE", f'Value "{text}" is not snowflake.')
        return int(text)


class Rest:
    """What the routes do; each method returns the JSON of the answer, or None for 204.

    Attributes:
        nonce_window_s: How long a nonce is remembered.
        max_threads: How many threads may be active.
        syncs: How often a bot's commands were overwritten.
        typing: (channel, monotonic time) of every typing signal.
        violations: What a correct bot never does.
    """

    def __init__(self, world: World, gateway: Gateway) -> None:
        self._world = world
        self._gateway = gateway
        self.nonce_window_s = 300.0
        self.max_threads = 1000
        self.syncs = 0
        self.typing: list[tuple[int, float]] = []
        self.violations: list[str] = []
        self._nonces: dict[tuple[int, str], tuple[float, Message]] = {}

    def forget_nonces(self) -> None:
        """Let the window of every nonce be over."""
        self._nonces.clear()

    def me(self, asked: Asked) -> Json:
        return asked.bot.json() | {"verified": True, "mfa_enabled": False, "locale": "en-US"}

    def application(self, asked: Asked) -> Json:
        bot = asked.bot
        return {
            "id": str(bot.id),
            "name": bot.name,
            "icon": None,
            "description": "",
            "bot_public": False,
            "bot_require_code_grant": False,
            "verify_key": "0" * 64,
            "flags": (1 << 18 if bot.privileged else 0) | 1 << 23,
            "owner": {"id": "1", "username": "owner", "discriminator": "0", "avatar": None},
            "team": None,
            "summary": "",
            "bot": bot.json(),
        }

    def gateway_url(self, asked: Asked) -> Json:
        limit = {"total": 1000, "remaining": 1000, "reset_after": 0, "max_concurrency": 1}
        return {"url": self._gateway.url, "shards": 1, "session_start_limit": limit}

    def open_direct(self, asked: Asked) -> Json:
        person = self._world.people.get(int(asked.body.data.get("recipient_id", 0)))
        if person is None or person.bot:
            raise Refusal(400, 50033, "Invalid Recipient(s)")
        return self.direct(asked.bot, person).json()

    def direct(self, bot: Bot, person: Person) -> Channel:
        """Return the direct chat of a bot and a person, opened on first use."""
        for channel in self._world.channels.values():
            if channel.kind == DM and channel.people == (bot, person):
                return channel
        return self.add_channel(DM, person.name, people=(bot, person))

    def add_channel(self, kind: int, name: str, **fields: Any) -> Channel:
        """Make a channel, without telling anybody."""
        parent: Channel | None = fields.get("parent")
        its = fields.pop("guild", None) or (parent.guild if parent else self._world.guild)
        guild = None if kind == DM else its
        channel_id = fields.pop("channel_id", None) or self._world.new_id()
        channel = Channel(channel_id, kind, name, guild, **fields)
        self._world.channels[channel.id] = channel
        return channel

    def channel(self, asked: Asked) -> Json:
        return self._channel(asked).json()

    def change_channel(self, asked: Asked) -> Json:
        channel = self._channel(asked)
        data = asked.body.data
        if not channel.is_thread:
            raise Refusal(403, 50013, "Missing Permissions")
        if channel.locked and "locked" not in data:
            raise Refusal(400, 160005, "Thread is locked")
        if channel.archived and not data.keys() <= {"archived", "locked"}:
            raise Refusal(400, 50083, "Thread is archived")
        channel.archived = data.get("archived", channel.archived)
        channel.locked = data.get("locked", channel.locked)
        channel.name = data.get("name", channel.name)
        self._gateway.emit("THREAD_UPDATE", channel.json(), GUILDS)
        return channel.json()

    def active_threads(self, asked: Asked) -> Json:
        guild = asked.number("guild")
        if guild not in self._world.guilds:
            raise Refusal(404, 10004, "Unknown Guild")
        return {"threads": [each.json() for each in self._world.threads(guild)], "members": []}

    def archived_threads(self, asked: Asked) -> Json:
        channel = self._channel(asked)
        found = [c for c in self._world.channels.values() if c.parent is channel and c.archived]
        threads = [c.json() for c in reversed(found) if not c.deleted]
        return {"threads": threads, "members": [], "has_more": False}

    def join(self, asked: Asked) -> None:
        channel = self._channel(asked)
        if channel.archived:
            raise Refusal(400, 50083, "Thread is archived")

    def history(self, asked: Asked) -> list[Json]:
        channel = self._channel(asked)
        limit = int(asked.query.get("limit", "50"))
        if not 1 <= limit <= 100:
            text = "int value should be between 1 and 100."
            raise bad_field("limit", "NUMBER_TYPE_MAX", text)
        if "history" in channel.forbidden:
            return []
        found = channel.messages
        if "after" in asked.query:
            found = [m for m in found if m.id > int(asked.query["after"])][:limit]
        if "before" in asked.query:
            found = [m for m in found if m.id < int(asked.query["before"])]
        return [self._shown_to(asked.bot, message) for message in reversed(found[-limit:])]

    def message(self, asked: Asked) -> Json:
        return self._shown_to(asked.bot, self._message(asked))

    def send(self, asked: Asked) -> Json:
        channel = self._channel(asked)
        self._check_may_send(channel, asked.body)
        check_message(asked.body)
        self.check_mentions(asked.body.data)
        known = self._by_nonce(asked)
        if known is not None:
            return self._world.message_json(known, new=True)
        message = self._new_message(asked, channel)
        self._wake(channel)
        self.post(message)
        self._remember_nonce(asked, message)
        return self._world.message_json(message, new=True)

    def edit(self, asked: Asked) -> Json:
        message = self._message(asked)
        if message.channel.archived:
            raise Refusal(400, 50083, "Thread is archived")
        if message.author is not asked.bot:
            raise Refusal(403, 50005, "Cannot edit a message authored by another user")
        self.change(message, asked.body)
        return self._world.message_json(message)

    def change(self, message: Message, body: Body) -> None:
        """Carry out an edit and tell everybody."""
        check_message(body, editing=True)
        if "content" in body.data:
            self.check_mentions(body.data)
            message.content = body.data["content"] or ""
        message.components = body.data.get("components", message.components)
        message.files += [self.file(*part) for part in body.files]
        message.edited_at, message.edits = edited_at(self._world.new_id()), message.edits + 1
        self._gateway.emit_message("MESSAGE_UPDATE", message)

    def delete(self, asked: Asked) -> None:
        message = self._message(asked)
        if message.channel.archived:
            raise Refusal(400, 50083, "Thread is archived")
        if message.author is not asked.bot:
            raise Refusal(403, 50013, "Missing Permissions")
        self.remove(message)

    def remove(self, message: Message) -> None:
        """Delete a message and tell everybody."""
        message.channel.messages.remove(message)
        data: Json = {"id": str(message.id), "channel_id": str(message.channel.id)}
        if message.channel.guild:
            data["guild_id"] = str(message.channel.guild)
        self._gateway.emit("MESSAGE_DELETE", data)

    def open_thread(self, asked: Asked) -> Json:
        message = self._message(asked)
        if "threads" in message.channel.forbidden:
            raise Refusal(403, 50013, "Missing Permissions")
        check_thread(asked.body.data)
        return self.thread_from(message, asked.body.data, asked.bot).json()

    def thread_from(self, message: Message, data: Json, owner: Person) -> Channel:
        """Open a thread on a message; its id is the message's.

        Raises:
            Refusal: The message has one, or cannot have one, or there are too many.
        """
        parent = message.channel
        if message.thread is not None:
            text = "A thread has already been created for this message"
            raise Refusal(400, 160004, text)
        if parent.kind != TEXT or message.kind in _SYSTEM_KINDS:
            raise Refusal(400, 50024, "Cannot execute action on this channel type")
        self._check_thread_cap(parent.guild or 0)
        fields = {"parent": parent, "owner": owner.id, "channel_id": message.id}
        thread = self.add_channel(PUBLIC_THREAD, data["name"], **fields)
        thread.auto_archive_min = data.get("auto_archive_duration", 1440)
        message.thread, message.flags = thread, message.flags | HAS_THREAD
        self._gateway.emit("THREAD_CREATE", thread.json() | {"newly_created": True}, GUILDS)
        self._gateway.emit_message("MESSAGE_UPDATE", message)
        self._post_starter(thread, message)
        return thread

    def _post_starter(self, thread: Channel, message: Message) -> None:
        starter = Message(self._world.new_id(), thread, message.author, "", STARTER)
        starter.reply_to = message
        starter.reference = {
            "type": 0,
            "message_id": str(message.id),
            "channel_id": str(message.channel.id),
            "guild_id": str(message.channel.guild),
        }
        self.post(starter)

    def typing_signal(self, asked: Asked) -> None:
        channel = self._channel(asked)
        self._check_may_send(channel, asked.body)
        self.typing.append((channel.id, time.monotonic()))

    def react(self, asked: Asked) -> None:
        message = self._message(asked)
        channel = message.channel
        if "react" in channel.forbidden:
            raise Refusal(403, 50013, "Missing Permissions")
        if channel.archived:
            raise Refusal(400, 50083, "Thread is archived")
        emoji = asked.path["emoji"]
        if emoji.isascii():
            raise Refusal(400, 10014, "Unknown Emoji")
        if (emoji, asked.bot.id) not in message.reactions:
            message.reactions.append((emoji, asked.bot.id))
            self._tell_reaction("MESSAGE_REACTION_ADD", message, emoji, asked.bot)

    def unreact(self, asked: Asked) -> None:
        message = self._message(asked)
        if message.channel.archived:
            raise Refusal(400, 50083, "Thread is archived")
        emoji = asked.path["emoji"]
        if (emoji, asked.bot.id) in message.reactions:
            message.reactions.remove((emoji, asked.bot.id))
            self._tell_reaction("MESSAGE_REACTION_REMOVE", message, emoji, asked.bot)

    def commands(self, asked: Asked) -> list[Json]:
        self._check_application(asked)
        return asked.bot.commands

    def sync_commands(self, asked: Asked) -> list[Json]:
        self._check_application(asked)
        commands = asked.body.data.get("items", [])
        check_commands(commands)
        self.syncs += 1
        asked.bot.commands = [self._command(asked.bot, command) for command in commands]
        return asked.bot.commands

    def _command(self, bot: Bot, command: Json) -> Json:
        given = {"id": str(self._world.new_id()), "application_id": str(bot.id), "version": "1"}
        return {"type": 1, "default_member_permissions": None, "options": []} | command | given

    def post(self, message: Message) -> None:
        """Put a message into its channel and tell everybody."""
        message.channel.messages.append(message)
        self._gateway.emit_message("MESSAGE_CREATE", message)

    def file(self, name: str, mime: str, content: bytes) -> File:
        """Store an attachment."""
        file = File(self._world.new_id(), name, mime, content)
        self._world.files[file.id] = file
        return file

    def _new_message(self, asked: Asked, channel: Channel) -> Message:
        data = asked.body.data
        answered = self._answered(channel, data.get("message_reference"))
        kind = DEFAULT if answered is None else REPLY
        message = Message(
            self._world.new_id(), channel, asked.bot, (data.get("content") or "").strip(), kind
        )
        if answered is not None:
            message.reply_to = answered
            message.reference = {"type": 0, "message_id": answered.ref, "channel_id": channel.ref}
        message.components = data.get("components") or []
        message.embeds = data.get("embeds") or []
        message.flags = data.get("flags", 0)
        message.nonce = data.get("nonce")
        message.files = [self.file(*part) for part in asked.body.files]
        return message

    def _answered(self, channel: Channel, reference: Json | None) -> Message | None:
        """Return what a message answers; it must be in the same channel."""
        if reference is None:
            return None
        wanted = int(reference["message_id"])
        for message in channel.messages:
            if message.id == wanted:
                if message.kind in _SYSTEM_KINDS:
                    text = "Cannot reply to a system message"
                    raise bad_field("message_reference", "REPLIES_CANNOT_REPLY_TO_SYSTEM", text)
                return message
        if reference.get("fail_if_not_exists", True):
            raise bad_field("message_reference", "REPLIES_UNKNOWN_MESSAGE", "Unknown message")
        return None

    def _by_nonce(self, asked: Asked) -> Message | None:
        nonce = asked.body.data.get("nonce")
        if nonce is None or not asked.body.data.get("enforce_nonce"):
            return None
        at, message = self._nonces.get((asked.bot.id, str(nonce)), (0.0, None))
        return message if time.monotonic() - at < self.nonce_window_s else None

    def _remember_nonce(self, asked: Asked, message: Message) -> None:
        if asked.body.data.get("nonce") is not None:
            key = (asked.bot.id, str(asked.body.data["nonce"]))
            self._nonces[key] = (time.monotonic(), message)

    def check_mentions(self, data: Json) -> None:
        """Note a message by which somebody could be mentioned."""
        allowed = data.get("allowed_mentions")
        if allowed is None:
            self.violations.append("allowed_mentions missing: everybody could be mentioned")
        elif allowed.get("parse") != [] or allowed.get("users") or allowed.get("roles"):
            self.violations.append(f"allowed_mentions lets somebody be mentioned: {allowed}")

    def _check_may_send(self, channel: Channel, body: Body) -> None:
        if channel.kind == FORUM:
            raise Refusal(400, 50008, "Cannot send messages in a non-text channel")
        if channel.closed:
            raise Refusal(403, 50007, "Cannot send messages to this user")
        places = [place for place in (channel, channel.parent) if place is not None]
        needed = {"send", "files"} if body.files else {"send"}
        if any(needed & place.forbidden for place in places):
            raise Refusal(403, 50013, "Missing Permissions")
        if channel.locked:
            raise Refusal(400, 160005, "Thread is locked")

    def _wake(self, channel: Channel) -> None:
        """An archived thread becomes active when something is posted in it."""
        if channel.archived:
            self._check_thread_cap(channel.guild or 0)
            channel.archived = False
            self._gateway.emit("THREAD_UPDATE", channel.json(), GUILDS)

    def _check_thread_cap(self, guild: int) -> None:
        if len(self._world.threads(guild)) >= self.max_threads:
            raise Refusal(400, 160006, "Maximum number of active threads reached")

    def _check_application(self, asked: Asked) -> None:
        if asked.number("application") != asked.bot.id:
            raise Refusal(403, 20012, "You are not authorized to perform this action")

    def _channel(self, asked: Asked) -> Channel:
        channel = self._world.channel_of(asked.number("channel"))
        if channel is None:
            raise Refusal(404, 10003, "Unknown Channel")
        mine = channel.kind != DM or asked.bot in channel.people
        places = [place for place in (channel, channel.parent) if place is not None]
        if not mine or any("view" in place.forbidden for place in places):
            raise Refusal(403, 50001, "Missing Access")
        return channel

    def _message(self, asked: Asked) -> Message:
        channel, wanted = self._channel(asked), asked.number("message")
        for message in channel.messages:
            if message.id == wanted:
                return message
        raise Refusal(404, 10008, "Unknown Message")

    def _shown_to(self, bot: Bot, message: Message) -> Json:
        data = self._world.message_json(message)
        if bot.privileged or may_read(bot, message, self._world.mentioned(message)):
            return data
        return without_content(data)

    def _tell_reaction(self, name: str, message: Message, emoji: str, person: Person) -> None:
        data: Json = {
            "user_id": str(person.id),
            "channel_id": str(message.channel.id),
            "message_id": str(message.id),
            "emoji": {"id": None, "name": emoji},
            "burst": False,
            "type": 0,
        }
        if message.channel.guild:
            data["guild_id"] = str(message.channel.guild)
        self._gateway.emit(
            name, data, GUILD_REACTIONS if data.get("guild_id") else DIRECT_REACTIONS
        )
