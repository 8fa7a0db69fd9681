"""Receives for one app by webhook or Socket Mode; acknowledges after the commit.

In HTTP mode Bolt verifies the signature, answers Slack's URL checks, and distinguishes events,
buttons and slash commands. In Socket Mode slack_sdk's client opens the connection, answers pings,
detects a dead one, and passes on each frame in order.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, NoReturn, get_args
from urllib.parse import parse_qsl

import aiohttp
import structlog
from aiohttp import web
from slack_bolt.adapter.aiohttp import to_aiohttp_response, to_bolt_request
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.response import BoltResponse
from slack_sdk.signature import SignatureVerifier
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.response import SocketModeResponse
from typing_extensions import override

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
from agent.network import proxy_for

log = structlog.get_logger()

_BODY_TIMEOUT_S = 10.0
_FRESH_FOR_S = 90.0
_CHECK_INTERVAL_S = 45.0
_SHORTEST_CONNECTION_S = 5.0
_TITLE_CHARS = 80
UNREADABLE = (*errors.UNREADABLE, ArithmeticError, RecursionError)
"""Raised by Bolt for unexpected payloads, such as an event whose `user` is a number."""
HEARTBEAT_S = 10.0
"""Silence before a ping, in seconds; without an answer within half of it the socket is dead."""
# Shorter than the SDK's pause between attempts, since a URL works once.
_HELLO_S = 8.0
_CLOSE_S = 2.0
# Polled, since the SDK does not report a lost connection.
_LOOK_S = 0.2
# Most envelopes waiting for their commit; Slack redelivers unacknowledged ones.
_MOST_WAITING = 2000
# Updates in one commit.
_BATCH = 100
# Slack moves a connection to another host every few hours, announced some seconds before.
_REFRESH = frozenset({"warning", "refresh_requested"})
# The SDK would log a socket's URL, with which anyone can receive; errors are raised here.
_silent = logging.getLogger("parley.slack_sdk.socket")
_silent.disabled = True

Store = Callable[[IncomingPayload], Awaitable[None]]
"""Returns once an update is committed."""


class Webhook:
    """Handles Slack's calls; Slack redelivers an event unless the response is 200."""

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
                # Bolt 1.30.0 loses a slash command whose text contains "payload".
                call.body = dict(parse_qsl(call.raw_body, keep_blank_values=True))
            answer = await self._app.async_dispatch(call)
        except UnicodeDecodeError:
            # Slack sends UTF-8, and only that can be verified.
            answer = BoltResponse(status=HTTPStatus.BAD_REQUEST)
        except UNREADABLE as exc:
            answer = await self._set_aside(body, request.headers, exc)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            log.warning("slack_webhook_denied", address=request.remote)
        return await to_aiohttp_response(answer)

    async def _store(self, update: IncomingPayload) -> None:
        # Its twin, the `message` event, contains files; the first stored one counts.
        if is_bare_mention(update):
            await asyncio.sleep(MENTION_DELAY_S)
        await self._ingest.store([update])

    async def _set_aside(
        self, body: bytes, headers: Mapping[str, str], reason: Exception
    ) -> BoltResponse:
        """Store a signed call that Bolt cannot read; Parley's reader is more tolerant."""
        try:
            is_signed = self._verifier.is_valid_request(body, headers)
        except UNREADABLE:
            is_signed = False
        if not is_signed:
            return BoltResponse(status=HTTPStatus.UNAUTHORIZED)
        return await _answered(self._store_anyway(body, reason))

    async def _store_anyway(self, body: bytes, reason: Exception) -> None:
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError):
            await self._ingest.store_poison(body, str(reason))
        else:
            await self._ingest.store([IncomingPayload("events_api", payload)])


def bolt_app(client: Client, ingest: Ingest, store: Store, signing_secret: str) -> AsyncApp:
    """Return a Bolt app whose global middleware stores updates; it needs no token."""

    async def authorize() -> AuthorizeResult:
        # Bolt's own calls auth.test; if that fails, it answers 200 and the event is lost.
        me = ingest.identity
        return AuthorizeResult(
            enterprise_id=None,
            team_id=me.team if me else None,
            bot_id=me.bot if me else None,
            bot_user_id=me.user if me else None,
        )

    async def admit(body: dict[str, Any]) -> BoltResponse:
        # No `next()`, since no listener may run before the commit.
        kind: UpdateKind = "slash_commands" if "command" in body else "interactive"
        kind = "events_api" if "event" in body else kind
        return await _answered(store(IncomingPayload(kind, body)))

    async def passed_on(error: Exception) -> NoReturn:
        # Bolt would answer 500; the caller stores the update instead.
        raise error

    app = AsyncApp(
        # Below `slack_bolt`, because Bolt names loggers after the app.
        name="slack_bolt.parley",
        logger=sdk_log,
        client=client.anonymous(),
        authorize=authorize,
        signing_secret=signing_secret,
        # Otherwise Bolt acknowledges before a listener is done.
        process_before_response=True,
        # The reader itself skips the bot's own messages.
        ignoring_self_events_enabled=False,
        attaching_function_token_enabled=False,
        attaching_conversation_kwargs_enabled=False,
    )
    app.use(admit)
    app.error(passed_on)
    return app


async def _answered(storing: Awaitable[None]) -> BoltResponse:
    """Return 200, or 503 if the update was not stored."""
    try:
        await storing
    except Exception:
        log.exception("slack_webhook_not_stored")
        return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)
    return BoltResponse(status=HTTPStatus.OK)


class Receiver:
    """The receiving half of one app."""

    def __init__(
        self, settings: SlackSettings, ingest: Ingest, intake: Intake, clock: Clock
    ) -> None:
        self._settings = settings
        self._ingest = ingest
        self._backfill = Backfill(ingest, intake)
        self._clock = clock
        self._reached_at = float("-inf")
        self._socket: _Connection | None = None

    @property
    def connected(self) -> bool:
        """Whether the socket is alive or, in HTTP mode, Slack answered within 90 s."""
        if self._settings.mode == "socket":
            return self._socket is not None and self._socket.alive
        return self._clock() - self._reached_at < _FRESH_FOR_S

    async def run(self) -> NoReturn:
        """Receive until cancelled, on its own connections; see `Receives.run`.

        Raises the intake's exceptions. Nothing is acknowledged then: Slack redelivers it, and the
        next run fills the gap.
        """
        settings, app_token = self._settings, None
        if settings.mode == "socket":
            app_token = credential(settings.app_token, "platforms.slack.app_token")
        else:
            credential(settings.signing_secret, "platforms.slack.signing_secret")
        client = Client(self._settings)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_follow_up(self._ingest, client), name="slack follow-ups")
                if app_token is None:
                    await self._serve(client)
                else:
                    await self._listen(client, app_token)
        except BaseExceptionGroup as failures:
            # Prefer a refusal over a broken connection.
            found: BaseException = failures.subgroup(AdapterRefused) or failures
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            raise found from failures
        finally:
            await client.close()
        raise AdapterDisconnected("the receiver ended")

    async def _listen(self, client: Client, app_token: str) -> NoReturn:
        """Receive over successive connections, since Slack periodically requests a new one."""
        while True:
            await self._greet(client)
            began = self._clock()
            # The SDK's client would not report a wrong token.
            with mapped_receiving("app_token"):
                answer = await client.web.apps_connections_open(app_token=app_token)
            await self._connect(client, _Connection(client, str(answer["url"])))
            if self._clock() - began < _SHORTEST_CONNECTION_S:
                # The supervisor pauses before the next attempt.
                raise AdapterDisconnected("Slack asks for a new connection at once")

    async def _connect(self, client: Client, connection: "_Connection") -> None:
        """Receive until Slack requests a new connection and everything received is stored."""
        try:
            await connection.opened()
            self._socket = connection
            async with asyncio.TaskGroup() as tasks:
                storing = tasks.create_task(self._store_all(connection), name="slack store")
                reading = tasks.create_task(self._backfill.run(client), name="slack backfill")
                reason = await connection.ended()
                if reason == "link_disabled":
                    app = "the app of platforms.slack.app_token"
                    raise AdapterRefused(f"Socket Mode is switched off for {app}")
                if reason not in _REFRESH:
                    raise AdapterDisconnected(f"Slack closed the socket: {reason}")
                log.info("slack_socket_refreshed", reason=reason)
                reading.cancel()
                await connection.waiting.join()
                storing.cancel()
        finally:
            self._socket = None
            await connection.shut()

    async def _store_all(self, connection: "_Connection") -> NoReturn:
        """Store waiting updates in batches, and acknowledge each stored batch."""
        waiting = connection.waiting
        while True:
            batch = [await waiting.get()]
            while len(batch) < _BATCH and not waiting.empty():
                batch.append(waiting.get_nowait())
            await self._ingest.store([update for _, update in batch])
            for name, _ in batch:
                await connection.acknowledge(name)
                waiting.task_done()
            if self._ingest.revoked.is_set():
                raise AdapterRefused("the app was removed from its workspace")

    async def _serve(self, client: Client) -> NoReturn:
        """Fill the gaps, then periodically check that the token is valid."""
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
        # Only now, since from here on live updates are read and move the cursors.
        self._ingest.identity = identity
        account = self._settings.name
        log.info("slack_connected", account=account, bot=identity.name, mode=self._settings.mode)

    async def _identify(self, client: Client) -> BotIdentity:
        with mapped_receiving("bot_token"):
            identity = await identified(client)
        self._reached_at = self._clock()
        return identity


async def _follow_up(ingest: Ingest, client: Client) -> NoReturn:
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


class _Connection(SocketModeClient):
    """One connection; the SDK's own reconnect would not hold the cursors first."""

    def __init__(self, client: Client, url: str) -> None:
        super().__init__(
            # Only needed for new connections.
            app_token="",
            logger=_silent,
            web_client=client.web,
            auto_reconnect_enabled=False,
            ping_interval=HEARTBEAT_S,
            on_message_listeners=[self._heard],
        )
        self.wss_uri = url
        self.proxy = proxy_for(url)
        self.waiting: asyncio.Queue[tuple[str, IncomingPayload]] = asyncio.Queue()
        self._greeted = asyncio.Event()
        self._asked_to_go = asyncio.Event()
        self._reason = ""

    @property
    def alive(self) -> bool:
        """Whether the socket is open and answers pings."""
        return self.current_session is not None and not self.current_session.closed

    @override
    async def connect_to_new_endpoint(self, force: bool = False) -> None:
        """Do nothing on Slack's `disconnect`: the receiver reconnects."""

    async def opened(self) -> None:
        """Connect and wait for Slack's hello, or raise AdapterDisconnected."""
        try:
            async with asyncio.timeout(_HELLO_S):
                await self.connect()  # type: ignore[no-untyped-call]
                await self._until(self._greeted)
        except TimeoutError:
            raise AdapterDisconnected("the socket did not open and greet in time") from None

    async def ended(self) -> str:
        """Wait until Slack requests the connection's end; return its reason."""
        await self._until(self._asked_to_go)
        return self._reason

    async def acknowledge(self, name: str) -> None:
        """Acknowledge an envelope, best effort; otherwise Slack redelivers it."""
        try:
            await self.send_socket_mode_response(SocketModeResponse(name))
        except (aiohttp.ClientError, ConnectionError):
            log.debug("slack_acknowledgement_lost")

    async def shut(self) -> None:
        """Close the connection, even if the other side is gone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.disconnect()  # type: ignore[no-untyped-call]
        await self.close()  # type: ignore[no-untyped-call]

    async def _until(self, said: asyncio.Event) -> None:
        while not said.is_set():
            if not await self.is_connected():
                code = self.current_session.close_code if self.current_session else None
                raise AdapterDisconnected(f"the socket was closed ({code})")
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await said.wait()

    async def _heard(self, frame: aiohttp.WSMessage) -> None:
        """Handle a frame; frames come in order."""
        envelope = _decoded(frame.data)
        match envelope.get("type"):
            case "hello":
                self._greeted.set()
            case "disconnect":
                self._reason = str(envelope.get("reason"))
                self._asked_to_go.set()
                # It may come instead of a hello.
                self._greeted.set()
            case kind if not self._asked_to_go.is_set():
                await self._take(kind, envelope)

    async def _take(self, kind: Any, envelope: dict[str, Any]) -> None:
        name = envelope.get("envelope_id")
        if not isinstance(name, str) or self.waiting.qsize() >= _MOST_WAITING:
            return
        if kind not in get_args(UpdateKind):
            # Acknowledge unused kinds, which Slack would keep redelivering.
            await self.acknowledge(name)
            return
        update = IncomingPayload(kind, envelope.get("payload"))
        put = partial(self.waiting.put_nowait, (name, update))
        if is_bare_mention(update):
            # Its twin, the `message` event, contains files; the first stored one counts.
            asyncio.get_running_loop().call_later(MENTION_DELAY_S, put)
        else:
            put()


def _decoded(text: str) -> dict[str, Any]:
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):
        log.warning("slack_envelope_undecodable")
        return {}
    return envelope if isinstance(envelope, dict) else {}
