"""Shows that and how an answer grows: previews, drafts, "typing"; all best effort."""

import time

import structlog
from telegram.constants import ChatAction

from adapters.base import Clock, PreviewIntent, Recent
from adapters.errors import AdapterError, SendUnknown
from adapters.messages import Address, MessageRef
from adapters.rendering import rendered
from adapters.telegram.client import NO_LINK_PREVIEW, Client, is_group, reply_to, topic
from adapters.telegram.errors import Troubled, mapped_edit, mapped_send
from adapters.telegram.render import preview_text

log = structlog.get_logger()

_REMEMBERED = 1024
# One draft per chat: the next answer takes the place of a draft that was never finished.
_DRAFT_ID = 1
# A draft is gone after 30 s. Source: https://core.telegram.org/bots/api#sendmessagedraft
_DRAFT_REFRESH_S = 20.0


class Previews:
    """The growing answers of one bot.

    Args:
        client: The bot; closed by its owner.
        drafts: Preview by draft in private chats instead of by a message that is edited.
    """

    def __init__(
        self,
        client: Client,
        *,
        drafts: bool,
        clock: Clock = time.monotonic,
    ) -> None:
        self._client = client
        self._drafts = drafts
        self._clock = clock
        self._shown: Recent[tuple[Address, str], str] = Recent(_REMEMBERED)
        self._drafted: dict[Address, tuple[str, float]] = {}
        self._lost: set[Address] = set()

    async def show(
        self, question: MessageRef, text: str, ref: str | None, intent: PreviewIntent
    ) -> str | None:
        """Show a growing answer, or leave it as it is when it is too early for a new version."""
        address = question.address
        shown = await rendered(preview_text, text)
        if shown is None or address in self._lost:
            return ref
        # Telegram takes drafts in private chats only.
        if self._drafts and not is_group(address.chat):
            await self._draft(address, shown)
            return None
        if ref is not None and self._shown.get((address, ref)) == shown:
            return ref
        slot = self._client.pacer.try_preview(address.chat, group=is_group(address.chat))
        if slot is None:
            return ref
        with slot, self._client.best_effort("preview", address.chat):
            return await self._show(question, shown, ref, intent)
        return ref

    async def show_working(self, question: MessageRef) -> None:
        """Show "typing" for about 5 s, and keep a draft from going away."""
        address = question.address
        text, drafted_at = self._drafted.get(address, ("", 0.0))
        if text and self._clock() - drafted_at >= _DRAFT_REFRESH_S:
            await self._draft(address, text)
        slot = self._client.pacer.try_typing(address.chat)
        if slot is None:
            return
        with (
            slot,
            self._client.best_effort("typing", address.chat),
            mapped_edit(self._client.token),
        ):
            await self._client.bot.send_chat_action(
                address.chat, ChatAction.TYPING, message_thread_id=topic(address)
            )

    def end(self, address: Address, ref: str | None) -> None:
        """Forget what was shown of an answer: the answer itself takes its place now."""
        self._lost.discard(address)
        self._drafted.pop(address, None)
        if ref is not None:
            self._shown.pop((address, ref), None)

    async def _show(
        self, question: MessageRef, text: str, ref: str | None, intent: PreviewIntent
    ) -> str | None:
        address = question.address
        if ref is None:
            ref = await self._post(question, text, intent)
        else:
            with mapped_edit(self._client.token):
                await self._client.bot.edit_message_text(
                    text, address.chat, int(ref), link_preview_options=NO_LINK_PREVIEW
                )
        if ref is not None:
            self._shown[address, ref] = text
        return ref

    async def _post(self, question: MessageRef, text: str, intent: PreviewIntent) -> str | None:
        """Post a new preview; in a group it shows at once whom it answers."""
        # Before the request: a killed process may leave a message that only this tells of.
        await intent.begin()
        address = question.address
        # In a private chat it would quote every question.
        answered = question.message_ref if is_group(address.chat) else None
        try:
            with mapped_send(self._client.token):
                sent = await self._client.bot.send_message(
                    address.chat,
                    text,
                    message_thread_id=topic(address),
                    reply_parameters=reply_to(answered),
                    link_preview_options=NO_LINK_PREVIEW,
                )
                return str(sent.message_id)
        except (SendUnknown, Troubled) as exc:
            # A second message must not follow one that perhaps stands there, unfinished for good.
            self._lost.add(address)
            log.debug("telegram_preview_lost", chat=address.chat, reason=str(exc))
            return None
        except AdapterError:
            intent.undo()
            raise

    async def _draft(self, address: Address, text: str) -> None:
        shown, drafted_at = self._drafted.get(address, ("", 0.0))
        if shown == text and self._clock() - drafted_at < _DRAFT_REFRESH_S:
            return
        slot = self._client.pacer.try_preview(address.chat, group=False)
        if slot is None:
            return
        with (
            slot,
            self._client.best_effort("draft", address.chat),
            mapped_edit(self._client.token),
        ):
            await self._client.bot.send_message_draft(
                int(address.chat), _DRAFT_ID, text, message_thread_id=topic(address)
            )
            self._drafted[address] = text, self._clock()
