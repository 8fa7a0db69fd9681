"""How Slack delivers to the app: Socket Mode and signed HTTP requests, both with retries."""

import asyncio
import hashlib
import hmac
import io
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlencode

import aiohttp
from aiohttp import WSMsgType, web

from tests.support.slack.faults import Json
from tests.support.slack.workspace import Identity

EnvelopeType = Literal["events_api", "interactive", "slash_commands"]
MAX_SOCKETS = 10
RETRIES = 3


@dataclass
class Delivery:
    """Something for the app, and what became of it.

    Attributes:
        attempts: How often it was sent.
        acked_at: Monotonic time of its acknowledgement; None as long as there is none.
        answer: What came with the acknowledgement, if anything did.
        answers: In HTTP mode the status of every attempt (0: no answer in time).
    """

    kind: EnvelopeType
    payload: Json
    attempts: int = 0
    acked_at: float | None = None
    answer: Any = None
    answers: list[int] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def acked(self) -> bool:
        """Whether the app has acknowledged it."""
        return self.acked_at is not None

    def acknowledge(self, answer: Any) -> None:
        """Note the acknowledgement."""
        if self.acked_at is None:
            self.acked_at, self.answer = time.monotonic(), answer
        self.done.set()


class Delivering:
    """Delivers what happens in the workspace.

    Attributes:
        ack_s: How long an acknowledgement may take. Source: Slack allows 3 s.
        retry_s: Pause before each redelivery of an event.
        url: Where HTTP mode delivers to; None for Socket Mode.
        greeting: What a connection begins with; None for silence.
        lossy: Without a connection an event is lost, as after hours of absence.
        deliveries: Everything sent, in order.
    """

    def __init__(self, identity: Identity, violations: list[str]) -> None:
        self.ack_s = 3.0
        self.retry_s = 0.05
        self.url: str | None = None
        self.lossy = False
        self.greeting: str | None = "hello"
        self.deliveries: list[Delivery] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.hellos = 0
        self.pongs: list[bytes] = []
        self.changed: Callable[[], Coroutine[Any, Any, None]]
        self._identity = identity
        self._violations = violations
        self._pending: dict[str, Delivery] = {}
        self._tickets: set[str] = set()
        self._frozen: set[web.WebSocketResponse] = set()
        self._held: list[Delivery] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connected = asyncio.Event()
        self._numbers = 0

    def deliver(self, kind: EnvelopeType, payload: Json) -> Delivery:
        """Send something to the app, now or at the end of `held`."""
        delivery = Delivery(kind, payload)
        if self._held is None:
            self.send(delivery)
        else:
            self._held.append(delivery)
        return delivery

    def send(self, delivery: Delivery) -> None:
        """Start a delivery."""
        self.deliveries.append(delivery)
        task = asyncio.get_running_loop().create_task(self._carry(delivery))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[list[Delivery]]:
        """Keep what happens in a list that may be reordered, repeated or emptied, then send it."""
        held = self._held = []
        try:
            yield held
        finally:
            self._held = None
        for delivery in held:
            known = delivery in self.deliveries
            self.send(Delivery(delivery.kind, delivery.payload) if known else delivery)

    async def close(self) -> None:
        """Stop delivering and drop all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.drop()

    def ticket(self) -> str:
        """Return a ticket that opens one connection."""
        self._numbers += 1
        ticket = f"ticket-{self._numbers}"
        self._tickets.add(ticket)
        return ticket

    def freeze(self) -> None:
        """Make the open connections half-open: they take frames and answer nothing any more."""
        self._frozen.update(self.sockets)

    def drop(self) -> None:
        """Drop all connections without a close frame."""
        for socket in self.sockets:
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()

    async def disconnect(self, reason: str = "refresh_requested", *, close: bool = True) -> None:
        """Ask all connections to go; those of a refresh are closed at once, unless told not to."""
        debug = {"host": "applink-loopback"}
        for socket in list(self.sockets):
            await socket.send_json({"type": "disconnect", "reason": reason, "debug_info": debug})
            if close:
                await socket.close()

    async def send_text(self, text: str) -> None:
        """Send a frame of any content over all connections."""
        for socket in list(self.sockets):
            await socket.send_str(text)

    async def socket(self, request: web.Request) -> web.StreamResponse:
        """Serve one Socket Mode connection."""
        if request.query.get("ticket") not in self._tickets:
            self._violations.append("a socket ticket was used twice")
            return web.Response(status=408)
        self._tickets.discard(request.query["ticket"])
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        if len(self.sockets) >= MAX_SOCKETS:
            await socket.send_json({"type": "disconnect", "reason": "too_many_websockets"})
            await socket.close()
            return socket
        await self._serve(socket)
        return socket

    async def _serve(self, socket: web.WebSocketResponse) -> None:
        self.sockets.append(socket)
        try:
            if self.greeting is not None:
                await socket.send_json(self._hello() | {"type": self.greeting})
            await socket.ping(b"Ping from applink-loopback")
            self.hellos += 1
            self._connected.set()
            await self.changed()
            async for frame in socket:
                await self._take(socket, frame)
        finally:
            self.sockets.remove(socket)
            self._frozen.discard(socket)
            if not self.sockets:
                self._connected.clear()
            await self.changed()

    def _hello(self) -> Json:
        debug = {
            "host": "applink-loopback",
            "build_number": 1,
            "approximate_connection_time": 18060,
        }
        return {
            "type": "hello",
            "num_connections": len(self.sockets),
            "debug_info": debug,
            "connection_info": {"app_id": self._identity.app},
        }

    async def _take(self, socket: web.WebSocketResponse, frame: aiohttp.WSMessage) -> None:
        if socket in self._frozen:
            return
        if frame.type is WSMsgType.PING:
            await socket.pong(frame.data)
        elif frame.type is WSMsgType.PONG:
            self.pongs.append(bytes(frame.data))
        elif frame.type is WSMsgType.TEXT:
            self._take_ack(frame.data)
            await self.changed()

    def _take_ack(self, text: str) -> None:
        try:
            ack = json.loads(text)
            delivery = self._pending[ack["envelope_id"]]
        except (ValueError, KeyError, TypeError):
            self._violations.append(f"not an acknowledgement: {text[:100]}")
            return
        if ack.get("payload") and delivery.kind == "events_api":
            self._violations.append("an event was acknowledged with a payload")
        delivery.acknowledge(ack.get("payload"))

    async def _carry(self, delivery: Delivery) -> None:
        """Deliver something until it is acknowledged; only events are delivered again."""
        attempts = RETRIES + 1 if delivery.kind == "events_api" else 1
        while delivery.attempts < attempts and not delivery.acked:
            if delivery.attempts:
                await asyncio.sleep(self.retry_s)
            if self.url is not None:
                await self._post(delivery)
            else:
                await self._push(delivery)
            if self.lossy and not self.sockets and self.url is None:
                break
        await self.changed()

    async def _push(self, delivery: Delivery) -> None:
        if self.lossy and not self.sockets:
            return
        await self._connected.wait()
        socket = self.sockets[self._numbers % len(self.sockets)]
        envelope_id = self._register(delivery)
        envelope: Json = {
            "envelope_id": envelope_id,
            "type": delivery.kind,
            "accepts_response_payload": delivery.kind != "events_api",
            "payload": delivery.payload,
        }
        if delivery.kind == "events_api":
            reason = "timeout" if delivery.attempts else ""
            envelope |= {"retry_attempt": delivery.attempts, "retry_reason": reason}
        delivery.attempts += 1
        if socket not in self._frozen:
            await _send_quietly(socket, envelope)
        await self.changed()
        await self._acknowledged(delivery)

    def _register(self, delivery: Delivery) -> str:
        self._numbers += 1
        envelope_id = f"00000000-envelope-{self._numbers}"
        self._pending[envelope_id] = delivery
        return envelope_id

    async def _acknowledged(self, delivery: Delivery) -> None:
        try:
            async with asyncio.timeout(self.ack_s):
                await delivery.done.wait()
        except TimeoutError:
            return

    async def _post(self, delivery: Delivery) -> None:
        assert self.url is not None
        retry = {}
        if delivery.attempts:
            reason = "http_error" if delivery.answers[-1] else "http_timeout"
            retry = {"X-Slack-Retry-Num": str(delivery.attempts), "X-Slack-Retry-Reason": reason}
        body, content_type = encoded(delivery)
        delivery.attempts += 1
        status, answer = await self.post(body, content_type, **retry)
        delivery.answers.append(status)
        if 200 <= status < 300:
            delivery.acknowledge(answer)

    async def post(self, body: bytes, content_type: str, **headers: str) -> tuple[int, str]:
        """Post a signed body to the app; headers given here win. Returns (0, "") when late."""
        assert self.url is not None
        stamp = headers.get("X-Slack-Request-Timestamp", str(int(time.time())))
        signed = {
            "Content-Type": content_type,
            "X-Slack-Request-Timestamp": stamp,
            "X-Slack-Signature": signature(self._identity.signing_secret, stamp, body),
            "User-Agent": "Slackbot 1.0 (+https://api.slack.com/robots)",
        }
        patience = aiohttp.ClientTimeout(total=self.ack_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=patience) as session,
                session.post(self.url, data=io.BytesIO(body), headers=signed | headers) as answer,
            ):
                return answer.status, await answer.text()
        except (TimeoutError, aiohttp.ClientError):
            return 0, ""


def encoded(delivery: Delivery) -> tuple[bytes, str]:
    """Return the body of a delivery and its content type, as HTTP mode has them."""
    if delivery.kind == "events_api":
        return json.dumps(delivery.payload).encode(), "application/json"
    fields = delivery.payload
    if delivery.kind == "interactive":
        fields = {"payload": json.dumps(delivery.payload)}
    return urlencode(fields).encode(), "application/x-www-form-urlencoded"


def signature(secret: str, stamp: str, body: bytes) -> str:
    """Return the signature of a request. Source: docs.slack.dev, "Verifying requests"."""
    text = f"v0:{stamp}:".encode() + body
    return "v0=" + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


async def _send_quietly(socket: web.WebSocketResponse, envelope: Json) -> None:
    """Send a frame; a connection that is just going away loses it."""
    try:
        await socket.send_json(envelope)
    except (ConnectionError, RuntimeError):
        return
