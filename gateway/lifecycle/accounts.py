"""An account's adapter that can be replaced while others hold it: its token is another one.

Whoever sends or downloads holds a `ReplaceableAdapter`. While the adapter behind it is replaced,
new calls wait, and those that are on their way end with the one that they began with.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import structlog
from aiohttp import web

from adapters.base import UNANNOUNCED, Adapter, PoolUse, PreviewIntent, Receives, Renderer
from adapters.errors import AdapterRefused, FetchDelayed, SendDelayed
from adapters.messages import (
    Address,
    Attachment,
    MessageRef,
    Outgoing,
    Reaction,
    Receipt,
    Withdrawal,
)

log = structlog.get_logger()

T = TypeVar("T")
CALLS_END_WITHIN_S = 10.0
"""How long calls that are on their way are waited for; what takes longer is cut by the close, and
its outcome is found out as after a crash."""


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
