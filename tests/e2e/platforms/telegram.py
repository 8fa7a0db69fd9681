"""Telegram in the scenarios: direct chats, and a forum topic as the room of a mention."""

import asyncio
from typing import Any, Self

from adapters.rendering.chunks import PREVIEW_END
from adapters.telegram.send import EMOJI
from tests.support.bot_api import CUT, DROP, TOKEN, USERNAME, BotApi, Shown, flood

GROUP, TOPIC = -100_777, 5


class TelegramRoom:
    """A direct chat (its id is the person's), or a topic of the group."""

    def __init__(self, api: BotApi, person: int, thread: int | None = None) -> None:
        self._api = api
        self._chat = person if thread is None else GROUP
        self._person = {"id": person, "is_bot": False, "first_name": f"Person{person}"}
        self._thread = thread
        self.updates: dict[str, Any] = {}

    async def say(self, text: str, *, image: bytes | None = None) -> str:
        """Write; in a topic every message mentions the bot, as it has to."""
        extra: dict[str, Any] = {}
        if self._thread is not None:
            text, mark = f"@{USERNAME} {text}", {"type": "mention", "offset": 0}
            extra = {"message_thread_id": self._thread, "is_topic_message": True}
            extra["entities"] = [mark | {"length": len(USERNAME) + 1}]
        if image is not None:
            size = self._api.add_file(image, "photos/file_0.png") | {"width": 1, "height": 1}
            extra |= {"photo": [size], "caption": text}
        update = self._api.message_update(
            self._chat, None if image else text, self._person, **extra
        )
        self._api.push_raw(update)
        ref = str(update["message"]["message_id"])
        self.updates[ref] = update
        return ref

    async def edit(self, ref: str, text: str) -> None:
        edits = self.updates[ref]["message"].get("edit_date", 1_700_000_000) + 1
        message = self.updates[ref]["message"] | {"text": text, "edit_date": edits}
        self.updates[ref]["message"] = message
        self._api.push_raw({"edited_message": message})

    async def command(self, name: str) -> None:
        assert name in {entry["command"] for entry in self._api.commands}
        mark = {"type": "bot_command", "offset": 0, "length": len(name) + 1}
        self._api.push_text(self._chat, f"/{name}", self._person, entities=[mark])

    async def press(self, label: str) -> None:
        self._api.press(self._chat, label, self._person)

    def texts(self) -> list[str]:
        return [message.text for message in self._shown() if message.file is None]

    def growing(self) -> list[str]:
        return [text for text in self.texts() if text.endswith(PREVIEW_END)]

    def files(self) -> list[tuple[str, bytes]]:
        return [message.file for message in self._shown() if message.file is not None]

    def buttons(self) -> list[str]:
        shown = self._shown()
        return [button["text"] for each in shown for row in each.buttons for button in row]

    def marks(self, ref: str) -> list[str]:
        emoji = self._api.reactions.get((self._chat, int(ref)))
        return [mark for mark, shown in EMOJI.items() if shown == emoji]

    def _shown(self) -> list[Shown]:
        here = (self._chat, self._thread)
        return [each for each in self._api.messages if (each.chat, each.thread) == here]


class TelegramDriver:
    """A bot on the strict Bot API server."""

    name = "telegram"
    once = False
    reacts = True
    has_strangers = True
    slash = "/"

    def __init__(self) -> None:
        self._api = BotApi()
        self._polls = 0
        self._rooms: dict[int, TelegramRoom] = {}

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        self._api.add_chat(GROUP, topics=(TOPIC,))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._api.__aexit__(*error)

    @property
    def changed(self) -> asyncio.Condition:
        return self._api._changed

    @property
    def violations(self) -> list[str]:
        return self._api.violations

    def block(self) -> dict[str, Any]:
        # Of gateways before: the one that gets this may poll before anybody asks whether it does.
        self._polls = len(self._api.made("getUpdates"))
        return {"token": self._api.token, "base_url": self._api.root}

    def rotate(self) -> None:
        self._api.token = f"{TOKEN}-new"

    async def connected(self, port: int) -> None:
        await self._api.wait_for(lambda: len(self._api.made("getUpdates")) > self._polls)

    def person_id(self, person: int) -> str:
        return f"telegram:{person}"

    def direct(self, person: int = 1) -> TelegramRoom:
        return self._rooms.setdefault(person, TelegramRoom(self._api, person))

    async def mention(self, text: str, person: int = 1) -> TelegramRoom:
        room = TelegramRoom(self._api, person, TOPIC)
        await room.say(text)
        return room

    def elsewhere(self) -> list[str]:
        return [
            each.text for each in self._api.messages if (each.chat, each.thread) == (GROUP, None)
        ]

    def flood(self, retry_after_s: int) -> None:
        self._api.fail("sendMessage", flood(retry_after_s))

    def lose_reply(self) -> None:
        self._api.fail("sendMessage", CUT)

    async def disconnect(self) -> None:
        """Drop the connection of the next poll; something that is for nobody ends this one."""
        polls = len(self._api.made("getUpdates"))
        self._api.fail("getUpdates", DROP)
        self._api.push_raw({"chat_boost": {}})
        await self._api.wait_for(lambda: len(self._api.made("getUpdates")) > polls)

    async def redeliver(self, ref: str) -> None:
        update = next(room.updates[ref] for room in self._rooms.values() if ref in room.updates)
        self._api.push_raw({"message": update["message"]})
