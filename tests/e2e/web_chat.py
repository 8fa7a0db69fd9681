"""The web chat's API as a page uses it, against a running Parley."""

import asyncio
import json
from collections.abc import Callable
from io import BytesIO
from typing import Any
from uuid import uuid4

import aiohttp

from gateway.cli.chat import events
from tests.support.door import bearer
from tests.support.process import ParleyProcess
from tests.support.thorough import WAIT_S


class WebChat:
    """One chat.

    Attributes:
        items: What the newest look at the chat showed, in its order.
        preview: The growing answer that the newest look showed.
    """

    def __init__(self, parley: ParleyProcess, name: str = "c1") -> None:
        self.items: list[dict[str, Any]] = []
        self.preview = ""
        self.parley = parley
        self._path = f"/api/chats/{name}"

    @property
    def answers(self) -> list[str]:
        """What Parley said."""
        return [item["markdown"] for item in self.items if item["who"] == "parley"]

    async def post(self, body: Any) -> tuple[int, dict[str, Any]]:
        """Post a body of any form, bytes as they are; return status and answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession(self.parley.url, headers=bearer(self.parley.home)) as http,
            http.post(f"{self._path}/messages", data=BytesIO(data), headers=headers) as response,
        ):
            return response.status, await response.json()

    async def say(self, text: str) -> int:
        """Send a message; returns its position."""
        status, answer = await self.post({"id": uuid4().hex, "text": text})
        assert status == 202, answer
        return int(answer["seq"])

    async def ask(self, text: str, within_s: float = WAIT_S) -> str:
        """Send a message and return the newest answer once there is one for it."""
        seq = await self.say(text)
        await self.until(lambda: seq in self.answered(), within_s)
        return self.answers[-1]

    def answered(self) -> set[int]:
        """Return the positions of the messages that an answer refers to."""
        return {item["inbox_seq"] for item in self.items if item["who"] == "parley"}

    async def until(self, holds: Callable[[], object], within_s: float = WAIT_S) -> None:
        """Look at the chat from its beginning until it holds; it is checked after each event."""
        self.items, self.preview = [], ""
        async with (
            asyncio.timeout(within_s),
            aiohttp.ClientSession(self.parley.url, headers=bearer(self.parley.home)) as http,
            http.get(f"{self._path}/events?format=markdown") as response,
        ):
            assert response.status == 200
            async for name, data, _ in events(response.content):
                self._take(name, data)
                if holds():
                    return
        raise AssertionError("the stream ended early")

    def _take(self, name: str, data: dict[str, Any]) -> None:
        if name == "item":
            self.items.append(data)
        elif name == "preview":
            self.preview = data["markdown"]
        elif name == "preview_end":
            self.preview = ""
