"""Slack in the scenarios of tests/e2e/platforms: direct chats, and the thread of a mention."""

import asyncio
import re
from typing import Any, Self

from tests.support.slack.delivery import Delivery
from tests.support.slack.faults import CUT, flood
from tests.support.slack.people import ANN, ANNS_DM, GENERAL
from tests.support.slack.server import SlackServer
from tests.support.slack.workspace import Message, Person

EMOJI = {"received": "eyes", "answered": "white_check_mark", "failed": "warning"}


class SlackRoom:
    """A direct chat, or a thread of a channel."""

    def __init__(self, slack: SlackServer, user: str, channel: str, thread: str | None) -> None:
        self._slack = slack
        self._user = user
        self._channel = channel
        self._thread = thread

    async def say(self, text: str, *, image: bytes | None = None) -> str:
        """Write a message, with a PNG where one is given; return its timestamp."""
        files = [] if image is None else [self._slack.add_file("photo.png", image, "image/png")]
        return self._slack.write(self._channel, text, self._user, thread=self._thread, files=files)

    async def edit(self, ref: str, text: str) -> None:
        """Change one's own message."""
        self._slack.edit(self._channel, ref, text)

    async def command(self, name: str) -> None:
        """Use the slash command; in a thread, where Slack has none, "!name"."""
        if self._thread is None:
            self._slack.slash(self._channel, name, self._user)
        else:
            await self.say(f"!{name}")

    async def press(self, label: str) -> None:
        """Press the newest button of this name."""
        message = next(m for m in reversed(self._shown()) if label in m.buttons)
        self._slack.press(self._channel, message.ts, label, self._user)

    def texts(self) -> list[str]:
        """Return what the bot says here; files are left out."""
        return [plain(message.shown) for message in self._shown() if not message.files]

    def files(self) -> list[tuple[str, bytes]]:
        """Return the files that the bot has shown here."""
        return [(file.name, file.content) for m in self._shown() for file in m.files]

    def buttons(self) -> list[str]:
        """Return the labels of the buttons that can be pressed here."""
        return [label for message in self._shown() for label in message.buttons]

    def marks(self, ref: str) -> list[str]:
        """Return the bot's reactions to a message."""
        shown = self._slack.reactions(self._channel, ref)
        return [mark for mark, emoji in EMOJI.items() if emoji in shown]

    def _shown(self) -> list[Message]:
        bot = self._slack.identity.bot
        return [m for m in self._slack.messages(self._channel, self._thread) if m.bot == bot]


class SlackDriver:
    """An app on the strict Slack, in Socket Mode."""

    name = "slack"
    once = True
    reacts = True
    has_strangers = True

    def __init__(self) -> None:
        self._slack = SlackServer()

    async def __aenter__(self) -> Self:
        await self._slack.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._slack.__aexit__(*error)

    @property
    def changed(self) -> asyncio.Condition:
        """Notified after everything that happens."""
        return self._slack.changed

    @property
    def violations(self) -> list[str]:
        """What a correct app never does."""
        return self._slack.violations

    def block(self) -> dict[str, Any]:
        """Return the platform's settings."""
        identity = self._slack.identity
        return {
            "bot_token": identity.bot_token,
            "app_token": identity.app_token,
            "base_url": self._slack.base_url,
        }

    async def connected(self, port: int) -> None:
        """Return once the bot is connected."""
        await self._slack.wait_for(lambda: self._slack.delivering.sockets)

    def person_id(self, person: int) -> str:
        """Return a person as `access.owners` names them."""
        return f"slack:{self._person(person)}"

    def direct(self, person: int = 1) -> SlackRoom:
        """Return the direct chat of a person with the bot."""
        user = self._person(person)
        channel = ANNS_DM if person == 1 else f"D0P{person}"
        if channel not in self._slack.workspace.channels:
            self._slack.add_channel(channel, "im", user=user)
        return SlackRoom(self._slack, user, channel, None)

    async def mention(self, text: str, person: int = 1) -> SlackRoom:
        """Mention the bot in a channel; its answer comes in the thread below."""
        user = self._person(person)
        thread = self._slack.write(GENERAL, text, user, mention=True)
        return SlackRoom(self._slack, user, GENERAL, thread)

    def elsewhere(self) -> list[str]:
        """Return what the bot says in the channel itself."""
        return self._slack.shown(GENERAL)

    def flood(self, retry_after_s: int) -> None:
        """Refuse the next message of the bot for so long."""
        self._slack.fail("chat.postMessage", flood(retry_after_s))

    def lose_reply(self) -> None:
        """Show the next message of the bot and cut the connection."""
        self._slack.fail("chat.postMessage", CUT)

    async def disconnect(self) -> None:
        """Break the connection; what happens meanwhile is delivered when it is back."""
        hellos = self._slack.delivering.hellos
        self._slack.delivering.drop()
        await self._slack.wait_for(
            lambda: not self._slack.delivering.sockets or self._slack.delivering.hellos > hellos
        )

    async def redeliver(self, ref: str) -> None:
        """Deliver the event of a message once more."""
        events = (each for each in self._slack.delivering.deliveries if each.kind == "events_api")
        found = next(each for each in events if each.payload["event"].get("ts") == ref)
        self._slack.delivering.send(Delivery("events_api", found.payload))

    def _person(self, person: int) -> str:
        if person == 1:
            return ANN
        user = f"U0P{person}"
        self._slack.workspace.add_person(Person(user, f"person{person}"))
        return user


def plain(markdown: str) -> str:
    """Return what people read of a markdown text; simple, but it leaves no mark of ours."""
    bare = re.sub(r"\*\*|`|^#+ ", "", markdown, flags=re.MULTILINE)
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", bare)
