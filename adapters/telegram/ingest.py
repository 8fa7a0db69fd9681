"""Hands decoded updates to the intake (end of step 1); shared by polling and webhook."""

from collections.abc import Sequence
from typing import Any

import structlog

from adapters.base import Intake
from adapters.errors import AdapterDisconnected
from adapters.messages import Cursor, InboundMessage, Poison
from adapters.telegram.inbound import BotIdentity, source_name, to_inbound

log = structlog.get_logger()


class Ingest:
    """The way from raw updates of one account to its intake.

    Attributes:
        identity: Who the bot is, once Telegram has said so; nothing can be decoded before.
    """

    def __init__(self, account: str, intake: Intake) -> None:
        self.source = source_name(account)
        self.identity: BotIdentity | None = None
        self._account = account
        self._intake = intake

    async def store(self, updates: Sequence[Any], last: int | None = None) -> None:
        """Commit a batch of updates; they are durable when this returns.

        Args:
            updates: Decoded JSON, in order; of any shape.
            last: Number of the newest update of a poll, committed as the source's cursor.
        """
        if self.identity is None:
            raise AdapterDisconnected("the bot's own name is not known yet")
        read = [to_inbound(update, self._account, self.identity) for update in updates]
        messages = [item for item in read if isinstance(item, InboundMessage)]
        bad = [item for item in read if isinstance(item, Poison)]
        for item in bad:
            self._log_poison(item)
        cursors = [] if last is None else [Cursor(self.source, last)]
        await self._intake.accept(messages, cursors=cursors, poison=bad)

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
