"""Socket Mode (step 1): an envelope is acknowledged only after what it brought is stored.

Written out on aiohttp's websocket: Bolt and the SDK's own socket client acknowledge first or run
envelopes in any order, never give up on a dead address, and hide why a connection ended.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import structlog

from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.slack.client import Client
from adapters.slack.envelopes import Envelopes, is_update, update_of
from adapters.slack.errors import CallFailed, mapped, receiving_error
from adapters.slack.ingest import Ingest

log = structlog.get_logger()

HEARTBEAT_S = 10.0
"""Silence after which a ping is sent; without an answer in half of it the socket is dead."""
_HELLO_S = 15.0
_CLOSE_S = 2.0
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
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    @property
    def alive(self) -> bool:
        """Whether the socket is open and answers to pings."""
        return self._socket is not None and not self._socket.closed

    async def run(self, client: Client, beside: Callable[[], Awaitable[None]]) -> None:
        """Receive until Slack asks for a new connection; then all that came is stored.

        Args:
            client: For asking where to connect to.
            beside: Runs while the connection stands.

        Raises:
            AdapterDisconnected: The connection broke, or Slack closed it.
            AdapterRefused: The app token is wrong, or Socket Mode was switched off.
        """
        async with self._connected(client) as socket:
            envelopes = Envelopes()
            async with asyncio.TaskGroup() as tasks:
                aside = tasks.create_task(_awaited(beside), name="slack beside")
                tasks.create_task(self._store_all(socket, envelopes), name="slack store")
                await _read_all(socket, envelopes)
                aside.cancel()
                await envelopes.end()

    @asynccontextmanager
    async def _connected(self, client: Client) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        url = await self._address(client)
        async with aiohttp.ClientSession() as session:
            socket = await _opened(session, url, client.web.proxy)
            try:
                await _expect_hello(socket)
                self._socket = socket
                yield socket
            finally:
                self._socket = None
                await socket.close()

    async def _address(self, client: Client) -> str:
        try:
            with mapped():
                answer = await client.web.apps_connections_open(app_token=self._app_token)
        except CallFailed as exc:
            raise receiving_error(exc, "app_token") from exc
        return str(answer["url"])

    async def _store_all(
        self, socket: aiohttp.ClientWebSocketResponse, envelopes: Envelopes
    ) -> None:
        """Store what waits, in batches, and then acknowledge it."""
        ended = False
        while not ended:
            batch, ended = await envelopes.next_batch()
            await self._ingest.store([update_of(each) for each in batch if is_update(each)])
            for each in batch:
                await _acknowledge(socket, each)
            if self._ingest.revoked.is_set():
                raise AdapterRefused("the app was removed from its workspace")


async def _awaited(beside: Callable[[], Awaitable[None]]) -> None:
    await beside()


async def _opened(
    session: aiohttp.ClientSession, url: str, proxy: str | None
) -> aiohttp.ClientWebSocketResponse:
    """Open a connection. The address is a one-time ticket: no text of an error goes on."""
    timeout = aiohttp.ClientWSTimeout(ws_close=_CLOSE_S)
    try:
        async with asyncio.timeout(_HELLO_S):
            return await session.ws_connect(
                url, heartbeat=HEARTBEAT_S, timeout=timeout, proxy=proxy
            )
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        reason = f"the socket cannot be opened: {type(exc).__name__}"
        raise AdapterDisconnected(reason) from None


async def _expect_hello(socket: aiohttp.ClientWebSocketResponse) -> None:
    try:
        hello = _decoded(await socket.receive(_HELLO_S)) or {}
    except TimeoutError as exc:
        raise AdapterDisconnected("the socket did not greet") from exc
    if hello.get("type") == "disconnect":
        _note_end(hello)
    if hello.get("type") != "hello":
        raise AdapterDisconnected("the socket did not greet")


async def _read_all(socket: aiohttp.ClientWebSocketResponse, envelopes: Envelopes) -> None:
    """Queue envelopes until Slack asks for a new connection."""
    while True:
        message = await socket.receive()
        if message.type in {
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSING,
            aiohttp.WSMsgType.CLOSED,
            aiohttp.WSMsgType.ERROR,
        }:
            raise AdapterDisconnected(f"the socket was closed ({socket.close_code})")
        envelope = _decoded(message)
        if envelope is None:
            log.warning("slack_envelope_undecodable")
        elif envelope.get("type") == "disconnect":
            _note_end(envelope)
            return
        else:
            await envelopes.put(envelope)


def _note_end(envelope: dict[str, Any]) -> None:
    """Return where a new connection will do; raise where it will not."""
    reason = str(envelope.get("reason"))
    if reason == "link_disabled":
        raise AdapterRefused("Socket Mode is switched off for the app of platforms.slack.app_token")
    if reason not in _REFRESH:
        raise AdapterDisconnected(f"Slack closed the socket: {reason}")
    log.info("slack_socket_refreshed", reason=reason)


def _decoded(message: aiohttp.WSMessage) -> dict[str, Any] | None:
    if message.type is not aiohttp.WSMsgType.TEXT:
        return None
    try:
        envelope = json.loads(message.data)
    except (ValueError, RecursionError):
        return None
    return envelope if isinstance(envelope, dict) else None


async def _acknowledge(socket: aiohttp.ClientWebSocketResponse, envelope: dict[str, Any]) -> None:
    """Tell Slack that an envelope is stored, or of a kind that nobody needs."""
    if not isinstance(envelope.get("envelope_id"), str):
        return
    try:
        await socket.send_str(json.dumps({"envelope_id": envelope["envelope_id"]}))
    except (aiohttp.ClientError, ConnectionError):
        # Slack delivers it again, and it will be known.
        log.debug("slack_acknowledgement_lost")
