"""What replicas tell each other: two of them on one PostgreSQL, and what one makes of it alone."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import psycopg
import pytest
from sqlalchemy import Connection
from typing_extensions import override

from adapters.messages import Address
from adapters.registry import BUILT_IN, DEFAULT_ACCOUNT
from gateway.replicas import other_replicas
from gateway.replicas.other_replicas import OtherReplicas, SharedChats, key_of
from gateway.replicas.replica import Replica
from gateway.signals import Stops
from gateway.storage.conversation import conversations, turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from gateway.storage.queue import leases, replicas
from gateway.storage.queue.replicas import SharedChat
from tests.support.gateway import log_lines
from tests.support.postgres import server_at
from tests.support.recording_adapter import Watch
from tests.support.storage import admit, begin_turn, inbound
from tests.support.thorough import WAIT_S

KEY = key_of("c1")


@dataclass
class Pages:
    """The pages that are open at a replica: what they were told, in order."""

    told: list[tuple[str, ...]] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)

    def refresh(self, chat: str) -> None:
        self._note("refresh", chat)

    def show(self, chat: str, text: str) -> None:
        self._note("show", chat, text)

    def show_working(self, chat: str) -> None:
        self._note("working", chat)

    def _note(self, *told: str) -> None:
        self.told.append(told)
        self.watch.note()

    async def hear(self, *told: str) -> None:
        """Wait until they are told this, and forget all up to then."""
        await self.watch.until(lambda: told in self.told)
        assert told in self.told
        del self.told[: self.told.index(told) + 1]


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def chats(pages: Pages) -> Iterator[SharedChats]:
    shared = SharedChats()
    shared.join(pages)
    return shared


def test_an_answer_that_has_ended_grows_no_more(chats: SharedChats) -> None:
    """Its end is told once."""
    chats.growing("c1", "Hel")
    chats.ended("c1")
    assert (chats.unstored, chats.made_here) == ({}, {})
    assert chats.ended_here == {KEY}
    chats.ended_here -= {KEY}
    assert chats.ended_here == set()


def test_who_looks_away_and_back_is_watched(chats: SharedChats) -> None:
    """The last word counts."""
    chats.opened("c1")
    chats.closed("c1")
    chats.opened("c1")
    assert list(chats.watched) == [KEY]


def test_work_leaves_the_text_of_an_answer_as_it_is(chats: SharedChats) -> None:
    """It is stored anew, so that nobody takes it for stale."""
    chats.working("c1")
    assert chats.unstored == {KEY: ""}
    chats.growing("c1", "Hel")
    assert chats.unstored == {KEY: "Hel"}
    chats.stored({KEY: "Hel"}, [KEY])
    assert chats.unstored == {}
    chats.working("c1")
    assert chats.unstored == {KEY: "Hel"}


def test_what_grew_while_it_was_stored_is_stored_again(chats: SharedChats) -> None:
    """So is what nobody looks at yet."""
    chats.growing("c1", "Hel")
    chats.growing("c2", "Good")
    growing = chats.unstored
    chats.growing("c1", "Hello")
    chats.stored(growing, [KEY])
    assert chats.unstored == {KEY: "Hello", key_of("c2"): "Good"}


def test_pages_are_shown_what_is_new(chats: SharedChats, pages: Pages) -> None:
    """And nothing twice: not the same history, not the same state of an answer."""
    chats.opened("c1")
    chats.take(KEY, SharedChat(KEY, (1, 0), None, ""))
    assert pages.told == [("refresh", "c1")]
    chats.take(KEY, SharedChat(KEY, (1, 0), 5.0, "Hel"))
    chats.take(KEY, SharedChat(KEY, (1, 0), 5.0, "Hel"))
    assert pages.told[1:] == [("show", "c1", "Hel"), ("working", "c1")]
    chats.take(KEY, SharedChat(KEY, (1, 0), 6.0, "Hel"))
    assert pages.told[3:] == [("working", "c1")]
    chats.take(KEY, SharedChat(KEY, (1, 1), None, ""))
    assert pages.told[4:] == [("refresh", "c1"), ("show", "c1", "")]


def test_the_next_answer_is_shown_that_begins_as_the_one_before(
    chats: SharedChats, pages: Pages
) -> None:
    """No look has seen the end of that one."""
    chats.opened("c1")
    chats.take(KEY, SharedChat(KEY, (1, 0), 5.0, "Well, "))
    chats.take(KEY, SharedChat(KEY, (2, 1), 6.0, "Well, "))
    assert pages.told.count(("show", "c1", "Well, ")) == 2


def test_what_is_made_here_is_not_shown_a_second_time(chats: SharedChats, pages: Pages) -> None:
    """The rows are behind what pages were shown already, also right after its end."""
    chats.opened("c1")
    chats.take(KEY, SharedChat(KEY, (1, 0), None, ""))
    chats.growing("c1", "Hello")
    chats.take(KEY, SharedChat(KEY, (1, 0), 5.0, "Hel"))
    chats.ended("c1")
    chats.take(KEY, SharedChat(KEY, (1, 0), 6.0, "Hello"))
    assert pages.told == [("refresh", "c1")]


def test_nothing_stays_of_an_answer_that_nobody_looks_at(chats: SharedChats, pages: Pages) -> None:
    """Its end would not be told here; who looks next is shown what is in the rows then."""
    chats.opened("c1")
    chats.take(KEY, SharedChat(KEY, (1, 0), 5.0, "Hel"))
    chats.closed("c1")
    assert pages.told[-1] == ("show", "c1", "")
    chats.take(KEY, SharedChat(KEY, (2, 2), 6.0, "more"))
    assert pages.told[-1] == ("show", "c1", "")


def test_an_answer_that_goes_on_elsewhere_ends_here(
    chats: SharedChats, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has said for long that it grows."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    chats.growing("c1", "Hel")
    now += other_replicas.STALE_S
    chats.end_stale()
    assert pages.told == []
    now += 1.0
    chats.end_stale()
    assert (pages.told, chats.made_here) == ([("show", "c1", "")], {})


class CountedChats(SharedChats):
    """Counts the looks at the rows: each ends with what is stale."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.looked = Watch()

    @override
    def end_stale(self) -> None:
        super().end_stale()
        self.looks += 1
        self.looked.note()

    async def look_again(self) -> None:
        """Wait for a look that begins from now on; the first to end may have begun before."""
        upto = self.looks + 2
        await self.looked.until(lambda: self.looks >= upto)


@dataclass
class Peer:
    """A replica without turns, and what a test looks at.

    Attributes:
        stopped: The conversations whose turn was stopped at it.
    """

    id: int
    database: Database
    chats: CountedChats
    pages: Pages
    stops: Stops
    others: OtherReplicas


@asynccontextmanager
async def peer(url: str) -> AsyncIterator[Peer]:
    """Run a replica as the gateway does, on a database of its own connections."""
    server = server_at(url, connections=2)
    async with open_database(server) as database:
        replica = Replica(database, await database.write(leases.register, "a test"))
        chats, pages, stops = CountedChats(), Pages(), Stops()
        chats.join(pages)
        others = OtherReplicas(database, replica, stops, chats)
        task = asyncio.create_task(others.run())
        try:
            yield Peer(replica.id, database, chats, pages, stops, others)
        finally:
            task.cancel()
            await asyncio.wait({task})


@asynccontextmanager
async def peers(url: str) -> AsyncIterator[tuple[Peer, Peer]]:
    """Run two of them that have looked at the rows by now."""
    async with peer(url) as one, peer(url) as two:
        for here in (one, two):
            here.chats.opened("to begin with")
            await here.pages.hear("refresh", "to begin with")
            here.chats.closed("to begin with")
        yield one, two


def begun(conn: Connection, replica: int, messages: int = 1) -> Turn:
    """Have a replica begin a turn in a chat of the web about so many messages."""
    for n in range(messages):
        message = inbound(f"message {n}", chat="c1")
        conversation_id, _ = admit(
            conn, replace(message, address=Address(BUILT_IN, DEFAULT_ACCOUNT, "c1"))
        )
    leases_ = leases.claim(conn, replica, 9, [(BUILT_IN, DEFAULT_ACCOUNT)])
    [lease] = [each for each in leases_ if each.conversation == conversation_id]
    return begin_turn(conn, lease)


async def runs_until_stopped(at: Peer, turn: Turn) -> bool:
    """Have a turn do nothing until it is stopped; return whether it was."""
    scope = asyncio.timeout(None)
    with suppress(TimeoutError):
        async with scope, asyncio.timeout(WAIT_S):
            with at.stops.covering(turn, scope):
                await asyncio.Event().wait()
    return scope.expired()


@pytest.mark.thorough
async def test_what_happens_in_a_chat_is_heard_where_somebody_looks(postgres_url: str) -> None:
    """A growing answer, its states, that it is worked on, its end."""
    async with peers(postgres_url) as (one, two):
        turn = await one.database.write(begun, one.id)
        two.chats.opened("c1")
        await two.pages.hear("refresh", "c1")
        one.chats.working("c1")
        await two.pages.hear("working", "c1")
        one.chats.growing("c1", "Hel")
        await two.pages.hear("show", "c1", "Hel")
        one.chats.growing("c1", "Hello")
        await two.pages.hear("show", "c1", "Hello")
        await one.database.write(conversations.take_outbox_seq, turn.lease.conversation, "answer")
        one.chats.ended("c1")
        await two.pages.hear("show", "c1", "")
        assert await two.database.read(replicas.chats, [KEY]) == [SharedChat(KEY, (1, 1), None, "")]


@pytest.mark.thorough
async def test_who_comes_in_the_middle_is_shown_the_answer(postgres_url: str) -> None:
    """As far as it has grown; a browser may have been moved."""
    async with peers(postgres_url) as (one, two):
        await one.database.write(begun, one.id)
        one.chats.growing("c1", "Hello")
        # Nobody looks: then nothing is stored of it.
        await one.chats.look_again()
        assert await shown(one) == ""
        two.chats.opened("c1")
        await two.pages.hear("show", "c1", "Hello")
        assert await shown(one) == "Hello"


@pytest.mark.thorough
async def test_nothing_is_written_where_nobody_looks(postgres_url: str) -> None:
    """Growing answers would cost a commit each."""
    async with peers(postgres_url) as (one, _):
        await one.database.write(begun, one.id)
        one.chats.growing("c1", "Hello")
        await one.chats.look_again()
        [chat] = await one.database.read(replicas.chats, [KEY])
        assert chat.shown_at is None


async def test_a_stop_is_found_in_the_rows(postgres_url: str) -> None:
    """Wherever it was said."""
    async with peers(postgres_url) as (one, two):
        for _ in range(2):
            turn = await one.database.write(begun, one.id)
            running = asyncio.create_task(runs_until_stopped(one, turn))
            await stopped(two, turn)
            assert await running
            await one.database.write(give_back, turn)


@pytest.mark.thorough
async def test_a_stop_of_before_does_not_end_a_later_turn(postgres_url: str) -> None:
    """It was about entries up to a place in the inbox."""
    async with peers(postgres_url) as (one, two):
        turn = await one.database.write(begun, one.id, 2)
        running = asyncio.create_task(runs_until_stopped(one, turn))
        await two.database.write(conversations.stop_upto, turn.lease.conversation, 1)
        await one.chats.look_again()
        assert not running.done()
        await stopped(two, turn)
        assert await running


async def shown(at: Peer) -> str:
    """Return what is stored of the growing answer."""
    [chat] = await at.database.read(replicas.chats, [KEY])
    return chat.text


async def stopped(at: Peer, turn: Turn) -> None:
    """Store that a turn was stopped."""
    stop = conversations.stop_upto
    await at.database.write(stop, turn.lease.conversation, turn.upto_seq)


def give_back(conn: Connection, turn: Turn) -> None:
    """End a turn that was stopped, and its lease."""
    turn_journal.cancel(conn, turn, "", [], TurnEnd("interrupted"))
    leases.release(conn, turn.lease)


async def test_changes_are_found_behind_an_outage(postgres_url: str) -> None:
    """All connections are cut, and what happens meanwhile is found by the look after that."""
    watch = Watch()
    async with log_lines(watch), peers(postgres_url) as (one, two):
        turn = await one.database.write(begun, one.id)
        two.chats.opened("c1")
        await two.pages.hear("refresh", "c1")
        cut_all(postgres_url)
        await one.database.write(conversations.take_outbox_seq, turn.lease.conversation, "answer")
        await two.pages.hear("refresh", "c1")


@pytest.mark.thorough
async def test_news_reach_all(postgres_url: str) -> None:
    """Within a second or two; what was told before is no news."""
    async with peer(postgres_url) as before:
        await before.database.write(replicas.announce, "forgotten")
    async with peers(postgres_url) as (one, two):
        heard: asyncio.Queue[str] = asyncio.Queue()
        for each in (one, two):
            each.others.news["forgotten"].listen(lambda: heard.put_nowait("forgotten"))
            each.others.news["secrets"].listen(lambda: heard.put_nowait("secrets"))
        for each in (one, two):
            await each.chats.look_again()
        assert heard.empty()
        for kind in ("forgotten", "secrets"):
            await one.database.write(replicas.announce, kind)
            async with asyncio.timeout(WAIT_S):
                assert [await heard.get() for _ in range(2)] == [kind] * 2


def cut_all(url: str) -> None:
    """End all connections to a database."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
