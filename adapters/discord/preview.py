"""Shows an answer while it is written, in a message that grows; best effort."""

import structlog

from adapters.base import PreviewIntent, Recent
from adapters.discord.buttons import Callback
from adapters.discord.client import Api
from adapters.discord.render import preview_text
from adapters.discord.send import Posts, body_of
from adapters.discord.threads import ChannelKinds, channel_of
from adapters.errors import AdapterError, SendUnknown
from adapters.messages import Address, MessageRef
from adapters.rendering import rendered

log = structlog.get_logger()

_REMEMBERED = 1024


class Previews:
    """Messages that grow with their answers."""

    def __init__(self, api: Api, posts: Posts, channel_kinds: ChannelKinds) -> None:
        self._api = api
        self._posts = posts
        self._channel_kinds = channel_kinds
        self._shown: Recent[tuple[Address, str], str] = Recent(_REMEMBERED)
        self._lost: set[Address] = set()

    async def show(
        self, question: MessageRef, text: str, ref: str | None, intent: PreviewIntent
    ) -> str | None:
        """Show a growing answer, or leave it as it is when it is too early for a new version."""
        address, shown = question.address, await rendered(preview_text, text)
        # "Thinking…" stands in the place of a preview.
        if shown is None or address in self._lost or Callback.parse(question.message_ref):
            return ref
        if ref is not None and self._shown.get((address, ref)) == shown:
            return ref
        slot = self._api.pacer.try_preview(channel_of(address), group=False)
        if slot is None:
            return ref
        with slot, self._api.best_effort("preview", channel_of(address)):
            return await self._show(question, shown, ref, intent)
        return ref

    def end(self, address: Address) -> None:
        """An answer is sent: the next one may have a preview again."""
        self._lost.discard(address)

    async def _show(
        self, question: MessageRef, text: str, ref: str | None, intent: PreviewIntent
    ) -> str | None:
        address = question.address
        if ref is None:
            ref = await self._post(question, text, intent)
        else:
            await self._posts.edit(address, ref, body_of(text))
        if ref is not None:
            self._shown[address, ref] = text
        return ref

    async def _post(self, question: MessageRef, text: str, intent: PreviewIntent) -> str | None:
        """Post a new preview; the SDK's own repetitions after a server error show it once."""
        address = question.address
        reference = await self._channel_kinds.reference(address, question.message_ref)
        once = {"nonce": await intent.begin(), "enforce_nonce": True}
        try:
            return await self._posts.post(address, body_of(text) | once | reference)
        except SendUnknown as exc:
            # A second message must not follow one that perhaps stands there, unfinished for good.
            self._lost.add(address)
            log.debug("discord_signal_failed", action="preview", reason=str(exc))
            return None
        except AdapterError:
            intent.undo()
            raise
