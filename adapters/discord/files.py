"""Downloads files that came with messages; their links expire and are renewed."""

from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from yarl import URL

from adapters.discord.client import Api
from adapters.discord.errors import mapped_call
from adapters.errors import FetchDelayed, FetchRejected, SendDelayed, SendRejected
from adapters.messages import Attachment
from adapters.wire import read_within
from agent.network import in_words

_HOSTS = {"cdn.discordapp.com", "media.discordapp.net"}
_CHUNK_BYTES = 65_536
_GONE = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}


class Expired(Exception):
    """The link does not lead to the file any more."""


async def fetch(api: Api, attachment: Attachment, limit_bytes: int, api_url: str | None) -> bytes:
    """Return a file's bytes; an expired link is looked up anew in its message.

    Args:
        attachment: As `adapters.discord.inbound` made it.
        api_url: The configured server; its host may serve files too.

    Raises:
        FetchDelayed: Try again later.
        FetchRejected: It cannot be had any more, or it is too large.
    """
    if attachment.size_bytes is not None and attachment.size_bytes > limit_bytes:
        raise FetchRejected(f"the file is larger than {limit_bytes} bytes")
    try:
        location = orjson.loads(attachment.ref)
        location = {name: str(location[name]) for name in ("channel", "message", "id", "url")}
    except (ValueError, LookupError, TypeError) as exc:
        raise FetchRejected("it is not known where the file is") from exc
    try:
        return await _download(api, location["url"], limit_bytes, api_url)
    except Expired:
        url = await _fresh_url(api, location)
    try:
        return await _download(api, url, limit_bytes, api_url)
    except Expired as exc:
        raise FetchRejected("the file does not exist any more") from exc


def is_discords(url: str, api_url: str | None) -> bool:
    """Whether a URL leads to Discord's file servers, or to the host of the configured server."""
    target = URL(url)
    if api_url is not None and target.host == URL(api_url).host:
        return True
    return target.scheme == "https" and target.host in _HOSTS


async def _download(api: Api, url: str, limit_bytes: int, api_url: str | None) -> bytes:
    if not url:
        raise Expired
    # The address came with a message: it must not lead into the operator's network.
    if not is_discords(url, api_url):
        raise FetchRejected("the file is not on Discord's servers")

    async def taken(answer: aiohttp.ClientResponse) -> bytes:
        check_status(answer.status)
        return await read_within(answer.content.iter_chunked(_CHUNK_BYTES), limit_bytes)

    try:
        return await api.download(url, taken)
    except (aiohttp.ClientError, OSError, SendDelayed) as exc:
        raise FetchDelayed(f"the file cannot be read: {in_words(exc)}") from exc


def check_status(status: int) -> None:
    """Let what brings a file pass.

    Raises:
        Expired: The link does not lead to it any more.
        FetchDelayed: It does, but not now.
    """
    if status in _GONE:
        raise Expired
    if status != HTTPStatus.OK:
        raise FetchDelayed(f"Discord's file server answered with status {status}")


async def _fresh_url(api: Api, location: dict[str, str]) -> str:
    path = "/channels/{channel_id}/messages/{message_id}"
    try:
        with mapped_call():
            message = await api.get(
                path, channel_id=location["channel"], message_id=location["message"]
            )
            return _url_in(message, location["id"])
    except SendDelayed as exc:
        raise FetchDelayed(str(exc)) from exc
    except SendRejected as exc:
        raise FetchRejected(f"the file cannot be had any more: {exc}") from exc


def _url_in(message: Any, number: str) -> str:
    snapshots = [each["message"] for each in message.get("message_snapshots") or ()]
    for said in [message, *snapshots]:
        for file in said.get("attachments", ()):
            if file["id"] == number:
                return str(file["url"])
    raise FetchRejected("the file does not exist any more")
