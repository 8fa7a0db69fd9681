"""What an adapter hands over, kept in memory: the gateway's intake as tests of adapters see it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from adapters.base import Update
from adapters.messages import Address, Admission, Cursor, InboundMessage, Move, Poison
from adapters.pacing import PaceLimits
from tests.support.thorough import WAIT_S

FAST = PaceLimits(
    per_s=10_000,
    chat_interval_s=0.0,
    group_preview_interval_s=0.0,
    typing_interval_s=0.0,
    max_wait_s=0.5,
)


class NotStored(Exception):
    """Stands for the gateway's StorageUnavailable, which adapters cannot import."""


class RecordingIntake:
    """An intake that remembers what it committed.

    Args:
        picky: Whether what is not for the bot is left out, as the gateway does it.

    Attributes:
        messages: What was taken, in order, each once; what was left out is in `ignored`.
        offered: Every message that was handed over, duplicates too.
        outcome: What becomes of a message that is taken; an edit is "updated" where it is "queued".
        verdict: What is told of a message that is taken, as an answer to a question.
        broken: So many of the next calls fail before anything is stored.
        gate: Cleared, it holds every call before it stores anything.
    """

    def __init__(self, *, picky: bool = False) -> None:
        self.messages: list[InboundMessage] = []
        self.ignored: list[InboundMessage] = []
        self.offered: list[InboundMessage] = []
        self.poison: list[Poison] = []
        self.cursors: list[Cursor] = []
        self.moves: list[Move] = []
        self.outcome: Any = "queued"
        self.verdict: dict[str, Any] = {}
        self.broken = 0
        self.attempts = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._picky = picky
        self._changed = asyncio.Condition()

    async def accept(
        self, updates: Sequence[Update], *, cursors: Sequence[Cursor] = ()
    ) -> list[Admission]:
        self.attempts += 1
        await self._notify()
        await self.gate.wait()
        if self.broken:
            self.broken -= 1
            raise NotStored("disk full")
        messages = [each for each in updates if isinstance(each, InboundMessage)]
        admissions = [self._admit(message) for message in messages]
        self.offered += messages
        self.poison += [each for each in updates if isinstance(each, Poison)]
        self.cursors += cursors
        self.moves += [each for each in updates if isinstance(each, Move)]
        await self._notify()
        return admissions

    def _admit(self, message: InboundMessage) -> Admission:
        key = (message.address.account, message.dedupe_key)
        if key in {(known.address.account, known.dedupe_key) for known in self.messages}:
            return Admission("duplicate")
        if self._picky and not self._is_for_the_bot(message):
            self.ignored.append(message)
            return Admission("ignored")
        self.messages.append(message)
        is_edit = message.kind == "edit" and self.outcome == "queued"
        return Admission(
            "updated" if is_edit else self.outcome, 1, len(self.messages), **self.verdict
        )

    def _is_for_the_bot(self, message: InboundMessage) -> bool:
        if message.addressed == "thread":
            return self._is_known(message.address)
        return message.addressed == "direct"

    def _is_known(self, address: Address) -> bool:
        return any(m.address == address and m.addressed == "direct" for m in self.messages)

    async def position(self, source: str) -> int | None:
        return (await self.positions(source)).get(source)

    async def positions(self, prefix: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for cursor in self.cursors:
            if cursor.source.startswith(prefix):
                known = found.get(cursor.source, cursor.position)
                found[cursor.source] = max(known, cursor.position)
        return found

    async def is_conversation(self, address: Address) -> bool:
        return self._is_known(address)

    @property
    def texts(self) -> list[str]:
        """What was taken, in order; each message once."""
        return [message.text for message in self.messages]

    async def has(self, count: int) -> None:
        """Wait until this many messages and poison updates were committed."""
        await self._until(lambda: len(self.messages) + len(self.poison) >= count)

    async def has_ignored(self, count: int) -> None:
        """Wait until this many messages were found not to be for the bot."""
        await self._until(lambda: len(self.ignored) >= count)

    async def was_offered(self, count: int) -> None:
        """Wait until this many messages were handed over, duplicates counted."""
        await self._until(lambda: len(self.offered) >= count)

    async def was_tried(self, count: int) -> None:
        """Wait until `accept` was called so often, whether it returned or not."""
        await self._until(lambda: self.attempts >= count)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
