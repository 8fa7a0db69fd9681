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

log = structlog.get_logger()


class FileFetcher:
    """The files of one bot.

    Args:
        client: The bot; closed by its owner.
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
        file = await self._client.bot.raw_file(file_id)
        _check(int(file.get("file_size", 0)), limit_bytes)
        path: str = file["file_path"]
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
        async def taken(answer: httpx.Response) -> bytes:
            _check_status(answer)
            return await read_within(answer.aiter_bytes(), limit_bytes)

        return await self._client.downloads.read(self._client.files_root + quote(path), taken)


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
