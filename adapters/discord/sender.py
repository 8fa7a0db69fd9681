"""Sends outbox rows (steps 8 and 9): in place of a preview, of "thinking…", or as a new message.

Every new message carries the row's nonce, which Discord holds unique for some minutes; a row whose
outcome is unknown is first looked for in the channel. So it is shown once; where the bot may not
look, it is marked.
"""

from collections import OrderedDict

import structlog

from adapters.discord.api import Api
from adapters.discord.errors import (
    INVALID_TOKEN,
    THREAD_ARCHIVED,
    UNKNOWN_INTERACTION,
    UNKNOWN_MESSAGE,
    UNKNOWN_WEBHOOK,
    Refusal,
    mapped_post,
)
from adapters.discord.interactions import Callback, noted
from adapters.discord.lookup import find_sent
from adapters.discord.pending import Pending
from adapters.discord.places import Places
from adapters.discord.posts import Posts, body_of, channel_of
from adapters.discord.render import RESENT_MARK
from adapters.discord.signals import best_effort
from adapters.errors import SendDelayed, SendUnknown
from adapters.messages import Outgoing, Receipt, Withdrawal
from adapters.pacing import PaceLimits, Pacer

log = structlog.get_logger()

# Source: https://discord.com/developers/docs/topics/rate-limits#global-rate-limit; the limit of a
# channel is not published, Discord's answers have named 5 in 5 s for years.
LIMITS = PaceLimits(per_s=50, chat_interval_s=1.0, chat_burst=5, typing_interval_s=8.0)
_REMEMBERED = 1024
_NOT_EDITABLE = {UNKNOWN_MESSAGE, THREAD_ARCHIVED}
_EXPIRED = {UNKNOWN_MESSAGE, UNKNOWN_WEBHOOK, UNKNOWN_INTERACTION, INVALID_TOKEN}


class Sender:
    """The way of outbox rows of one account.

    Args:
        api: Carries requests.
        posts: Carries messages.
        pacer: The budgets of the account.
        places: Tells direct chats from channels.
        acknowledging: Interactions that Discord does not know to be received yet.
    """

    def __init__(
        self, api: Api, posts: Posts, pacer: Pacer, places: Places, acknowledging: Pending
    ) -> None:
        self._api = api
        self._posts = posts
        self._pacer = pacer
        self._places = places
        self._acknowledging = acknowledging
        self._shown: OrderedDict[str, str] = OrderedDict()
        self._answered: OrderedDict[str, str] = OrderedDict()

    async def send(self, message: Outgoing) -> Receipt:
        """Show one row; see `Adapter.send`."""
        channel = channel_of(message.address)
        slot = await self._pacer.wait(channel, group=False)
        try:
            with slot:
                receipt = await self._show(message)
        except SendDelayed as exc:
            if exc.retry_after_s is not None:
                self._pacer.block(channel, exc.retry_after_s)
            raise
        except SendUnknown as exc:
            if not message.outcome_unknown:
                raise
            # It was looked for before, and will be again: another attempt shows nothing twice.
            raise SendDelayed(str(exc)) from exc
        _remember(self._shown, receipt.platform_ref, message.nonce)
        return receipt

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """Note how a question ended, in place of its buttons; see `Adapter.withdraw`.

        A pause that Discord asks for does not hold up the channel: it may be for edits of messages
        that are older than an hour, of which there can be only few (its code 30046).
        """
        address = withdrawal.address
        body = body_of(noted(withdrawal.payload, withdrawal.note))
        with await self._pacer.wait(channel_of(address), group=False):
            await self._posts.edit(address, withdrawal.message_ref, body)

    async def _show(self, message: Outgoing) -> Receipt:
        if message.preview_ref is None:
            return await self._show_anew(message)
        if await self._replace(message, message.preview_ref):
            return Receipt(message.preview_ref)
        receipt = await self._show_anew(message)
        if receipt.platform_ref != message.preview_ref:
            await self._take_away(message, message.preview_ref)
        return receipt

    async def _show_anew(self, message: Outgoing) -> Receipt:
        # A file cannot take the place of "thinking…".
        callback = None if message.file else Callback.parse(message.reply_to)
        if callback is not None and (ref := await self._answer(message, callback)):
            return Receipt(ref)
        if message.outcome_unknown:
            try:
                if ref := await self._find(message):
                    return Receipt(ref)
            except Refusal as exc:
                # The nonce is what is left, for some minutes; later it would be shown twice.
                log.warning("discord_look_up_failed", chat=message.address.chat, reason=str(exc))
                return Receipt(await self._post(message, RESENT_MARK), resent=True)
        return Receipt(await self._post(message))

    async def _replace(self, message: Outgoing, ref: str) -> bool:
        """Put the row in the place of its preview; False if that cannot be edited any more."""
        try:
            body = body_of(message.payload, message.choices)
            await self._posts.edit(message.address, ref, body)
        except Refusal as exc:
            if exc.code not in _NOT_EDITABLE:
                raise
            log.info("discord_preview_missing", chat=message.address.chat, reason=str(exc))
            return False
        return True

    async def _take_away(self, message: Outgoing, ref: str) -> None:
        """Delete a preview that could not become the answer, best effort."""
        with best_effort(self._pacer, channel_of(message.address), "preview"):
            await self._posts.delete(message.address, ref)

    async def _answer(self, message: Outgoing, callback: Callback) -> str | None:
        """Put the row in the place of "thinking…"; None if it is too late for that.

        Only one row can take it; what comes after it are messages of the channel.
        """
        await self._acknowledging.wait(callback.id)
        taken_by = self._answered.get(callback.id, message.nonce)
        if taken_by != message.nonce or not callback.is_open:
            return None
        body = body_of(message.payload, message.choices)
        path = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
        ids = {"webhook_id": callback.application, "webhook_token": callback.token}
        try:
            with mapped_post():
                _remember(self._answered, callback.id, message.nonce)
                shown = await self._api.callback("PATCH", path, body, **ids)
                return str(shown["id"])
        except Refusal as exc:
            if exc.code not in _EXPIRED:
                raise
            log.info("discord_interaction_expired", chat=message.address.chat, reason=str(exc))
            return None

    async def _find(self, message: Outgoing) -> str | None:
        others = frozenset(ref for ref, nonce in self._shown.items() if nonce != message.nonce)
        return await find_sent(self._api, channel_of(message.address), message, others)

    async def _post(self, message: Outgoing, mark: str = "") -> str:
        body = body_of((mark + message.payload).strip(), message.choices)
        body |= {"nonce": message.nonce, "enforce_nonce": True}
        body |= self._places.reference(message.address, message.reply_to)
        return await self._posts.post(message.address, body, message.file)


def _remember(known: OrderedDict[str, str], key: str, nonce: str) -> None:
    known[key] = nonce
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
