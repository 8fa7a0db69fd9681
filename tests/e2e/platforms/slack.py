"""Slack in the scenarios: direct chats, and the thread that a mention opens."""

import asyncio
from dataclasses import replace
from typing import Any, Self

from adapters.rendering.chunks import PREVIEW_END
from tests.e2e.platforms.driver import plain
from tests.support.slack import events, faults
from tests.support.slack.people import ANN, ANNS_DM, BOB, GENERAL
from tests.support.slack.server import SlackServer
from tests.support.slack.workspace import Message

BOBS_DM = "D0BOB"
MARKS = {"eyes": "received", "white_check_mark": "answered", "warning": "failed"}


class SlackRoom:
    """A direct chat, or a thread in the channel."""

    def __init__(
        self, server: SlackServer, user: str, channel: str, thread: str | None = None
    ) -> None:
        self._server = server
        self._user = user
        self._channel = channel
        self._thread = thread

    async def say(self, text: str, *, image: bytes | None = None) -> str:
        files = [] if image is None else [self._server.add_file("photo.png", image, "image/png")]
        return self._server.write(self._channel, text, self._user, thread=self._thread, files=files)

    async def edit(self, ref: str, text: str) -> None:
        self._server.edit(self._channel, ref, text)

    async def command(self, name: str) -> None:
        self._server.slash(self._channel, name, self._user)

    async def press(self, label: str) -> None:
        message = next(m for m in self._shown() if label in m.buttons)
        self._server.press(self._channel, message.ts, label, self._user)

    def texts(self) -> list[str]:
        return [plain(message.shown) for message in self._shown() if not message.files]

    def growing(self) -> list[str]:
        return [text for text in self.texts() if text.endswith(PREVIEW_END)]

    def files(self) -> list[tuple[str, bytes]]:
        return [(file.name, file.content) for each in self._shown() for file in each.files]

    def buttons(self) -> list[str]:
        return [label for message in self._shown() for label in message.buttons]

    def marks(self, ref: str) -> list[str]:
        return [MARKS[name] for name in self._server.reactions(self._channel, ref)]

    def _shown(self) -> list[Message]:
        here = self._server.messages(self._channel, self._thread)
        return [m for m in here if m.bot == self._server.identity.bot]


class SlackDriver:
    """An app in a workspace of the strict Slack server, in socket mode."""

    name = "slack"
    once = True
    reacts = True
    has_strangers = True
    slash = "!"

    def __init__(self) -> None:
        self._server = SlackServer()
        self._server.add_channel(BOBS_DM, "im", user=BOB)
        self._rooms = {
            1: SlackRoom(self._server, ANN, ANNS_DM),
            2: SlackRoom(self._server, BOB, BOBS_DM),
        }

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.__aexit__(*error)

    @property
    def changed(self) -> asyncio.Condition:
        return self._server.changed

    @property
    def violations(self) -> list[str]:
        return self._server.violations

    def block(self) -> dict[str, Any]:
        identity = self._server.identity
        tokens = {"bot_token": identity.bot_token, "app_token": identity.app_token}
        return {"base_url": self._server.base_url, **tokens}

    def rotate(self) -> None:
        tokens = {"bot_token": "xoxb-1-loopback-NEW", "app_token": "xapp-1-A0APP-new"}
        self._server.identity = replace(self._server.identity, **tokens)

    async def connected(self, port: int) -> None:
        await self._server.wait_for(lambda: self._server.delivering.sockets)

    def person_id(self, person: int) -> str:
        return f"slack:{ANN if person == 1 else BOB}"

    def direct(self, person: int = 1) -> SlackRoom:
        return self._rooms[person]

    async def mention(self, text: str, person: int = 1) -> SlackRoom:
        user = ANN if person == 1 else BOB
        root = self._server.write(GENERAL, text, user, mention=True)
        return SlackRoom(self._server, user, GENERAL, root)

    def elsewhere(self) -> list[str]:
        return self._server.shown(GENERAL)

    def flood(self, retry_after_s: int) -> None:
        self._server.fail("chat.postMessage", faults.flood(retry_after_s))

    def lose_reply(self) -> None:
        self._server.fail("chat.postMessage", faults.CUT)

    async def disconnect(self) -> None:
        self._server.delivering.drop()

    async def redeliver(self, ref: str) -> None:
        server = self._server
        message = server.workspace.get(ANNS_DM, ref)
        server.tell(events.message_event(server.workspace, message, server.api.root))
