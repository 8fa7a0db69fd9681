"""The Telegram adapter: receives, renders, sends and downloads files for one bot."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import httpx
import structlog
from aiohttp import web

from adapters.base import Clock, Intake, Renderer
from adapters.errors import FetchDelayed, FetchRejected, SendRejected
from adapters.messages import Address, Attachment, MessageRef, read_within
from adapters.pacing import PaceLimits
from adapters.registry import Host
from adapters.telegram.buttons import Buttons
from adapters.telegram.client import LIMITS, Client
from adapters.telegram.errors import mapped_fetch
from adapters.telegram.inbound import handle_of
from adapters.telegram.platform import TelegramSettings
from adapters.telegram.receive import Albums, Ingest, Receiver, Webhook, webhook_secret
from adapters.telegram.render import render
from adapters.telegram.send import Reactions, Sender, TelegramPreviews
from agent.network import proxy_for, tls_for

POLL_TIMEOUT_S = 30
_ANSWER_TIMEOUT_S = 20.0
_DEADLINE_S = 150.0

log = structlog.get_logger()


def renderer(_settings: TelegramSettings) -> Renderer:
    """Return the function that splits answers into messages."""
    return render


def build(settings: TelegramSettings, host: Host) -> "TelegramAdapter":
    """Return the adapter of one account."""
    limits = replace(LIMITS, share=host.share)
    return TelegramAdapter(settings, host.intake, host.commands, limits=limits)


class TelegramAdapter:
    """One bot on Telegram; implements `adapters.base.Adapter`.

    Telegram has no idempotent sends. A row with an unknown outcome is edited into its preview, or
    without a preview sent again, marked "(re-sent)".

    Raises:
        AdapterRefused: The token is missing.
    """

    platform: str = "telegram"
    idempotent_sends: bool = False
    # Edits share the chat's budget of one message per second, which must leave room for the answer.
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
        # The receiver opens its own client for each attempt, so answers still go out over this one
        # while polling fails.
        self._client = client = Client(settings, limits, clock)
        drafts = settings.preview == "draft"
        self._previews = TelegramPreviews(client, drafts=drafts, clock=clock)
        self._albums = albums = Albums(clock)
        self._has_own_server = settings.base_url is not None
        self._buttons = buttons = Buttons(client)
        self._ingest = Ingest(settings.name, intake, settings.allow_bots, buttons, albums)
        self.receivers = (
            Receiver(settings, self._ingest, buttons, commands, poll_timeout_s, clock),
        )
        self.render = render
        self.send = Sender(client, self._previews).send
        self.preview = self._previews.show
        self.pool = client.outbound
        self.close = client.close
        self.withdraw = buttons.withdraw
        self.show_working = self._previews.show_working
        self.acknowledge = Reactions(client, reactions=settings.reactions).acknowledge
        # Only one process may poll; webhook calls may reach any.
        self.is_exclusive = settings.mode == "polling"

    def routes(self) -> list[web.RouteDef]:
        """Return the webhook's route, the target of `platforms.telegram.webhook_url`."""
        secret = webhook_secret(self._settings)
        if self._settings.mode == "polling" or not secret:
            return []
        return [web.post(f"/telegram/{self.account}", Webhook(secret, self._ingest).handle)]

    async def find_preview(
        self, question: MessageRef, _nonce: str, _others: frozenset[str]
    ) -> str | None:
        """Return a late preview; the Bot API has no look-up. See `Adapter.find_preview`."""
        if (ref := await self._previews.arrived(question)) is not None:
            return ref
        raise SendRejected("Telegram does not let bots read a chat")

    async def fetch(self, address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file; wait for its album to be complete. See `Adapter.fetch`."""
        file_id, album = handle_of(attachment)
        if album:
            await self._albums.complete(address.chat, album)
        with mapped_fetch(self._client.token):
            content = await self._fetch(file_id, limit_bytes)
        log.debug("telegram_file_fetched", chat=address.chat, size_bytes=len(content))
        return content

    async def _fetch(self, file_id: str, limit_bytes: int) -> bytes:
        file = await self._client.bot.get_file(file_id)
        _check(file.file_size or 0, limit_bytes)
        if file.file_path is None:
            raise FetchDelayed("Telegram does not say where the file is")
        # The SDK adds this prefix to a path that is not on this disk.
        path = file.file_path.removeprefix(self._client.files_root)
        # Only a server in local mode may return absolute paths: the public one must not make Parley
        # read local files.
        if self._has_own_server and path.startswith("/"):
            return await self._open(path, limit_bytes)
        return await self._download(path, limit_bytes)

    async def _open(self, path: str, limit_bytes: int) -> bytes:
        """Read a file of a local-mode server, over HTTP if it is on another machine.

        Source: https://core.telegram.org/bots/api#using-a-local-bot-api-server
        """
        try:
            return await asyncio.to_thread(_read, Path(path), limit_bytes)
        except FileNotFoundError:
            below = path.partition(f"/{self._client.token}/")[2]
            return await self._download(below or path.lstrip("/"), limit_bytes)
        except OSError as exc:
            log.warning("telegram_file_unreadable", error=type(exc).__name__)
            raise FetchRejected("the Bot API server's file cannot be read") from exc

    async def _download(self, path: str, limit_bytes: int) -> bytes:
        url = self._client.files_root + quote(path)
        async with (
            asyncio.timeout(_DEADLINE_S),
            httpx.AsyncClient(
                timeout=_ANSWER_TIMEOUT_S,
                verify=tls_for(url),
                proxy=proxy_for(url),
                trust_env=False,
            ) as connection,
            connection.stream("GET", url) as answer,
        ):
            if not answer.is_success:
                reason = f"the file server answered with HTTP status {answer.status_code}"
                gone = answer.is_client_error and answer.status_code not in {401, 408, 429}
                raise FetchRejected(reason) if gone else FetchDelayed(reason)
            return await read_within(answer.aiter_bytes(), limit_bytes)


def _read(path: Path, limit_bytes: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(limit_bytes + 1)
    _check(len(content), limit_bytes)
    return content


def _check(size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        raise FetchRejected(f"the file is larger than {limit_bytes} bytes")
