"""slack_sdk's Socket Mode client, made to end where it would go on by itself.

The SDK reads, answers pings, sends its own and notices a dead connection. Three things of it are
replaced, since the gateway's supervisor decides about new connections (slack_sdk 3.47.0):

- `connect` tries a dead address for ever and logs it, one-time ticket and all.
- `process_message` opens a new connection when Slack says `disconnect`, whatever
  `auto_reconnect_enabled` says, and runs listeners in tasks that nobody waits for.
- `close` leaves its tasks running, and waits 10 s for a half-open connection.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import aiohttp
import structlog
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from typing_extensions import override

from adapters.errors import AdapterDisconnected
from adapters.slack.client import Client, sdk_log

log = structlog.get_logger()

HEARTBEAT_S = 10.0
"""Silence after which a ping is sent; without an answer in half of it the socket is dead."""
_HELLO_S = 15.0
_CLOSE_S = 2.0
# No listener of the SDK is told of a connection that was cut, so it is looked at.
_LOOK_S = 0.2
_AT_ONCE = 2000

Envelope = dict[str, Any]


class Connection(SocketModeClient):
    """One connection; envelopes are handed over in the order of their arrival.

    Args:
        client: The Web API, for its proxy.
        url: Where to connect to; good for one connection.
        deliver: Handles one envelope and answers it; many run at a time.
        tasks: Where the connection's tasks run.
    """

    def __init__(
        self,
        client: Client,
        url: str,
        deliver: Callable[["Connection", Envelope], Coroutine[Any, Any, None]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        super().__init__(
            # Needed for new connections only.
            app_token="",
            logger=sdk_log,
            web_client=client.web,
            proxy=client.web.proxy,
            auto_reconnect_enabled=False,
            ping_interval=HEARTBEAT_S,
        )
        self.wss_uri = url
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
                str(self.wss_uri), autoping=False, heartbeat=self.ping_interval, proxy=self.proxy
            )
        except (aiohttp.ClientError, OSError) as exc:
            reason = f"the socket cannot be opened: {type(exc).__name__}"
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
