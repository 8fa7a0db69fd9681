"""Sends answers and files, each within its budget."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
from telegram import InlineKeyboardButton, InlineKeyboardMarkup, MessageEntity, ReplyParameters

from adapters.errors import SendDelayed, SendRejected
from adapters.messages import Choice, Outgoing, OutgoingFile, Receipt
from adapters.telegram.client import NO_LINK_PREVIEW, Client, is_group, reply_to, topic
from adapters.telegram.errors import MessageGone, mapped_edit, mapped_send
from adapters.telegram.preview import TelegramPreviews
from adapters.telegram.render import RESENT_MARK, units

log = structlog.get_logger()

# Source: https://core.telegram.org/bots/api#sending-files and #sendphoto
MAX_PHOTO_BYTES = 10 * 1000 * 1000
MAX_FILE_BYTES = 50 * 1000 * 1000
MAX_CAPTION_UNITS = 1024
_PHOTO_MIMES = frozenset({"image/jpeg", "image/png", "image/webp"})
# Longer labels, or more of them, would be cut in one row on a phone.
_ROW_CHARS = 32
_ROW_BUTTONS = 3


class Sender:
    """The outgoing half of one bot."""

    def __init__(self, client: Client, previews: TelegramPreviews) -> None:
        self._client = client
        self._previews = previews

    async def send(self, message: Outgoing) -> Receipt:
        """Show one payload: in place of its preview if it has one, else as a new message."""
        message = await self._previews.settled(message)
        chat = message.address.chat
        with await self._client.pacer.wait(chat, group=is_group(chat)):
            try:
                if message.file is not None:
                    return await self._show_file(message, message.file)
                return await self._show(message, _Content.of(message.payload))
            except SendDelayed as exc:
                self._client.heed(chat, exc)
                raise

    async def _show(self, message: Outgoing, content: "_Content") -> Receipt:
        if message.preview_ref is not None:
            try:
                return await self._replace(message, message.preview_ref, content)
            # The user, or an administrator, has deleted the preview.
            except MessageGone as exc:
                log.info("telegram_preview_missing", chat=message.address.chat, reason=str(exc))
        # The Bot API has no look-up: a row that may be shown already is marked.
        if message.outcome_unknown:
            content = content.resent()
        return await self._post(message, content)

    async def _replace(self, message: Outgoing, ref: str, content: "_Content") -> Receipt:
        with mapped_edit(self._client.token):
            await self._client.bot.edit_message_text(
                content.text,
                message.address.chat,
                int(ref),
                entities=content.entities,
                reply_markup=_keyboard(message.choices),
                link_preview_options=NO_LINK_PREVIEW,
            )
        return Receipt(ref)

    async def _post(self, message: Outgoing, content: "_Content") -> Receipt:
        with mapped_send(self._client.token):
            sent = await self._client.bot.send_message(
                message.address.chat,
                content.text,
                entities=content.entities,
                message_thread_id=topic(message.address),
                reply_parameters=_reply(message),
                reply_markup=_keyboard(message.choices),
                link_preview_options=NO_LINK_PREVIEW,
            )
            return Receipt(str(sent.message_id), resent=message.outcome_unknown)

    async def _show_file(self, message: Outgoing, file: OutgoingFile) -> Receipt:
        if len(file.content) > MAX_FILE_BYTES:
            raise SendRejected("Telegram takes files of up to 50 MB only")
        caption = _Content.of(message.payload) if message.payload else _Content("")
        if message.outcome_unknown:
            caption = caption.resent()
        if units(caption.text) > MAX_CAPTION_UNITS:
            raise SendRejected("Telegram takes captions of up to 1024 characters only")
        ref = await self._upload(message, file, caption)
        return Receipt(ref, resent=message.outcome_unknown)

    async def _upload(self, message: Outgoing, file: OutgoingFile, caption: "_Content") -> str:
        """Send a picture as a photo if Telegram can show it, else the file as a document."""
        bot, chat = self._client.bot, message.address.chat
        options: dict[str, Any] = {
            "caption": caption.text or None,
            "caption_entities": caption.entities,
            "filename": file.name,
            "message_thread_id": topic(message.address),
            "reply_parameters": _reply(message),
            "reply_markup": _keyboard(message.choices),
        }
        if file.mime in _PHOTO_MIMES and len(file.content) <= MAX_PHOTO_BYTES:
            try:
                with mapped_send(self._client.token):
                    sent = await bot.send_photo(chat, file.content, **options)
                    return str(sent.message_id)
            except SendRejected as exc:
                if not any(word in str(exc).upper() for word in ("PHOTO", "IMAGE")):
                    raise
                log.info("telegram_photo_refused", chat=chat, reason=str(exc))
                # The refused picture was a message of the budget, too.
                await self._client.pacer.wait(chat, group=is_group(chat))
        # Telegram would show some files as another kind.
        options["disable_content_type_detection"] = True
        with mapped_send(self._client.token):
            sent = await bot.send_document(chat, file.content, **options)
            return str(sent.message_id)


def _reply(message: Outgoing) -> ReplyParameters | None:
    # In a group without topics each part of an answer replies: nothing else keeps it in the
    # comments of a channel's post.
    in_group = is_group(message.address.chat) and message.address.thread is None
    return reply_to(message.reply_to or (message.question if in_group else None))


def _keyboard(choices: Sequence[Choice]) -> InlineKeyboardMarkup | None:
    """Return the buttons, or None; a few short ones are in one row."""
    if not choices:
        return None
    buttons = [InlineKeyboardButton(it.label, callback_data=it.text) for it in choices]
    short = sum(len(it.label) for it in choices) <= _ROW_CHARS and len(choices) <= _ROW_BUTTONS
    return InlineKeyboardMarkup([buttons] if short else [[button] for button in buttons])


@dataclass(frozen=True, slots=True)
class _Content:
    text: str
    entities: Sequence[MessageEntity] = ()

    @classmethod
    def of(cls, payload: str) -> "_Content":
        content = orjson.loads(payload)
        return cls(content["text"], MessageEntity.de_list(content["entities"], None))

    def resent(self) -> "_Content":
        """Add the mark in front; `render` has left room for it."""
        if not self.text:
            return _Content(RESENT_MARK.strip())
        moved = MessageEntity.shift_entities(units(RESENT_MARK), self.entities)
        return _Content(RESENT_MARK + self.text, moved)
