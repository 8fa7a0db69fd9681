"""Acknowledging reactions: received, answered, failed. Best effort; no message waits for them.

A platform that is too slow loses reactions: the queues are bounded.
"""

import asyncio
from collections import deque
from collections.abc import Mapping

import structlog

from adapters.base import Adapter
from adapters.messages import MessageRef, Reaction

log = structlog.get_logger()

AT_ONCE = 4
"""Reactions that are on their way to one account at a time."""
WAITING_IN_CHAT = 20
WAITING = 1000
"""Longest queues, of one chat and of an account; further reactions are dropped."""
TIMEOUT_S = 15.0


class ReactionQueue:
    """The reactions of all accounts; those of one chat are shown in order."""

    def __init__(self, adapters: Mapping[tuple[str, str], Adapter]) -> None:
        self._accounts = {account: _Account(adapter) for account, adapter in adapters.items()}

    def show(self, question: MessageRef, mark: Reaction) -> None:
        """Mark a message soon; returns at once. Without a `message_ref` nothing can be marked."""
        if question.message_ref is not None:
            self._accounts[question.address.platform, question.address.account].take(question, mark)

    async def run(self) -> None:
        """Show what is asked for, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for account in self._accounts.values():
                for _ in range(AT_ONCE):
                    tasks.create_task(account.work())


class _Account:
    """The reactions of one account, by chat; a chat is in the line once."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._chats: dict[str, deque[tuple[MessageRef, Reaction]]] = {}
        self._line: asyncio.Queue[str] = asyncio.Queue()

    def take(self, question: MessageRef, mark: Reaction) -> None:
        """Put a reaction into its chat's queue, unless too many wait."""
        chat = question.address.chat
        waiting = self._chats.get(chat)
        if self._line.qsize() >= WAITING if waiting is None else len(waiting) >= WAITING_IN_CHAT:
            log.debug("reaction_dropped", platform=self._adapter.platform, chat=chat, mark=mark)
        elif waiting is None:
            self._chats[chat] = deque([(question, mark)])
            self._line.put_nowait(chat)
        else:
            waiting.append((question, mark))

    async def work(self) -> None:
        """Show one reaction after another, each time of the chat that has waited longest."""
        while True:
            chat = await self._line.get()
            question, mark = self._chats[chat].popleft()
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._adapter.acknowledge(question, mark)
            except TimeoutError:
                log.debug("reaction_timed_out", platform=self._adapter.platform, mark=mark)
            except Exception:
                # An adapter's bug must not cost the reactions of others.
                log.exception("reaction_failed", platform=self._adapter.platform)
            if self._chats[chat]:
                self._line.put_nowait(chat)
            else:
                del self._chats[chat]
