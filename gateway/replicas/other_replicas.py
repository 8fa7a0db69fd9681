"""Messages between replicas on PostgreSQL.

Messages are rows (gateway/storage/queue/replicas.py) that each replica polls (decision 012): stops
of its conversations, changes in built-in chats open here, and news for all. Growing answers are
stored if their chat is open elsewhere.

`SharedChats` implements the built-in platform's view of other replicas (`adapters.base.Elsewhere`).
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import structlog
from typing_extensions import override

from adapters.base import Elsewhere, Viewers
from adapters.messages import Address
from adapters.registry import BUILT_IN, DEFAULT_ACCOUNT
from gateway.errors import StorageError
from gateway.replicas.replica import Replica
from gateway.session_keys import address_key
from gateway.signals import Hint, Stops
from gateway.storage.database import Database
from gateway.storage.queue import replicas
from gateway.storage.queue.replicas import STALE_S, WATCH_S, NewsKind, SharedChat

log = structlog.get_logger()

POLL_S = 0.3
"""Poll interval in seconds while a turn runs or a chat is open here."""
IDLE_POLL_S = 1.0


@dataclass(slots=True)
class WatchedChat:
    """A chat open here and its shown state.

    Attributes:
        heads: The newest inbox and outbox entries; None if unknown.
        shown_at: Version of the shown answer that grows elsewhere, or None.
    """

    chat: str
    heads: tuple[int, int] | None = None
    shown_at: float | None = None
    text: str = ""


@dataclass(slots=True)
class GrowingHere:
    """An answer growing here; `at` is its last update, in monotonic seconds."""

    chat: str
    at: float
    text: str = ""


class SharedChats(Elsewhere):
    """The chats open here and the answers growing here, by session key.

    Attributes:
        ended_here: Chats whose answers ended here but may still be stored as growing.
    """

    def __init__(self) -> None:
        self.made_here: dict[str, GrowingHere] = {}
        self.watched: dict[str, WatchedChat] = {}
        self.ended_here: set[str] = set()
        self._viewers: Viewers | None = None
        self._unstored: set[str] = set()

    @override
    def join(self, viewers: Viewers) -> None:
        self._viewers = viewers

    @override
    def opened(self, chat: str) -> None:
        self.watched[key_of(chat)] = WatchedChat(chat)

    @override
    def closed(self, chat: str) -> None:
        here = self.watched.pop(key_of(chat), None)
        # Its end would go unnoticed from here on.
        if here is not None and here.shown_at is not None and self._viewers is not None:
            self._viewers.show(chat, "")

    @override
    def growing(self, chat: str, text: str) -> None:
        key = key_of(chat)
        self.made_here[key] = GrowingHere(chat, time.monotonic(), text)
        self._unstored.add(key)

    @override
    def working(self, chat: str) -> None:
        before = self.made_here.get(key_of(chat))
        self.growing(chat, before.text if before else "")

    @override
    def ended(self, chat: str) -> None:
        key = key_of(chat)
        self.made_here.pop(key, None)
        self._unstored.discard(key)
        self.ended_here.add(key)

    @property
    def unstored(self) -> dict[str, str]:
        """Answers whose current text is not stored."""
        return {key: self.made_here[key].text for key in self._unstored}

    def stored(self, growing: Mapping[str, str], keys: Iterable[str]) -> None:
        """Record which of these answers were stored; the others are not open elsewhere."""
        for key in keys:
            if key in self.made_here and self.made_here[key].text == growing[key]:
                self._unstored.discard(key)

    def take(self, key: str, found: SharedChat) -> None:
        """Show a chat's stored state in its open pages."""
        viewers, here = self._viewers, self.watched.get(key)
        # The chat may have been closed meanwhile.
        if viewers is None or here is None:
            return
        if here.heads != found.heads:
            # The growing text may be the next answer with the same beginning.
            here.heads, here.text = found.heads, ""
            viewers.refresh(here.chat)
        # An answer made here is already shown; its end may not be stored yet.
        is_ours = key in self.made_here or key in self.ended_here
        if is_ours or here.shown_at == found.shown_at:
            return
        is_same = here.text == found.text
        here.shown_at, here.text = found.shown_at, found.text
        if not (is_same and found.text):
            viewers.show(here.chat, found.text)
        if found.shown_at is not None:
            viewers.show_working(here.chat)

    def end_stale(self) -> None:
        """End answers without recent updates: their turns continue elsewhere."""
        oldest = time.monotonic() - STALE_S
        for key, each in list(self.made_here.items()):
            if each.at < oldest:
                del self.made_here[key]
                self._unstored.discard(key)
                if self._viewers is not None:
                    self._viewers.show(each.chat, "")


class OtherReplicas:
    """Writes rows for other replicas and polls theirs; `news` receives the hints for all."""

    def __init__(
        self, database: Database, replica: Replica, stops: Stops, chats: SharedChats
    ) -> None:
        self.news: dict[NewsKind, Hint[[]]] = {"forgotten": Hint(), "secrets": Hint()}
        self._database = database
        self._replica = replica
        self._stops = stops
        self._chats = chats
        self._told: Mapping[str, int] | None = None
        self._is_watched = True
        self._noted: Collection[str] = ()
        self._noted_at, self._noted_as = -WATCH_S, 0

    async def run(self) -> NoReturn:
        """Write and poll until cancelled; database errors are logged."""
        while True:
            try:
                await self._note_watch()
                await self._store_growing()
                await self._look()
            except StorageError as exc:
                log.warning("replicas_not_heard", error=str(exc))
            self._chats.end_stale()
            is_busy = bool(self._chats.watched or self._stops.running())
            await asyncio.sleep(POLL_S if is_busy else IDLE_POLL_S)

    async def _note_watch(self) -> None:
        me, watched = self._replica.id, list(self._chats.watched)
        if gone := [key for key in self._noted if key not in watched]:
            await self._database.write(replicas.unwatch, me, gone)
        is_due = time.monotonic() - self._noted_at >= WATCH_S / 3 or self._noted_as != me
        fresh = watched if is_due else [key for key in watched if key not in self._noted]
        if fresh:
            await self._database.write(replicas.watch, me, fresh)
        self._noted = watched
        if is_due:
            self._noted_at, self._noted_as = time.monotonic(), me

    async def _store_growing(self) -> None:
        """Store growing answers open elsewhere, and remove ended ones."""
        if ended := set(self._chats.ended_here):
            await self._database.write(replicas.end_previews, ended)
            self._chats.ended_here -= ended
        if self._is_watched and (growing := self._chats.unstored):
            stored = await self._database.write(replicas.show, self._replica.id, growing)
            self._chats.stored(growing, stored)

    async def _look(self) -> None:
        keys = list(self._chats.watched)
        look, me = replicas.look_around, self._replica.id
        found = await self._database.read(look, keys, set(self._stops.running()), me)
        for conversation_id, upto_seq in found.stops:
            self._stops.stop(conversation_id, upto_seq)
        by_key = {each.session_key: each for each in found.chats}
        for key in keys:
            self._chats.take(key, by_key.get(key) or SharedChat(key, (0, 0), None, ""))
        self._is_watched = found.is_watched
        # Ignore news from before this process's start.
        known = found.news if self._told is None else self._told
        self._told = found.news
        for kind, hint in self.news.items():
            if found.news.get(kind) != known.get(kind):
                hint()


def key_of(chat: str) -> str:
    """Return the session key of a built-in chat."""
    return address_key(Address(BUILT_IN, DEFAULT_ACCOUNT, chat))
