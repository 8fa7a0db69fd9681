"""The toy's adapter: messages are posted to the gateway's own server, answers are read there."""

import asyncio
import logging

from adapters.toy.platform import ToySettings
from aiohttp import web

from adapters.base import UNANNOUNCED, Intake, PreviewIntent, Renderer
from adapters.errors import FetchRejected
from adapters.messages import (
    Address,
    Attachment,
    InboundMessage,
    MessageRef,
    Outgoing,
    Reaction,
    Receipt,
    Withdrawal,
)
from adapters.registry import Host

sdk_log = logging.getLogger("toy_sdk")


def build(settings: ToySettings, host: Host) -> "ToyAdapter":
    """Return the adapter of one account, as the register calls it."""
    return ToyAdapter(settings, host.intake)


def renderer(settings: ToySettings) -> Renderer:
    """Return how text is shown: behind the greeting of the account."""
    return lambda markdown: [settings.greeting + markdown]


class ToyAdapter:
    """One toy; implements `adapters.base.Adapter`."""

    platform: str = "toy"
    idempotent_sends = True
    preview_interval_s = 0.0
    pool = None
    is_exclusive = False

    def __init__(self, settings: ToySettings, intake: Intake) -> None:
        self.account = settings.name
        self.connected = False
        self.receivers = (self,)
        self._render = renderer(settings)
        self._intake = intake
        self._shown: asyncio.Queue[str] = asyncio.Queue()

    async def run(self) -> None:
        """Wait until cancelled: messages come in through the routes."""
        sdk_log.info("a word about every request")
        sdk_log.warning("the toy squeaks")
        self.connected = True
        await asyncio.Event().wait()

    async def close(self) -> None:
        """There is nothing to give back."""

    def routes(self) -> list[web.RouteDef]:
        """Return where messages are posted, and where the next answer is waited for."""
        place = f"/toy/{self.account}"
        return [web.post(place, self._receive), web.get(place, self._next_answer)]

    async def _receive(self, request: web.Request) -> web.Response:
        posted = await request.json()
        message = InboundMessage(
            address=Address(self.platform, self.account, posted["chat"]),
            chat_kind="dm",
            sender=posted["sender"],
            sender_name=posted["sender"],
            text=posted["text"],
            dedupe_key=posted["id"],
            raw=await request.text(),
            message_ref=posted["id"],
        )
        await self._intake.accept([message])
        return web.json_response({})

    async def _next_answer(self, _: web.Request) -> web.Response:
        return web.json_response({"text": await self._shown.get()})

    def render(self, markdown: str) -> list[str]:
        """Return the answer in one piece."""
        return self._render(markdown)

    async def send(self, message: Outgoing) -> Receipt:
        """Show one payload."""
        self._shown.put_nowait(message.payload)
        return Receipt(platform_ref=f"{message.conversation}:{message.seq}")

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """There are no buttons."""

    async def fetch(self, _address: Address, attachment: Attachment, _limit_bytes: int) -> bytes:
        """There are no files."""
        raise FetchRejected(f"{attachment.name} cannot be had")

    async def preview(
        self,
        _question: MessageRef,
        _text: str,
        _ref: str | None,
        *,
        grows: bool = True,
        intent: PreviewIntent = UNANNOUNCED,
    ) -> str | None:
        """Show nothing before the answer is there."""
        return None

    async def find_preview(
        self, _question: MessageRef, _nonce: str, _others: frozenset[str]
    ) -> str | None:
        """No preview stays behind here."""
        return None

    async def show_working(self, _question: MessageRef) -> None:
        """A toy does not type."""

    async def acknowledge(self, _question: MessageRef, _reaction: Reaction) -> None:
        """A toy does not react."""
