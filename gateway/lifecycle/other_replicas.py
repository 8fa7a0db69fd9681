"""What this replica and the others tell each other; only where the database is PostgreSQL.

Rows are the truth. A hint (gateway/storage/notifications.py) says which of them to look at now; all
are looked at once a second anyway, so that a hint that is lost costs no more than that. Two things
are told by hints: that a conversation which another replica works on was stopped, and that a chat
of the built-in platform has changed which somebody looks at there. For all else the rows are enough
(decision 270): who admits a message takes its conversation, the owner finds what came meanwhile
when it gives it back, and what is ready is looked for once a second.

`SharedChats` is what the built-in platform knows of other replicas (`adapters.base.Elsewhere`).
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NoReturn

import structlog
from typing_extensions import override

from adapters.base import Elsewhere, Viewers
from adapters.messages import Address
from adapters.registry import BUILT_IN, DEFAULT_ACCOUNT
from gateway.errors import StorageError
from gateway.lifecycle.replica import Replica
from gateway.session_keys import address_key
from gateway.signals import Hint, Stops, Wakeups
from gateway.storage import sharing
from gateway.storage.database import Database
from gateway.storage.notifications import Notifications
from gateway.storage.sharing import STALE_S, WATCH_S, Look, NewsKind, SharedChat

log = structlog.get_logger()

POLL_S = 1.0
"""How long a lost hint can go unnoticed."""
GATHER_S = 0.01
"""What comes within this time is told, and looked at, together."""
SHOW_EVERY_S = 0.3
"""Least time between two states of a growing answer that are stored for others."""
_STOP = re.compile(r"stop (\d{1,18})")
_CHAT = re.compile(r"chat (.+)", re.DOTALL)
_SHOW = re.compile(r"show (.+)", re.DOTALL)


@dataclass(slots=True)
class WatchedChat:
    """A chat that somebody looks at here, and what they were shown of it.

    Attributes:
        heads: The newest entry of its inbox and of its outbox; None: not looked at yet.
        shown_at: Which state of a growing answer that is made elsewhere; None for none.
    """

    chat: str
    heads: tuple[int, int] | None = None
    shown_at: float | None = None
    text: str = ""


@dataclass(slots=True)
class GrowingHere:
    """An answer that is made here; `at` is when that was last said, in monotonic seconds."""

    chat: str
    at: float
    text: str = ""


@dataclass(slots=True)
class Untold:
    """What others are to be told of chats, by their session keys; once, however often it came.

    Attributes:
        changed: They have something new.
        ended: No answer grows in them any more.
        opened: Somebody looks at them.
        closed: Nobody looks at them any more.
    """

    changed: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)


class SharedChats(Elsewhere):
    """The chats that are looked at here, and the answers that grow here.

    Attributes:
        stirred: Set when others are to be told something.
        grown: Set when an answer has grown that is made here.
        made_here: The answers that grow here, by session key.
    """

    def __init__(self) -> None:
        self.stirred = asyncio.Event()
        self.grown = asyncio.Event()
        self.made_here: dict[str, GrowingHere] = {}
        self._viewers: Viewers | None = None
        self._watched: dict[str, WatchedChat] = {}
        self._unstored: set[str] = set()
        self._untold = Untold()

    @override
    def join(self, viewers: Viewers) -> None:
        self._viewers = viewers

    @override
    def opened(self, chat: str) -> None:
        key = key_of(chat)
        self._watched[key] = WatchedChat(chat)
        self._untold.closed.discard(key)
        self._note(self._untold.opened, key)

    @override
    def closed(self, chat: str) -> None:
        key = key_of(chat)
        here = self._watched.pop(key, None)
        self._untold.opened.discard(key)
        self._note(self._untold.closed, key)
        # From now on nobody would say that it is over.
        if here is not None and here.shown_at is not None and self._viewers is not None:
            self._viewers.show(chat, "")

    @override
    def changed(self, chat: str) -> None:
        self._note(self._untold.changed, key_of(chat))

    @override
    def growing(self, chat: str, text: str) -> None:
        key = key_of(chat)
        self.made_here[key] = GrowingHere(chat, time.monotonic(), text)
        self.store_again(key)

    @override
    def working(self, chat: str) -> None:
        before = self.made_here.get(key_of(chat))
        self.growing(chat, before.text if before else "")

    @override
    def ended(self, chat: str) -> None:
        key = key_of(chat)
        self.made_here.pop(key, None)
        self._unstored.discard(key)
        self._note(self._untold.ended, key)

    def _note(self, kind: set[str], key: str) -> None:
        kind.add(key)
        self.stirred.set()

    @property
    def watched(self) -> list[str]:
        """The session keys of the chats that somebody looks at here."""
        return list(self._watched)

    def take_untold(self) -> Untold:
        """Return what others are to be told since the last call."""
        untold, self._untold = self._untold, Untold()
        return untold

    def take_unstored(self) -> dict[str, str]:
        """Return how far the answers have grown that have grown since the last call."""
        unstored, self._unstored = self._unstored, set()
        return {key: self.made_here[key].text for key in unstored}

    def store_again(self, key: str) -> None:
        """Have an answer that is made here be stored: somebody looks at it elsewhere now."""
        if key in self.made_here:
            self._unstored.add(key)
            self.grown.set()

    def take(self, key: str, found: SharedChat) -> None:
        """Show those who look at a chat what a look at the rows has found."""
        viewers, here = self._viewers, self._watched.get(key)
        # It may have been closed during the look.
        if viewers is None or here is None:
            return
        if here.heads != found.heads:
            here.heads = found.heads
            viewers.refresh(here.chat)
        # What is made here is shown here already, and sooner; its end may not be stored yet.
        is_ours = key in self.made_here or key in self._untold.ended
        if is_ours or here.shown_at == found.shown_at:
            return
        is_same = here.text == found.text
        here.shown_at, here.text = found.shown_at, found.text
        if not (is_same and found.text):
            viewers.show(here.chat, found.text)
        if found.shown_at is not None:
            viewers.show_working(here.chat)

    def end_stale(self) -> None:
        """End what nobody has said for long to be growing: its turn went on elsewhere."""
        oldest = time.monotonic() - STALE_S
        for key, each in list(self.made_here.items()):
            if each.at < oldest:
                del self.made_here[key]
                self._unstored.discard(key)
                if self._viewers is not None:
                    self._viewers.show(each.chat, "")


class OtherReplicas:
    """Tells the other replicas what they must know at once, and hears it from them.

    Implements `gateway.storage.notifications.HintListener`.

    Args:
        notifications: On a direct connection to it.
        wakeups: Listened to for stops; told of those that come from elsewhere.
        stops: The turns that run here.
        chats: Of the built-in platform.

    Attributes:
        news: What all replicas are told, by its kind.
    """

    def __init__(
        self,
        database: Database,
        notifications: Notifications,
        replica: Replica,
        wakeups: Wakeups,
        stops: Stops,
        chats: SharedChats,
    ) -> None:
        self.news: dict[NewsKind, Hint[[]]] = {"forgotten": Hint(), "secrets": Hint()}
        self._database = database
        self._notifications = notifications
        self._replica = replica
        self._wakeups = wakeups
        self._stops = stops
        self._chats = chats
        self._told: Mapping[str, int] | None = None
        self._stopped: set[int] = set()
        self._heard_chats: set[str] = set()
        self._heard_stops: set[int] = set()
        self._is_watched = True
        self._looked = -POLL_S
        self._noted = (-WATCH_S, 0)
        self._one = asyncio.Lock()
        wakeups.stop.listen(self._note_stop)

    @property
    def known_as(self) -> int:
        """The id by which others tell this replica something."""
        return self._replica.id

    def hear(self, hint: str) -> None:
        """Note where to look; what a newer version tells is passed over."""
        if stop := _STOP.fullmatch(hint):
            self._heard_stops.add(int(stop[1]))
        elif chat := _CHAT.fullmatch(hint):
            self._heard_chats.add(chat[1])
        elif show := _SHOW.fullmatch(hint):
            self._is_watched = True
            self._chats.store_again(show[1])
        else:
            log.debug("hint_unknown", bytes=len(hint))
        self._chats.stirred.set()

    def look_anew(self) -> None:
        """Have all rows be looked at now: a hint may have been lost."""
        self._looked = -POLL_S
        self._chats.stirred.set()

    async def run(self) -> None:
        """Tell and hear until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._notifications.run(self), name="hints")
            tasks.create_task(self._show_growing(), name="previews elsewhere")
            tasks.create_task(self._exchange(), name="other replicas")

    def _note_stop(self, conversation_id: int, _upto_seq: int) -> None:
        self._stopped.add(conversation_id)
        self._chats.stirred.set()

    async def _exchange(self) -> NoReturn:
        while True:
            await self._wait()
            self._chats.stirred.clear()
            async with _trying():
                untold = self._chats.take_untold()
                await self._tell_stops()
                await self._tell(untold)
                await self._note_watch(untold)
                await self._look()
            self._chats.end_stale()

    async def _wait(self) -> None:
        due_s = max(self._looked + POLL_S - time.monotonic(), 0.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(due_s):
                await self._chats.stirred.wait()
                await asyncio.sleep(GATHER_S)

    async def _tell_stops(self) -> None:
        stopped, self._stopped = self._stopped, set()
        if stopped:
            for conversation_id, owner in await self._database.read(sharing.owners, stopped):
                if owner != self.known_as:
                    self._notifications.tell(owner, f"stop {conversation_id}")

    async def _tell(self, untold: Untold) -> None:
        """Tell those who look at chats elsewhere what has changed in them."""
        changed = untold.changed | untold.ended
        # Nobody looks at anything elsewhere: so it is where one replica serves the page.
        if not changed or not self._is_watched:
            return
        me = self.known_as
        async with self._one:
            if untold.ended:
                end = sharing.end_previews
                seen = await self._database.write(end, me, untold.ended, changed)
            else:
                seen = await self._database.read(sharing.watchers, me, changed)
        self._tell_watchers(seen)

    def _tell_watchers(self, seen: Iterable[tuple[str, int]]) -> None:
        for key, replica in seen:
            self._notifications.tell(replica, f"chat {key}")

    async def _note_watch(self, untold: Untold) -> None:
        """Have the others know which chats are looked at here."""
        me, watched = self.known_as, self._chats.watched
        if untold.closed:
            await self._database.write(sharing.unwatch, me, untold.closed)
        at, known_as = self._noted
        is_due = bool(watched) and (time.monotonic() - at >= WATCH_S / 3 or known_as != me)
        if not untold.opened and not is_due:
            return
        # Where this fails all of them are noted at the next time.
        self._noted = (-WATCH_S, 0)
        keys = watched if is_due else [key for key in untold.opened if key in watched]
        await self._database.write(sharing.watch, me, keys)
        self._noted = (time.monotonic() if is_due else at, me)
        # What was told before the others knew is in the rows, but for an answer that grows.
        self._heard_chats.update(untold.opened)
        if untold.opened:
            for key, owner in await self._database.read(sharing.owners_of, untold.opened):
                if owner != me:
                    self._notifications.tell(owner, f"show {key}")

    async def _look(self) -> None:
        """Look at the rows that hints have named, and once a second at all that matter here."""
        is_due = time.monotonic() - self._looked >= POLL_S
        if is_due:
            self._looked = time.monotonic()
            self._notifications.check()
        keys = [key for key in self._chats.watched if is_due or key in self._heard_chats]
        stopped = self._heard_stops | (set(self._stops.running()) if is_due else set())
        if self._heard_stops:
            # A message that was dropped may have waited for its files.
            self._wakeups.files()
        self._heard_chats, self._heard_stops = set(), set()
        if is_due or keys or stopped:
            me = self.known_as if is_due else None
            self._take(keys, await self._database.read(sharing.look, keys, stopped, me))

    def _take(self, keys: Iterable[str], found: Look) -> None:
        """Pass on what a look has found."""
        for conversation_id, upto_seq in found.stops:
            self._stops.stop(conversation_id, upto_seq)
        by_key = {each.session_key: each for each in found.chats}
        for key in keys:
            self._chats.take(key, by_key.get(key) or SharedChat(key, (0, 0), None, ""))
        if found.is_watched is not None:
            self._is_watched = found.is_watched
            # What has grown while nobody looked is stored now.
            if found.is_watched:
                self._chats.grown.set()
        if found.news is not None:
            self._take_news(found.news)

    def _take_news(self, found: Mapping[str, int]) -> None:
        # What was told before this process began it need not know.
        known = found if self._told is None else self._told
        self._told = found
        for kind, hint in self.news.items():
            if found.get(kind) != known.get(kind):
                hint()

    async def _show_growing(self) -> NoReturn:
        """Store, a few times a second at most, how far answers have grown that others look at."""
        while True:
            await self._chats.grown.wait()
            self._chats.grown.clear()
            # Not beside `_tell`: what is stored after the end of an answer would stay.
            async with _trying(), self._one:
                growing = self._chats.take_unstored() if self._is_watched else {}
                if growing:
                    show = sharing.show
                    seen = await self._database.write(show, self.known_as, growing)
                    self._tell_watchers(seen)
            await asyncio.sleep(SHOW_EVERY_S)


@asynccontextmanager
async def _trying() -> AsyncIterator[None]:
    """Pass over trouble of the database: whoever was to be told finds out by the rows."""
    try:
        yield
    except StorageError as exc:
        log.warning("replicas_not_heard", error=str(exc))
        await asyncio.sleep(POLL_S)


def key_of(chat: str) -> str:
    """Return the session key of a chat of the built-in platform."""
    return address_key(Address(BUILT_IN, DEFAULT_ACCOUNT, chat))
