"""Discord in the scenarios: direct chats, and the thread that a mention opens."""

import asyncio
from typing import Any, Self

from adapters.rendering.chunks import PREVIEW_END
from tests.e2e.platforms.driver import plain
from tests.support.discord.faults import CUT, flood
from tests.support.discord.server import TOKEN, DiscordServer
from tests.support.discord.world import Channel, Message, Person

MARKS = {"👀": "received", "✅": "answered", "⚠️": "failed"}


class DiscordRoom:
    """A direct chat, or the thread of a message in the channel, which is opened later."""

    def __init__(
        self, server: DiscordServer, person: Person, channel: Channel, root: Message | None = None
    ) -> None:
        self._server = server
        self._person = person
        self._direct = channel
        self._root = root
        self.written: dict[str, Message] = {}

    @property
    def _channel(self) -> Channel:
        return self._direct if self._root is None else self._server.thread_of(self._root)

    async def say(self, text: str, *, image: bytes | None = None) -> str:
        files = (("photo.png", "image/png", image),) if image is not None else ()
        message = self._server.write(self._channel, text, author=self._person, files=files)
        self.written[message.ref] = message
        return message.ref

    async def edit(self, ref: str, text: str) -> None:
        self._server.edit(self.written[ref], text)

    async def command(self, name: str) -> None:
        self._server.slash(name, channel=self._channel, author=self._person)

    async def press(self, label: str) -> None:
        message = next(m for m in self._shown() if label in _labels(m))
        self._server.press(message, label, author=self._person)

    def texts(self) -> list[str]:
        return [plain(message.content) for message in self._shown() if not message.files]

    def growing(self) -> list[str]:
        return [text for text in self.texts() if text.endswith(PREVIEW_END)]

    def files(self) -> list[tuple[str, bytes]]:
        return [(file.name, file.content) for each in self._shown() for file in each.files]

    def buttons(self) -> list[str]:
        return [label for message in self._shown() for label in _labels(message)]

    def marks(self, ref: str) -> list[str]:
        return [MARKS[emoji] for emoji in self.written[ref].emojis]

    def _shown(self) -> list[Message]:
        """Return the bot's messages; none in a thread that is not open yet."""
        if self._root is not None and self._root.thread is None:
            return []
        return [m for m in self._channel.messages if m.author is self._server.bot]


def _labels(message: Message) -> list[str]:
    return [button["label"] for button in message.buttons if not button.get("disabled")]


class DiscordDriver:
    """A bot in a guild of the strict Discord server."""

    name = "discord"
    once = True
    reacts = True
    has_strangers = True
    slash = "/"

    def __init__(self) -> None:
        self._server = DiscordServer()
        self._people = {1: self._server.ann}
        self._rooms: dict[int, DiscordRoom] = {}

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.__aexit__(*error)

    @property
    def changed(self) -> asyncio.Condition:
        return self._server._changed

    @property
    def violations(self) -> list[str]:
        return self._server.violations

    def block(self) -> dict[str, Any]:
        urls = {"api_url": self._server.api_url, "gateway_url": self._server.gateway_url}
        return {"token": self._server.bot.token, **urls}

    def rotate(self) -> None:
        bot = self._server.bot
        self._server._bots.pop(bot.token)
        bot.token = f"{TOKEN}-NEW"
        self._server._bots[bot.token] = bot

    async def connected(self, port: int) -> None:
        await self._server.wait_for(lambda: self._server.bot.commands)
        await self._server.online()

    def person_id(self, person: int) -> str:
        return f"discord:{self._person(person).ref}"

    def direct(self, person: int = 1) -> DiscordRoom:
        if person not in self._rooms:
            who = self._person(person)
            self._rooms[person] = DiscordRoom(self._server, who, self._server.direct(who))
        return self._rooms[person]

    async def mention(self, text: str, person: int = 1) -> DiscordRoom:
        who, general = self._person(person), self._server.general
        root = self._server.write(general, text, author=who, mention=True)
        return DiscordRoom(self._server, who, general, root)

    def elsewhere(self) -> list[str]:
        bot = self._server.bot
        return [m.content for m in self._server.general.messages if m.author is bot]

    def flood(self, retry_after_s: int) -> None:
        self._server.fail("send", flood(retry_after_s))

    def lose_reply(self) -> None:
        self._server.fail("send", CUT)

    async def disconnect(self) -> None:
        self._server.gateway.drop()

    async def redeliver(self, ref: str) -> None:
        message = next(room.written[ref] for room in self._rooms.values() if ref in room.written)
        self._server.gateway.emit_message("MESSAGE_CREATE", message)

    def _person(self, number: int) -> Person:
        if number not in self._people:
            self._people[number] = self._server.add_person(f"Person{number}")
        return self._people[number]
