"""What the web chat reads from the database: `adapters.base.History`."""

from dataclasses import dataclass

from adapters.base import ChatItem, ChatSummary, ContextGauge
from adapters.messages import Address
from gateway.sessions import address_key
from gateway.storage import history, usage
from gateway.storage.engine import Database


@dataclass(frozen=True, slots=True)
class ChatHistory:
    """Reads of direct chats.

    Attributes:
        window_tokens: Size of the first model's window.
        fixed_tokens: Estimate of system prompt and tool schemas.
    """

    database: Database
    window_tokens: int
    fixed_tokens: int

    async def chats(self, platform: str, account: str) -> list[ChatSummary]:
        """Return the account's conversations, newest activity first."""
        return await self.database.read(history.chats, platform, account)

    async def items(
        self, address: Address, *, after_inbox: int = 0, after_outbox: int = 0
    ) -> list[ChatItem]:
        """Return what was said after the two positions, in order."""
        key = address_key(address)
        return await self.database.read(history.items, key, after_inbox, after_outbox)

    async def gauge(self, address: Address) -> ContextGauge:
        """Return how much of the window the conversation fills."""
        key = address_key(address)
        used = await self.database.read(usage.view_tokens, key, self.fixed_tokens)
        return ContextGauge(used, self.window_tokens)
