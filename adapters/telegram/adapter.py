"""The Telegram adapter: receives, renders and sends for one bot."""

import time
from collections.abc import Sequence
from dataclasses import replace

from aiohttp import web

from adapters.base import Clock, Intake, Renderer
from adapters.errors import SendRejected
from adapters.messages import MessageRef, Reaction
from adapters.pacing import PaceLimits
from adapters.registry import Host
from adapters.telegram.albums import Albums
from adapters.telegram.buttons import Buttons
from adapters.telegram.client import LIMITS, Client
from adapters.telegram.files import FileFetcher
from adapters.telegram.inbound import PLATFORM
from adapters.telegram.platform import TelegramSettings
from adapters.telegram.preview import TelegramPreviews
from adapters.telegram.reactions import Reactions
from adapters.telegram.receive import Ingest, Receiver, Webhook, webhook_secret
from adapters.telegram.render import render
from adapters.telegram.send import Sender

POLL_TIMEOUT_S = 30


def renderer(_settings: TelegramSettings) -> Renderer:
    """Return how text is shown, the same for all accounts."""
    return render


def build(settings: TelegramSettings, host: Host) -> "TelegramAdapter":
    """Return the adapter of one account, as the register calls it."""
    limits = replace(LIMITS, share=host.share)
    return TelegramAdapter(settings, host.intake, host.commands, limits=limits)


class TelegramAdapter:
    """One bot on Telegram; implements `adapters.base.Adapter`.

    Telegram has no idempotent sends: a row whose outcome is unknown is edited into its preview
    where it has one, else it is sent once more, marked "(re-sent)".

    Args:
        settings: The bot's block; a token must be in it.
        commands: The command menu: (name, description), names without a slash.
        poll_timeout_s: Length of a long poll, in whole seconds.

    Raises:
        AdapterRefused: There is no token.
    """

    platform: str = PLATFORM
    idempotent_sends: bool = False
    # Edits share the chat's budget of one message a second; the answer itself must find room.
    preview_interval_s: float = 1.5

    def __init__(
        self,
        settings: TelegramSettings,
        intake: Intake,
        commands: Sequence[tuple[str, str]] = (),
        *,
        poll_timeout_s: int = POLL_TIMEOUT_S,
        limits: PaceLimits = LIMITS,
        clock: Clock = time.monotonic,
    ) -> None:
        self.account: str = settings.name
        self._settings = settings
        # The receiver opens a client of its own for each attempt: while Telegram cannot be polled,
        # answers still go out over this one.
        self._client = client = Client(settings, limits, clock)
        drafts = settings.preview == "draft"
        self._previews = TelegramPreviews(client, drafts=drafts, clock=clock)
        self._reactions = Reactions(client)
        albums = Albums(clock)
        self._files = FileFetcher(client, albums, local=settings.base_url is not None)
        self._buttons = Buttons(client)
        # What one part does alone.
        self.render = render
        self.send = Sender(client, self._previews).send
        self.preview = self._previews.show
        self.pool = client.outbound
        self.close = client.close
        self.fetch = self._files.fetch
        self.withdraw = self._buttons.withdraw
        self.show_working = self._previews.show_working
        self._ingest = Ingest(settings.name, intake, settings.allow_bots, self._buttons, albums)
        receiver = Receiver(
            settings,
            self._ingest,
            self._buttons,
            commands,
            poll_timeout_s=poll_timeout_s,
            clock=clock,
        )
        self.receivers = (receiver,)
        # One process at a time may poll; calls of the webhook go to any.
        self.is_exclusive = settings.mode == "polling"

    def routes(self) -> list[web.RouteDef]:
        """Return where Telegram delivers in webhook mode, for the gateway's own HTTP server.

        `platforms.telegram.webhook_url` must lead there: its path is `/telegram/{account}`.
        """
        secret = webhook_secret(self._settings)
        if self._settings.mode == "polling" or not secret:
            return []
        return [web.post(f"/telegram/{self.account}", Webhook(secret, self._ingest).handle)]

    async def find_preview(
        self, question: MessageRef, _nonce: str, _others: frozenset[str]
    ) -> str | None:
        """Return one that came late; the Bot API has no look-up. See `Adapter.find_preview`."""
        if (ref := await self._previews.arrived(question)) is not None:
            return ref
        raise SendRejected("Telegram does not let bots read a chat")

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """React to a message unless `reactions` is off; see `Adapter.acknowledge`."""
        if self._settings.reactions:
            await self._reactions.show(question, mark)
