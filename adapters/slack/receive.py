"""Receives for one app, through its socket or through its webhook.

In HTTP mode Slack gets its 200 only after what it brought was stored. Bolt checks the signature,
answers Slack's own checks of the address, and tells events, buttons and slash commands apart.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import parse_qsl

import structlog
from aiohttp import web
from slack_bolt.adapter.aiohttp import to_aiohttp_response, to_bolt_request
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.response import BoltResponse
from slack_sdk.signature import SignatureVerifier

from adapters import errors
from adapters.base import Clock, Intake
from adapters.errors import AdapterDisconnected, AdapterError, AdapterRefused
from adapters.messages import NOT_FOR_YOU
from adapters.registry import credential
from adapters.slack.buttons import Press, pressed_blocks
from adapters.slack.client import Client, sdk_log
from adapters.slack.errors import mapped, mapped_receiving
from adapters.slack.inbound import BotIdentity
from adapters.slack.ingest import (
    MENTION_DELAY_S,
    Backfill,
    IncomingPayload,
    Ingest,
    Title,
    UpdateKind,
    identified,
    is_bare_mention,
)
from adapters.slack.platform import SlackSettings
from adapters.slack.socketmode import Socket

log = structlog.get_logger()

_BODY_TIMEOUT_S = 10.0
_FRESH_FOR_S = 90.0
_CHECK_INTERVAL_S = 45.0
_SHORTEST_CONNECTION_S = 5.0
_TITLE_CHARS = 80
UNREADABLE = (*errors.UNREADABLE, ArithmeticError, RecursionError)
"""What Bolt raises, before it asks anybody, for calls of a shape it did not expect.

It looks for ids in every corner of a payload: an event whose `user` is a number is a TypeError.
"""

Store = Callable[[IncomingPayload], Awaitable[None]]
"""Returns once an update is committed."""


class Webhook:
    """Takes Slack's calls; an event that is answered with anything but 200 is delivered again."""

    def __init__(self, secret: str, client: Client, ingest: Ingest) -> None:
        self._ingest = ingest
        self._verifier = SignatureVerifier(secret)
        self._app = bolt_app(client, ingest, self._store, secret)

    async def handle(self, request: web.Request) -> web.Response:
        """Store one update."""
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            body = await request.read()
        try:
            call = await to_bolt_request(request)
            if not call.body and call.raw_body:
                # Bolt 1.30.0 loses a slash command that has the word "payload" in its text.
                call.body = dict(parse_qsl(call.raw_body, keep_blank_values=True))
            answer = await self._app.async_dispatch(call)
        except UnicodeDecodeError:
            # Slack sends UTF-8, and nothing else can be checked.
            answer = BoltResponse(status=HTTPStatus.BAD_REQUEST)
        except UNREADABLE as exc:
            answer = await self._set_aside(body, request.headers, exc)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            log.warning("slack_webhook_denied", address=request.remote)
        return await to_aiohttp_response(answer)

    async def _store(self, update: IncomingPayload) -> None:
        # Its twin, the `message` event, tells of files; the first one stored counts.
        if is_bare_mention(update):
            await asyncio.sleep(MENTION_DELAY_S)
        await self._ingest.store([update])

    async def _set_aside(
        self, body: bytes, headers: Mapping[str, str], reason: Exception
    ) -> BoltResponse:
        """Store what Bolt cannot read, if it is signed: our own reading is stricter."""
        try:
            is_signed = self._verifier.is_valid_request(body, headers)
        except UNREADABLE:
            is_signed = False
        if not is_signed:
            return BoltResponse(status=HTTPStatus.UNAUTHORIZED)
        return await answered(self._store_anyway(body, reason))

    async def _store_anyway(self, body: bytes, reason: Exception) -> None:
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError):
            await self._ingest.store_poison(body, str(reason))
        else:
            await self._ingest.store([IncomingPayload("events_api", payload)])


def bolt_app(client: Client, ingest: Ingest, store: Store, signing_secret: str) -> AsyncApp:
    """Return an app whose one global middleware stores updates; it has no token and calls nobody.

    Args:
        store: Returns once an update is committed.
    """

    async def authorize() -> AuthorizeResult:
        """Bolt's own asks auth.test; if that fails it answers 200 and the event is lost."""
        me = ingest.identity
        return AuthorizeResult(
            enterprise_id=None,
            team_id=me.team if me else None,
            bot_id=me.bot if me else None,
            bot_user_id=me.user if me else None,
        )

    async def admit(body: dict[str, Any]) -> BoltResponse:
        """Answer at once, without `next()`: no listener may come before the commit."""
        kind: UpdateKind = "slash_commands" if "command" in body else "interactive"
        kind = "events_api" if "event" in body else kind
        return await answered(store(IncomingPayload(kind, body)))

    app = AsyncApp(
        # Below `slack_bolt`, since Bolt names loggers after the app.
        name="slack_bolt.parley",
        logger=sdk_log,
        client=client.anonymous(),
        authorize=authorize,
        signing_secret=signing_secret,
        # Bolt would otherwise acknowledge before a listener is done.
        process_before_response=True,
        # The adapter itself knows its own messages, and the bots that it listens to.
        ignoring_self_events_enabled=False,
        attaching_function_token_enabled=False,
        attaching_conversation_kwargs_enabled=False,
    )
    app.use(admit)
    app.error(_passed_on)
    return app


async def answered(storing: Awaitable[None]) -> BoltResponse:
    """Return 200, or 503 if an update was not stored, for whatever reason."""
    try:
        await storing
    except Exception:
        log.exception("slack_webhook_not_stored")
        return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)
    return BoltResponse(status=HTTPStatus.OK)


async def _passed_on(error: Exception) -> NoReturn:
    """Bolt would make a 500 of it; only the caller knows what is to be done with the update."""
    raise error


class Receiver:
    """The incoming half of one app.

    Args:
        intake: Knows how far everything was read.
    """

    def __init__(
        self,
        settings: SlackSettings,
        ingest: Ingest,
        intake: Intake,
        *,
        clock: Clock = time.monotonic,
    ) -> None:
        self._settings = settings
        self._ingest = ingest
        self._backfill = Backfill(ingest, intake)
        self._clock = clock
        self._reached_at = float("-inf")
        self._socket: Socket | None = None

    @property
    def connected(self) -> bool:
        """Whether the socket answers, or in HTTP mode whether Slack did within the last 90 s."""
        if self._settings.mode == "socket":
            return self._socket is not None and self._socket.alive
        return self._clock() - self._reached_at < _FRESH_FOR_S

    async def run(self) -> NoReturn:
        """Receive until cancelled, on connections of its own.

        Whatever the intake raises goes on to the caller. Nothing was acknowledged then: Slack
        delivers it again, and the next run reads what is missing.
        """
        settings, app_token = self._settings, None
        if settings.mode == "socket":
            app_token = credential(settings.app_token, "platforms.slack.app_token")
        else:
            credential(settings.signing_secret, "platforms.slack.signing_secret")
        client = Client(self._settings)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(follow_up(self._ingest, client), name="slack follow-ups")
                if app_token is None:
                    await self._serve(client)
                else:
                    await self._listen(client, Socket(app_token, self._ingest))
        except BaseExceptionGroup as failures:
            # A refusal says more than a broken connection.
            found: BaseException = failures.subgroup(AdapterRefused) or failures
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            raise found from failures
        finally:
            self._socket = None
            await client.close()
        raise AdapterDisconnected("the receiver ended")

    async def _listen(self, client: Client, socket: Socket) -> NoReturn:
        self._socket = socket
        while True:
            await self._greet(client)
            began = self._clock()
            await socket.run(client, lambda: self._backfill.run(client))
            if self._clock() - began < _SHORTEST_CONNECTION_S:
                # The supervisor pauses before the next one.
                raise AdapterDisconnected("Slack asks for a new connection at once")

    async def _serve(self, client: Client) -> NoReturn:
        """Catch up, then look now and then whether Slack still knows the app."""
        await self._greet(client)
        await self._backfill.run(client)
        while True:
            try:
                await asyncio.wait_for(self._ingest.revoked.wait(), _CHECK_INTERVAL_S)
            except TimeoutError:
                await self._identify(client)
            else:
                raise AdapterRefused("the app was removed from its workspace")

    async def _greet(self, client: Client) -> None:
        identity = await self._identify(client)
        await self._backfill.hold()
        # Only now: from here on updates can be read, and live ones move the cursors.
        self._ingest.identity = identity
        account = self._settings.name
        log.info("slack_connected", account=account, bot=identity.name, mode=self._settings.mode)

    async def _identify(self, client: Client) -> BotIdentity:
        with mapped_receiving("bot_token"):
            identity = await identified(client)
        self._reached_at = self._clock()
        return identity


async def follow_up(ingest: Ingest, client: Client) -> NoReturn:
    """Work until cancelled."""
    while True:
        item = await ingest.followups.get()
        try:
            with mapped():
                await _carry_out(item, client)
        except AdapterError as exc:
            log.debug("slack_followup_failed", action=type(item).__name__, reason=str(exc))


async def _carry_out(item: Press | Title, client: Client) -> None:
    if isinstance(item, Title):
        line = " ".join(item.text.split())
        if len(line) > _TITLE_CHARS:
            line = f"{line[: _TITLE_CHARS - 1]}…"
        await client.web.assistant_threads_setTitle(
            channel_id=item.channel, thread_ts=item.thread, title=line
        )
    elif item.admission is not None and item.admission.is_refused:
        await client.web.chat_postEphemeral(
            channel=item.channel,
            user=item.message.sender,
            text=item.admission.told or NOT_FOR_YOU,
            thread_ts=item.message.address.thread,
        )
    else:
        await client.web.chat_update(
            channel=item.channel,
            ts=item.ts,
            text=item.text or item.label,
            blocks=pressed_blocks(item),
        )
