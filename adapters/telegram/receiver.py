"""Receives updates by long polling or through the webhook (step 1).

The SDK's own Updater confirms updates before they are stored; so the loop is written out here:
poll, store, and only then the next offset.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from telegram import (
    BotCommand,
    BotCommandScope,
    BotCommandScopeAllGroupChats,
    BotCommandScopeDefault,
)
from telegram.error import BadRequest, TelegramError

from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.telegram.addressing import BotIdentity
from adapters.telegram.client import ALLOWED_UPDATES, Client, TooManyRequests, redact
from adapters.telegram.errors import UNREADABLE, mapped_receiving
from adapters.telegram.inbound import update_id
from adapters.telegram.ingest import Ingest

if TYPE_CHECKING:
    from adapters.settings import TelegramSettings

log = structlog.get_logger()

# A menu for groups that somebody set earlier would hide the default one.
_MENU_SCOPES = (BotCommandScopeDefault(), BotCommandScopeAllGroupChats())
_FRESH_FOR_S = 90.0
_CHECK_INTERVAL_S = 45.0
_LONGEST_PAUSE_S = 3600.0


class Receiver:
    """The incoming half of one bot.

    Args:
        settings: The bot's block.
        ingest: Where updates are made durable.
        commands: What the platform's command menu offers: (name, description).
        poll_timeout_s: How long Telegram may hold back an empty answer to a poll; whole seconds.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        settings: "TelegramSettings",
        ingest: Ingest,
        commands: Sequence[tuple[str, str]],
        *,
        poll_timeout_s: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._ingest = ingest
        self._commands = [BotCommand(name.removeprefix("/"), text) for name, text in commands]
        self._poll_timeout_s = poll_timeout_s
        self._clock = clock
        self._reached_at = float("-inf")

    @property
    def connected(self) -> bool:
        """Whether Telegram answers: it did within the last 90 s, and no run has ended since."""
        return self._clock() - self._reached_at < _FRESH_FOR_S

    async def run(self) -> NoReturn:
        """Receive until cancelled, on connections of its own.

        Whatever the intake raises goes on to the caller. Nothing was confirmed then: the next run
        polls without an offset and gets the same updates again.
        """
        _check_webhook(self._settings)
        client = Client(self._settings)
        try:
            await self._greet(client)
            if self._settings.mode == "webhook":
                await self._watch_webhook(client)
            await self._poll(client)
        except AdapterDisconnected:
            self._reached_at = float("-inf")
            raise
        finally:
            # A poll may go on for half a minute, and what it brings would not be confirmed.
            await client.close(within_s=0)

    async def _greet(self, client: Client) -> None:
        with mapped_receiving(client.token):
            me = await client.bot.get_me()
        self._reached_at = self._clock()
        self._ingest.introduce(BotIdentity(me.id, me.username or ""))
        try:
            for scope in _MENU_SCOPES:
                await self._set_commands(client, scope)
        except (TelegramError, *UNREADABLE) as exc:
            log.warning("telegram_commands_not_set", reason=redact(str(exc), client.token))
        account = self._settings.name
        log.info("telegram_connected", account=account, bot=me.username, mode=self._settings.mode)

    async def _set_commands(self, client: Client, scope: BotCommandScope) -> None:
        """Change the menu only where it is another one: clients fetch it anew each time."""
        if list(await client.bot.get_my_commands(scope)) != self._commands:
            await client.bot.set_my_commands(self._commands, scope)

    async def _poll(self, client: Client) -> NoReturn:
        with mapped_receiving(client.token):
            await client.bot.delete_webhook(drop_pending_updates=False)
        offset: int | None = None
        while True:
            with mapped_receiving(client.token):
                updates = await self._updates(client, offset)
            last = _last_id(updates)
            self._reached_at = self._clock()
            if last is not None:
                await self._ingest.store(updates, last)
                offset = last + 1

    async def _updates(self, client: Client, offset: int | None) -> Any:
        """Ask for updates; not before a pause that Telegram wants is over."""
        while True:
            try:
                return await client.bot.raw_updates(offset, self._poll_timeout_s)
            except TooManyRequests as exc:
                if not exc.retry_after_s:
                    raise
                log.warning("telegram_flooded", seconds=exc.retry_after_s)
                await asyncio.sleep(min(exc.retry_after_s, _LONGEST_PAUSE_S))

    async def _watch_webhook(self, client: Client) -> NoReturn:
        """Register the webhook, then look now and then whether Telegram still knows the bot."""
        with mapped_receiving(client.token):
            await self._set_webhook(client)
            while True:
                self._reached_at = self._clock()
                await asyncio.sleep(_CHECK_INTERVAL_S)
                await client.bot.get_me()

    async def _set_webhook(self, client: Client) -> None:
        try:
            await client.bot.set_webhook(
                self._settings.webhook_url or "",
                allowed_updates=ALLOWED_UPDATES,
                drop_pending_updates=False,
                secret_token=webhook_secret(self._settings),
            )
        except BadRequest as exc:
            reason = redact(exc.message, client.token)
            refusal = f"platforms.telegram.webhook_url or webhook_secret is refused: {reason}"
            raise AdapterRefused(refusal) from exc


def webhook_secret(settings: "TelegramSettings") -> str:
    """Return the secret of the webhook, empty if none is set."""
    return settings.webhook_secret.get_secret_value() if settings.webhook_secret else ""


def _check_webhook(settings: "TelegramSettings") -> None:
    if settings.mode == "polling":
        return
    if not settings.webhook_url:
        raise AdapterRefused("webhook mode needs platforms.telegram.webhook_url")
    if not webhook_secret(settings):
        raise AdapterRefused("webhook mode needs platforms.telegram.webhook_secret")


def _last_id(updates: Any) -> int | None:
    """Return the highest update number of a poll, None if it brought nothing.

    Raises:
        AdapterDisconnected: This is no list of updates, or none in it has a number: there is no
            offset that would move past it.
    """
    if not isinstance(updates, list):
        raise AdapterDisconnected("getUpdates did not return a list")
    numbers = [number for number in map(update_id, updates) if number is not None]
    if updates and not numbers:
        raise AdapterDisconnected("getUpdates returned updates without numbers")
    return max(numbers, default=None)
