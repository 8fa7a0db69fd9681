"""Looks after the accounts' adapters: runs them again, and replaces them.

An adapter is restarted with a growing pause, and stopped where its credentials are refused. Its
failures never reach another one. Where several replicas could receive for an account, its adapter
runs in one of them, under a lease; in the others it only sends.

Whoever sends or downloads holds a `ReplaceableAdapter`: with another token an account has another
adapter. While the one behind it is replaced, new calls wait, and those that are on their way end
with the one that they began with.
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
from adapters.errors import (
    AdapterDisconnected,
    AdapterRefused,
    FetchDelayed,
    SendDelayed,
)
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
"""Of an adapter that fails again and again, before its next run."""
STABLE_S = 60.0
"""An adapter that ran this long begins its back-off anew."""
MOST_FAILURES = 3
"""An adapter that failed so often in a row is not connected, whatever the platform answers."""
ASK_AGAIN_S, LONGEST_ASK_S, ASK_AGAIN_FOR_S = 5.0, 300.0, 3600.0
"""Pauses before a platform that refused is asked again, doubled each time, and for how long: a 401
may be the platform's own trouble."""
CALLS_END_WITHIN_S = 10.0
"""How long calls that are on their way are waited for; what takes longer is cut by the close, and
its outcome is found out as after a crash."""
WORKING = frozenset({"connected", "standby"})
"""States of adapters whose account works, here or in another replica."""


@dataclass(slots=True)
class Attempts:
    """How the runs of an adapter went.

    Attributes:
        failed: How many in a row broke.
        steady_at: When the one that runs counts as a success.
        refused_at: When the first of those was refused that are refused in a row.
        ask_in_s: When a refused one is made again; None for never.
        asked_until: Until when it is, in words; empty for never.
    """

    failed: int = 0
    steady_at: float = float("inf")
    refused_at: float = float("-inf")
    ask_in_s: float | None = None
    asked_until: str = ""

    def refused(self, began: float) -> None:
        """Note a refusal after runs that began then."""
        now = time.monotonic()
        if now - began > STABLE_S or now - self.refused_at > ASK_AGAIN_FOR_S:
            self.refused_at = now
        pause_s = min(now - self.refused_at + ASK_AGAIN_S, LONGEST_ASK_S)
        left_s = self.refused_at + ASK_AGAIN_FOR_S - now
        until = time.strftime("%H:%M UTC", time.gmtime(time.time() + left_s))
        self.ask_in_s = pause_s if pause_s <= left_s else None
        self.asked_until = f"it is asked again until {until}" if pause_s <= left_s else ""


@dataclass(slots=True)
class Supervised:
    """An adapter under supervision, or one of several connections that it receives over.

    Attributes:
        lease: Without it nothing is received; None where no other replica could.
        stopped: Why it was refused, and does not run.
        trouble: Why its last run ended.
    """

    adapter: Adapter
    lease: AccountLease | None = None
    shard: int = 0
    stopped: str | None = None
    trouble: str | None = None
    attempts: Attempts = field(default_factory=Attempts)
    _due: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._due.set()

    @property
    def name(self) -> str:
        """`platform:account`; with the number of a further connection behind it."""
        number = f"#{self.shard}" if self.shard else ""
        return f"{self.adapter.platform}:{self.adapter.account}{number}"

    @property
    def connected(self) -> bool:
        """Whether the platform was reached lately over this connection, and what comes is taken."""
        is_failing = (
            self.attempts.failed >= MOST_FAILURES and time.monotonic() < self.attempts.steady_at
        )
        return self._receiver.connected and not is_failing

    @property
    def _receiver(self) -> Receives:
        return self.adapter.receivers[self.shard]

    @property
    def state(self) -> str:
        """What /readyz shows: connected, standby, or connecting, refused or stopped and why."""
        if self.stopped is not None:
            until = self.attempts.asked_until
            return f"refused: {self.stopped}; {until}" if until else f"stopped: {self.stopped}"
        if self.is_standby:
            return "standby"
        if self.connected:
            return "connected"
        return f"connecting: {self.trouble}" if self.trouble else "connecting"

    @property
    def is_standby(self) -> bool:
        """Whether another replica receives for the account; this one only sends."""
        return self.lease is not None and self.lease.elsewhere

    @property
    def is_settled(self) -> bool:
        """Whether it is known how its first run went."""
        known = self.connected or self.is_standby
        return known or bool(self.stopped or self.trouble)

    async def keep(self) -> NoReturn:
        """Run the adapter until cancelled; one that was halted goes on when it is resumed."""
        while True:
            # It may be halted again before this goes on.
            while not self._due.is_set():
                await self._due.wait()
            self._due.clear()
            async with asyncio.TaskGroup() as tasks:
                self._running = tasks.create_task(self._run_though_refused(), name=self.name)

    async def _run_though_refused(self) -> None:
        """Run the adapter; one that was refused asks again, ever more slowly, for an hour."""
        while True:
            await self.run()
            if self.attempts.ask_in_s is None:
                return
            await asyncio.sleep(self.attempts.ask_in_s)
            self.trouble, self.stopped = self.stopped, None

    async def halt(self) -> None:
        """Stop receiving; returns when nothing is received any more."""
        self._due.clear()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    def resume(self) -> None:
        """Receive again, whatever the last run has ended with."""
        self.stopped = self.trouble = None
        self.attempts.refused_at = float("-inf")
        self._due.set()

    async def run(self) -> None:
        """Run the adapter until cancelled or refused; its failures stay here."""
        if self.lease is None:
            await self._keep_running()
            return
        try:
            while self.stopped is None:
                await self.lease.acquire()
                await self._run_while_held(self.lease)
        finally:
            # Refused, or the gateway stops: another replica may go on at once.
            self.lease.give_up()

    async def _run_while_held(self, lease: AccountLease) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self._keep_running(), name=self.name)
            gone = tasks.create_task(lease.gone(), name=f"lease of {self.name}")
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            gone.cancel()

    async def _keep_running(self) -> None:
        failures, began = 0, time.monotonic()
        while self.stopped is None:
            started = time.monotonic()
            self.attempts.steady_at = started + STABLE_S
            try:
                await self._receiver.run()
            except AdapterRefused as exc:
                self.attempts.refused(began)
                self.stopped = reason = str(exc)
                ends = self.attempts.asked_until or "it has stopped"
                log.error("adapter_stopped", adapter=self.name, reason=reason, ends=ends)  # noqa: TRY400
                return
            except LeaseLost as exc:
                # What came in last is another replica's to store; so is what comes next.
                log.warning("account_lost", adapter=self.name, reason=str(exc))
                if self.lease is not None:
                    self.lease.lose()
                return
            except AdapterDisconnected as exc:
                self.trouble = str(exc)
                log.warning("adapter_disconnected", adapter=self.name, reason=str(exc))
            except Exception as exc:
                self.trouble = in_words(exc)
                self.attempts.failed = (
                    1 if time.monotonic() > self.attempts.steady_at else self.attempts.failed + 1
                )
                self.attempts.steady_at = float("inf")
                log.exception("adapter_failed", adapter=self.name)
            # A connection that is lost once a day must not wait a minute each time.
            failures = 1 if time.monotonic() - started > STABLE_S else failures + 1
            # The exponent has a limit of its own: a power of two beyond 1,023 is no float.
            await asyncio.sleep(min(2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S))


def supervised_of(adapters: Iterable[Adapter], receiving: AccountLeases) -> list[Supervised]:
    """Return what looks after each adapter, with the lease that it needs to receive."""
    found = []
    for each in adapters:
        needs_lease = each.is_exclusive and not receiving.is_alone
        for shard in range(len(each.receivers)):
            wanted = Receiving(each.platform, each.account, shard)
            found.append(Supervised(each, receiving.want(wanted) if needs_lease else None, shard))
    return found


class ReplaceableAdapter:
    """`adapters.base.Adapter`: whichever adapter the account has now."""

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
        """Go on with another adapter of the same account; the one before is closed."""
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
            # The account goes on with the other one by now.
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
        """Return the paths of its webhooks; each leads to the adapter that is there by then."""
        return [
            each.__class__(each.method, each.path, self._led_on(each), each.kwargs)
            for each in _routes_of(self._now)
        ]

    def _led_on(self, route: web.RouteDef) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            found = {(each.method, each.path): each.handler for each in _routes_of(self._now)}
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
    """`adapters.base.Adapter` of an account whose own could not be made: its answers wait.

    A replay's platform is one that takes them all the same.

    Args:
        reason: What has to be changed; the account stops with it.
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


def _routes_of(adapter: Adapter) -> list[web.RouteDef]:
    # Only adapters with a webhook have routes.
    found: list[web.RouteDef] = getattr(adapter, "routes", list)()
    return found
