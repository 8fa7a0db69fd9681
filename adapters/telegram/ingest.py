"""Hands decoded updates to the intake (end of step 1); shared by polling and webhook."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog

from adapters.base import Intake
from adapters.errors import AdapterDisconnected
from adapters.messages import Admission, Cursor, InboundMessage, Move, Poison
from adapters.telegram.addressing import BotIdentity
from adapters.telegram.inbound import PRESS_PREFIX, Reader, source_name

log = structlog.get_logger()


class Ingest:
    """The way from raw updates of one account to its intake.

    Args:
        account: The account's name.
        intake: Durable admission.
        allow_bots: Ids of bots that are listened to.
        pressed: Called with each press of a button after it was committed; never raises.
    """

    def __init__(
        self,
        account: str,
        intake: Intake,
        allow_bots: Iterable[str],
        pressed: Callable[[Any, Admission], None],
    ) -> None:
        self.source = source_name(account)
        self._account = account
        self._intake = intake
        self._allow_bots = frozenset(allow_bots)
        self._pressed = pressed
        self._reader: Reader | None = None

    def introduce(self, bot: BotIdentity) -> None:
        """Say who the bot is, as Telegram told; nothing can be decoded before."""
        if self._reader is None or self._reader.bot != bot:
            self._reader = Reader(self._account, bot, self._allow_bots)

    async def store(self, updates: Sequence[Any], last: int | None = None) -> None:
        """Commit a batch of updates; they are durable when this returns.

        Args:
            updates: Decoded JSON, in order; of any shape.
            last: Number of the newest update of a poll, committed as the source's cursor.
        """
        if self._reader is None:
            raise AdapterDisconnected("the bot's own name is not known yet")
        read = list(zip(updates, self._reader.read(updates), strict=True))
        said = [(update, item) for update, item in read if isinstance(item, InboundMessage)]
        bad = [item for _, item in read if isinstance(item, Poison)]
        for item in bad:
            self._log_poison(item)
        admissions = await self._intake.accept(
            [message for _, message in said],
            cursors=[] if last is None else [Cursor(self.source, last)],
            poison=bad,
            moves=[item for _, item in read if isinstance(item, Move)],
        )
        for (update, message), admission in zip(said, admissions, strict=True):
            if message.dedupe_key.startswith(PRESS_PREFIX):
                self._pressed(update, admission)

    async def store_poison(self, item: Poison) -> None:
        """Commit what is not even JSON."""
        self._log_poison(item)
        await self._intake.accept([], poison=[item])

    def _log_poison(self, item: Poison) -> None:
        log.warning(
            "telegram_update_undecodable",
            source=item.source,
            update=item.dedupe_key,
            reason=item.reason,
        )
