"""Updates of a socket on their way to the intake (step 1): in order, in batches."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from adapters.slack.ingest import MENTION_DELAY_S, Update, is_bare_mention

_BATCH = 100


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """An update, and who waits for its commit."""

    update: Update
    stored: asyncio.Future[None]

    def is_stored(self) -> None:
        """Tell it to who waits, if anybody still does."""
        if not self.stored.done():
            self.stored.set_result(None)


class Envelopes:
    """What was received and is not stored yet; holds back mentions that came without files.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: asyncio.Queue[Envelope | None] = asyncio.Queue()
        self._mentions: deque[tuple[float, Envelope]] = deque()
        self._hurried = False

    async def store(self, update: Update) -> None:
        """Return once an update is committed; those that come in order are stored in order."""
        envelope = Envelope(update, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(envelope)
        await envelope.stored

    def hurry(self) -> None:
        """Hold nothing back any more."""
        self._hurried = True
        self._waiting.put_nowait(None)

    async def next_batch(self) -> list[Envelope]:
        """Return what is to be stored next; waits for at least one."""
        while True:
            came = await self._came()
            batch = [each for each in came if each is not None and not self._is_held(each)]
            batch += self._ripe()
            if batch:
                return batch

    async def _came(self) -> list[Envelope | None]:
        """Return what waits; nothing once the first held mention has waited long enough."""
        came: list[Envelope | None] = []
        if self._waiting.empty():
            held_s = self._mentions[0][0] - self._clock() if self._mentions else None
            try:
                async with asyncio.timeout(held_s):
                    came.append(await self._waiting.get())
            except TimeoutError:
                return []
        while len(came) < _BATCH and not self._waiting.empty():
            came.append(self._waiting.get_nowait())
        return came

    def _is_held(self, envelope: Envelope) -> bool:
        if not is_bare_mention(envelope.update):
            return False
        self._mentions.append((self._clock() + MENTION_DELAY_S, envelope))
        return True

    def _ripe(self) -> list[Envelope]:
        ripe: list[Envelope] = []
        while self._mentions and (self._hurried or self._mentions[0][0] <= self._clock()):
            ripe.append(self._mentions.popleft()[1])
        return ripe
