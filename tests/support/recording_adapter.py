"""A platform in memory: it notes what it is told to show, and fails or waits where a test says."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from adapters.base import UNANNOUNCED, PreviewIntent
from adapters.errors import FetchRejected
from adapters.messages import (
    Address,
    Attachment,
    MessageRef,
    Outgoing,
    Reaction,
    Receipt,
    Withdrawal,
)
from tests.support.thorough import WAIT_S


class Watch:
    """Wakes those who wait for a condition, whenever something has happened."""

    def __init__(self) -> None:
        self._happened = asyncio.Event()

    def note(self) -> None:
        """Have all waiting conditions looked at again."""
        self._happened.set()
        self._happened = asyncio.Event()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Return when the condition holds."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await self._happened.wait()


class Preview(NamedTuple):
    """One call of `preview`."""

    chat: str
    text: str
    ref: str | None


class RecordingAdapter:
    """Implements `adapters.base.Adapter`.

    Attributes:
        attempts: Every call of `send`, also those that failed.
        shown: The messages that got a receipt.
        previews: Every call of `preview`.
        order: ("preview" | "sent" | "withdrawn", text) in the order in which each was shown.
        failures: By chat: what the next calls of `send` raise.
        held: By chat: `send` waits until this is set.
        outages: What the next calls of `run` raise.
        withdrawn: Every call of `withdraw`, also those that failed.
        withdrawal_failures: What the next calls of `withdraw` raise.
        files: By `Attachment.ref`: what `fetch` returns; others are gone.
        fetch_failures: By `Attachment.ref`: what the next calls of `fetch` raise.
        marks: Every call of `acknowledge`.
        looked_up: The nonces of every call of `find_preview`.
        findings: What the next calls of `find_preview` return or raise; then nothing is found.
    """

    def __init__(
        self,
        platform: str = "telegram",
        *,
        idempotent: bool = False,
        previews: bool = True,
        preview_interval_s: float = 0.01,
        chunk_chars: int = 4_000_000,
    ) -> None:
        self.platform = platform
        self.account = "default"
        self.idempotent_sends = idempotent
        self.preview_interval_s = preview_interval_s
        self.connected = True
        self.pool: Any = None
        self.receivers: tuple[Any, ...] = (self,)
        self.is_exclusive = False
        self.closed = False
        self.watch = Watch()
        self.attempts: list[Outgoing] = []
        self.shown: list[Outgoing] = []
        self.previews: list[Preview] = []
        self.order: list[tuple[str, str]] = []
        self.runs = 0
        self.failures: dict[str, deque[Exception]] = defaultdict(deque)
        self.held: dict[str, asyncio.Event] = {}
        self.held_previews: asyncio.Event | None = None
        self.outages: deque[Exception] = deque()
        self.withdrawn: list[Withdrawal] = []
        self.withdrawal_failures: deque[Exception] = deque()
        self.files: dict[str, bytes] = {}
        self.fetched: list[str] = []
        self.fetch_failures: dict[str, deque[Exception]] = defaultdict(deque)
        self.marks: list[tuple[str | None, Reaction]] = []
        self.looked_up: list[str] = []
        self.findings: deque[str | Exception] = deque()
        self._previews = previews
        self._chunk_chars = chunk_chars

    async def run(self) -> None:
        self.runs += 1
        self.watch.note()
        if self.outages:
            raise self.outages.popleft()
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        self.closed = True

    def render(self, markdown: str) -> list[str]:
        size = self._chunk_chars
        return [markdown[start : start + size] for start in range(0, len(markdown), size)]

    async def send(self, message: Outgoing) -> Receipt:
        chat = message.address.chat
        self.attempts.append(message)
        self.watch.note()
        if chat in self.held:
            await self.held[chat].wait()
        if self.failures[chat]:
            raise self.failures[chat].popleft()
        self.shown.append(message)
        self.order.append(("sent", message.payload))
        self.watch.note()
        return Receipt(f"m{len(self.shown)}", resent=message.outcome_unknown)

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        self.withdrawn.append(withdrawal)
        self.watch.note()
        if self.withdrawal_failures:
            raise self.withdrawal_failures.popleft()
        self.order.append(("withdrawn", withdrawal.note))

    async def fetch(self, _address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        self.fetched.append(attachment.ref)
        self.watch.note()
        if self.fetch_failures[attachment.ref]:
            raise self.fetch_failures[attachment.ref].popleft()
        if attachment.ref not in self.files:
            raise FetchRejected("it is gone")
        return self.files[attachment.ref]

    async def preview(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        *,
        grows: bool = True,
        intent: PreviewIntent = UNANNOUNCED,
    ) -> str | None:
        if not self._previews:
            return None
        if ref is None and not self.idempotent_sends:
            await intent.begin()
        self.previews.append(Preview(question.address.chat, text, ref))
        self.watch.note()
        if self.held_previews is not None:
            await self.held_previews.wait()
        self.order.append(("preview", text))
        return ref or f"p{len(self.previews)}"

    async def find_preview(
        self, _question: MessageRef, nonce: str, _others: frozenset[str]
    ) -> str | None:
        self.looked_up.append(nonce)
        self.watch.note()
        finding = self.findings.popleft() if self.findings else None
        if isinstance(finding, Exception):
            raise finding
        return finding

    async def show_working(self, _question: MessageRef) -> None:
        """Show nothing."""

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        self.marks.append((question.message_ref, mark))
        self.watch.note()
