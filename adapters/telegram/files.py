"""Downloads what came with a message: getFile, then the file itself, never beyond a limit."""

import asyncio
from pathlib import Path
from urllib.parse import quote

import httpx
import structlog

from adapters.errors import FetchDelayed, FetchRejected
from adapters.messages import Address, Attachment
from adapters.telegram.albums import Albums
from adapters.telegram.client import Client
from adapters.telegram.errors import mapped_fetch
from adapters.telegram.inbound import handle_of
from adapters.wire import read_within
from agent.network import proxy_for, tls_for

log = structlog.get_logger()

_ANSWER_TIMEOUT_S = 20.0
_DEADLINE_S = 150.0


class FileFetcher:
    """The files of one bot.

    Args:
        albums: Their files are fetched once they are complete.
        local: The server is the operator's own: its files may lie on this machine's disk.
    """

    def __init__(self, client: Client, albums: Albums, *, local: bool) -> None:
        self._client = client
        self._albums = albums
        self._local = local

    async def fetch(self, address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file; see `Adapter.fetch`."""
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
        # The SDK puts this in front of what is not on this disk.
        path = file.file_path.removeprefix(self._client.files_root)
        # Only a server in local mode tells absolute paths. The public one must not make us read
        # a file of this machine.
        if self._local and path.startswith("/"):
            return await self._open(path, limit_bytes)
        return await self._download(path, limit_bytes)

    async def _open(self, path: str, limit_bytes: int) -> bytes:
        """Read what a server in local mode has stored; another machine's comes by HTTP.

        A web server in front of the other machine's directory serves a file as Telegram does.
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
            _check_status(answer)
            return await read_within(answer.aiter_bytes(), limit_bytes)


def _read(path: Path, limit_bytes: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(limit_bytes + 1)
    _check(len(content), limit_bytes)
    return content


def _check(size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        raise FetchRejected(f"the file is larger than {limit_bytes} bytes")


def _check_status(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    reason = f"the file server answered with HTTP status {answer.status_code}"
    gone = answer.is_client_error and answer.status_code not in {401, 408, 429}
    raise FetchRejected(reason) if gone else FetchDelayed(reason)
