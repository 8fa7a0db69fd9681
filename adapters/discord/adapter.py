"""The Discord adapter: receives, renders and sends for one bot."""

import time
from collections.abc import Sequence
from dataclasses import replace

from adapters.base import Clock, Intake, Renderer
from adapters.discord.buttons import Buttons
from adapters.discord.client import LIMITS, Api, Shard
from adapters.discord.files import fetch
from adapters.discord.find_sent import find_unfinished
from adapters.discord.ingest import AccountParts
from adapters.discord.platform import DiscordSettings
from adapters.discord.preview import DiscordPreviews
from adapters.discord.reactions import Reactions
from adapters.discord.receive import Receiver
from adapters.discord.render import render
from adapters.discord.send import Posts, Sender
from adapters.discord.threads import ChannelKinds, Threads
from adapters.messages import Address, Attachment, MessageRef
from adapters.pacing import PaceLimits
from adapters.registry import Host


def renderer(_settings: DiscordSettings) -> Renderer:
    """Return how text is shown, the same for all accounts."""
    return render


def build(settings: DiscordSettings, host: Host) -> "DiscordAdapter":
    """Return the adapter of one account, as the register calls it."""
    limits = replace(LIMITS, share=host.share)
    return DiscordAdapter(settings, host.intake, host.commands, limits=limits)


class DiscordAdapter:
    """One bot on Discord; implements `adapters.base.Adapter`.

    A row is shown once: by its nonce, and by a look-up in the channel where its outcome is
    unknown. Its previews are messages like others, so sends are not called idempotent.

    Args:
        settings: The bot's block; a token must be in it.
        commands: The command menu: (name, description), names without a slash.

    Raises:
        AdapterRefused: There is no token.
    """

    platform: str = "discord"
    idempotent_sends: bool = False
    # One process at a time has a session; a second one would get all events, too.
    is_exclusive: bool = True
    # Edits share the channel's budget of 5 messages in 5 s; the answer itself must find room.
    preview_interval_s: float = 1.5

    def __init__(
        self,
        settings: DiscordSettings,
        intake: Intake,
        commands: Sequence[tuple[str, str]] = (),
        *,
        limits: PaceLimits = LIMITS,
        clock: Clock = time.monotonic,
    ) -> None:
        self.account: str = settings.name
        self._settings = settings
        self._api = Api(settings, limits, clock)
        kinds = ChannelKinds(self._api, settings.shards)
        threads = Threads(self._api, intake)
        buttons = Buttons(self._api, intake)
        posts = Posts(self._api, threads)
        parts = AccountParts(self._api, intake, kinds, threads, buttons, commands)
        shards = [Shard(number, settings.shards) for number in range(settings.shards)]
        self.receivers = tuple(Receiver(settings, parts, each, clock=clock) for each in shards)
        self._previews = DiscordPreviews(self._api, posts, kinds)
        sender = Sender(self._api, posts, kinds, buttons.pending, self._previews)
        reactions = Reactions(self._api, threads, reactions=settings.reactions)
        # What one part does alone.
        self.render = render
        self.send = sender.send
        self.preview = self._previews.show
        self.pool = self._api.outbound
        self.close = self._api.close
        self.withdraw = sender.withdraw
        self.show_working = reactions.show_working
        self.acknowledge = reactions.acknowledge

    async def fetch(self, _address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file; see `Adapter.fetch`."""
        return await fetch(self._api, attachment, limit_bytes, self._settings.api_url)

    async def find_preview(
        self, question: MessageRef, nonce: str, others: frozenset[str]
    ) -> str | None:
        """Look a preview up in the channel's history; see `Adapter.find_preview`."""
        if (ref := await self._previews.arrived(question)) is not None:
            return ref
        return await find_unfinished(self._api, question, nonce, others)
