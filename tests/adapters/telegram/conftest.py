"""The server, an intake that remembers, and adapters whose clock and budgets suit tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from adapters.messages import Address, Admission, Cursor, InboundMessage, Move, Poison
from adapters.pacing import PaceLimits
from adapters.settings import TelegramSettings
from adapters.telegram.adapter import TelegramAdapter
from tests.support.bot_api import TOKEN, BotApi

FAST = PaceLimits(
    per_s=10_000,
    chat_interval_s=0.0,
    group_per_min=10_000,
    group_preview_interval_s=0.0,
    typing_interval_s=0.0,
    max_wait_s=0.5,
)

OPTIONS = ("limits", "clock", "poll_timeout_s")


class NotStored(Exception):
    """Stands for the gateway's StorageUnavailable, which adapters cannot import."""


class RecordingIntake:
    """An intake that remembers what it committed; `broken` makes it fail."""

    def __init__(self) -> None:
        self.messages: list[InboundMessage] = []
        self.poison: list[Poison] = []
        self.cursors: list[Cursor] = []
        self.moves: list[Move] = []
        self.outcome: Any = "queued"
        self.broken = False
        self.attempts = 0
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
        if self.broken:
            raise NotStored("disk full")
        admissions = [self._admit(message) for message in messages]
        self.poison += poison
        self.cursors += cursors
        self.moves += moves
        async with self._changed:
            self._changed.notify_all()
        return admissions

    def _admit(self, message: InboundMessage) -> Admission:
        name = message.address.account, message.dedupe_key
        if name in {(it.address.account, it.dedupe_key) for it in self.messages}:
            return Admission("duplicate")
        self.messages.append(message)
        return Admission(self.outcome)

    async def position(self, source: str) -> int | None:
        return None

    async def positions(self, prefix: str) -> dict[str, int]:
        return {}

    async def is_conversation(self, address: Address) -> bool:
        return False

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]

    async def has(self, count: int) -> None:
        """Wait until this many messages and poison updates were committed."""
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: len(self.messages) + len(self.poison) >= count)


MakeAdapter = Callable[..., TelegramAdapter]


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    async with BotApi() as server:
        yield server
        assert server.violations == []


@pytest.fixture
def intake() -> RecordingIntake:
    return RecordingIntake()


@pytest.fixture
async def make(api: BotApi, intake: RecordingIntake) -> AsyncIterator[MakeAdapter]:
    """Return a factory; its keywords are settings, but for those of the constructor."""
    made: list[TelegramAdapter] = []

    def build(**changes: object) -> TelegramAdapter:
        options: dict[str, Any] = {"limits": FAST, "poll_timeout_s": 1}
        options |= {name: changes.pop(name) for name in OPTIONS if name in changes}
        settings = TelegramSettings.model_validate(
            {"token": SecretStr(TOKEN), "base_url": api.root} | changes
        )
        commands = [("new", "Start anew"), ("/stop", "Stop")]
        adapter = TelegramAdapter(settings, intake, commands, **options)
        made.append(adapter)
        return adapter

    yield build
    for adapter in made:
        await adapter.close()


@pytest.fixture
def adapter(make: MakeAdapter) -> TelegramAdapter:
    return make()


@asynccontextmanager
async def running(adapter: TelegramAdapter) -> AsyncIterator["asyncio.Task[None]"]:
    """Run the adapter beside the test and cancel it at the end."""
    task = asyncio.get_running_loop().create_task(adapter.run(), name="adapter")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
