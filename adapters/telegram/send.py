"""Sends answers and files within their budgets, and shows progress before an answer.

Progress is best effort: "typing", reactions, and the growing answer, which is an edited message
that becomes the answer, or a draft.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
from telegram import InlineKeyboardButton, InlineKeyboardMarkup, MessageEntity, ReplyParameters
from telegram.constants import ChatAction, ReactionEmoji
from typing_extensions import override

from adapters.base import Clock, PreviewIntent
from adapters.errors import SendDelayed, SendRejected, SendUnknown
from adapters.messages import (
    Address,
    Choice,
    MessageRef,
    Outgoing,
    OutgoingFile,
    Reaction,
    Receipt,
)
from adapters.previews import EditedPreviews, render_in_thread
from adapters.telegram.client import Client, is_group, reply_to, topic
from adapters.telegram.errors import MessageGone, Troubled, mapped_edit, mapped_send
from adapters.telegram.render import RESENT_MARK, preview_text, units

log = structlog.get_logger()

# Source: https://core.telegram.org/bots/api#sending-files and #sendphoto
MAX_PHOTO_BYTES = 10 * 1000 * 1000
MAX_FILE_BYTES = 50 * 1000 * 1000
MAX_CAPTION_UNITS = 1024
_PHOTO_MIMES = frozenset({"image/jpeg", "image/png", "image/webp"})
# More characters in one row would be cut on a phone.
_ROW_CHARS = 32
_ROW_BUTTONS = 3
# Telegram accepts only listed emoji, which lack a check mark and a warning sign. Source:
# https://core.telegram.org/bots/api#reactiontypeemoji
EMOJI: dict[Reaction, ReactionEmoji] = {
    "received": ReactionEmoji.EYES,
    "answered": ReactionEmoji.OK_HAND_SIGN,
    "failed": ReactionEmoji.CRYING_FACE,
}
# One draft per chat: the next answer replaces an unfinished draft.
_DRAFT_ID = 1
# A draft disappears after 30 s. Source: https://core.telegram.org/bots/api#sendmessagedraft
_DRAFT_REFRESH_S = 20.0


class TelegramPreviews(EditedPreviews):
    """The growing answers of one bot; drafts in private chats if `drafts` is set."""

    def __init__(self, client: Client, *, drafts: bool, clock: Clock = time.monotonic) -> None:
        super().__init__(client.pacer, client.best_effort, preview_text)
        self._client = client
        self._drafts = drafts
        self._clock = clock
        self._drafted: dict[Address, tuple[str, float]] = {}

    @override
    def budget(self, question: MessageRef) -> tuple[str, bool]:
        return question.address.chat, is_group(question.address.chat)

    @override
    async def step(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        intent: PreviewIntent,
        *,
        grows: bool,
    ) -> str | None:
        # Drafts exist only in private chats.
        if not self._drafts or is_group(question.address.chat):
            return await super().step(question, text, ref, intent, grows=grows)
        if (shown := await render_in_thread(preview_text, text)) is not None:
            await self._draft(question.address, shown)
        return None

    @override
    async def settled(self, message: Outgoing) -> Outgoing:
        self._drafted.pop(message.address, None)
        return await super().settled(message)

    async def show_working(self, question: MessageRef) -> None:
        """Show "typing" for about 5 s, and refresh a draft."""
        address = question.address
        text, drafted_at = self._drafted.get(address, ("", 0.0))
        if text and self._clock() - drafted_at >= _DRAFT_REFRESH_S:
            await self._draft(address, text)
        if (slot := self._pacer.try_typing(address.chat)) is None:
            return
        with slot, self._best_effort("typing", address.chat), mapped_edit(self._client.token):
            await self._client.bot.send_chat_action(
                address.chat, ChatAction.TYPING, message_thread_id=topic(address)
            )

    @override
    async def post(self, question: MessageRef, text: str, nonce: str) -> str:
        address = question.address
        # In a group show whom it answers; in a private chat that would quote every question.
        answered = question.message_ref if is_group(address.chat) else None
        try:
            return await self._client.post(address, text, reply_parameters=reply_to(answered))
        except Troubled as exc:
            raise SendUnknown(str(exc)) from exc

    @override
    async def edit(self, address: Address, ref: str, text: str) -> None:
        await self._client.edit(address.chat, ref, text)

    async def _draft(self, address: Address, text: str) -> None:
        shown, drafted_at = self._drafted.get(address, ("", 0.0))
        if shown == text and self._clock() - drafted_at < _DRAFT_REFRESH_S:
            return
        if (slot := self._pacer.try_preview(address.chat, group=False)) is None:
            return
        with slot, self._best_effort("draft", address.chat), mapped_edit(self._client.token):
            await self._client.bot.send_message_draft(
                int(address.chat), _DRAFT_ID, text, message_thread_id=topic(address)
            )
            self._drafted[address] = text, self._clock()


class Reactions:
    """The reactions of one bot, which count only against its overall budget."""

    def __init__(self, client: Client, *, reactions: bool) -> None:
        self._client = client
        self._reactions = reactions

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """React to the question's message, replacing an earlier reaction.

        While answers wait for the overall budget, "received" is skipped; final reactions wait.
        """
        chat, ref = question.address.chat, question.message_ref
        if ref is None or not self._reactions:
            return
        with self._client.best_effort("reaction", chat):
            if mark == "received":
                # The final reaction replaces it anyway.
                slot = self._client.pacer.try_signal(chat)
            else:
                slot = await self._client.pacer.wait_signal(chat)
            if slot is not None:
                with slot, mapped_edit(self._client.token):
                    await self._client.bot.set_message_reaction(chat, int(ref), EMOJI[mark])


class Sender:
    """The sending half of one bot."""

    def __init__(self, client: Client, previews: TelegramPreviews) -> None:
        self._client = client
        self._previews = previews

    async def send(self, message: Outgoing) -> Receipt:
        """Send one payload: edit its preview if any, else post a new message."""
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
        address, ref, keyboard = message.address, message.preview_ref, _keyboard(message.choices)
        if ref is not None:
            options = {"entities": content.entities, "reply_markup": keyboard}
            try:
                await self._client.edit(address.chat, ref, content.text, **options)
                return Receipt(ref)
            # The user or an administrator deleted the preview.
            except MessageGone as exc:
                log.info("telegram_preview_missing", chat=address.chat, reason=str(exc))
        # The Bot API has no lookup, so mark a row that may already be shown.
        if message.outcome_unknown:
            content = content.resent()
        ref = await self._client.post(
            address,
            content.text,
            entities=content.entities,
            reply_parameters=_reply(message),
            reply_markup=keyboard,
        )
        return Receipt(ref, resent=message.outcome_unknown)

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
        """Send a picture as a photo if Telegram can show it, any other file as a document."""
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
                # The refused picture counted against the budget as well.
                await self._client.pacer.wait(chat, group=is_group(chat))
        # Otherwise Telegram shows some files as another kind.
        options["disable_content_type_detection"] = True
        with mapped_send(self._client.token):
            sent = await bot.send_document(chat, file.content, **options)
            return str(sent.message_id)


def _reply(message: Outgoing) -> ReplyParameters | None:
    # In a group without topics each part of an answer replies, which keeps it in the comments of a
    # channel's post.
    in_group = is_group(message.address.chat) and message.address.thread is None
    return reply_to(message.reply_to or (message.question if in_group else None))


def _keyboard(choices: Sequence[Choice]) -> InlineKeyboardMarkup | None:
    """Return the buttons or None; a few short ones share a row."""
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
        """Prepend the mark; `render` left room for it."""
        if not self.text:
            return _Content(RESENT_MARK.strip())
        moved = MessageEntity.shift_entities(units(RESENT_MARK), self.entities)
        return _Content(RESENT_MARK + self.text, moved)
