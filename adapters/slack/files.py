"""Files out and in: uploads in Slack's three steps, downloads with the token."""

import time
from http import HTTPStatus
from typing import Any

import aiohttp

from adapters.errors import FetchDelayed, FetchRejected, SendDelayed, SendRejected
from adapters.messages import Attachment, Outgoing, OutgoingFile, Receipt
from adapters.slack.client import POST, Client
from adapters.slack.errors import (
    CREDENTIALS,
    REFUSED,
    mapped,
)
from adapters.slack.find_sent import HistoryUnreadable, find, is_thread_gone
from adapters.wire import read_within

RESENT_MARK = "(re-sent)\n"
_CHUNK_BYTES = 1 << 16


class FileSender:
    """Shows files."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, message: Outgoing, file: OutgoingFile) -> Receipt:
        """Show a file; its receipt has the message's timestamp, or its own id.

        Only the last step shows anything, so only its outcome can be unknown. Then the file is
        looked for by name and size: its id may have been lost with the process. Where the bot may
        not look, it is shown once more, marked as such.
        """
        comment = message.payload
        if message.outcome_unknown:
            try:
                if shown := await self._find(message, file):
                    return Receipt(shown)
            except HistoryUnreadable:
                comment = (RESENT_MARK + comment).strip()
        channel, thread = message.address.chat, message.address.thread
        # Slack would show the file in the channel instead.
        if thread is not None and await is_thread_gone(self._client, channel, thread):
            raise SendRejected("the thread is gone")
        file_id = await self._upload(file)
        async with self._client.turn(POST, channel):
            await self._client.web.files_completeUploadExternal(
                files=[{"id": file_id, "title": file.name}],
                channel_id=channel,
                initial_comment=comment or None,
                thread_ts=thread,
            )
        return Receipt(file_id, resent=comment != message.payload)

    async def _find(self, message: Outgoing, file: OutgoingFile) -> str | None:
        def is_it(shown: dict[str, Any]) -> bool:
            size = len(file.content)
            return any(
                (each.get("title") or each.get("name")) == file.name and each.get("size") == size
                for each in shown.get("files") or ()
            )

        shown = await find(self._client, message, time.time(), is_it)
        return None if shown is None else str(shown["ts"])

    async def _upload(self, file: OutgoingFile) -> str:
        """Bring the bytes to Slack; nobody sees them yet."""
        with mapped():
            ticket = await self._client.web.files_getUploadURLExternal(
                filename=file.name, length=len(file.content)
            )
            url, file_id = str(ticket["upload_url"]), str(ticket["file_id"])
            await self._client.exchange("POST", url, _uploaded, data=file.content)
        return file_id


async def _uploaded(answer: aiohttp.ClientResponse) -> None:
    check_upload(answer.status)


def check_upload(status: int) -> None:
    """Let a success pass; raise SendDelayed for all else, since nobody has seen the file yet."""
    if status != HTTPStatus.OK:
        raise SendDelayed(f"Slack: the upload ended with HTTP status {status}")


async def download(client: Client, attachment: Attachment, limit_bytes: int) -> bytes:
    """Return the bytes of a file that came with a message.

    Raises:
        FetchDelayed: Try again later.
        FetchRejected: It cannot be had any more, or it has more than `limit_bytes`.
    """
    try:
        with mapped():
            answer = await client.web.files_info(file=attachment.ref)
            url = _address(client, answer.get("file"))
            return await client.exchange(
                "GET",
                url,
                lambda response: _content(response, attachment, limit_bytes),
                headers=client.authorization(url),
                # It may lead to the login page, or elsewhere; the token must not follow.
                allow_redirects=False,
            )
    except REFUSED as exc:
        # A token can be fixed, and the file is still there.
        if exc.code in CREDENTIALS:
            raise FetchDelayed(str(exc)) from exc
        raise FetchRejected(f"Slack does not hand out the file ({exc.code})") from exc
    except SendDelayed as exc:
        raise FetchDelayed(str(exc)) from exc


def _address(client: Client, file: Any) -> str:
    known = file if isinstance(file, dict) else {}
    url = str(known.get("url_private_download") or known.get("url_private") or "")
    if not client.is_slack(url):
        raise FetchRejected("the file is not kept at Slack")
    return url


async def _content(
    response: aiohttp.ClientResponse, attachment: Attachment, limit_bytes: int
) -> bytes:
    check_download(response.status, response.content_type, attachment)
    return await read_within(response.content.iter_chunked(_CHUNK_BYTES), limit_bytes)


def check_download(status: int, content_type: str, attachment: Attachment) -> None:
    """Let what brings a file pass.

    Without the scope `files:read` Slack answers with its login page, or leads there.

    Raises:
        FetchDelayed: It cannot be had now.
        FetchRejected: It can never be had.
    """
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise FetchDelayed(f"the file's server answered with HTTP status {status}")
    is_login = content_type == "text/html" and "html" not in attachment.mime
    if status != HTTPStatus.OK or is_login:
        raise FetchRejected(f"Slack does not hand out the file (HTTP status {status})")
