"""The server, an intake that remembers, and adapters whose budgets suit tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from pydantic import SecretStr

from adapters.errors import AdapterDisconnected
from adapters.messages import (
    Address,
    Admission,
    Cursor,
    InboundMessage,
    Move,
    Outgoing,
    Poison,
    Question,
)
from adapters.pacing import PaceLimits
from adapters.settings import SlackSettings
from adapters.slack.adapter import SlackAdapter
from tests.support.slack.people import ANN, ANNS_DM
from tests.support.slack.server import SlackServer

FAST = PaceLimits(
    per_s=10_000,
    chat_interval_s=0.0,
    group_per_min=10_000,
    group_preview_interval_s=0.0,
    typing_interval_s=0.0,
    max_wait_s=0.5,
)
NONCE = "0123456789abcdef01234567"
MENU = (("new", "Start anew"), ("status", "Show the status"), ("stop", "Stop"))
DM = Address("slack", "default", ANNS_DM)


class NotStored(Exception):
    """Stands for the gateway's StorageUnavailable, which adapters cannot import."""


class RecordingIntake:
    """An intake that remembers what it committed.

    Attributes:
        offered: Every message that was handed over, duplicates too.
        broken: Makes the next so many calls fail before anything is stored.
        gate: Cleared, it holds every call before it stores anything.
        conversations: Threads in which the bot takes part, beside those where it was addressed.
    """

    def __init__(self) -> None:
        self.messages: list[InboundMessage] = []
        self.offered: list[InboundMessage] = []
        self.poison: list[Poison] = []
        self.cursors: dict[str, int] = {}
        self.broken = 0
        self.attempts = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._changed = asyncio.Condition()

    async def accept(
        self,
        messages: Sequence[InboundMessage],
        *,
        cursors: Sequence[Cursor] = (),
        poison: Sequence[Poison] = (),
        moves: Sequence[Move] = (),
    ) -> list[Admission]:
        self.attempts += 1
        await self._notify()
        await self.gate.wait()
        if self.broken:
            self.broken -= 1
            raise NotStored("disk full")
        self.offered += messages
        self.poison += poison
        for cursor in cursors:
            known = self.cursors.get(cursor.source, cursor.position)
            self.cursors[cursor.source] = max(known, cursor.position)
        admissions = [self._admit(message) for message in messages]
        await self._notify()
        return admissions

    def _admit(self, message: InboundMessage) -> Admission:
        key = (message.address.account, message.dedupe_key)
        if key in {(known.address.account, known.dedupe_key) for known in self.messages}:
            return Admission("duplicate")
        self.messages.append(message)
        return Admission("queued", 1, len(self.messages))

    async def position(self, source: str) -> int | None:
        return self.cursors.get(source)

    async def positions(self, prefix: str) -> dict[str, int]:
        return {name: at for name, at in self.cursors.items() if name.startswith(prefix)}

    async def is_conversation(self, address: Address) -> bool:
        return any(m.address == address and m.addressed == "direct" for m in self.messages)

    @property
    def texts(self) -> list[str]:
        """What was committed, in order; each message once."""
        return [message.text for message in self.messages]

    async def has(self, count: int) -> None:
        """Wait until this many messages and poison updates were committed."""
        await self._until(lambda: len(self.messages) + len(self.poison) >= count)

    async def was_offered(self, count: int) -> None:
        """Wait until this many messages were handed over, duplicates counted."""
        await self._until(lambda: len(self.offered) >= count)

    async def was_tried(self, count: int) -> None:
        """Wait until `accept` was called so often, whether it returned or not."""
        await self._until(lambda: self.attempts >= count)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Clock:
    """A clock that runs, and can be moved forward."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now + time.monotonic()


MakeAdapter = Callable[..., SlackAdapter]
OPTIONS = ("limits", "clock")


@pytest.fixture
async def slack() -> AsyncIterator[SlackServer]:
    async with SlackServer() as server:
        yield server
        assert server.violations == []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def intake() -> RecordingIntake:
    return RecordingIntake()


@pytest.fixture
async def make(slack: SlackServer, intake: RecordingIntake) -> AsyncIterator[MakeAdapter]:
    """Return a factory; its keywords are settings, but for those of the constructor."""
    made: list[SlackAdapter] = []

    def build(**changes: object) -> SlackAdapter:
        options: dict[str, Any] = {"limits": FAST}
        options |= {name: changes.pop(name) for name in OPTIONS if name in changes}
        adapter = SlackAdapter(settings_of(slack, **changes), intake, MENU, **options)
        made.append(adapter)
        return adapter

    yield build
    for adapter in made:
        await adapter.close()


def settings_of(server: SlackServer, **changes: object) -> SlackSettings:
    """Return the settings of the server's app."""
    known = {
        "bot_token": SecretStr(server.identity.bot_token),
        "app_token": SecretStr(server.identity.app_token),
        "signing_secret": SecretStr(server.identity.signing_secret),
        "base_url": server.base_url,
    }
    return SlackSettings.model_validate(known | changes)


@pytest.fixture
def adapter(make: MakeAdapter) -> SlackAdapter:
    return make()


@pytest.fixture
async def live(slack: SlackServer, adapter: SlackAdapter) -> AsyncIterator[SlackAdapter]:
    """The adapter, running and connected."""
    async with running(adapter):
        await connected(slack)
        yield adapter


@asynccontextmanager
async def running(adapter: SlackAdapter) -> AsyncIterator["asyncio.Task[None]"]:
    """Run the adapter beside the test and cancel it at the end."""
    task = asyncio.get_running_loop().create_task(adapter.run(), name="adapter")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


@asynccontextmanager
async def supervised(adapter: SlackAdapter) -> AsyncIterator[SlackAdapter]:
    """Run the adapter, again whenever it is disconnected, as the gateway does."""

    async def run() -> None:
        while True:
            with suppress(AdapterDisconnected, NotStored):
                await adapter.run()

    task = asyncio.get_running_loop().create_task(run(), name="adapter")
    try:
        yield adapter
    finally:
        task.cancel()
        await asyncio.wait([task])
        await adapter.close()
    if not task.cancelled() and (error := task.exception()):
        raise error


async def connected(server: SlackServer, hellos: int = 1) -> None:
    """Wait for so many connections since the server began."""
    await server.wait_for(lambda: server.delivering.hellos >= hellos)


def outgoing(payload: str, address: Address = DM, **changes: Any) -> Outgoing:
    """Return an outbox row."""
    row: dict[str, Any] = {"conversation": 1, "address": address, "seq": 1, "nonce": NONCE}
    return Outgoing(payload=payload, **(row | changes))


def question(address: Address = DM, ref: str | None = None) -> Question:
    """Return a question of Ann's."""
    return Question(address, ANN, ref)


def thread_in(channel: str, thread: str) -> Address:
    """Return the address of a thread."""
    return Address("slack", "default", channel, thread)


async def until(condition: Callable[[], object]) -> None:
    """Look until a condition holds that nothing tells of."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
