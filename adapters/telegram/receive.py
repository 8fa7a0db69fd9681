"""Receives updates by long polling or webhook and passes them to the intake.

The SDK's Updater confirms updates before they are stored; here the order is poll, store, next
offset. A webhook call gets its 200 only after the update is stored.

An album is several messages with one picture each, one of which has the caption. Telegram sends a
webhook the messages of a chat one by one, each after the 200 for the previous one, so none can wait
for the rest of its album. Each is stored on arrival; its file is fetched once the album is
complete. A turn waits for the files of all waiting messages of its chat, so it starts with the
whole album, even after a kill. Source: https://github.com/tdlib/telegram-bot-api, WebhookActor.cpp,
`queue_updates_`.
"""

import asyncio
import hmac
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog
from aiohttp import web
from telegram import BotCommand, BotCommandScopeAllGroupChats, BotCommandScopeDefault
from telegram.error import BadRequest, TelegramError

from adapters.base import Clock, Intake, Recent
from adapters.errors import UNREADABLE, AdapterDisconnected, AdapterRefused
from adapters.messages import Cursor, InboundMessage, Poison, poison
from adapters.telegram.buttons import Buttons
from adapters.telegram.client import ALLOWED_UPDATES, Client
from adapters.telegram.errors import TooManyRequests, mapped_receiving, redact
from adapters.telegram.inbound import (
    PRESS_PREFIX,
    BotIdentity,
    Inbound,
    Reading,
    addressed,
    to_inbound,
)
from adapters.telegram.platform import TelegramSettings
from adapters.telegram.updates import Update, decoded, source_name, update_id

log = structlog.get_logger()

_BODY_TIMEOUT_S = 10.0
_SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - the name of a header
# An old menu for groups would hide the default one.
_MENU_SCOPES = (BotCommandScopeDefault(), BotCommandScopeAllGroupChats())
_FRESH_FOR_S = 90.0
_CHECK_INTERVAL_S = 45.0
_LONGEST_PAUSE_S = 3600.0
PAUSE_S = 1.0
"""Seconds without a new picture after which an album is complete."""
_REMEMBERED = 256


@dataclass(slots=True)
class Album:
    """The received part of an album.

    Attributes:
        grew_at: Arrival of its newest picture, by the clock of `Albums`.
        is_direct: Whether a caption, and so the album, is addressed to the bot.
        overheard: The updates before that caption.
    """

    grew_at: float
    is_direct: bool = False
    overheard: list[Any] = field(default_factory=list)


class Albums:
    """The latest albums of one account."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: Recent[tuple[str, str], Album] = Recent(_REMEMBERED)

    def of(self, chat: str, group: str) -> Album:
        """Return an album, creating an unknown one."""
        if (album := self._known.get((chat, group))) is None:
            album = self._known[chat, group] = Album(self._clock())
        return album

    def grown(self, chat: str, group: str) -> Album:
        """Record another picture of an album; return the album."""
        album = self.of(chat, group)
        album.grew_at = self._clock()
        return album

    async def complete(self, chat: str, group: str) -> None:
        """Wait until an album is complete."""
        left_s = self.of(chat, group).grew_at + PAUSE_S - self._clock()
        if left_s > 0:
            await asyncio.sleep(left_s)
            await self.complete(chat, group)


class Ingest:
    """Passes an account's raw updates to its intake, then presses to `buttons`."""

    def __init__(
        self,
        account: str,
        intake: Intake,
        allow_bots: Iterable[str],
        buttons: Buttons,
        albums: Albums,
    ) -> None:
        self._source = source_name(account)
        self._account = account
        self._intake = intake
        self._allow_bots = frozenset(allow_bots)
        self._buttons = buttons
        self._albums = albums
        self._reading: Reading | None = None

    def introduce(self, bot: BotIdentity) -> None:
        """Set the bot's identity, which decoding requires."""
        self._reading = Reading(self._account, bot, self._allow_bots)

    async def store(self, updates: Sequence[Any], last: int | None = None) -> None:
        """Commit updates (any JSON), with the last number of a poll as the cursor."""
        if self._reading is None:
            raise AdapterDisconnected("the bot's own name is not known yet")
        read = read_updates(updates, self._reading, self._albums)
        said = [(update, item) for update, item in read if isinstance(item, InboundMessage)]
        admissions = await self._intake.accept(
            [item for _, item in read if item is not None],
            cursors=[] if last is None else [Cursor(self._source, last)],
        )
        for (update, message), admission in zip(said, admissions, strict=True):
            if message.dedupe_key.startswith(PRESS_PREFIX):
                self._buttons.put(update, admission)

    async def store_poison(self, body: bytes, reason: str) -> None:
        """Commit a body that is not JSON."""
        text = body.decode("utf-8", "replace")
        await self._intake.accept([poison(self._source, text, reason)])


def read_updates(
    updates: Sequence[Any], reading: Reading, albums: Albums
) -> list[tuple[Any, Inbound]]:
    """Read updates; return each with its item.

    If an album's caption addresses the bot, its earlier updates come again first.
    """
    read = [(update, decoded(update, reading.account)) for update in updates]
    earlier = [update for _, each in read for update in _note_album(each, reading.bot, albums)]
    read = [*((update, decoded(update, reading.account)) for update in earlier), *read]
    return [
        (raw, each if isinstance(each, Poison) else _item(raw, each, reading, albums))
        for raw, each in read
    ]


def _note_album(update: Update | Poison, bot: BotIdentity, albums: Albums) -> list[Any]:
    """Record a picture of an album; return the earlier ones if its caption addresses the bot."""
    message = update.message if isinstance(update, Update) else None
    if message is None or not message.media_group_id:
        return []
    album = albums.grown(str(message.chat.id), message.media_group_id)
    if addressed(message, bot) != "direct":
        return []
    album.is_direct = True
    return album.overheard


def _item(raw: Any, update: Update, reading: Reading, albums: Albums) -> Inbound:
    message = update.said
    if message is None or not message.media_group_id:
        return to_inbound(raw, update, reading)
    album = albums.of(str(message.chat.id), message.media_group_id)
    item = to_inbound(raw, update, reading, is_direct=album.is_direct)
    if isinstance(item, InboundMessage) and item.addressed == "overheard":
        album.overheard.append(raw)
    return item


class Receiver:
    """The receiving half of one bot; also answers presses while it runs."""

    def __init__(
        self,
        settings: TelegramSettings,
        ingest: Ingest,
        buttons: Buttons,
        commands: Sequence[tuple[str, str]],
        poll_timeout_s: int,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._ingest = ingest
        self._buttons = buttons
        self._commands = [BotCommand(name.removeprefix("/"), text) for name, text in commands]
        self._poll_timeout_s = poll_timeout_s
        self._clock = clock
        self._reached_at = float("-inf")

    @property
    def connected(self) -> bool:
        """Whether Telegram answered a poll (with a webhook, a token check) within 90 s."""
        return self._clock() - self._reached_at < _FRESH_FOR_S

    async def run(self) -> None:
        """Receive until cancelled, on its own connections; see `Receives.run`.

        Raises the intake's exceptions. Nothing is confirmed then: the next run polls without an
        offset and gets the same updates again.
        """
        for key, why in self._settings.missing():
            raise AdapterRefused(f"{why} needs platforms.telegram.{key}")
        client = Client(self._settings)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._buttons.run(), name="telegram buttons")
                await self._greet(client)
                if self._settings.mode == "webhook":
                    await self._watch_webhook(client)
                await self._poll(client)
        except BaseExceptionGroup as failures:
            failure = failures.exceptions[0]
            if isinstance(failure, AdapterDisconnected):
                self._reached_at = float("-inf")
            raise failure from failures
        finally:
            # Do not wait for a poll, whose updates would not be confirmed.
            await client.close(within_s=0)

    async def _greet(self, client: Client) -> None:
        with mapped_receiving(client.token):
            me = await client.bot.get_me()
        self._ingest.introduce(BotIdentity(me.id, me.username or ""))
        try:
            # Without a menu, commands still work as text.
            for scope in _MENU_SCOPES:
                # Only if it differs, since clients reload a changed menu.
                if list(await client.bot.get_my_commands(scope)) != self._commands:
                    await client.bot.set_my_commands(self._commands, scope)
        except (TelegramError, *UNREADABLE) as exc:
            log.warning("telegram_commands_not_set", reason=redact(str(exc), client.token))
        account = self._settings.name
        log.info("telegram_connected", account=account, bot=me.username, mode=self._settings.mode)

    async def _poll(self, client: Client) -> NoReturn:
        with mapped_receiving(client.token):
            # getUpdates fails with 409 while a webhook is set. Keep waiting updates.
            await client.bot.delete_webhook(drop_pending_updates=False)
        # Never a stored offset: numbers may restart after a quiet week, and without one unconfirmed
        # updates come again.
        offset: int | None = None
        # The first poll returns at once, which proves the connection.
        within_s = 0
        while True:
            with mapped_receiving(client.token):
                updates = await self._updates(client, offset, within_s)
            last = _last_id(updates)
            self._reached_at, within_s = self._clock(), self._poll_timeout_s
            if last is not None:
                await self._ingest.store(updates, last)
                offset = last + 1

    async def _updates(self, client: Client, offset: int | None, within_s: int) -> Any:
        """Poll once, after any pause requested by Telegram."""
        while True:
            try:
                return await client.raw_updates(offset, within_s)
            except TooManyRequests as exc:
                if not exc.retry_after_s:
                    raise
                log.warning("telegram_flooded", seconds=exc.retry_after_s)
                await asyncio.sleep(min(exc.retry_after_s, _LONGEST_PAUSE_S))

    async def _watch_webhook(self, client: Client) -> NoReturn:
        """Register the webhook, then periodically check that the token is valid."""
        with mapped_receiving(client.token):
            await self._set_webhook(client)
            while True:
                self._reached_at = self._clock()
                # No message may come for days, so only a request shows whether the token is valid.
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


class Webhook:
    """Handles Telegram's calls; Telegram redelivers an update unless the response is 200."""

    def __init__(self, secret: str, ingest: Ingest) -> None:
        self._secret = secret.encode()
        self._ingest = ingest

    async def handle(self, request: web.Request) -> web.Response:
        """Store an update; respond 200, or 503 if it was not stored."""
        given = request.headers.get(_SECRET_HEADER, "").encode("utf-8", "surrogateescape")
        # In constant time, so that timing does not reveal the secret.
        if not hmac.compare_digest(given, self._secret):
            log.warning("telegram_webhook_denied", address=request.remote)
            raise web.HTTPUnauthorized
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            body = await request.read()
        try:
            await self._store(body)
        # 503 makes Telegram redeliver it.
        except Exception:
            log.exception("telegram_webhook_not_stored")
            return web.Response(status=503)
        return web.Response()

    async def _store(self, body: bytes) -> None:
        try:
            update = json.loads(body)
        except (ValueError, RecursionError) as exc:
            await self._ingest.store_poison(body, str(exc))
        else:
            await self._ingest.store([update])


def webhook_secret(settings: TelegramSettings) -> str:
    """Return the webhook's secret, or ""."""
    return settings.webhook_secret.get_secret_value() if settings.webhook_secret else ""


def _last_id(updates: Any) -> int | None:
    """Return the highest update number, which confirms the poll; None if it is empty."""
    if not isinstance(updates, list):
        raise AdapterDisconnected("getUpdates did not return a list")
    numbers = [number for number in map(update_id, updates) if number is not None]
    if updates and not numbers:
        raise AdapterDisconnected("getUpdates returned updates without numbers")
    return max(numbers, default=None)
