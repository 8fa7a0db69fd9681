"""The Telegram adapter: receives (step 1), renders and sends (steps 8 and 9) for one bot."""

import time
from collections.abc import Callable, Sequence

from aiohttp import web

from adapters.base import Intake
from adapters.errors import FetchRejected
from adapters.messages import Address, Attachment, Mark, Outgoing, Question, Receipt
from adapters.pacing import PaceLimits, Pacer
from adapters.settings import TelegramSettings
from adapters.telegram.client import Client
from adapters.telegram.ingest import Ingest
from adapters.telegram.receiver import Receiver, webhook_secret
from adapters.telegram.render import render
from adapters.telegram.sender import LIMITS, Sender
from adapters.telegram.webhook import Webhook

POLL_TIMEOUT_S = 30


class TelegramAdapter:
    """One bot on Telegram; implements `adapters.base.Adapter`.

    Telegram has no idempotent sends: a row whose outcome is unknown is edited into its preview
    where it has one, else it is sent once more, marked "(re-sent)".

    Args:
        settings: The bot's block; a token must be in it.
        intake: Durable admission.
        commands: The command menu: (name, description), names without a slash.
        poll_timeout_s: Length of a long poll, in whole seconds.
        limits: What Telegram allows to be sent.
        clock: Monotonic seconds.

    Raises:
        AdapterRefused: There is no token.
    """

    platform: str = "telegram"
    idempotent_sends: bool = False
    preview_interval_s: float = 1.5

    def __init__(
        self,
        settings: TelegramSettings,
        intake: Intake,
        commands: Sequence[tuple[str, str]] = (),
        *,
        poll_timeout_s: int = POLL_TIMEOUT_S,
        limits: PaceLimits = LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.account: str = settings.name
        self._settings = settings
        self._client = Client(settings)
        self._ingest = Ingest(settings.name, intake)
        self._receiver = Receiver(
            settings, self._ingest, commands, poll_timeout_s=poll_timeout_s, clock=clock
        )
        pacer = Pacer(limits, clock=clock)
        self._sender = Sender(self._client, pacer, drafts=settings.preview == "draft")

    @property
    def connected(self) -> bool:
        """Whether Telegram answered within the last 90 s."""
        return self._receiver.connected

    async def run(self) -> None:
        """Receive updates until cancelled; see `Adapter.run`."""
        await self._receiver.run()

    async def close(self) -> None:
        """Close the connections of the sending half; those of `run` end with it."""
        await self._client.close()

    def routes(self) -> list[web.RouteDef]:
        """Return where Telegram delivers in webhook mode, for the gateway's own HTTP server.

        `platforms.telegram.webhook_url` must lead there: its path is `/telegram/{account}`.
        """
        secret = webhook_secret(self._settings)
        if self._settings.mode == "polling" or not secret:
            return []
        return [web.post(f"/telegram/{self.account}", Webhook(secret, self._ingest).handle)]

    def render(self, markdown: str) -> list[str]:
        """Split an answer into payloads; see `Adapter.render`."""
        return render(markdown)

    async def send(self, message: Outgoing) -> Receipt:
        """Show one payload; see `Adapter.send`."""
        return await self._sender.send(message)

    async def fetch(self, address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file; see `Adapter.fetch`."""
        raise FetchRejected("files cannot be read from Telegram yet")

    async def preview(self, question: Question, text: str, ref: str | None) -> str | None:
        """Show an answer as it grows; see `Adapter.preview`."""
        return await self._sender.preview(question.address, text, ref)

    async def show_working(self, question: Question) -> None:
        """Show "typing" for about 5 s."""
        await self._sender.show_working(question.address)

    async def acknowledge(self, question: Question, mark: Mark) -> None:
        """React to a message; see `Adapter.acknowledge`."""
