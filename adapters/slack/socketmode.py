"""Socket Mode: an envelope is acknowledged only after what it brought is stored.

slack_sdk's client keeps the connection, Bolt dispatches what comes, a batch is one commit.

The SDK reads, answers pings, sends its own and notices a dead connection. Three things of it are
replaced, since the gateway's supervisor decides about new connections (slack_sdk 3.47.0):

- `connect` tries a dead address for ever and logs it, one-time ticket and all.
- `process_message` opens a new connection when Slack says `disconnect`, whatever
  `auto_reconnect_enabled` says, and runs listeners in tasks that nobody waits for.
- `close` leaves its tasks running, and waits 10 s for a half-open connection.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn, get_args

import aiohttp
import structlog
from slack_bolt.adapter.socket_mode.async_internals import run_async_bolt_app
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.response import BoltResponse
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from typing_extensions import override

from adapters.base import Clock
from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.slack.client import Client, sdk_log
from adapters.slack.errors import CallFailed, mapped, receiving_error
from adapters.slack.ingest import (
    MENTION_DELAY_S,
    IncomingPayload,
    Ingest,
    UpdateKind,
    is_bare_mention,
)
from agent.network import in_words, proxy_for, tls_for

log = structlog.get_logger()

HEARTBEAT_S = 10.0
"""Silence after which a ping is sent; without an answer in half of it the socket is dead."""
_HELLO_S = 15.0
_CLOSE_S = 2.0
# No listener of the SDK is told of a connection that was cut, so it is looked at.
_LOOK_S = 0.2
# Envelopes that are handled, or wait, at a time; each waits for its commit.
_AT_ONCE = 2000

Envelope = dict[str, Any]
Job = Callable[[], Awaitable[None]]
Store = Callable[[IncomingPayload], Awaitable[None]]
"""Returns once an update is committed."""
# Slack moves a connection to another host every few hours and says so some seconds before.
_REFRESH = frozenset({"warning", "refresh_requested"})
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What Bolt raises, before it asks anybody, for headers and payloads of a shape it did not expect.

It looks for ids in every corner of a payload and is not careful there: an event whose `user` is a
number is a TypeError.
"""
# Updates in one commit.
_BATCH = 100


@dataclass(frozen=True, slots=True, eq=False)
class PendingUpdate:
    """An update, and the future of its commit."""

    update: IncomingPayload
    stored: asyncio.Future[None]

    def confirm(self) -> None:
        """Wake the one who waits for the commit, if anybody still does."""
        if not self.stored.done():
            self.stored.set_result(None)


class Envelopes:
    """What was received and is not stored yet; holds back mentions that came without files."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._waiting: asyncio.Queue[PendingUpdate | None] = asyncio.Queue()
        self._mentions: deque[tuple[float, PendingUpdate]] = deque()
        self._hurried = False

    async def store(self, update: IncomingPayload) -> None:
        """Return once an update is committed; those that come in order are stored in order."""
        envelope = PendingUpdate(update, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(envelope)
        await envelope.stored

    def hurry(self) -> None:
        """Hold nothing back any more."""
        self._hurried = True
        self._waiting.put_nowait(None)

    async def next_batch(self) -> list[PendingUpdate]:
        """Return what is to be stored next; waits for at least one."""
        while True:
            came = await self._came()
            batch = [each for each in came if each is not None and not self._is_held(each)]
            batch += self._ripe()
            if batch:
                return batch

    async def _came(self) -> list[PendingUpdate | None]:
        """Return what waits; nothing once the first held mention has waited long enough."""
        came: list[PendingUpdate | None] = []
        if self._waiting.empty():
            held_s = self._mentions[0][0] - self._clock() if self._mentions else None
            with suppress(TimeoutError):
                async with asyncio.timeout(held_s):
                    came.append(await self._waiting.get())
        while len(came) < _BATCH and not self._waiting.empty():
            came.append(self._waiting.get_nowait())
        return came

    def _is_held(self, envelope: PendingUpdate) -> bool:
        if not is_bare_mention(envelope.update):
            return False
        self._mentions.append((self._clock() + MENTION_DELAY_S, envelope))
        return True

    def _ripe(self) -> list[PendingUpdate]:
        ripe: list[PendingUpdate] = []
        while self._mentions and (self._hurried or self._mentions[0][0] <= self._clock()):
            ripe.append(self._mentions.popleft()[1])
        return ripe


class SocketConnection(SocketModeClient):
    """One connection; envelopes are handed over in the order of their arrival.

    Args:
        url: Where to connect to; good for one connection.
        deliver: Handles one envelope and answers it; many run at a time.
    """

    def __init__(
        self,
        client: Client,
        url: str,
        deliver: Callable[["SocketConnection", Envelope], Coroutine[Any, Any, None]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        super().__init__(
            # Needed for new connections only.
            app_token="",
            logger=sdk_log,
            web_client=client.web,
            auto_reconnect_enabled=False,
            ping_interval=HEARTBEAT_S,
        )
        self.wss_uri = url
        self.proxy = proxy_for(url)
        # A full one stops the reader, and with it the connection.
        self.message_queue = asyncio.Queue(_AT_ONCE)
        self._deliver = deliver
        self._tasks = tasks
        self._deliveries: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._greeted = asyncio.Event()
        self._asked_to_go = asyncio.Event()
        self._reason = ""

    @property
    def alive(self) -> bool:
        """Whether the socket is open and answers to pings."""
        return self.current_session is not None and not self.current_session.closed

    @override
    async def connect(self) -> None:
        """Open the socket and wait for Slack's greeting.

        Raises:
            AdapterDisconnected: It cannot be opened, or Slack does not greet.
        """
        try:
            async with asyncio.timeout(_HELLO_S):
                await self._open()
                await self._until(self._greeted)
        except TimeoutError:
            raise AdapterDisconnected("the socket did not greet") from None

    async def _open(self) -> None:
        """Like the SDK's own, once. No text of an error goes on, it may hold the address."""
        try:
            self.current_session = await self.aiohttp_client_session.ws_connect(
                str(self.wss_uri),
                autoping=False,
                heartbeat=self.ping_interval,
                proxy=self.proxy,
                ssl=tls_for(str(self.wss_uri)),
            )
        except (aiohttp.ClientError, OSError) as exc:
            reason = f"the socket cannot be opened: {in_words(exc)}"
            raise AdapterDisconnected(reason) from None
        self.current_session_monitor = self._tasks.create_task(self.monitor_current_session())
        self.message_receiver = self._tasks.create_task(self.receive_messages())

    async def ended(self) -> str:
        """Wait until Slack asks for the end of the connection; return its reason.

        Raises:
            AdapterDisconnected: The connection is gone, or was silent for too long.
        """
        await self._until(self._asked_to_go)
        return self._reason

    async def _until(self, said: asyncio.Event) -> None:
        while not said.is_set():
            if not await self.is_connected():
                code = self.current_session.close_code if self.current_session else None
                raise AdapterDisconnected(f"the socket was closed ({code})")
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await said.wait()

    async def settled(self) -> None:
        """Wait until all that was received is handled."""
        while self._deliveries:
            await asyncio.wait(self._deliveries)

    @override
    async def process_message(self) -> None:
        """Begin to handle one envelope; the SDK calls this as long as it is not closed."""
        envelope = _decoded(await self.message_queue.get())
        if envelope is None:
            log.warning("slack_envelope_undecodable")
            return
        match envelope.get("type"):
            case "hello":
                self._greeted.set()
            case "disconnect":
                self._reason = str(envelope.get("reason"))
                self._asked_to_go.set()
                # As a greeting, too, it says more than silence.
                self._greeted.set()
            case _ if not self._asked_to_go.is_set():
                await self._begin(envelope)

    async def _begin(self, envelope: Envelope) -> None:
        await self._slots.acquire()
        running = self._run(envelope)
        try:
            task = self._tasks.create_task(running, name="slack envelope")
        except RuntimeError:
            # The run is ending, and with it this connection: Slack delivers it again.
            running.close()
            return
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    async def _run(self, envelope: Envelope) -> None:
        try:
            await self._deliver(self, envelope)
        finally:
            self._slots.release()

    @override
    async def close(self) -> None:
        """Close the connection and all that belongs to it; takes no longer than 2 s."""
        self.closed = True
        running = [self.message_processor, self.message_receiver, self.current_session_monitor]
        tasks = [each for each in running if each is not None]
        for each in tasks:
            each.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._hang_up()
        finally:
            await self.aiohttp_client_session.close()

    async def _hang_up(self) -> None:
        if self.current_session is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self.current_session.close()


def _decoded(text: str) -> Envelope | None:
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return envelope if isinstance(envelope, dict) else None


class Socket:
    """One account's connection for envelopes.

    Args:
        app_token: The app-level token (`xapp-…`).
    """

    def __init__(self, app_token: str, ingest: Ingest) -> None:
        self._app_token = app_token
        self._ingest = ingest
        self._connection: SocketConnection | None = None

    @property
    def alive(self) -> bool:
        """Whether the socket is open and answers to pings."""
        return self._connection is not None and self._connection.alive

    async def run(self, client: Client, beside: Job) -> None:
        """Receive until Slack asks for a new connection; then all that came is stored.

        Args:
            beside: Runs while the connection stands.

        Raises:
            AdapterDisconnected: The connection broke, or Slack closed it.
            AdapterRefused: The app token is wrong, or Socket Mode was switched off.
        """
        envelopes = Envelopes()
        delivery = EnvelopeHandler(bolt_app(client, self._ingest, envelopes.store), envelopes)
        url = await self._address(client)
        async with asyncio.TaskGroup() as tasks:
            storing = tasks.create_task(self._store_all(envelopes), name="slack store")
            async with self._connected(
                SocketConnection(client, url, delivery.deliver, tasks)
            ) as connection:
                aside = tasks.create_task(_awaited(beside), name="slack beside")
                _note_end(await connection.ended())
                aside.cancel()
                envelopes.hurry()
                await connection.settled()
            storing.cancel()

    async def _address(self, client: Client) -> str:
        """Ask first: the SDK's client would not tell that the token is wrong."""
        try:
            with mapped():
                answer = await client.web.apps_connections_open(app_token=self._app_token)
        except CallFailed as exc:
            raise receiving_error(exc, "app_token") from exc
        return str(answer["url"])

    @asynccontextmanager
    async def _connected(self, connection: SocketConnection) -> AsyncIterator[SocketConnection]:
        try:
            await connection.connect()
            self._connection = connection
            yield connection
        finally:
            self._connection = None
            await connection.close()

    async def _store_all(self, envelopes: Envelopes) -> None:
        """Store what waits, in batches; what fails ends the run, and nothing is acknowledged."""
        while True:
            batch = await envelopes.next_batch()
            await self._ingest.store([each.update for each in batch])
            for each in batch:
                each.confirm()
            if self._ingest.revoked.is_set():
                raise AdapterRefused("the app was removed from its workspace")


class EnvelopeHandler:
    """Lets Bolt handle envelopes, and acknowledges what it answers with 200."""

    def __init__(self, app: AsyncApp, envelopes: Envelopes) -> None:
        self._app = app
        self._envelopes = envelopes

    async def deliver(self, connection: SocketConnection, envelope: Envelope) -> None:
        """Handle one envelope; what is not answered is delivered again."""
        name = envelope.get("envelope_id")
        if not isinstance(name, str) or await self.status(name, envelope) != HTTPStatus.OK:
            return
        try:
            # Only now: what Slack knows to be received it never sends again.
            await connection.send_socket_mode_response(SocketModeResponse(name))
        except (aiohttp.ClientError, ConnectionError):
            # Slack delivers it again, and it will be known.
            log.debug("slack_acknowledgement_lost")

    async def status(self, name: str, envelope: Envelope) -> int:
        """Return 200 once what came is stored, and at once for a kind that nobody needs."""
        kind: Any = envelope.get("type")
        payload: Any = envelope.get("payload")
        if kind not in get_args(UpdateKind):
            return HTTPStatus.OK
        try:
            answer = await run_async_bolt_app(self._app, SocketModeRequest(kind, name, payload))
        except UNREADABLE:
            # Our own reading is stricter, and sets aside what is of an impossible shape.
            await self._envelopes.store(IncomingPayload(kind, payload))
            return HTTPStatus.OK
        return int(answer.status)


async def _awaited(beside: Job) -> None:
    await beside()


def _note_end(reason: str) -> None:
    """Return where a new connection will do; raise where it will not."""
    if reason == "link_disabled":
        raise AdapterRefused("Socket Mode is switched off for the app of platforms.slack.app_token")
    if reason not in _REFRESH:
        raise AdapterDisconnected(f"Slack closed the socket: {reason}")
    log.info("slack_socket_refreshed", reason=reason)


def bolt_app(
    client: Client,
    ingest: Ingest,
    store: Store,
    signing_secret: str = "",
) -> AsyncApp:
    """Return an app whose one global middleware stores updates; it has no token and calls nobody.

    Args:
        store: Returns once an update is committed.
        signing_secret: Signs Slack's calls in HTTP mode; Bolt skips the check in Socket Mode.
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
        return await answered(store(_update_of(body)))

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


def _update_of(body: dict[str, Any]) -> IncomingPayload:
    if "event" in body:
        return IncomingPayload("events_api", body)
    return IncomingPayload("slash_commands" if "command" in body else "interactive", body)


async def _passed_on(error: Exception) -> NoReturn:
    """Bolt would make a 500 of it; only the caller knows what is to be done with the update."""
    raise error
