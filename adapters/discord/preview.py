"""Shows an answer while it is written, in a message that grows; best effort."""

from typing_extensions import override

from adapters.base import PreviewIntent
from adapters.discord.buttons import Callback
from adapters.discord.client import Api
from adapters.discord.render import preview_text
from adapters.discord.send import Posts, body_of
from adapters.discord.threads import ChannelKinds, channel_of
from adapters.messages import Address, MessageRef
from adapters.previews import EditedPreviews


class DiscordPreviews(EditedPreviews):
    """The growing answers of one bot."""

    def __init__(self, api: Api, posts: Posts, channel_kinds: ChannelKinds) -> None:
        super().__init__(api.pacer, api.best_effort, preview_text)
        self._posts = posts
        self._channel_kinds = channel_kinds

    @override
    def budget(self, address: Address) -> tuple[str, bool]:
        return channel_of(address), False

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
        # "Thinking…" stands in the place of a preview.
        if Callback.parse(question.message_ref):
            return ref
        return await super().step(question, text, ref, intent, grows=grows)

    @override
    async def post(self, question: MessageRef, text: str, nonce: str) -> str:
        """Post a new preview; the SDK's own repetitions after a server error show it once."""
        address = question.address
        reference = await self._channel_kinds.reference(address, question.message_ref)
        once = {"nonce": nonce, "enforce_nonce": True}
        return await self._posts.post(address, body_of(text) | once | reference)

    @override
    async def edit(self, address: Address, ref: str, text: str) -> None:
        await self._posts.edit(address, ref, body_of(text))
