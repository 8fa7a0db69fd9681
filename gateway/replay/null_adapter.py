"""A platform without an outside: `parley replay` and the benchmarks talk through it."""

import asyncio
from collections.abc import Callable

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


class NullAdapter:
    """Shows nothing and tells its caller what would be shown.

    Args:
        on_send: Called with every message that is sent, at the moment it is.
    """

    platform = "null"
    account = "default"
    idempotent_sends = True
    preview_interval_s = 0.0
    connected = True
    pool = None

    def __init__(self, on_send: Callable[[Outgoing], None]) -> None:
        self._on_send = on_send

    async def run(self) -> None:
        """Receive nothing, until cancelled."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Nothing to give back."""

    def render(self, markdown: str) -> list[str]:
        """Return the text as the only payload; there is no limit."""
        return [markdown]

    async def send(self, message: Outgoing) -> Receipt:
        """Hand the message to the caller."""
        self._on_send(message)
        return Receipt(f"{message.conversation}:{message.seq}")

    async def withdraw(self, _withdrawal: Withdrawal) -> None:
        """There are no buttons."""

    async def fetch(self, _address: Address, attachment: Attachment, _limit_bytes: int) -> bytes:
        """There is nothing to fetch from."""
        raise FetchRejected(f"{attachment.name} is nowhere")

    async def preview(
        self,
        _question: MessageRef,
        _text: str,
        _ref: str | None,
        *,
        grows: bool = True,  # noqa: ARG002
        intent: PreviewIntent = UNANNOUNCED,  # noqa: ARG002
    ) -> str | None:
        """Show no preview."""
        return None

    async def find_preview(
        self, _question: MessageRef, _nonce: str, _others: frozenset[str]
    ) -> str | None:
        """There is none."""
        return None

    async def show_working(self, _question: MessageRef) -> None:
        """Show nothing."""

    async def acknowledge(self, _question: MessageRef, _mark: Reaction) -> None:
        """Show nothing."""
