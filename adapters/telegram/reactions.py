"""Acknowledging reactions: that a message was received, and what became of it; best effort."""

from telegram.constants import ReactionEmoji

from adapters.messages import MessageRef, Reaction
from adapters.telegram.client import Client
from adapters.telegram.errors import mapped_edit

# Telegram takes only what is on its list; neither a check mark nor a warning sign is.
# Source: https://core.telegram.org/bots/api#reactiontypeemoji
EMOJI: dict[Reaction, ReactionEmoji] = {
    "received": ReactionEmoji.EYES,
    "answered": ReactionEmoji.OK_HAND_SIGN,
    "failed": ReactionEmoji.CRYING_FACE,
}


class Reactions:
    """The reactions of one bot.

    Args:
        client: The bot; a reaction costs only its overall budget.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def show(self, question: MessageRef, mark: Reaction) -> None:
        """React to the question's message, in place of an earlier reaction.

        While answers wait for the overall budget a "received" is left out; an end waits for it.
        """
        chat, ref = question.address.chat, question.message_ref
        if ref is None:
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
