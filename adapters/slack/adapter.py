"""The Slack adapter: receives, renders, sends and downloads files for one app."""

import time
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus

from aiohttp import web

from adapters.base import Clock, Intake, Renderer
from adapters.errors import FetchDelayed, FetchRejected, SendDelayed
from adapters.messages import Address, Attachment, MessageRef, Outgoing, Receipt
from adapters.pacing import PaceLimits
from adapters.registry import Host
from adapters.slack.client import LIMITS, Client, signing_secret
from adapters.slack.errors import CREDENTIALS, Coded, mapped
from adapters.slack.inbound import Names
from adapters.slack.ingest import Ingest
from adapters.slack.platform import SlackSettings
from adapters.slack.preview import Reactions, SlackPreviews
from adapters.slack.receive import Receiver, Webhook
from adapters.slack.render import render
from adapters.slack.send import Sender


def renderer(_settings: SlackSettings) -> Renderer:
    """Return the function that splits answers into messages."""
    return render


def build(settings: SlackSettings, host: Host) -> "SlackAdapter":
    """Return the adapter of one account."""
    limits = replace(LIMITS, share=host.share)
    return SlackAdapter(settings, host.intake, host.commands, limits=limits)


class SlackAdapter:
    """One app in one workspace; implements `adapters.base.Adapter`.

    Slack has no idempotent sends: each message carries its row's nonce as metadata, and a row with
    an unknown outcome is looked up in the channel before it is sent again.

    Raises:
        AdapterRefused: The bot token is missing.
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
        self.receivers = (Receiver(settings, self._ingest, intake, clock),)
        # Only one process may have the socket; webhook calls may reach any.
        self.is_exclusive = settings.mode == "socket"
        self._previews = SlackPreviews(self._client, self._ingest, clock=clock)
        self._sender = Sender(self._client, self._ingest, self._previews)
        self._reactions = Reactions(self._client, reactions=settings.reactions, clock=clock)
        self.render = render
        self.preview = self._previews.show
        self.pool = self._client.outbound
        self.close = self._client.close
        self.withdraw = self._sender.withdraw
        self.find_preview = self._sender.find_preview
        self.acknowledge = self._reactions.acknowledge

    def routes(self) -> list[web.RouteDef]:
        """Return the route for events, interactivity and the slash command in HTTP mode."""
        secret = signing_secret(self._settings)
        if self._settings.mode == "socket" or not secret:
            return []
        webhook = Webhook(secret, self._client, self._ingest)
        return [web.post(f"/slack/{self.account}", webhook.handle)]

    async def send(self, message: Outgoing) -> Receipt:
        """Send one payload; see `Adapter.send`."""
        message = await self._previews.settled(message)
        receipt = await self._sender.send(message)
        await self._reactions.show_done(message.address, posted=message.preview_ref is None)
        return receipt

    async def show_working(self, question: MessageRef) -> None:
        """Show a status line in a thread, unless a growing answer is shown there."""
        if not self._previews.is_live(question.address):
            await self._reactions.show_working(question)

    async def fetch(self, _address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file; see `Adapter.fetch`."""
        client = self._client
        try:
            with mapped():
                answer = await client.web.files_info(file=attachment.ref)
                file = answer.get("file")
                known = file if isinstance(file, dict) else {}
                url = str(known.get("url_private_download") or known.get("url_private") or "")
                if not client.is_slack(url):
                    raise FetchRejected("the file is not kept at Slack")
                return await client.exchange(
                    "GET",
                    url,
                    lambda answer: check_download(answer.status, answer.content_type, attachment),
                    limit_bytes=limit_bytes,
                    headers=client.authorization(url),
                    # A redirect may lead to the login page or elsewhere; the token must not follow.
                    allow_redirects=False,
                )
        except Coded as exc:
            # A token can be fixed, and the file stays available.
            if exc.code in CREDENTIALS:
                raise FetchDelayed(str(exc)) from exc
            raise FetchRejected(f"Slack does not hand out the file ({exc.code})") from exc
        except SendDelayed as exc:
            raise FetchDelayed(str(exc)) from exc


def check_download(status: int, content_type: str, attachment: Attachment) -> None:
    """Check that a response contains the file.

    Without the scope `files:read` Slack returns its login page or redirects to it.
    """
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise FetchDelayed(f"the file's server answered with HTTP status {status}")
    is_login = content_type == "text/html" and "html" not in attachment.mime
    if status != HTTPStatus.OK or is_login:
        raise FetchRejected(f"Slack does not hand out the file (HTTP status {status})")
