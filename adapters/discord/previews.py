"""Shows an answer while it is written, in a message that grows (step 6); best effort."""

import secrets
from collections import OrderedDict

import structlog

from adapters.discord.interactions import Callback
from adapters.discord.posts import Posts, body_of, channel_of
from adapters.discord.render import preview_text
from adapters.discord.signals import best_effort
from adapters.errors import SendUnknown
from adapters.messages import Address, Question
from adapters.pacing import Pacer

log = structlog.get_logger()

_REMEMBERED = 1024


class Previews:
    """Messages that grow with their answers.

    Args:
        posts: Carries messages.
        pacer: The budgets of the account.
    """

    def __init__(self, posts: Posts, pacer: Pacer) -> None:
        self._posts = posts
        self._pacer = pacer
        self._shown: OrderedDict[tuple[Address, str], str] = OrderedDict()
        self._lost: set[Address] = set()

    async def show(self, question: Question, text: str, ref: str | None) -> str | None:
        """Show a growing answer, or leave it as it is when it is too early for a new version."""
        address, shown = question.address, preview_text(text)
        if shown is None or address in self._lost or Callback.parse(question.message_ref):
            return ref
        if ref is not None and self._shown.get((address, ref)) == shown:
            return ref
        slot = self._pacer.try_preview(channel_of(address), group=False)
        if slot is None:
            return ref
        with slot, best_effort(self._pacer, channel_of(address), "preview"):
            return await self._show(address, shown, ref)
        return ref

    def end(self, address: Address) -> None:
        """An answer is sent: the next one may have a preview again."""
        self._lost.discard(address)

    async def _show(self, address: Address, text: str, ref: str | None) -> str | None:
        if ref is None:
            ref = await self._post(address, text)
        else:
            await self._posts.edit(address, ref, body_of(text))
        if ref is not None:
            self._shown[address, ref] = text
        if len(self._shown) > _REMEMBERED:
            self._shown.popitem(last=False)
        return ref

    async def _post(self, address: Address, text: str) -> str | None:
        """Post a new preview; the SDK's own repetitions after a server error show it once."""
        once = {"nonce": secrets.token_hex(12), "enforce_nonce": True}
        try:
            return await self._posts.post(address, body_of(text) | once)
        except SendUnknown as exc:
            # A second message must not follow one that perhaps stands there, unfinished for good.
            self._lost.add(address)
            log.debug("discord_signal_failed", action="preview", reason=str(exc))
            return None
