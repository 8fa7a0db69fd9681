"""Acknowledging reactions: received, answered, failed. Best effort, beside the path of a message.

Nothing waits for them. What a platform shows too slowly is dropped, not queued without end.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from adapters.base import Adapter
from adapters.messages import Mark, Question

log = structlog.get_logger()

LANES = 4
"""Reactions that are on their way to one account at a time; those of one chat stay in order."""
WAITING = 250
"""Reactions that wait in one lane; further ones are dropped."""
TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class _Reaction:
    question: Question
    mark: Mark


class Acks:
    """The reactions of all accounts."""

    def __init__(self, adapters: Mapping[tuple[str, str], Adapter]) -> None:
        self._adapters = adapters
        self._lanes: dict[tuple[str, str], list[asyncio.Queue[_Reaction]]] = {
            account: [asyncio.Queue(WAITING) for _ in range(LANES)] for account in adapters
        }

    def show(self, question: Question, mark: Mark) -> None:
        """Have a message marked soon; returns at once. One without a `message_ref` cannot be."""
        if question.message_ref is None:
            return
        address = question.address
        lanes = self._lanes[address.platform, address.account]
        lane = lanes[hash(address.chat) % LANES]
        if lane.full():
            log.debug("reaction_dropped", platform=address.platform, chat=address.chat, mark=mark)
            return
        lane.put_nowait(_Reaction(question, mark))

    async def run(self) -> None:
        """Show what is asked for, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for account, lanes in self._lanes.items():
                for lane in lanes:
                    tasks.create_task(self._show_from(self._adapters[account], lane))

    async def _show_from(self, adapter: Adapter, lane: asyncio.Queue[_Reaction]) -> None:
        while True:
            reaction = await lane.get()
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await adapter.acknowledge(reaction.question, reaction.mark)
            except TimeoutError:
                log.debug("reaction_timed_out", platform=adapter.platform, mark=reaction.mark)
            except Exception:
                # An adapter's bug must not cost the reactions of others.
                log.exception("reaction_failed", platform=adapter.platform)
