"""Albums through the whole adapter: which of their files are fetched, and when."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from adapters.telegram import receive
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.receive import Albums
from tests.adapters.telegram.conftest import MakeAdapter, running
from tests.support.bot_api import BotApi
from tests.support.process import free_port
from tests.support.recording_intake import RecordingIntake

LIMIT = 1000
ANN, BO, GROUP = 7, 8, -100
MENTION = [{"type": "mention", "offset": 0, "length": 11}]
FOR_THE_BOT = {"caption": "@parley_bot compare", "caption_entities": MENTION}
TOPIC = {"message_thread_id": 5, "is_topic_message": True}


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Chats:
    """What people send; each file has the name of its kind and its number as content.

    Attributes:
        fetching: The downloads that the gateway would have begun, by file.
    """

    def __init__(self, api: BotApi, intake: RecordingIntake) -> None:
        self.api = api
        self._intake = intake
        self._sent = 0
        self.fetching: dict[str, asyncio.Task[bytes]] = {}

    def part(self, kind: str, chat: int = ANN, group: str = "a", **fields: Any) -> Any:
        """Return the update of one part of an album."""
        self._sent += 1
        name = f"{kind}{self._sent}"
        file = self.api.add_file(name.encode(), name)
        said = {kind: [file] if kind == "photo" else file, "media_group_id": group}
        return self.api.message_update(chat, None, **said | fields)

    async def post(self, update: Any) -> None:
        """Let Telegram deliver an update by webhook, as it does it for one chat."""
        assert await self.api.deliver_webhook(update) == [200]

    def fetch(self, adapter: TelegramAdapter) -> None:
        """Begin to fetch what was stored for the bot, as the gateway does."""
        for message in self._intake.messages:
            for file in message.attachments:
                if message.addressed == "direct" and file.ref not in self.fetching:
                    fetched = adapter.fetch(message.address, file, LIMIT)
                    task = asyncio.get_running_loop().create_task(fetched, name=file.name)
                    self.fetching[file.ref] = task

    async def fetched(self) -> list[str]:
        """Wait for all downloads; return what they brought."""
        async with asyncio.timeout(10):
            return [content.decode() for content in await asyncio.gather(*self.fetching.values())]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(receive, "PAUSE_S", 0.02)
    return Clock()


@pytest.fixture
def intake() -> RecordingIntake:
    return RecordingIntake(picky=True)


@pytest.fixture
def chats(api: BotApi, intake: RecordingIntake) -> Chats:
    return Chats(api, intake)


@pytest.fixture
async def hooked(api: BotApi, make: MakeAdapter, clock: Clock) -> AsyncIterator[TelegramAdapter]:
    port = free_port()
    url = f"http://127.0.0.1:{port}/telegram/default"
    secret = SecretStr("a-secret")
    adapter = make(mode="webhook", webhook_url=url, webhook_secret=secret, clock=clock)
    app = web.Application()
    app.add_routes(adapter.routes())
    async with TestServer(app, port=port), running(adapter):
        await api.wait_for(lambda: api.webhook)
        yield adapter


Sent = list[tuple[str, dict[str, Any]]]


@pytest.mark.parametrize(
    "sent",
    [
        [("photo", {}), ("photo", {})],
        [("photo", {}), ("photo", {"caption": "which is nicer?"})],
        [("photo", {"caption": "what is this?"}), ("video", {})],
        [("document", {}), ("document", {"caption": "summarise"}), ("document", {})],
        [("audio", {}), ("audio", {})],
        [("photo", {})] * 10,
        [("photo", {"chat": ANN}), ("photo", {"chat": BO, "group": "b"})] * 3,
        [("photo", {"group": "a"}), ("photo", {"group": "b"})] * 2,
        [("photo", {"chat": GROUP, **FOR_THE_BOT}), ("photo", {"chat": GROUP})],
        [("photo", {"chat": GROUP, **TOPIC, **FOR_THE_BOT}), ("video", {"chat": GROUP, **TOPIC})],
    ],
    ids=[
        "two",
        "second caption",
        "photo and video",
        "documents",
        "audio",
        "ten",
        "two chats",
        "two albums of a chat",
        "group",
        "topic",
    ],
)
@pytest.mark.parametrize("order", ["as sent", "backwards", "each twice"])
async def test_an_album_by_webhook_is_fetched_when_it_is_complete(
    hooked: TelegramAdapter, chats: Chats, clock: Clock, sent: Sent, order: str
) -> None:
    """Each part is stored before its 200, and no file is fetched before the last one came."""
    parts = [chats.part(kind, **fields) for kind, fields in sent]
    if order == "backwards":
        parts.reverse()
    for part in parts:
        for _ in range(2 if order == "each twice" else 1):
            await chats.post(part)
            chats.fetch(hooked)
        clock.now += 0.009
    assert chats.api.made("getFile") == []
    clock.now += 0.02
    names = [f"{kind}{n}" for n, (kind, _) in enumerate(sent, 1)]
    assert sorted(await chats.fetched()) == sorted(names)


async def test_an_album_by_polling_is_fetched_when_it_is_complete(
    api: BotApi, make: MakeAdapter, intake: RecordingIntake, chats: Chats, clock: Clock
) -> None:
    """Three polls bring it; each is stored and confirmed at once, so others need not wait."""
    adapter = make(clock=clock)
    async with running(adapter):
        for count in range(1, 4):
            api.push_raw(chats.part("photo"))
            await intake.has(count)
            await api.wait_for(lambda: not api.pending)
            chats.fetch(adapter)
        assert api.made("getFile") == []
        clock.now += 0.02
        assert len(await chats.fetched()) == 3


async def test_an_album_whose_gateway_was_killed_in_between(
    api: BotApi, make: MakeAdapter, intake: RecordingIntake, chats: Chats, clock: Clock
) -> None:
    """The next process has never seen its first pictures, and waits for the others all the same."""
    async with running(make(clock=clock)):
        api.push_raw(chats.part("photo"))
        await intake.has(1)
    reborn = make(clock=clock)
    chats.fetch(reborn)
    async with running(reborn):
        api.push_raw(chats.part("photo"))
        await intake.has(2)
        chats.fetch(reborn)
    assert api.made("getFile") == []
    clock.now += 0.02
    assert sorted(await chats.fetched()) == ["photo1", "photo2"]


async def test_a_caption_makes_earlier_pictures_of_a_group_direct(
    hooked: TelegramAdapter, chats: Chats, intake: RecordingIntake, clock: Clock
) -> None:
    """What was ignored until then comes with it; a caption that is not stored is told again."""
    for fields in ({}, {}, {"chat": BO}):
        await chats.post(chats.part("photo", **{"chat": GROUP} | fields))
    assert [message.address.chat for message in intake.messages] == [str(BO)]
    named = chats.part("photo", GROUP, **FOR_THE_BOT)
    intake.broken = 1
    assert await chats.api.deliver_webhook(named) == [503, 200]
    in_group = [it for it in intake.messages if it.address.chat == str(GROUP)]
    assert [it.addressed for it in in_group] == ["direct"] * 3
    assert [it.text for it in in_group] == ["", "", "compare"]


async def test_a_single_picture_waits_for_nobody(hooked: TelegramAdapter, chats: Chats) -> None:
    """Only albums are more than one message."""
    await chats.post(chats.part("photo", group=""))
    chats.fetch(hooked)
    assert await chats.fetched() == ["photo1"]


async def test_an_album_of_long_ago_is_complete(clock: Clock) -> None:
    """A second try does not wait again."""
    known = Albums(clock)
    known.grown("7", "a")
    clock.now += receive.PAUSE_S
    await asyncio.wait_for(known.complete("7", "a"), 1)
    assert known.of("7", "a").grew_at == clock.now - receive.PAUSE_S


def test_remembered_albums_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last ones are known."""
    monkeypatch.setattr(receive, "_REMEMBERED", 2)
    known = Albums(Clock())
    for group in "abc":
        known.grown("7", group)
    assert len(known._known) == 2
