"""Sends answers: posts, found again where their outcome is unknown, and edits."""

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog

from adapters.errors import SendDelayed, SendRejected, SendUnknown
from adapters.messages import Outgoing, OutgoingFile, Receipt, Withdrawal
from adapters.slack.buttons import choice_blocks, over_blocks, response_url
from adapters.slack.client import POST, UPDATE, Client, metadata_of, nonce_of
from adapters.slack.errors import Limited, Refused, mapped, retry_after_s
from adapters.slack.find_sent import HistoryUnreadable, find, is_thread_gone
from adapters.slack.preview import PreviewGone, SlackPreviews, ts_of_preview

log = structlog.get_logger()

RESENT_MARK = "(re-sent)\n"
# Of a message with blocks only notifications show the text.
_NOTICE_CHARS = 150
# The bot is not where the command was given; only the command's own address leads there.
_NOT_THERE = frozenset({"channel_not_found", "not_in_channel", "cannot_dm_bot", "user_is_bot"})


class Sender:
    """The outgoing half of one app.

    Args:
        previews: Knows the messages that answers were shown in while they grew.
    """

    def __init__(self, client: Client, previews: SlackPreviews) -> None:
        self._client = client
        self._previews = previews

    async def send(self, message: Outgoing) -> Receipt:
        """Show one payload: in place of its preview if it has one, else as a new message."""
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
        """Note how a question ended, in place of its buttons; see `Adapter.withdraw`."""
        channel = withdrawal.address.chat
        async with self._client.turn(UPDATE, channel):
            await self._client.web.chat_update(
                channel=channel,
                ts=withdrawal.message_ref,
                text=withdrawal.payload[:_NOTICE_CHARS],
                blocks=over_blocks(withdrawal.payload, withdrawal.note),
                link_names=False,
            )

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
                # It is looked up again before the next attempt.
                raise SendDelayed(str(exc)) from exc
            raise

    async def _post(self, message: Outgoing, mark: str) -> Receipt:
        content = _content_of(message, mark)
        try:
            async with self._client.turn(POST, message.address.chat):
                answer = await self._client.web.chat_postMessage(
                    channel=message.address.chat,
                    thread_ts=message.address.thread,
                    # Slack would fetch, and show a card of, every link that a model writes.
                    unfurl_links=False,
                    unfurl_media=False,
                    **content,
                )
        except Refused as exc:
            url = response_url(message.reply_to)
            # The address came with a request: nothing but Slack may be sent an answer.
            if exc.code not in _NOT_THERE or url is None or not self._client.is_slack(url):
                raise
            return await self._answer_command(message, url)
        ts = str(answer["ts"])
        await self._check_thread(message, ts, answer.get("message"))
        return Receipt(ts, resent=bool(mark))

    async def _find(self, message: Outgoing) -> str | None:
        """Return the timestamp of the message that an earlier attempt has posted, if any.

        A preview that was to become the answer has the same mark and perhaps not all of the text. A
        file is known by name and size: its id may have been lost with the process.
        """
        preview_ts, file = ts_of_preview(message.preview_ref), message.file

        def is_it(shown: dict[str, Any]) -> bool:
            if file is None:
                return shown.get("ts") != preview_ts and nonce_of(shown) == message.nonce
            return any(
                (each.get("title") or each.get("name"), each.get("size"))
                == (file.name, len(file.content))
                for each in shown.get("files") or ()
            )

        return await find(self._client, message, time.time(), is_it)

    async def _send_file(self, message: Outgoing, file: OutgoingFile, mark: str) -> Receipt:
        """Show a file; its receipt has the message's timestamp, or its own id.

        Only the last step shows anything, so only its outcome can be unknown.
        """
        channel, thread = message.address.chat, message.address.thread
        # Slack would show the file in the channel instead.
        if thread is not None and await is_thread_gone(self._client, channel, thread):
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
        """Bring the bytes to Slack; nobody sees them yet."""
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
        """Take back an answer that landed beside its thread because that is gone.

        Raises:
            SendRejected: It did.
        """
        thread, channel = message.address.thread, message.address.chat
        if thread is None or not isinstance(shown, dict) or "thread_ts" in shown:
            return
        if await is_thread_gone(self._client, channel, thread):
            await self._previews.delete(channel, ts)
            raise SendRejected("the thread is gone")

    async def _answer_command(self, message: Outgoing, url: str) -> Receipt:
        """Answer a slash command where the bot itself may not write, for its giver alone."""
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
    """Let a success pass; raise SendDelayed for all else, since nobody has seen the file yet."""
    if status != HTTPStatus.OK:
        raise SendDelayed(f"Slack: the upload ended with HTTP status {status}")


def check_response(status: int, headers: Mapping[str, str]) -> None:
    """Let the answer of a command's own address pass, or raise what became of the call."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        raise Limited("Slack: ratelimited", retry_after_s(headers))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise SendUnknown(f"Slack: HTTP status {status}")
    if status != HTTPStatus.OK:
        raise Refused(f"the command can no longer be answered ({status})")


def _content_of(message: Outgoing, mark: str = "") -> dict[str, Any]:
    """Return what a message shows, for posting and for editing alike.

    Texts with buttons are blocks, since Slack takes markdown either as a text or as a block.
    """
    text = mark + message.payload
    content: dict[str, Any] = {"metadata": metadata_of(message.nonce), "link_names": False}
    if not message.choices:
        return {**content, "markdown_text": text}
    return {**content, "text": text[:_NOTICE_CHARS], "blocks": choice_blocks(text, message.choices)}
