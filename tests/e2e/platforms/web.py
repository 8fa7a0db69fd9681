"""The web chat in the scenarios: its API as the page uses it; every room is a chat of its own."""

import asyncio
from contextlib import suppress
from typing import Any, Self
from uuid import uuid4

import aiohttp

from gateway.cli.chat import events
from tests.e2e.platforms.driver import plain
from tests.support.door import AUTHORIZED


class WebRoom:
    """One chat; what it shows is read from its event stream."""

    def __init__(self, driver: "WebDriver", name: str) -> None:
        self.path = f"/api/chats/{name}"
        self.items: dict[tuple[int, int], dict[str, Any]] = {}
        self.stream: aiohttp.ClientResponse | None = None
        self.contents: dict[int, bytes] = {}
        self.preview = ""
        self._driver = driver

    async def say(self, text: str, *, image: bytes | None = None, ref: str = "") -> str:
        ref = ref or uuid4().hex
        form = aiohttp.FormData({"id": ref, "text": text})
        if image is None:
            await self._post(json={"id": ref, "text": text})
        else:
            form.add_field("files", image, filename="photo.png", content_type="image/png")
            await self._post(data=form)
        return ref

    async def edit(self, ref: str, text: str) -> None:
        await self._post(json={"id": uuid4().hex, "text": text, "edits": ref})

    async def command(self, name: str) -> None:
        await self.say(f"/{name}")

    async def press(self, label: str) -> None:
        choice = next(c for item in self._open() for c in item["choices"] if c["label"] == label)
        await self.say(choice["text"])

    def texts(self) -> list[str]:
        return [plain(each["markdown"]) for each in self._answers() if not each["files"]]

    def growing(self) -> list[str]:
        return [plain(self.preview)] if self.preview else []

    def files(self) -> list[tuple[str, bytes]]:
        files = [file for each in self._answers() for file in each["files"]]
        return [(f["name"], self.contents[f["id"]]) for f in files if f["id"] in self.contents]

    def buttons(self) -> list[str]:
        return [choice["label"] for item in self._open() for choice in item["choices"]]

    def marks(self, ref: str) -> list[str]:
        return []

    async def follow(self) -> None:
        """Read the stream, and open it again behind what was read when it ends."""
        while True:
            inbox = max((key[0] for key in self.items), default=0)
            outbox = max((key[1] for key in self.items), default=0)
            query = f"?format=markdown&inbox={inbox}&outbox={outbox}"
            async with self._driver.http.get(f"{self.path}/events{query}") as self.stream:
                await self._read(self.stream)

    async def _read(self, stream: aiohttp.ClientResponse) -> None:
        with suppress(aiohttp.ClientError):
            async for name, data, _ in events(stream.content):
                if name == "item":
                    await self._take({"files": [], "choices": []} | data)
                elif name in {"preview", "preview_end"}:
                    self.preview = data.get("markdown", "")
                    await self._driver.note()

    async def _take(self, item: dict[str, Any]) -> None:
        for file in item["files"]:
            async with self._driver.http.get(f"{self.path}/files/{file['id']}") as response:
                self.contents[file["id"]] = await response.read()
        self.items[item["inbox_seq"], item["outbox_seq"]] = item
        await self._driver.note()

    def _answers(self) -> list[dict[str, Any]]:
        said = [item for _, item in sorted(self.items.items()) if item["who"] == "parley"]
        return [item for item in said if not item.get("over")]

    def _open(self) -> list[dict[str, Any]]:
        """Return the answers whose buttons can be pressed: those of a question until it is over.

        Of the others those that were not pressed: nothing was written after them.
        """
        newest = max(self.items, default=(0, 0))[0]
        over = {str(item["over"]) for item in self.items.values() if item.get("over")}
        return [
            each
            for each in self._answers()
            if each["inbox_seq"] == newest or _number(each) is not None
            if _number(each) not in over
        ]

    async def _post(self, **body: Any) -> None:
        async with self._driver.http.post(f"{self.path}/messages", **body) as response:
            assert response.status == 202, await response.text()


def _number(item: dict[str, Any]) -> str | None:
    """Return the number of the question that an answer's buttons are for."""
    texts = [each["text"] for each in item["choices"] if not each["text"].startswith("/retry")]
    words = [word for text in texts for word in text.split()[1:2]]
    return words[0] if words else None


class WebDriver:
    """The page's side of the web chat, on loopback."""

    name = "web"
    once = True
    reacts = False
    has_strangers = False
    slash = "/"

    def __init__(self) -> None:
        self.changed = asyncio.Condition()
        self.violations: list[str] = []
        self._rooms: dict[str, WebRoom] = {}
        self._following: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    def block(self) -> dict[str, Any]:
        return {}

    def rotate(self) -> None:
        raise AssertionError("the web chat has no token of a platform")

    async def connected(self, port: int) -> None:
        """Look at the chats that are known, at the gateway that is there now."""
        await self._leave()
        self.http = aiohttp.ClientSession(
            f"http://127.0.0.1:{port}", headers={"X-Parley": "1"} | AUTHORIZED
        )
        for room in self._rooms.values():
            self._look_at(room)

    def person_id(self, person: int) -> str:
        return "web:web"

    def direct(self, person: int = 1) -> WebRoom:
        return self._room(f"person{person}")

    async def mention(self, text: str, person: int = 1) -> WebRoom:
        room = self._room(uuid4().hex)
        await room.say(text)
        return room

    def elsewhere(self) -> list[str]:
        return []

    def flood(self, retry_after_s: int) -> None:
        """The page reads what is stored: nothing can be refused."""

    def lose_reply(self) -> None:
        """Nor can an answer be lost."""

    async def disconnect(self) -> None:
        for room in self._rooms.values():
            if room.stream is not None:
                room.stream.close()

    async def redeliver(self, ref: str) -> None:
        room = self.direct()
        item = next(each for each in room.items.values() if each.get("ref") == ref)
        await room.say(item["markdown"], ref=ref)

    async def note(self) -> None:
        """Tell whoever waits that something has changed."""
        async with self.changed:
            self.changed.notify_all()

    def _room(self, name: str) -> WebRoom:
        if name not in self._rooms:
            self._rooms[name] = WebRoom(self, name)
            self._look_at(self._rooms[name])
        return self._rooms[name]

    def _look_at(self, room: WebRoom) -> None:
        self._following.append(asyncio.ensure_future(room.follow()))

    async def _leave(self) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        self._following.clear()
        if hasattr(self, "http"):
            await self.http.close()
