"""The Discord adapter: receives, renders, sends and downloads files for one bot."""

import time
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from yarl import URL

from adapters.base import Clock, Intake, Renderer
from adapters.discord.buttons import Buttons
from adapters.discord.client import LIMITS, Api, Shard
from adapters.discord.errors import mapped_call
from adapters.discord.ingest import AccountParts
from adapters.discord.platform import DiscordSettings
from adapters.discord.receive import Receiver
from adapters.discord.render import render
from adapters.discord.send import DiscordPreviews, Posts, Reactions, Sender
from adapters.discord.threads import ChannelKinds, Threads
from adapters.errors import FetchDelayed, FetchRejected, SendDelayed, SendRejected
from adapters.messages import Address, Attachment, read_within
from adapters.pacing import PaceLimits
from adapters.registry import Host
from agent.network import in_words

_HOSTS = {"cdn.discordapp.com", "media.discordapp.net"}
_CHUNK_BYTES = 65_536
_GONE = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}


def renderer(_settings: DiscordSettings) -> Renderer:
    """Return the function that splits answers into messages."""
    return render


def build(settings: DiscordSettings, host: Host) -> "DiscordAdapter":
    """Return the adapter of one account."""
    limits = replace(LIMITS, share=host.share)
    return DiscordAdapter(settings, host.intake, host.commands, limits=limits)


class DiscordAdapter:
    """One bot on Discord; implements `adapters.base.Adapter`.

    A row is shown once: its nonce prevents repeats, and an unknown outcome is looked up in the
    channel. Previews are ordinary messages, so sends do not count as idempotent.

    Raises:
        AdapterRefused: The token is missing.
    """

    platform: str = "discord"
    idempotent_sends: bool = False
    # Only one process may have a session; a second would get all events, too.
    is_exclusive: bool = True
    # Edits share the channel's budget of 5 messages in 5 s, which must leave room for the answer.
    preview_interval_s: float = 1.5

    def __init__(
        self,
        settings: DiscordSettings,
        intake: Intake,
        commands: Sequence[tuple[str, str]] = (),
        *,
        limits: PaceLimits = LIMITS,
        clock: Clock = time.monotonic,
    ) -> None:
        self.account: str = settings.name
        self._settings = settings
        self._api = Api(settings, limits, clock)
        kinds = ChannelKinds(self._api, settings.shards)
        threads = Threads(self._api, intake)
        buttons = Buttons(self._api, intake)
        posts = Posts(self._api, threads)
        parts = AccountParts(self._api, intake, kinds, threads, buttons, commands)
        shards = [Shard(number, settings.shards) for number in range(settings.shards)]
        self.receivers = tuple(Receiver(settings, parts, each, clock=clock) for each in shards)
        previews = DiscordPreviews(self._api, posts, kinds)
        sender = Sender(self._api, posts, kinds, buttons.pending, previews)
        reactions = Reactions(self._api, threads, reactions=settings.reactions)
        self.render = render
        self.send = sender.send
        self.preview = previews.show
        self.pool = self._api.outbound
        self.close = self._api.close
        self.withdraw = sender.withdraw
        self.find_preview = sender.find_preview
        self.show_working = reactions.show_working
        self.acknowledge = reactions.acknowledge

    async def fetch(self, _address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file; look up an expired link in its message.

        See `Adapter.fetch`.
        """
        if attachment.size_bytes is not None and attachment.size_bytes > limit_bytes:
            raise FetchRejected(f"the file is larger than {limit_bytes} bytes")
        try:
            location = orjson.loads(attachment.ref)
            location = {name: str(location[name]) for name in ("channel", "message", "id", "url")}
        except (ValueError, LookupError, TypeError) as exc:
            raise FetchRejected("it is not known where the file is") from exc
        try:
            return await self._download(location["url"], limit_bytes)
        except Expired:
            url = await self._fresh_url(location)
        try:
            return await self._download(url, limit_bytes)
        except Expired as exc:
            raise FetchRejected("the file does not exist any more") from exc

    async def _download(self, url: str, limit_bytes: int) -> bytes:
        if not url:
            raise Expired
        # The address comes from a message, so it must not lead into the operator's network.
        if not is_discords(url, self._settings.api_url):
            raise FetchRejected("the file is not on Discord's servers")

        async def taken(answer: aiohttp.ClientResponse) -> bytes:
            check_status(answer.status)
            return await read_within(answer.content.iter_chunked(_CHUNK_BYTES), limit_bytes)

        try:
            return await self._api.download(url, taken)
        except (aiohttp.ClientError, OSError, SendDelayed) as exc:
            raise FetchDelayed(f"the file cannot be read: {in_words(exc)}") from exc

    async def _fresh_url(self, location: dict[str, str]) -> str:
        try:
            with mapped_call():
                message = await self._api.message(location["channel"], location["message"])
                return _url_in(message, location["id"])
        except SendDelayed as exc:
            raise FetchDelayed(str(exc)) from exc
        except SendRejected as exc:
            raise FetchRejected(f"the file cannot be had any more: {exc}") from exc


class Expired(Exception):
    """The link to the file has expired."""


def is_discords(url: str, api_url: str | None) -> bool:
    """Whether a URL leads to Discord's file servers or the configured server."""
    target = URL(url)
    if api_url is not None and target.host == URL(api_url).host:
        return True
    return target.scheme == "https" and target.host in _HOSTS


def check_status(status: int) -> None:
    """Check that a response contains the file; raise Expired for an expired link."""
    if status in _GONE:
        raise Expired
    if status != HTTPStatus.OK:
        raise FetchDelayed(f"Discord's file server answered with status {status}")


def _url_in(message: Any, number: str) -> str:
    snapshots = [each["message"] for each in message.get("message_snapshots") or ()]
    for said in [message, *snapshots]:
        for file in said.get("attachments", ()):
            if file["id"] == number:
                return str(file["url"])
    raise FetchRejected("the file does not exist any more")
