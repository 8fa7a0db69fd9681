"""What people see while an answer is made: the growing message, "typing", reactions; best effort.

The message is edited as the answer grows, and becomes the answer; or it is a draft.
"""

import time

from telegram.constants import ChatAction, ReactionEmoji
from typing_extensions import override

from adapters.base import Clock, PreviewIntent
from adapters.errors import SendUnknown
from adapters.messages import Address, MessageRef, Outgoing, Reaction
from adapters.previews import EditedPreviews, rendered
from adapters.telegram.client import NO_LINK_PREVIEW, Client, is_group, reply_to, topic
from adapters.telegram.errors import Troubled, mapped_edit, mapped_send
from adapters.telegram.render import preview_text

# Telegram accepts only emoji of a list, without a check mark or a warning sign.
# Source: https://core.telegram.org/bots/api#reactiontypeemoji
EMOJI: dict[Reaction, ReactionEmoji] = {
    "received": ReactionEmoji.EYES,
    "answered": ReactionEmoji.OK_HAND_SIGN,
    "failed": ReactionEmoji.CRYING_FACE,
}
# One draft per chat: the next answer replaces a draft that was never finished.
_DRAFT_ID = 1
# A draft is gone after 30 s. Source: https://core.telegram.org/bots/api#sendmessagedraft
_DRAFT_REFRESH_S = 20.0


class TelegramPreviews(EditedPreviews):
    """The growing answers of one bot; by draft in private chats where `drafts` is set."""

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
        # Drafts are for private chats only.
        if not self._drafts or is_group(question.address.chat):
            return await super().step(question, text, ref, intent, grows=grows)
        if (shown := await rendered(preview_text, text)) is not None:
            await self._draft(question.address, shown)
        return None

    @override
    async def settled(self, message: Outgoing) -> Outgoing:
        self._drafted.pop(message.address, None)
        return await super().settled(message)

    async def show_working(self, question: MessageRef) -> None:
        """Show "typing" for about 5 s, and keep a draft from going away."""
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
        # In a group it shows whom it answers; in a private chat it would quote every question.
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
        except Troubled as exc:
            raise SendUnknown(str(exc)) from exc

    @override
    async def edit(self, address: Address, ref: str, text: str) -> None:
        with mapped_edit(self._client.token):
            await self._client.bot.edit_message_text(
                text, address.chat, int(ref), link_preview_options=NO_LINK_PREVIEW
            )

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
    """The reactions of one bot; each costs only its overall budget."""

    def __init__(self, client: Client, *, reactions: bool) -> None:
        self._client = client
        self._reactions = reactions

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """React to the question's message, in place of an earlier reaction.

        While answers wait for the overall budget a "received" is left out; an end waits for it.
        """
        chat, ref = question.address.chat, question.message_ref
        if ref is None or not self._reactions:
            return
        with self._client.best_effort("reaction", chat):
            if mark == "received":
                # The mark of the end replaces it anyhow.
                slot = self._client.pacer.try_signal(chat)
            else:
                slot = await self._client.pacer.wait_signal(chat)
            if slot is not None:
                with slot, mapped_edit(self._client.token):
                    await self._client.bot.set_message_reaction(chat, int(ref), EMOJI[mark])
