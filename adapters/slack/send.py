"""Sends outbox rows as posts or edits of previews; looks up rows with an unknown outcome."""

import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import Any

import structlog

from adapters.errors import AdapterError, SendDelayed, SendRejected, SendUnknown
from adapters.messages import Address, MessageRef, Outgoing, OutgoingFile, Receipt, Withdrawal
from adapters.slack.buttons import choice_blocks, over_blocks, response_url
from adapters.slack.client import POST, UPDATE, Client, metadata_of, nonce_of
from adapters.slack.errors import Coded, Limited, Refused, code_of, mapped, retry_after_s
from adapters.slack.ingest import Ingest
from adapters.slack.preview import STREAMED, PreviewGone, SlackPreviews, ts_of_preview

log = structlog.get_logger()

RESENT_MARK = "(re-sent)\n"
# Only notifications show the text of a message with blocks.
_NOTICE_CHARS = 150
# The bot is not in the command's channel; only the command's response URL works there.
_NOT_THERE = frozenset({"channel_not_found", "not_in_channel", "cannot_dm_bot", "user_is_bot"})
_MOST_PAGES = 10
_MARGIN_S = 600.0
"""Accepted skew between Slack's and the database's clock, in seconds."""
_TIMESTAMP = re.compile(r"\d{1,12}\.\d{1,9}")
_NO_ACCESS = frozenset({"missing_scope", "not_in_channel", "access_denied", "no_permission"})
_THREAD_GONE = frozenset({"thread_not_found", "message_not_found"})


class Sender:
    """The sending half of one app."""

    def __init__(self, client: Client, ingest: Ingest, previews: SlackPreviews) -> None:
        self._client = client
        self._ingest = ingest
        self._previews = previews

    async def send(self, message: Outgoing) -> Receipt:
        """Send one payload: edit its preview if any, else post a new message."""
        if message.preview_ref is None:
            return await self._show(message)
        try:
            return Receipt(await self._previews.finish(message, _content_of(message)))
        except PreviewGone as exc:
            log.info("slack_preview_missing", channel=message.address.chat, reason=str(exc))
        receipt = await self._show(message)
        await self._previews.delete(message.address.chat, ts_of_preview(message.preview_ref))
        return receipt

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """Replace a question's buttons by its outcome; see `Adapter.withdraw`."""
        channel = withdrawal.address.chat
        async with self._client.turn(UPDATE, channel):
            await self._client.web.chat_update(
                channel=channel,
                ts=withdrawal.message_ref,
                text=withdrawal.payload[:_NOTICE_CHARS],
                blocks=over_blocks(withdrawal.payload, withdrawal.note),
                link_names=False,
            )

    async def find_preview(
        self, question: MessageRef, nonce: str, others: frozenset[str]
    ) -> str | None:
        """Look up a preview in its channel or thread; see `Adapter.find_preview`.

        A posted preview has its nonce. A stream has none before its end: it is the bot's only
        message after the question without a nonce and files.
        """
        if (ref := await self._previews.arrived(question)) is not None:
            return ref
        if (bot := await self._ingest.know_bot(self._client)) is None:
            raise SendDelayed("Slack is not connected yet")
        asked = question.message_ref or question.address.thread or ""
        if not _TIMESTAMP.fullmatch(asked):
            raise SendRejected("what was asked has no place in the history")
        try:
            history = [shown async for shown in _since(self._client, question.address, asked)]
        except HistoryUnreadable as exc:
            raise SendRejected("the history cannot be read") from exc
        own = [each for each in history if each.get("user") == bot.user]
        for shown in own:
            if nonce_of(shown) == nonce:
                return str(shown["ts"])
        # A stream's metadata comes with its end.
        texts = [shown for shown in own if nonce_of(shown) is None and not shown.get("files")]
        unmarked = {str(shown["ts"]) for shown in texts} - others
        streams = [ts for ts in unmarked if float(ts) > float(asked)]
        if question.address.thread is None or not streams:
            return None
        if len(streams) > 1:
            raise SendRejected(f"{len(streams)} messages may be the preview")
        return STREAMED + streams[0]

    async def _show(self, message: Outgoing) -> Receipt:
        mark = ""
        if message.outcome_unknown:
            try:
                if (shown := await self._find(message)) is not None:
                    return Receipt(shown)
            except HistoryUnreadable:
                mark = RESENT_MARK
        try:
            if message.file is not None:
                return await self._send_file(message, message.file, mark)
            return await self._post(message, mark)
        except SendUnknown as exc:
            if message.outcome_unknown:
                # The next attempt looks it up again.
                raise SendDelayed(str(exc)) from exc
            raise

    async def _post(self, message: Outgoing, mark: str) -> Receipt:
        content = _content_of(message, mark)
        try:
            async with self._client.turn(POST, message.address.chat):
                answer = await self._client.web.chat_postMessage(
                    channel=message.address.chat,
                    thread_ts=message.address.thread,
                    # Otherwise Slack fetches every link written by the model and shows a card.
                    unfurl_links=False,
                    unfurl_media=False,
                    **content,
                )
        except Refused as exc:
            url = response_url(message.reply_to)
            # The URL came with a request: send answers only to Slack.
            if exc.code not in _NOT_THERE or url is None or not self._client.is_slack(url):
                raise
            return await self._answer_command(message, url)
        ts = str(answer["ts"])
        await self._check_thread(message, ts, answer.get("message"))
        return Receipt(ts, resent=bool(mark))

    async def _find(self, message: Outgoing) -> str | None:
        """Return the timestamp of a message posted by an earlier attempt, if any."""
        oldest = f"{max(time.time() - message.age_s - _MARGIN_S, 0.0):.6f}"
        async with aclosing(_since(self._client, message.address, oldest)) as history:
            async for shown in history:
                if _shows(shown, message):
                    return str(shown["ts"])
        return None

    async def _send_file(self, message: Outgoing, file: OutgoingFile, mark: str) -> Receipt:
        """Send a file; only the last step shows it, so only that outcome can be unknown."""
        channel, thread = message.address.chat, message.address.thread
        # Otherwise Slack shows the file in the channel.
        if thread is not None and await _is_thread_gone(self._client, channel, thread):
            raise SendRejected("the thread is gone")
        file_id = await self._upload(file)
        async with self._client.turn(POST, channel):
            await self._client.web.files_completeUploadExternal(
                files=[{"id": file_id, "title": file.name}],
                channel_id=channel,
                initial_comment=(mark + message.payload).strip() or None,
                thread_ts=thread,
            )
        return Receipt(file_id, resent=bool(mark))

    async def _upload(self, file: OutgoingFile) -> str:
        """Upload the bytes without showing them."""
        with mapped():
            ticket = await self._client.web.files_getUploadURLExternal(
                filename=file.name, length=len(file.content)
            )
            url, file_id = str(ticket["upload_url"]), str(ticket["file_id"])
            await self._client.exchange(
                "POST", url, lambda answer: check_upload(answer.status), data=file.content
            )
        return file_id

    async def _check_thread(self, message: Outgoing, ts: str, shown: Any) -> None:
        """Delete and reject an answer that Slack posted outside its deleted thread."""
        thread, channel = message.address.thread, message.address.chat
        if thread is None or not isinstance(shown, dict) or "thread_ts" in shown:
            return
        if await _is_thread_gone(self._client, channel, thread):
            await self._previews.delete(channel, ts)
            raise SendRejected("the thread is gone")

    async def _answer_command(self, message: Outgoing, url: str) -> Receipt:
        """Answer a slash command in a channel without the bot, visible only to its sender."""
        mark = RESENT_MARK if message.outcome_unknown else ""
        blocks = choice_blocks(mark + message.payload, message.choices)
        body = {
            "response_type": "ephemeral",
            "replace_original": False,
            "text": mark + message.payload[:_NOTICE_CHARS],
            "blocks": blocks if message.choices else blocks[:1],
        }
        with mapped(once=True):
            await self._client.exchange(
                "POST", url, lambda answer: check_response(answer.status, answer.headers), json=body
            )
        return Receipt(f"response:{message.nonce}", resent=message.outcome_unknown)


def check_upload(status: int) -> None:
    """Raise SendDelayed unless the upload succeeded; the file is not visible yet."""
    if status != HTTPStatus.OK:
        raise SendDelayed(f"Slack: the upload ended with HTTP status {status}")


def check_response(status: int, headers: Mapping[str, str]) -> None:
    """Raise the error indicated by a response URL's status, if any."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        raise Limited("Slack: ratelimited", retry_after_s(headers))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise SendUnknown(f"Slack: HTTP status {status}")
    if status != HTTPStatus.OK:
        raise Refused(f"the command can no longer be answered ({status})")


def _content_of(message: Outgoing, mark: str = "") -> dict[str, Any]:
    text = mark + message.payload
    content: dict[str, Any] = {"metadata": metadata_of(message.nonce), "link_names": False}
    if not message.choices:
        return {**content, "markdown_text": text}
    # Slack accepts Markdown either as text or as a block.
    return {**content, "text": text[:_NOTICE_CHARS], "blocks": choice_blocks(text, message.choices)}


class HistoryUnreadable(Exception):
    """The bot may not read the history, or it is too long."""


async def _since(
    client: Client, address: Address, oldest: str
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the messages at an address after a timestamp, limited to some pages."""
    read = partial(client.history, address.chat, address.thread, oldest=oldest)
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        try:
            page = await read(cursor=cursor, include_all_metadata=True)
        except Coded as exc:
            # An app without the history scope works, but marks repeated messages.
            if exc.code in _NO_ACCESS:
                raise HistoryUnreadable from exc
            if exc.code in {"channel_not_found", "thread_not_found"}:
                return
            raise SendDelayed(str(exc)) from exc
        for shown in page.get("messages") or ():
            if isinstance(shown, dict):
                yield shown
        cursor = (page.get("response_metadata") or {}).get("next_cursor")
        if not cursor:
            return
    raise HistoryUnreadable


def _shows(shown: dict[str, Any], message: Outgoing) -> bool:
    """Whether a message shows the row, by nonce or by its file's name and size."""
    file = message.file
    if file is None:
        # A preview has the same nonce but perhaps only part of the text.
        is_preview = shown.get("ts") == ts_of_preview(message.preview_ref)
        return not is_preview and nonce_of(shown) == message.nonce
    return any(
        (each.get("title") or each.get("name"), each.get("size")) == (file.name, len(file.content))
        for each in shown.get("files") or ()
    )


async def _is_thread_gone(client: Client, channel: str, thread: str) -> bool:
    """Whether a thread's first message was deleted; False if unknown."""
    try:
        with mapped():
            await client.web.conversations_replies(channel=channel, ts=thread, limit=1)
    except AdapterError as exc:
        return code_of(exc) in _THREAD_GONE
    return False
