"""What people see while an answer is made: the growing message, "typing", reactions; best effort.

The message is edited as the answer grows, and becomes the answer.
"""

import asyncio

import structlog
from typing_extensions import override

from adapters.discord.buttons import Callback
from adapters.discord.client import MESSAGE, Api
from adapters.discord.errors import MISSING_ACCESS, MISSING_PERMISSIONS, CodedRefusal, mapped_call
from adapters.discord.render import preview_text
from adapters.discord.send import Posts, body_of
from adapters.discord.threads import ChannelKinds, Threads, channel_of
from adapters.messages import Address, MessageRef, Reaction
from adapters.previews import EditedPreviews

log = structlog.get_logger()

_EMOJI: dict[Reaction, str] = {"received": "👀", "answered": "✅", "failed": "⚠️"}
# Discord's answers name one reaction in 0.25 s for each channel, setting and taking alike, which
# the SDK learns only from a 429.
_BETWEEN_REACTIONS_S = 0.3
_REACTION = MESSAGE + "/reactions/{emoji}/@me"


class DiscordPreviews(EditedPreviews):
    """The growing answers of one bot."""

    def __init__(self, api: Api, posts: Posts, channel_kinds: ChannelKinds) -> None:
        super().__init__(api.pacer, api.best_effort, preview_text)
        self._posts = posts
        self._channel_kinds = channel_kinds

    @override
    def budget(self, question: MessageRef) -> tuple[str, bool] | None:
        # "Thinking…" is there instead of a preview.
        is_command = Callback.parse(question.message_ref)
        return None if is_command else (channel_of(question.address), False)

    @override
    async def post(self, question: MessageRef, text: str, nonce: str) -> str:
        # The SDK repeats a post after a server error; by its nonce it is shown once.
        address = question.address
        reference = await self._channel_kinds.reference(address, question.message_ref)
        once = {"nonce": nonce, "enforce_nonce": True}
        return await self._posts.post(address, body_of(text) | once | reference)

    @override
    async def edit(self, address: Address, ref: str, text: str) -> None:
        await self._posts.edit(address, ref, body_of(text))


class Reactions:
    """Typing and reactions of one account."""

    def __init__(self, api: Api, threads: Threads, *, reactions: bool) -> None:
        self._api = api
        self._threads = threads
        self._reactions = reactions
        self._forbidden: set[str] = set()

    async def show_working(self, question: MessageRef) -> None:
        """Show "typing" for about 10 s; a command shows "thinking…" already."""
        channel = channel_of(question.address)
        if Callback.parse(question.message_ref):
            return
        await self._threads.pending.wait(question.address.thread or "")
        if (slot := self._api.pacer.try_typing(channel)) is None:
            return
        with slot, self._api.best_effort("typing", channel), mapped_call():
            await self._api.call("POST", "/channels/{channel_id}/typing", channel_id=channel)

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """React to the message that is answered, and take the earlier reaction back."""
        ref = question.message_ref
        if ref is None or not self._reactions or Callback.parse(ref):
            return
        address = question.address
        # One that opened a thread is in the channel above it, but the first message of a forum post
        # has the thread's id too, and is inside of it: only trying tells.
        is_opener = address.thread is not None and ref == address.thread
        for channel in [address.chat, ref] if is_opener else [channel_of(address)]:
            if channel not in self._forbidden and await self._reacted(channel, ref, mark):
                return

    async def _reacted(self, channel: str, ref: str, mark: Reaction) -> bool:
        """Return False if the message is not in this channel, so that another may have it."""
        with self._api.best_effort("reaction", channel):
            try:
                # The new mark first: between the two requests there is at least one.
                await self._call("PUT", channel, ref, _EMOJI[mark])
                if mark != "received":
                    await self._call("DELETE", channel, ref, _EMOJI["received"])
            except CodedRefusal as exc:
                if exc.code in {MISSING_ACCESS, MISSING_PERMISSIONS}:
                    self._forbidden.add(channel)
                    log.info("discord_reactions_forbidden", channel=channel, reason=str(exc))
                return False
        return True

    async def _call(self, method: str, channel: str, ref: str, emoji: str) -> None:
        with await self._api.pacer.wait_signal(channel), mapped_call():
            await self._api.call(method, _REACTION, channel_id=channel, message_id=ref, emoji=emoji)
        await asyncio.sleep(_BETWEEN_REACTIONS_S)
