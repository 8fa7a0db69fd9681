"""Socket Mode: an envelope is acknowledged only after what it brought is stored.

slack_sdk's client opens the connection, reads it, answers pings and notices a dead one. It hands
over each frame in order; what waits is one commit, and then Slack is told.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, get_args

import aiohttp
import structlog
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.response import SocketModeResponse
from typing_extensions import override

from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.slack.client import Client
from adapters.slack.errors import mapped_receiving
from adapters.slack.ingest import (
    MENTION_DELAY_S,
    IncomingPayload,
    Ingest,
    UpdateKind,
    is_bare_mention,
)
from agent.network import proxy_for

log = structlog.get_logger()

HEARTBEAT_S = 10.0
"""Silence after which a ping is sent; without an answer in half of it the socket is dead."""
# Shorter than the SDK's pause between two tries: an address is good for one.
_HELLO_S = 8.0
_CLOSE_S = 2.0
# No listener of the SDK is told of a connection that was cut, so it is looked at.
_LOOK_S = 0.2
# Envelopes that may wait for their commit; Slack delivers what is not acknowledged again.
_MOST_WAITING = 2000
# Updates in one commit.
_BATCH = 100
# Slack moves a connection to another host every few hours and says so some seconds before.
_REFRESH = frozenset({"warning", "refresh_requested"})
# The SDK logs the address of a socket, which lets its reader receive. What matters is raised here.
_silent = logging.getLogger("parley.slack_sdk.socket")
_silent.disabled = True

Job = Callable[[], Coroutine[Any, Any, None]]


class _Connection(SocketModeClient):
    """One connection. The SDK's own way to the next one would not wait until cursors are held."""

    def __init__(self, client: Client, url: str) -> None:
        super().__init__(
            # Needed for new connections only.
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
        """Whether the socket is open and answers to pings."""
        return self.current_session is not None and not self.current_session.closed

    @override
    async def connect_to_new_endpoint(self, force: bool = False) -> None:
        """Leave it to the receiver: the SDK calls this when Slack says `disconnect`."""

    async def opened(self) -> None:
        """Connect, and wait for Slack's greeting.

        Raises:
            AdapterDisconnected: It cannot be opened, or Slack does not greet.
        """
        try:
            async with asyncio.timeout(_HELLO_S):
                await self.connect()  # type: ignore[no-untyped-call]
                await self._until(self._greeted)
        except TimeoutError:
            raise AdapterDisconnected("the socket did not open and greet in time") from None

    async def ended(self) -> str:
        """Wait until Slack asks for the end of the connection; return its reason.

        Raises:
            AdapterDisconnected: The connection is gone, or was silent for too long.
        """
        await self._until(self._asked_to_go)
        return self._reason

    async def acknowledge(self, name: str) -> None:
        """Tell Slack that it need not deliver an envelope again."""
        try:
            await self.send_socket_mode_response(SocketModeResponse(name))
        except (aiohttp.ClientError, ConnectionError):
            # Slack delivers it again, and it will be known.
            log.debug("slack_acknowledgement_lost")

    async def shut(self) -> None:
        """Close the connection, although the other side may be gone."""
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
        """Take a frame; they come in order."""
        envelope = _decoded(frame.data)
        match envelope.get("type"):
            case "hello":
                self._greeted.set()
            case "disconnect":
                self._reason = str(envelope.get("reason"))
                self._asked_to_go.set()
                # As a greeting, too, it says more than silence.
                self._greeted.set()
            case kind if not self._asked_to_go.is_set():
                await self._take(kind, envelope)

    async def _take(self, kind: Any, envelope: dict[str, Any]) -> None:
        name = envelope.get("envelope_id")
        if not isinstance(name, str) or self.waiting.qsize() >= _MOST_WAITING:
            return
        if kind not in get_args(UpdateKind):
            # Of a kind that is not used: Slack would deliver it again and again.
            await self.acknowledge(name)
            return
        update = IncomingPayload(kind, envelope.get("payload"))
        put = partial(self.waiting.put_nowait, (name, update))
        if is_bare_mention(update):
            # Its twin, the `message` event, tells of files; the first one stored counts.
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


class Socket:
    """One account's connection for envelopes.

    Args:
        app_token: The app-level token (`xapp-…`).
    """

    def __init__(self, app_token: str, ingest: Ingest) -> None:
        self._app_token = app_token
        self._ingest = ingest
        self._connection: _Connection | None = None

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
        # The SDK's client would not tell that the token is wrong.
        with mapped_receiving("app_token"):
            answer = await client.web.apps_connections_open(app_token=self._app_token)
        connection = _Connection(client, str(answer["url"]))
        try:
            await connection.opened()
            self._connection = connection
            async with asyncio.TaskGroup() as tasks:
                storing = tasks.create_task(self._store_all(connection), name="slack store")
                aside = tasks.create_task(beside(), name="slack beside")
                reason = await connection.ended()
                if reason == "link_disabled":
                    app = "the app of platforms.slack.app_token"
                    raise AdapterRefused(f"Socket Mode is switched off for {app}")
                if reason not in _REFRESH:
                    raise AdapterDisconnected(f"Slack closed the socket: {reason}")
                log.info("slack_socket_refreshed", reason=reason)
                aside.cancel()
                await connection.waiting.join()
                storing.cancel()
        finally:
            self._connection = None
            await connection.shut()

    async def _store_all(self, connection: _Connection) -> NoReturn:
        """Store what waits, in batches; what fails ends the run, and nothing is acknowledged."""
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
