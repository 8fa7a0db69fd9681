"""Socket Mode (step 1): an envelope is acknowledged only after what it brought is stored.

slack_sdk's client keeps the connection, Bolt dispatches what comes, a batch is one commit.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, get_args

import aiohttp
import structlog
from slack_bolt.adapter.socket_mode.async_internals import run_async_bolt_app
from slack_bolt.app.async_app import AsyncApp
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse

from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.slack.bolt import UNREADABLE, bolt_app
from adapters.slack.client import Client
from adapters.slack.connection import Connection, Envelope
from adapters.slack.envelopes import Envelopes
from adapters.slack.errors import CallFailed, mapped, receiving_error
from adapters.slack.ingest import Ingest, Update, UpdateKind

log = structlog.get_logger()

# Slack moves a connection to another host every few hours and says so some seconds before.
_REFRESH = frozenset({"warning", "refresh_requested"})


class Socket:
    """One account's connection for envelopes.

    Args:
        app_token: The app-level token (`xapp-…`).
        ingest: Where updates are made durable.
    """

    def __init__(self, app_token: str, ingest: Ingest) -> None:
        self._app_token = app_token
        self._ingest = ingest
        self._connection: Connection | None = None

    @property
    def alive(self) -> bool:
        """Whether the socket is open and answers to pings."""
        return self._connection is not None and self._connection.alive

    async def run(self, client: Client, beside: Callable[[], Awaitable[None]]) -> None:
        """Receive until Slack asks for a new connection; then all that came is stored.

        Args:
            client: For asking where to connect to.
            beside: Runs while the connection stands.

        Raises:
            AdapterDisconnected: The connection broke, or Slack closed it.
            AdapterRefused: The app token is wrong, or Socket Mode was switched off.
        """
        envelopes = Envelopes()
        delivery = Delivery(bolt_app(client, self._ingest, envelopes.store), envelopes)
        url = await self._address(client)
        async with asyncio.TaskGroup() as tasks:
            storing = tasks.create_task(self._store_all(envelopes), name="slack store")
            async with self._connected(
                Connection(client, url, delivery.deliver, tasks)
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
    async def _connected(self, connection: Connection) -> AsyncIterator[Connection]:
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
                each.is_stored()
            if self._ingest.revoked.is_set():
                raise AdapterRefused("the app was removed from its workspace")


class Delivery:
    """Lets Bolt handle envelopes, and acknowledges what it answers with 200."""

    def __init__(self, app: AsyncApp, envelopes: Envelopes) -> None:
        self._app = app
        self._envelopes = envelopes

    async def deliver(self, connection: Connection, envelope: Envelope) -> None:
        """Handle one envelope; what is not answered is delivered again."""
        name = envelope.get("envelope_id")
        if not isinstance(name, str) or await self.status(name, envelope) != HTTPStatus.OK:
            return
        try:
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
            await self._envelopes.store(Update(kind, payload))
            return HTTPStatus.OK
        return int(answer.status)


async def _awaited(beside: Callable[[], Awaitable[None]]) -> None:
    await beside()


def _note_end(reason: str) -> None:
    """Return where a new connection will do; raise where it will not."""
    if reason == "link_disabled":
        raise AdapterRefused("Socket Mode is switched off for the app of platforms.slack.app_token")
    if reason not in _REFRESH:
        raise AdapterDisconnected(f"Slack closed the socket: {reason}")
    log.info("slack_socket_refreshed", reason=reason)
