"""Reads an event stream in tests, one event at a time."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientResponse

from tests.adapters.web.conftest import Served


@dataclass
class Event:
    """One server-sent event; a comment has the name "ping"."""

    name: str
    data: dict[str, Any]
    id: str | None


class Events:
    """The events of one open stream, in order."""

    def __init__(self, response: ClientResponse) -> None:
        self.response = response

    async def next(self) -> Event:
        fields: dict[str, str] = {}
        while line := (await self.response.content.readline()).decode().rstrip("\n"):
            key, _, value = line.partition(": ")
            fields[key or "event"] = value
        return Event(fields["event"], json.loads(fields.get("data", "{}")), fields.get("id"))

    async def until(self, name: str) -> list[Event]:
        """Return the events up to and including the next one of that name."""
        found = [await self.next()]
        while found[-1].name != name:
            found.append(await self.next())
        return found

    async def one(self, name: str) -> Event:
        return (await self.until(name))[-1]

    async def ended(self) -> bool:
        return await self.response.content.read() == b""


@asynccontextmanager
async def listen(
    served: Served,
    chat: str = "c1",
    *,
    at: str = "",
    last_event_id: str = "",
    markdown: bool = False,
) -> AsyncIterator[Events]:
    """Open the stream of a chat; `at` is "inbox-outbox"."""
    inbox, _, outbox = at.partition("-")
    params = {"inbox": inbox, "outbox": outbox} if at else {}
    params |= {"format": "markdown"} if markdown else {}
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    path = f"/api/chats/{chat}/events"
    async with served.client.get(path, params=params, headers=headers) as response:
        assert response.status == 200, await response.text()
        yield Events(response)
