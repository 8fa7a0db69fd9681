"""An in-memory `History` and `Intake`: what the gateway gives to the web chat, for its tests."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapters.base import ChatFile, ChatItem, ChatSummary, ContextGauge, Update
from adapters.door import FIRST_OWNER
from adapters.messages import (
    Address,
    Admission,
    Cursor,
    InboundMessage,
    OutgoingFile,
)

AT = "2026-11-21T14:05:00+00:00"


@dataclass
class MemoryChat:
    """One conversation: its items, and how far inbox and outbox got."""

    items: list[ChatItem] = field(default_factory=list)
    inbox_head: int = 0
    outbox_head: int = 0


@dataclass
class MemoryHistory:
    """Keeps what is accepted and answered; `admitted` is set when something was accepted."""

    used_tokens: int | None = None
    window_tokens: int = 200_000
    messages: list[InboundMessage] = field(default_factory=list)
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    on_admitted: Callable[[str, int, str], None] = lambda chat, seq, text: None
    store: defaultdict[str, MemoryChat] = field(default_factory=lambda: defaultdict(MemoryChat))
    keys: set[str] = field(default_factory=set)
    files: dict[int, tuple[str, OutgoingFile]] = field(default_factory=dict)
    verdict: dict[str, Any] = field(default_factory=dict)
    edits: Any = "queued"
    wait: float = 0.0

    async def accept(
        self, updates: Sequence[Update], *, cursors: Sequence[Cursor] = ()
    ) -> list[Admission]:
        """Store new messages, recognise known dedupe keys."""
        return [self._admit(each) for each in updates if isinstance(each, InboundMessage)]

    def _admit(self, message: InboundMessage) -> Admission:
        if message.dedupe_key in self.keys:
            return Admission("duplicate", 1)
        self.keys.add(message.dedupe_key)
        if message.kind == "edit" and self.edits == "ignored":
            return Admission("ignored")
        self.messages.append(message)
        chat = message.address.chat
        files = tuple(
            self.keep(chat, OutgoingFile(file.name, file.mime, file.content or b""))
            for file in message.attachments
        )
        seq = self.write(chat, message.text, files=files, ref=message.message_ref)
        self.admitted.set()
        self.on_admitted(message.address.chat, seq, message.text)
        outcome = self.edits if message.kind == "edit" else "queued"
        return Admission(outcome, 1, seq, **self.verdict)

    def wait_s(self, _platform: str, _sender: str) -> float:
        """Return the configured wait before another message."""
        return self.wait

    async def position(self, source: str) -> int | None:
        """Return None: the web chat has no cursor."""
        return None

    async def positions(self, prefix: str) -> dict[str, int]:
        """Return none: the web chat has no cursor."""
        return {}

    async def is_conversation(self, address: Address) -> bool:
        """Whether something was said there."""
        return address.chat in self.store

    def write(self, chat: str, text: str, **fields: Any) -> int:
        """Add a person's message; return its position."""
        state = self.store[chat]
        state.inbox_head += 1
        state.items.append(ChatItem(state.inbox_head, 0, text, AT, **fields))
        return state.inbox_head

    def answer(self, chat: str, markdown: str, inbox_seq: int | None = None, **fields: Any) -> int:
        """Commit an answer to a message (the newest one unless given); return its position."""
        state = self.store[chat]
        state.outbox_head += 1
        seq = state.inbox_head if inbox_seq is None else inbox_seq
        state.items.append(ChatItem(seq, state.outbox_head, markdown, AT, **fields))
        return state.outbox_head

    def keep(self, chat: str, file: OutgoingFile) -> ChatFile:
        """Store a file of a chat."""
        number = len(self.files) + 1
        self.files[number] = chat, file
        return ChatFile(number, file.name, file.mime, len(file.content))

    async def file(self, address: Address, file_id: int) -> OutgoingFile | None:
        """Return a file of this chat."""
        chat, file = self.files.get(file_id, ("", None))
        return file if chat == address.chat else None

    async def chats(self, platform: str, account: str, sender: str) -> list[ChatSummary]:
        """Return somebody's chats, titled by their first message."""
        begin = "" if sender == FIRST_OWNER else f"{sender}/"
        return [
            ChatSummary(name, chat.items[0].markdown[:60], AT)
            for name, chat in self.store.items()
            if chat.items and name.rpartition("/")[0] == begin.rstrip("/")
        ]

    async def items(
        self, address: Address, *, after_inbox: int = 0, after_outbox: int = 0
    ) -> list[ChatItem]:
        """Return messages after `after_inbox` and answers after `after_outbox`."""
        found = self.store[address.chat].items if address.chat in self.store else []
        news = [
            item
            for item in found
            if (item.outbox_seq > after_outbox if item.outbox_seq else item.inbox_seq > after_inbox)
        ]
        return sorted(news, key=lambda item: (item.inbox_seq, item.outbox_seq))

    async def gauge(self, address: Address) -> ContextGauge:
        """Return the gauge that the test set."""
        return ContextGauge(self.used_tokens, self.window_tokens)
