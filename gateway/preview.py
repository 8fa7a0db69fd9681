"""The one message in which an answer is shown while it grows: announced, known, found again.

An intent is stored before the message is posted, its id afterwards. A process that is killed in
between leaves the intent: the next one asks the platform for the message and adopts it. Where that
cannot be said the answer names it, so that no half answer stands there unexplained. A turn has one
such message at most: while nobody knows what became of it, no other is begun.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from typing_extensions import override

from adapters.base import Adapter, PreviewIntent
from adapters.errors import AdapterError, SendDelayed
from adapters.messages import Question

log = structlog.get_logger()

LOOK_UP_S = 30.0
"""How long the end of a turn waits for a platform to say what became of a preview.

Longer than a request may be on its way: its answer could not overtake it anyway.
"""
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class PreviewRows:
    """What is stored about a preview.

    Attributes:
        announce: Stores, durably, that a message with this nonce will be posted.
        remember: Stores the id of the message.
        others: Returns the ids of messages that show something else.
    """

    announce: Callable[[str], Awaitable[None]]
    remember: Callable[[str], Awaitable[None]]
    others: Callable[[], Awaitable[frozenset[str]]]


class PreviewMessage(PreviewIntent):
    """One turn's preview.

    Args:
        adapter: Where it is shown.
        question: What is answered.
        rows: Where it is kept.
        ref: The message's id, where an earlier attempt has stored it.
        nonce: Of a message that an earlier attempt has announced, and whose id is not known.

    Attributes:
        ref: The platform's id of the message; None while there is none.
        is_lost: It may stand there, and the platform cannot say where.
    """

    def __init__(
        self,
        adapter: Adapter,
        question: Question,
        rows: PreviewRows,
        *,
        ref: str | None = None,
        nonce: str | None = None,
    ) -> None:
        self.ref = ref
        self.is_lost = False
        self._adapter = adapter
        self._question = question
        self._rows = rows
        self._doubted = nonce

    @override
    async def begin(self) -> str:
        nonce = secrets.token_hex(12)
        await self._rows.announce(nonce)
        self._doubted = nonce
        return nonce

    @override
    def undo(self) -> None:
        self._doubted = None

    @property
    def stands(self) -> bool:
        """Whether something of it stands, or may stand, in the chat."""
        return self.ref is not None or self.is_lost

    async def shown_as(self, ref: str | None) -> None:
        """Store under which id it is shown, where that is news."""
        if ref is not None and ref != self.ref:
            self.ref, self._doubted = ref, None
            await self._rows.remember(ref)

    async def is_known(self) -> bool:
        """Whether it can be shown, or shown anew; asks the platform where there is a doubt."""
        if self._doubted is not None:
            await self._look_up()
        return self._doubted is None and not self.is_lost

    async def settle(self) -> None:
        """Know, at the end of a turn, what became of it: its id, none, or `is_lost`."""
        if self._doubted is None:
            return
        try:
            async with asyncio.timeout(LOOK_UP_S):
                await self._look_up_patiently()
        except TimeoutError:
            self._lose("the platform takes too long")

    async def _look_up_patiently(self) -> None:
        while self._doubted is not None:
            delayed = await self._look_up()
            if delayed is not None:
                await asyncio.sleep(delayed.retry_after_s or RETRY_S)

    async def _look_up(self) -> SendDelayed | None:
        """Ask the platform once; return why it cannot be said now."""
        others = await self._rows.others()
        # A post that is on its way may be refused meanwhile.
        if (nonce := self._doubted) is None:
            return None
        try:
            ref = await self._adapter.find_preview(self._question, nonce, others)
        except SendDelayed as exc:
            return exc
        except AdapterError as exc:
            self._lose(str(exc))
        except Exception as exc:
            # A bug of the adapter: a turn that failed by it would fail at every attempt.
            log.exception("preview_failed", platform=self._question.address.platform)
            self._lose(repr(exc))
        else:
            self._doubted = None
            log.info("preview_looked_up", found=ref is not None)
            await self.shown_as(ref)
        return None

    def _lose(self, reason: str) -> None:
        if self._doubted is None:
            return
        self._doubted, self.is_lost = None, True
        platform = self._question.address.platform
        log.warning("preview_lost", platform=platform, reason=reason)
