"""The Slack adapter: receives, renders and sends for one app."""

import time
from collections.abc import Sequence
from dataclasses import replace

from aiohttp import web

from adapters.base import Clock, Intake, Renderer
from adapters.errors import SendDelayed
from adapters.messages import Address, Attachment, MessageRef, Outgoing, Receipt
from adapters.pacing import PaceLimits
from adapters.registry import Host
from adapters.slack.client import LIMITS, Client, signing_secret
from adapters.slack.files import download
from adapters.slack.find_sent import find_unfinished
from adapters.slack.inbound import Names
from adapters.slack.ingest import Ingest
from adapters.slack.platform import SlackSettings
from adapters.slack.preview import SlackPreviews
from adapters.slack.reactions import Reactions
from adapters.slack.receive import Receiver, Webhook
from adapters.slack.render import render
from adapters.slack.send import Sender


def renderer(_settings: SlackSettings) -> Renderer:
    """Return how text is shown, the same for all accounts."""
    return render


def build(settings: SlackSettings, host: Host) -> "SlackAdapter":
    """Return the adapter of one account, as the register calls it."""
    limits = replace(LIMITS, share=host.share)
    return SlackAdapter(settings, host.intake, host.commands, limits=limits)


class SlackAdapter:
    """One app in one workspace; implements `adapters.base.Adapter`.

    Slack has no idempotent sends: each message carries its row's nonce as metadata, and where the
    outcome of a send is unknown it is looked up in the channel before it is sent again.

    Args:
        settings: The app's block; a bot token must be in it.
        commands: The command menu: (name, description), names without a slash.

    Raises:
        AdapterRefused: There is no bot token.
    """

    platform: str = "slack"
    idempotent_sends: bool = False
    preview_interval_s: float = 1.0

    def __init__(
        self,
        settings: SlackSettings,
        intake: Intake,
        commands: Sequence[tuple[str, str]] = (),
        *,
        limits: PaceLimits = LIMITS,
        clock: Clock = time.monotonic,
    ) -> None:
        self.account: str = settings.name
        self._settings = settings
        self._client = Client(settings, limits, clock)
        names = Names(self._client, clock)
        self._ingest = Ingest(settings, intake, commands, names)
        self.receivers = (Receiver(settings, self._ingest, intake, clock=clock),)
        # One process at a time has the socket; calls of the webhook go to any.
        self.is_exclusive = settings.mode == "socket"
        self._previews = SlackPreviews(self._client, self._ingest, clock=clock)
        self._sender = Sender(self._client, self._previews)
        self._reactions = Reactions(self._client, reactions=settings.reactions, clock=clock)
        # What one part does alone.
        self.render = render
        self.preview = self._previews.show
        self.pool = self._client.outbound
        self.close = self._client.close
        self.withdraw = self._sender.withdraw
        self.acknowledge = self._reactions.acknowledge

    def routes(self) -> list[web.RouteDef]:
        """Return where Slack delivers in HTTP mode, for the gateway's own HTTP server.

        Events, interactivity and the slash command all lead to `/slack/{account}`.
        """
        secret = signing_secret(self._settings)
        if self._settings.mode == "socket" or not secret:
            return []
        return [
            web.post(f"/slack/{self.account}", Webhook(secret, self._client, self._ingest).handle)
        ]

    async def send(self, message: Outgoing) -> Receipt:
        """Show one payload; see `Adapter.send`."""
        message = await self._previews.settled(message)
        receipt = await self._sender.send(message)
        await self._reactions.show_done(message.address, posted=message.preview_ref is None)
        return receipt

    async def fetch(self, _address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file; see `Adapter.fetch`."""
        return await download(self._client, attachment, limit_bytes)

    async def find_preview(
        self, question: MessageRef, nonce: str, others: frozenset[str]
    ) -> str | None:
        """Look a preview up where it was to be; see `Adapter.find_preview`."""
        if (ref := await self._previews.arrived(question)) is not None:
            return ref
        await self._ingest.know_bot(self._client)
        identity = self._ingest.identity
        if identity is None:
            raise SendDelayed("Slack is not connected yet")
        return await find_unfinished(self._client, question, nonce, identity.user, others)

    async def show_working(self, question: MessageRef) -> None:
        """Show a status line in a thread, until something is said there."""
        if not self._previews.is_live(question.address):
            await self._reactions.show_working(question)
