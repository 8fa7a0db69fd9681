"""Runs the accounts' adapters, restarts them after failures, and replaces them.

A failed adapter is restarted with a growing pause and never affects another. If several replicas
could receive for an account, one does so under a lease; the others only send.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import structlog
from aiohttp import web

from adapters.base import UNANNOUNCED, Adapter, PoolUse, PreviewIntent, Receives, Renderer
from adapters.errors import AdapterDisconnected, AdapterRefused, FetchDelayed, SendDelayed
from adapters.messages import (
    Address,
    Attachment,
    MessageRef,
    Outgoing,
    Reaction,
    Receipt,
    Withdrawal,
)
from agent.network import in_words
from gateway.errors import LeaseLost
from gateway.replicas.replica import AccountLease, AccountLeases
from gateway.storage.queue.leases import Receiving

log = structlog.get_logger()

T = TypeVar("T")

LONGEST_PAUSE_S = 60.0
"""Longest pause between restarts of a failing adapter, in seconds."""
STABLE_S = 60.0
"""Length of a run after which the back-off starts over, in seconds."""
MOST_FAILURES = 3
"""Consecutive failures after which an adapter counts as not connected."""
ASK_AGAIN_S, LONGEST_ASK_S, ASK_AGAIN_FOR_S = 5.0, 300.0, 3600.0
"""First and longest pause (doubling) before asking a refusing platform again, and for how long: a
401 may be an outage of the platform."""
CALLS_END_WITHIN_S = 10.0
"""A replacement waits this long for running calls; slower ones are cut off as by a crash."""
WORKING = frozenset({"connected", "standby"})
"""States of adapters whose account works here or in another replica."""


@dataclass(slots=True)
class Supervised:
    """A supervised adapter, or one of its several receiving connections.

    Attributes:
        lease: Required to receive; None if no other replica could receive.
        stopped: Why it was refused and does not run.
        trouble: Why its last run ended.
        asked_until: Until when a refusing platform is asked again, as text; else empty.
    """

    adapter: Adapter
    lease: AccountLease | None = None
    shard: int = 0
    stopped: str | None = None
    trouble: str | None = None
    asked_until: str = field(default="", init=False)
    _ask_in_s: float | None = field(default=None, init=False)
    _failed: int = field(default=0, init=False)
    # When the current run counts as a success; when the first of consecutive refusals came.
    _steady_at: float = field(default=float("inf"), init=False)
    _refused_at: float = field(default=float("-inf"), init=False)
    _due: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _running: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._due.set()

    @property
    def name(self) -> str:
        """`platform:account`, followed by the number of a further connection."""
        number = f"#{self.shard}" if self.shard else ""
        return f"{self.adapter.platform}:{self.adapter.account}{number}"

    @property
    def connected(self) -> bool:
        """Whether this connection reached the platform recently and receives updates."""
        is_failing = self._failed >= MOST_FAILURES and time.monotonic() < self._steady_at
        return self._receiver.connected and not is_failing

    @property
    def _receiver(self) -> Receives:
        return self.adapter.receivers[self.shard]

    @property
    def state(self) -> str:
        """The state for /readyz: "connected", "standby", or "connecting: reason" and the like."""
        if self.stopped is not None:
            until = self.asked_until
            return f"refused: {self.stopped}; {until}" if until else f"stopped: {self.stopped}"
        if self.is_standby:
            return "standby"
        if self.connected:
            return "connected"
        return f"connecting: {self.trouble}" if self.trouble else "connecting"

    @property
    def is_standby(self) -> bool:
        """Whether another replica receives for the account and this one only sends."""
        return self.lease is not None and self.lease.elsewhere

    @property
    def is_settled(self) -> bool:
        """Whether the result of its first run is known."""
        return self.connected or self.is_standby or bool(self.stopped or self.trouble)

    async def keep(self) -> NoReturn:
        """Run the adapter until cancelled; a halted one waits for `resume`."""
        while True:
            # It may be halted again before this task continues.
            while not self._due.is_set():
                await self._due.wait()
            self._due.clear()
            async with asyncio.TaskGroup() as tasks:
                self._running = tasks.create_task(self._run_though_refused(), name=self.name)

    async def _run_though_refused(self) -> None:
        """Run the adapter; after a refusal retry for an hour with growing pauses."""
        while True:
            await self.run()
            if self._ask_in_s is None:
                return
            await asyncio.sleep(self._ask_in_s)
            self.trouble, self.stopped = self.stopped, None

    async def halt(self) -> None:
        """Stop receiving, and wait until it has stopped."""
        self._due.clear()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    def resume(self) -> None:
        """Receive again, regardless of how the last run ended."""
        self.stopped = self.trouble = None
        self._refused_at = float("-inf")
        self._due.set()

    async def run(self) -> None:
        """Run the adapter until cancelled or refused; catch its failures."""
        if (lease := self.lease) is None:
            await self._keep_running()
            return
        try:
            while self.stopped is None:
                await lease.acquire()
                async with asyncio.TaskGroup() as tasks:
                    running = tasks.create_task(self._keep_running(), name=self.name)
                    gone = tasks.create_task(lease.gone(), name=f"lease of {self.name}")
                    await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
                    running.cancel()
                    gone.cancel()
        finally:
            # Refused, or the gateway stops: let another replica continue at once.
            lease.give_up()

    async def _keep_running(self) -> None:
        failures, began = 0, time.monotonic()
        while self.stopped is None:
            started = time.monotonic()
            self._steady_at = started + STABLE_S
            try:
                await self._receiver.run()
            except AdapterRefused as exc:
                self._note_refusal(began)
                self.stopped = reason = str(exc)
                ends = self.asked_until or "it has stopped"
                log.error("adapter_stopped", adapter=self.name, reason=reason, ends=ends)  # noqa: TRY400
                return
            except LeaseLost as exc:
                # Another replica stores the last update and all later ones.
                log.warning("account_lost", adapter=self.name, reason=str(exc))
                if self.lease is not None:
                    self.lease.lose()
                return
            except AdapterDisconnected as exc:
                self.trouble = str(exc)
                log.warning("adapter_disconnected", adapter=self.name, reason=str(exc))
            except Exception as exc:
                self.trouble = in_words(exc)
                self._failed = 1 if time.monotonic() > self._steady_at else self._failed + 1
                self._steady_at = float("inf")
                log.exception("adapter_failed", adapter=self.name)
            # A connection lost once a day must not wait a minute each time.
            failures = 1 if time.monotonic() - started > STABLE_S else failures + 1
            # Limit the exponent: 2.0 ** 1024 overflows a float.
            await asyncio.sleep(min(2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S))

    def _note_refusal(self, began: float) -> None:
        """Schedule the next attempt after a refusal that ended a run begun at `began`."""
        now = time.monotonic()
        if now - began > STABLE_S or now - self._refused_at > ASK_AGAIN_FOR_S:
            self._refused_at = now
        pause_s = min(now - self._refused_at + ASK_AGAIN_S, LONGEST_ASK_S)
        left_s = self._refused_at + ASK_AGAIN_FOR_S - now
        until = time.strftime("%H:%M UTC", time.gmtime(time.time() + left_s))
        self._ask_in_s = pause_s if pause_s <= left_s else None
        self.asked_until = f"it is asked again until {until}" if pause_s <= left_s else ""


def supervised_of(adapters: Iterable[Adapter], receiving: AccountLeases) -> list[Supervised]:
    """Return a supervisor for each connection of the adapters, with its receiving lease."""
    found = []
    for each in adapters:
        needs_lease = each.is_exclusive and not receiving.is_alone
        for shard in range(len(each.receivers)):
            wanted = Receiving(each.platform, each.account, shard)
            found.append(Supervised(each, receiving.want(wanted) if needs_lease else None, shard))
    return found


class ReplaceableAdapter:
    """Delegates to the account's current `adapters.base.Adapter`; a new token replaces it.

    During a replacement new calls wait, and running calls finish on the old adapter.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._now = adapter
        self._under_way = 0
        self._none_under_way = asyncio.Event()
        self._none_under_way.set()
        self._open = asyncio.Event()
        self._open.set()
        self.platform = adapter.platform
        self.account = adapter.account
        self.idempotent_sends = adapter.idempotent_sends
        self.preview_interval_s = adapter.preview_interval_s

    async def replace(self, adapter: Adapter) -> None:
        """Switch to a new adapter of the same account and close the old one."""
        self._open.clear()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CALLS_END_WITHIN_S):
                    await self._none_under_way.wait()
            before, self._now = self._now, adapter
        finally:
            self._open.set()
        try:
            await before.close()
        except Exception as exc:
            # The account already uses the new adapter.
            here = f"{self.platform}:{self.account}"
            log.exception("adapter_not_closed", adapter=here, error=str(exc))

    async def _with(self, call: Callable[[Adapter], Awaitable[T]]) -> T:
        await self._open.wait()
        self._under_way += 1
        self._none_under_way.clear()
        try:
            return await call(self._now)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._none_under_way.set()

    @property
    def receivers(self) -> Sequence[Receives]:
        """See `Adapter`."""
        return self._now.receivers

    @property
    def is_exclusive(self) -> bool:
        """See `Adapter`."""
        return self._now.is_exclusive

    @property
    def pool(self) -> PoolUse | None:
        """See `Adapter`."""
        return self._now.pool

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of its webhooks; each calls the current adapter."""
        return [
            each.__class__(each.method, each.path, self._led_on(each), each.kwargs)
            for each in routes_of(self._now)
        ]

    def _led_on(self, route: web.RouteDef) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            found = {(each.method, each.path): each.handler for each in routes_of(self._now)}
            handler: Any = found[route.method, route.path]
            response: web.StreamResponse = await handler(request)
            return response

        return handle

    async def close(self) -> None:
        """See `Adapter`."""
        await self._now.close()

    def render(self, markdown: str) -> list[str]:
        """See `Adapter`."""
        return self._now.render(markdown)

    async def send(self, message: Outgoing) -> Receipt:
        """See `Adapter`."""
        return await self._with(lambda now: now.send(message))

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """See `Adapter`."""
        await self._with(lambda now: now.withdraw(withdrawal))

    async def fetch(self, address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """See `Adapter`."""
        return await self._with(lambda now: now.fetch(address, attachment, limit_bytes))

    async def preview(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        *,
        grows: bool = True,
        intent: PreviewIntent = UNANNOUNCED,
    ) -> str | None:
        """See `Adapter`."""
        return await self._with(
            lambda now: now.preview(question, text, ref, grows=grows, intent=intent)
        )

    async def find_preview(
        self, question: MessageRef, nonce: str, others: frozenset[str]
    ) -> str | None:
        """See `Adapter`."""
        return await self._with(lambda now: now.find_preview(question, nonce, others))

    async def show_working(self, question: MessageRef) -> None:
        """See `Adapter`."""
        await self._with(lambda now: now.show_working(question))

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """See `Adapter`."""
        await self._with(lambda now: now.acknowledge(question, mark))


class UnbuiltAdapter:
    """`adapters.base.Adapter` of an account that could not be set up: its answers wait.

    Args:
        reason: Explanation for the operator.
    """

    idempotent_sends: bool = False
    preview_interval_s: float = 0.0
    is_exclusive: bool = False
    connected: bool = False
    pool: None = None

    def __init__(self, platform: str, account: str, render: Renderer, reason: str) -> None:
        self.platform = platform
        self.account = account
        self._render = render
        self._reason = reason

    @property
    def receivers(self) -> "tuple[UnbuiltAdapter]":
        """See `Adapter`."""
        return (self,)

    async def run(self) -> None:
        """Raise AdapterRefused."""
        raise AdapterRefused(self._reason)

    async def close(self) -> None:
        """See `Adapter`."""

    def render(self, markdown: str) -> list[str]:
        """See `Adapter`."""
        return self._render(markdown)

    async def send(self, _message: Outgoing) -> Receipt:
        """See `Adapter`."""
        raise SendDelayed(self._reason)

    async def withdraw(self, _withdrawal: Withdrawal) -> None:
        """See `Adapter`."""
        raise SendDelayed(self._reason)

    async def fetch(self, _address: Address, _attachment: Attachment, _limit_bytes: int) -> bytes:
        """See `Adapter`."""
        raise FetchDelayed(self._reason)

    async def preview(self, *_: Any, **__: Any) -> None:
        """See `Adapter`."""

    async def find_preview(self, *_: Any) -> None:
        """See `Adapter`."""
        raise SendDelayed(self._reason)

    async def show_working(self, _question: MessageRef) -> None:
        """See `Adapter`."""

    async def acknowledge(self, _question: MessageRef, _mark: Reaction) -> None:
        """See `Adapter`."""


def routes_of(adapter: Adapter) -> list[web.RouteDef]:
    """Return an adapter's routes; empty without a webhook or page."""
    found: list[web.RouteDef] = getattr(adapter, "routes", list)()
    return found
