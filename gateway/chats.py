"""What the web chat reads from the database: `adapters.base.History`."""

from collections.abc import Callable
from dataclasses import dataclass

from adapters.base import ChatItem, ChatSummary, ContextGauge
from adapters.messages import Address, OutgoingFile
from gateway.commands import StatusFacts
from gateway.sessions import address_key
from gateway.storage import attachments, history, inbox, usage
from gateway.storage.engine import Database


@dataclass(frozen=True, slots=True)
class ChatHistory:
    """Reads of direct chats.

    Attributes:
        facts: Returns the figures of the model that was chosen, None for the default, as they are
            now.
    """

    database: Database
    facts: Callable[[str | None], StatusFacts]

    async def chats(self, platform: str, account: str) -> list[ChatSummary]:
        """Return the account's conversations, newest activity first."""
        return await self.database.read(history.chats, platform, account)

    async def items(
        self, address: Address, *, after_inbox: int = 0, after_outbox: int = 0
    ) -> list[ChatItem]:
        """Return what was said after the two positions, in order."""
        key = address_key(address)
        return await self.database.read(history.items, key, after_inbox, after_outbox)

    async def file(self, address: Address, file_id: int) -> OutgoingFile | None:
        """Return a file of this chat, and of no other."""
        conversation_id = await self.database.read(inbox.find, address_key(address))
        if conversation_id is None:
            return None
        return await self.database.read(attachments.of_conversation, conversation_id, file_id)

    async def gauge(self, address: Address) -> ContextGauge:
        """Return how much of the window the conversation fills."""
        key = address_key(address)
        facts = self.facts(await self.database.read(usage.model_of, key))
        used = await self.database.read(usage.view_tokens, key, facts.fixed_tokens)
        return ContextGauge(used, facts.window_tokens)
