"""Sends answers, previews and typing signals (steps 8 and 9), each within its budget."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import structlog
from telegram import LinkPreviewOptions, MessageEntity, ReplyParameters
from telegram.constants import ChatAction

from adapters.errors import AdapterError, SendDelayed, SendUnknown
from adapters.messages import Address, Outgoing, Receipt
from adapters.pacing import PaceLimits, Pacer
from adapters.telegram.client import Client
from adapters.telegram.errors import MessageGone, mapped_edit, mapped_send
from adapters.telegram.render import preview_text
from adapters.telegram.split import RESENT_MARK, units

log = structlog.get_logger()

# Source: https://core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this
LIMITS = PaceLimits(per_s=30, chat_interval_s=1.0, group_per_min=20)
_REMEMBERED_PREVIEWS = 1024
# One draft per chat: the next answer takes the place of a draft that was never finished.
_DRAFT_ID = 1
_NO_LINK_PREVIEW = LinkPreviewOptions(is_disabled=True)


class Sender:
    """The outgoing half of one bot.

    Args:
        client: The bot; closed by its owner.
        pacer: The budgets of the bot.
        drafts: Preview by draft in private chats instead of by a message that is edited.
    """

    def __init__(self, client: Client, pacer: Pacer, *, drafts: bool) -> None:
        self._client = client
        self._pacer = pacer
        self._drafts = drafts
        self._previews: OrderedDict[tuple[Address, str], str] = OrderedDict()
        self._lost_previews: set[Address] = set()

    async def send(self, message: Outgoing) -> Receipt:
        """Show one payload: in place of its preview if it has one, else as a new message."""
        text, entities = _content(message.payload)
        chat = message.address.chat
        await self._pacer.wait(chat, group=_is_group(chat))
        self._lost_previews.discard(message.address)
        try:
            return await self._show(message, text, entities)
        except SendDelayed as exc:
            self._heed_flood(chat, exc)
            raise

    async def preview(self, address: Address, text: str, ref: str | None) -> str | None:
        """Show a growing answer, or leave it as it is when it is too early for a new version."""
        shown = preview_text(text)
        if shown is None or address in self._lost_previews:
            return ref
        if ref is not None and self._previews.get((address, ref)) == shown:
            return ref
        if not self._pacer.try_preview(address.chat, group=_is_group(address.chat)):
            return ref
        with self._best_effort("preview", address):
            return await self._show_preview(address, shown, ref)
        return ref

    async def show_working(self, address: Address) -> None:
        """Show "typing" for about 5 s."""
        if not self._pacer.try_typing(address.chat):
            return
        with self._best_effort("typing", address), mapped_edit(self._client.token):
            await self._client.bot.send_chat_action(
                address.chat, ChatAction.TYPING, message_thread_id=_thread(address)
            )

    @contextmanager
    def _best_effort(self, action: str, address: Address) -> Iterator[None]:
        """Swallow what a preview or typing signal meets; it costs the answer nothing."""
        try:
            yield
        except SendUnknown as exc:
            # A second message must not follow one that perhaps stands there, unfinished for good.
            self._lost_previews.add(address)
            log.debug("telegram_preview_failed", action=action, chat=address.chat, reason=str(exc))
        except AdapterError as exc:
            self._heed_flood(address.chat, exc)
            log.debug("telegram_preview_failed", action=action, chat=address.chat, reason=str(exc))

    async def _show(self, message: Outgoing, text: str, entities: list[MessageEntity]) -> Receipt:
        if message.preview_ref is not None:
            try:
                return await self._replace(message, message.preview_ref, text, entities)
            except MessageGone as exc:
                log.info("telegram_preview_missing", chat=message.address.chat, reason=str(exc))
        if message.outcome_unknown:
            text, entities = _marked_resent(text, entities)
        return await self._post(message, text, entities)

    async def _replace(
        self, message: Outgoing, ref: str, text: str, entities: list[MessageEntity]
    ) -> Receipt:
        self._previews.pop((message.address, ref), None)
        with mapped_edit(self._client.token):
            await self._client.bot.edit_message_text(
                text,
                chat_id=message.address.chat,
                message_id=int(ref),
                entities=entities,
                link_preview_options=_NO_LINK_PREVIEW,
            )
        return Receipt(ref)

    async def _post(self, message: Outgoing, text: str, entities: list[MessageEntity]) -> Receipt:
        with mapped_send(self._client.token):
            sent = await self._client.bot.send_message(
                message.address.chat,
                text,
                entities=entities,
                message_thread_id=_thread(message.address),
                reply_parameters=_reply(message.reply_to),
                link_preview_options=_NO_LINK_PREVIEW,
            )
        return Receipt(str(sent.message_id), resent=message.outcome_unknown)

    async def _show_preview(self, address: Address, text: str, ref: str | None) -> str | None:
        if self._drafts and not _is_group(address.chat):
            await self._draft(address, text)
            return None
        if ref is None:
            ref = await self._post_preview(address, text)
        else:
            await self._edit_preview(address, text, ref)
        self._previews[address, ref] = text
        if len(self._previews) > _REMEMBERED_PREVIEWS:
            self._previews.popitem(last=False)
        return ref

    async def _draft(self, address: Address, text: str) -> None:
        with mapped_edit(self._client.token):
            await self._client.bot.send_message_draft(
                int(address.chat), _DRAFT_ID, text, message_thread_id=_thread(address)
            )

    async def _post_preview(self, address: Address, text: str) -> str:
        with mapped_send(self._client.token):
            sent = await self._client.bot.send_message(
                address.chat,
                text,
                message_thread_id=_thread(address),
                link_preview_options=_NO_LINK_PREVIEW,
            )
        return str(sent.message_id)

    async def _edit_preview(self, address: Address, text: str, ref: str) -> None:
        with mapped_edit(self._client.token):
            await self._client.bot.edit_message_text(
                text, address.chat, int(ref), link_preview_options=_NO_LINK_PREVIEW
            )

    def _heed_flood(self, chat: str, exc: AdapterError) -> None:
        if isinstance(exc, SendDelayed) and exc.retry_after_s is not None:
            self._pacer.block(chat, exc.retry_after_s)


def _content(payload: str) -> tuple[str, list[MessageEntity]]:
    content = orjson.loads(payload)
    return content["text"], [MessageEntity(**entity) for entity in content["entities"]]


def _marked_resent(text: str, entities: list[MessageEntity]) -> tuple[str, list[MessageEntity]]:
    """Put the mark in front; `split` has left room for it."""
    shift = units(RESENT_MARK)
    return RESENT_MARK + text, list(MessageEntity.shift_entities(shift, entities))


def _is_group(chat: str) -> bool:
    """Groups and supergroups have negative ids."""
    return chat.startswith("-")


def _thread(address: Address) -> int | None:
    return None if address.thread is None else int(address.thread)


def _reply(ref: str | None) -> ReplyParameters | None:
    if ref is None:
        return None
    return ReplyParameters(int(ref), allow_sending_without_reply=True)
