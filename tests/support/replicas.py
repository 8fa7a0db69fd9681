"""Several gateways in the test's process on one PostgreSQL, and pages that are open at them.

A page is what a browser shows of one chat: opened at another replica it goes on where it was.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import psycopg

from agent.models.base import ChatModel
from agent.turn.request import Agent
from gateway.app import Gateway, assembled
from gateway.cli.chat import events
from gateway.storage.database import location_of
from gateway.storage.migrations import open_database
from gateway.wiring import build_accounts
from tests.support.door import AUTHORIZED
from tests.support.gateway import Running, agent_of, served, settings_of
from tests.support.recording_adapter import RecordingAdapter, Watch
from tests.support.thorough import WAIT_S

RETRY_S = 0.3


@dataclass(frozen=True, slots=True)
class ReplicaAtWork:
    """A whole gateway with its web chat."""

    gateway: Gateway
    port: int

    @property
    def url(self) -> str:
        """Where its web chat is."""
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def replica(
    home: Path, url: str | dict[str, Any], answers: ChatModel | Agent, **sections: dict[str, Any]
) -> AsyncIterator[ReplicaAtWork]:
    """Run a gateway with everything it has, on this database; leaving stops it.

    Args:
        home: Its PARLEY_HOME.
        url: Of the database, or all of `storage`.
        answers: Its model, or its agent.
        sections: Of the settings.
    """
    await asyncio.to_thread(home.mkdir, exist_ok=True)
    storage = {"url": url} if isinstance(url, str) else url
    settings = settings_of(home, storage=storage, **sections)
    agent = answers if isinstance(answers, Agent) else agent_of(answers)
    async with (
        open_database(location_of(settings)) as database,
        assembled(settings, database, agent, build_accounts(settings)) as gateway,
        served(Running(gateway, agent, RecordingAdapter(), [])) as serving,
    ):
        yield ReplicaAtWork(gateway, serving.port)


@dataclass(slots=True)
class Page:
    """A page with one chat.

    Attributes:
        items: What was said, as it came.
        preview: The growing answer that is shown.
        previews: All that were shown.
        works: How often a sign of work came.
        position: How far it has read.
    """

    chat: str = "c1"
    items: list[dict[str, Any]] = field(default_factory=list)
    preview: str | None = None
    previews: list[str] = field(default_factory=list)
    works: int = 0
    synced: int = 0
    position: str = "0-0"
    watch: Watch = field(default_factory=Watch)

    @property
    def answers(self) -> list[str]:
        """What Parley said."""
        return [item["markdown"] for item in self.items if item["who"] == "parley"]

    @property
    def said(self) -> list[str]:
        """All that was said, in the order of a page."""
        by_place = {(item["inbox_seq"], item["outbox_seq"]): item for item in self.items}
        assert len(by_place) == len(self.items), "an item came twice"
        return [by_place[place]["markdown"] for place in sorted(by_place)]

    @asynccontextmanager
    async def open_at(self, at: ReplicaAtWork) -> AsyncIterator[None]:
        """Have the page be open at a replica while the body runs, which it has read all of."""
        before = self.synced
        reading = asyncio.create_task(self._read(at))
        try:
            await self.until(lambda: self.synced > before or reading.done())
            yield
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            if not reading.cancelled() and (trouble := reading.exception()):
                raise trouble

    async def until(self, holds: Callable[[], object], within_s: float = WAIT_S) -> float:
        """Wait until something holds; returns for how many seconds."""
        began = time.monotonic()
        async with asyncio.timeout(within_s):
            await self.watch.until(holds)
        return time.monotonic() - began

    async def _read(self, at: ReplicaAtWork) -> None:
        # As a page does: what was broken off is opened again, where it was.
        while True:
            with suppress(aiohttp.ClientError):
                await self._read_once(at)
            await asyncio.sleep(RETRY_S)

    async def _read_once(self, at: ReplicaAtWork) -> None:
        path = f"{at.url}/api/chats/{self.chat}/events?format=markdown"
        headers = AUTHORIZED | {"Last-Event-ID": self.position}
        async with aiohttp.ClientSession(headers=headers) as http, http.get(path) as response:
            assert response.status == 200, await response.text()
            async for name, data, event_id in events(response.content):
                self.position = event_id or self.position
                self._take(name, data)
                self.watch.note()

    def _take(self, name: str, data: dict[str, Any]) -> None:
        if name == "item":
            self.items.append(data)
        elif name == "preview":
            self.preview = data["markdown"]
            self.previews.append(data["markdown"])
        elif name == "preview_end":
            self.preview = None
        elif name == "working":
            self.works += 1
        elif name == "synced":
            self.synced += 1


async def say(at: ReplicaAtWork, text: str, chat: str = "c1", **files: bytes) -> None:
    """Post a message at a replica; again, as a page does, as long as it cannot be stored."""
    headers, id_, status = AUTHORIZED | {"X-Parley": "1"}, uuid4().hex, 503
    while status == 503:
        form = aiohttp.FormData(default_to_multipart=True)
        form.add_field("id", id_)
        form.add_field("text", text)
        for name, content in files.items():
            form.add_field("file", content, filename=name.replace("_", "."))
        async with (
            aiohttp.ClientSession(at.url, headers=headers) as http,
            http.post(f"/api/chats/{chat}/messages", data=form) as response,
        ):
            status = response.status
            assert status in {202, 503}, await response.text()


def cut(url: str) -> None:
    """End all connections to a database."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
