"""Envelopes between the socket and the intake (step 1): in order, in batches."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast, get_args

from adapters.slack.ingest import MENTION_DELAY_S, Update, UpdateKind, is_bare_mention

_BATCH = 100
_WAITING = 2000


class Envelopes:
    """What was received and is not stored yet; holds back mentions that came without files.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_WAITING)
        self._mentions: deque[tuple[float, dict[str, Any]]] = deque()

    async def put(self, envelope: dict[str, Any]) -> None:
        """Add an envelope; waits while too many are there."""
        await self._waiting.put(envelope)

    async def end(self) -> None:
        """Say that no more will come."""
        await self._waiting.put(None)

    async def next_batch(self) -> tuple[list[dict[str, Any]], bool]:
        """Return what is to be stored next, and whether it is the last; waits for at least one."""
        while True:
            came = await self._came()
            ended = None in came
            batch = [each for each in came if each is not None and not self._is_held(each)]
            batch += self._ripe(at_once=ended)
            if batch or ended:
                return batch, ended

    async def _came(self) -> list[dict[str, Any] | None]:
        """Return what waits; nothing once the first held mention has waited long enough."""
        came: list[dict[str, Any] | None] = []
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

    def _is_held(self, envelope: dict[str, Any]) -> bool:
        if not is_update(envelope) or not is_bare_mention(update_of(envelope)):
            return False
        self._mentions.append((self._clock() + MENTION_DELAY_S, envelope))
        return True

    def _ripe(self, *, at_once: bool) -> list[dict[str, Any]]:
        ripe: list[dict[str, Any]] = []
        while self._mentions and (at_once or self._mentions[0][0] <= self._clock()):
            ripe.append(self._mentions.popleft()[1])
        return ripe


def is_update(envelope: dict[str, Any]) -> bool:
    """Whether an envelope brings anything, rather than being about the connection."""
    return envelope.get("type") in get_args(UpdateKind)


def update_of(envelope: dict[str, Any]) -> Update:
    """Return what an envelope brings."""
    return Update(cast("UpdateKind", envelope["type"]), envelope.get("payload"))
