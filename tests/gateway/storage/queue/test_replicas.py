"""Replicas on one server of PostgreSQL: who is dead, and that the living keep what is theirs."""

import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, text, update
from sqlalchemy.exc import DBAPIError

from gateway.errors import LeaseLost
from gateway.storage import maintenance, postgres, schema
from gateway.storage.conversation import conversations
from gateway.storage.queue import leases, outbox, replicas, sending
from gateway.storage.queue.blame import Death
from gateway.storage.queue.leases import Receiving, ReceivingFence
from gateway.storage.queue.replicas import LEFT, SharedChat, Surroundings
from gateway.storage.schema import adapter_lease, conversation, now_s, replica, turn
from gateway.storage.schema import outbox as outbox_table
from tests.support.postgres import server_at
from tests.support.storage import (
    ACCOUNTS,
    ServerSession,
    Store,
    admit,
    begin_turn,
    claim_one,
    inbound,
    part,
)

DIED = Death("killed")
Open = Callable[[], ServerSession]


@pytest.fixture
def session(postgres_url: str) -> Iterator[Open]:
    """Open a session of one's own with the database of the test."""
    opened: list[Connection] = []

    def connect() -> ServerSession:
        opened.append(postgres.connect(server_at(postgres_url), direct=True))
        return ServerSession(opened[-1])

    yield connect
    for each in opened:
        each.close()


def entered(session: ServerSession, name: str = "a host") -> int:
    return session.run(replicas.enter, name, DIED)[0]


def seen(session: ServerSession, replica_id: int) -> Surroundings:
    found = session.run(replicas.attend, replica_id, renews=False)
    assert found is not None
    return found


def end(session: ServerSession, replica_id: int, watcher: ServerSession) -> None:
    """End the session of a replica, and wait until the server has noticed: milliseconds."""
    session.close()
    until = time.monotonic() + 10
    while replica_id not in seen_by_nobody(watcher).unlocked:
        assert time.monotonic() < until
        time.sleep(0.005)


def seen_by_nobody(session: ServerSession) -> Surroundings:
    """Look as somebody who has a row of the moment."""
    with session.connection.begin():
        me = leases.register(session.connection, "nobody")
        found = replicas.attend(session.connection, me, renews=False)
        session.connection.execute(replica.delete().where(replica.c.id == me))
    assert found is not None
    return found


def expire(session: ServerSession, replica_id: int) -> None:
    """Let the time of a replica be over."""
    its = update(replica).where(replica.c.id == replica_id)
    session.run(lambda conn: conn.execute(its.values(heartbeat_until=now_s() - 1)))


def test_a_second_replica_leaves_the_first_one_alone(session: Open) -> None:
    """A start takes nothing from who lives: not its row, not its work."""
    first, second = session(), session()
    one = entered(first, "one")
    chat, _ = first.run(admit, inbound())
    lease = first.run(claim_one, chat, one)
    two = entered(second, "two")
    assert first.run(leases.heartbeat, one)
    assert first.run(leases.fence, lease).id == chat
    assert seen(second, two).living == 2
    assert not seen(second, two).unlocked


def test_the_end_of_a_session_is_seen_at_once(session: Open) -> None:
    """The lock is free; the row alone would say for seconds that it lives."""
    first, second = session(), session()
    one, two = entered(first, "one"), entered(second, "two")
    end(first, one, second)
    assert seen(second, two).unlocked == {one}
    assert not seen(second, two).expired


def test_what_a_dead_replica_had_is_free(session: Open) -> None:
    """Its conversation is ready under a new epoch, what it was sending is in doubt."""
    first, second = session(), session()
    one, two = entered(first, "one"), entered(second, "two")
    chat, _ = first.run(admit, inbound())
    lease = first.run(claim_one, chat, one)
    first.run(outbox.append, chat, [part("a"), part("b")], inbox_seq=1)
    due = first.run(sending.next_due, chat)
    assert due is not None
    assert first.run(sending.mark_sending, due.message, one)
    end(first, one, second)
    inherited = second.run(replicas.reap, one, unlocked=True)
    assert inherited is not None
    assert inherited.conversations == 1
    here = second.one(conversation, id=chat)
    assert (here.owner, here.epoch) == (None, lease.epoch + 1)
    assert here.ready_no is not None
    assert [(row.state, row.sender) for row in second.rows(outbox_table)] == [
        ("unknown", None),
        ("pending", None),
    ]
    assert [row.id for row in second.rows(replica)] == [two]


def test_who_was_reaped_while_it_stood_still_writes_nothing(session: Open) -> None:
    """Its row is gone: it neither renews nor claims, and its lease does not hold."""
    first, second = session(), session()
    one, _ = entered(first, "one"), entered(second, "two")
    chat, _ = first.run(admit, inbound())
    lease = first.run(claim_one, chat, one)
    expire(second, one)
    assert second.run(replicas.reap, one, unlocked=False) is not None
    assert first.run(replicas.attend, one, renews=True) is None
    assert first.run(replicas.attend, one, renews=False) is None
    assert first.run(leases.claim, one, 10, ACCOUNTS) == []
    assert first.run(leases.take, one, chat, ACCOUNTS) is None
    with pytest.raises(LeaseLost):
        first.run(leases.fence, lease)


def test_who_renews_in_time_is_not_reaped(session: Open) -> None:
    """Somebody found its time over; before it was reaped it had renewed."""
    first, second = session(), session()
    one, two = entered(first, "one"), entered(second, "two")
    expire(first, one)
    assert seen(second, two).expired == {one}
    first.run(leases.heartbeat, one)
    assert second.run(replicas.reap, one, unlocked=False) is None
    assert second.run(replicas.reap, one, unlocked=True) is None


def test_of_two_that_reap_at_once_one_does(session: Open) -> None:
    """The other one neither waits nor charges its turns once more."""
    first, second, third = session(), session(), session()
    one = entered(first, "one")
    for each, name in ((second, "two"), (third, "three")):
        entered(each, name)
    end(first, one, second)
    with second.connection.begin():
        assert replicas.reap(second.connection, one, unlocked=True) is not None
        assert third.run(replicas.reap, one, unlocked=True) is None


def test_a_claim_that_is_under_way_is_reaped_with_the_rest(session: Open) -> None:
    """Who reaps comes back when the claim is committed; a later claim finds nobody who claims."""
    first, second, work = session(), session(), session()
    one, _ = entered(first, "one"), entered(second, "two")
    chat, _ = work.run(admit, inbound())
    expire(second, one)
    with work.connection.begin():
        assert leases.claim(work.connection, one, 10, ACCOUNTS)
        assert second.run(replicas.reap, one, unlocked=False) is None
    assert second.run(replicas.reap, one, unlocked=False) is not None
    assert second.one(conversation, id=chat).owner is None


def test_only_the_turns_of_the_dead_one_are_charged(session: Open) -> None:
    """Those of others go on, and nothing is noted about them."""
    first, second, third = session(), session(), session()
    ids = [entered(each, name) for each, name in ((first, "1"), (second, "2"), (third, "3"))]
    turns = []
    for each, replica_id, name in zip((first, second), ids, ("a", "b"), strict=False):
        chat, _ = each.run(admit, inbound(chat=name))
        turns.append(each.run(begin_turn, each.run(claim_one, chat, replica_id)))
    end(first, ids[0], third)
    inherited = third.run(replicas.reap, ids[0], unlocked=True)
    assert inherited is not None
    assert inherited.ran == 1
    charged, other = (third.one(turn, id=each.id) for each in turns)
    assert (charged.deaths, charged.attempt, other.deaths, other.attempt) == (1, 0, 0, 1)


def test_who_begins_anew_takes_its_own_for_free(session: Open) -> None:
    """Its turns are ready for anybody, and no suspicion falls on them."""
    first, other, again = session(), session(), session()
    one, _ = entered(first, "one"), entered(other, "two")
    chat, _ = first.run(admit, inbound())
    current = first.run(begin_turn, first.run(claim_one, chat, one))
    new = again.run(replicas.enter, "one", LEFT, one)[0]
    assert new > one
    assert {row.id for row in other.rows(replica)} >= {new}
    assert one not in {row.id for row in other.rows(replica)}
    row = other.one(turn, id=current.id)
    assert (row.deaths, row.attempt) == (0, 0)
    assert other.one(conversation, id=chat).owner is None


def test_the_next_process_of_a_place_takes_over_at_once(session: Open) -> None:
    """It knows how the one before ended; another place's replica is left alone."""
    first, other, again = session(), session(), session()
    one, two = entered(first, "here"), entered(other, "there")
    chat, _ = first.run(admit, inbound())
    first.run(begin_turn, first.run(claim_one, chat, one))
    end(first, one, other)
    new, inherited = again.run(replicas.enter, "here", Death("machine_restarted"))
    assert (inherited.conversations, inherited.ran) == (1, 1)
    assert {row.id for row in other.rows(replica)} == {two, new}


def test_a_place_that_is_taken_is_left_alone(session: Open) -> None:
    """Two of one name, by mistake: the second takes nothing from the first, which lives."""
    first, second = session(), session()
    one, two = entered(first, "here"), entered(second, "here")
    assert {row.id for row in first.rows(replica)} == {one, two}


def test_who_leaves_charges_nobody(session: Open) -> None:
    """What it had is ready at once, also what it received for."""
    first, second = session(), session()
    one, _ = entered(first, "one"), entered(second, "two")
    here = Receiving("telegram", "default")
    first.run(replicas.offer, [here])
    assert first.run(replicas.take, one, here) == 1
    first.run(replicas.leave, one)
    assert first.run(replicas.leave, one) is None
    row = second.one(adapter_lease)
    assert (row.owner, row.epoch) == (None, 2)


def test_a_reap_that_cannot_get_its_rows_is_not_waited_for(session: Open) -> None:
    """A frozen replica holds a lock: the transaction fails, and nothing was charged."""
    first, frozen, second = session(), session(), session()
    one, _ = entered(first, "one"), entered(second, "two")
    chat, _ = first.run(admit, inbound())
    lease = first.run(claim_one, chat, one)
    current = first.run(begin_turn, lease)
    expire(second, one)
    second.run(lambda conn: conn.execute(text("SET lock_timeout = 100")))
    with frozen.connection.begin():
        leases.fence(frozen.connection, lease)
        with pytest.raises(DBAPIError):
            second.run(replicas.reap, one, unlocked=False)
    assert second.one(turn, id=current.id).deaths == 0
    assert second.run(replicas.reap, one, unlocked=False) is not None


def test_one_look_tells_of_receivers_and_suspects(session: Open) -> None:
    """Who receives for an account, and for how long each suspect is tried."""
    first, second = session(), session()
    one, two = entered(first, "one"), entered(second, "two")
    here = Receiving("telegram", "default", 1)
    first.run(replicas.offer, [here])
    first.run(replicas.take, one, here)
    chat, _ = first.run(admit, inbound())
    current = first.run(begin_turn, first.run(claim_one, chat, one))
    suspected = update(turn).where(turn.c.id == current.id).values(deaths=2, quiet_s=40.0)
    first.run(lambda conn: conn.execute(suspected))
    found = seen(second, two)
    assert found.receivers == {here: (one, 1)}
    assert found.trials == {chat: 10.0}


HERE = Receiving("telegram", "default")


@pytest.fixture
def me(store: Store) -> int:
    """A replica that lives."""
    store.run(replicas.offer, [HERE])
    return store.run(leases.register, "me")


def fence(replica_id: int, *epochs: int) -> ReceivingFence:
    return ReceivingFence(replica_id, "telegram", "default", epochs)


def test_what_is_offered_is_nobodys_and_known_once(store: Store, me: int) -> None:
    """A second start changes nothing about it."""
    assert store.run(replicas.take, me, HERE) == 1
    store.run(replicas.offer, [Receiving("slack", "work"), HERE])
    rows = [(row.platform, row.account, row.owner, row.epoch) for row in store.rows(adapter_lease)]
    assert rows == [("slack", "work", None, 0), ("telegram", "default", me, 1)]


def test_one_takes_it(store: Store, me: int) -> None:
    """The other one gets it once it was given back, under a new epoch."""
    other = store.run(leases.register, "other")
    assert store.run(replicas.take, me, HERE) == 1
    assert store.run(replicas.take, other, HERE) is None
    store.run(replicas.give_back, other, HERE)
    assert store.run(replicas.take, other, HERE) is None
    store.run(replicas.give_back, me, HERE)
    assert store.run(replicas.take, other, HERE) == 3


def test_a_shard_has_a_lease_of_its_own(store: Store, me: int) -> None:
    """Two replicas receive for one bot, each over its connection."""
    second = HERE._replace(shard=1)
    store.run(replicas.offer, [second])
    other = store.run(leases.register, "other")
    assert store.run(replicas.take, me, HERE) == 1
    assert store.run(replicas.take, other, second) == 1
    store.run(leases.fence_receiving, fence(other, 1))


def test_who_was_reaped_takes_nothing(store: Store, me: int) -> None:
    """Its row is gone."""
    store.run(lambda conn: conn.execute(replica.delete()))
    assert store.run(replicas.take, me, HERE) is None


def test_the_fence_refuses_the_older_of_two_that_receive(store: Store, me: int) -> None:
    """It believes to hold the lease, which has gone to another one meanwhile."""
    epoch = store.run(replicas.take, me, HERE)
    assert epoch is not None
    store.run(leases.fence_receiving, fence(me, epoch))
    other = store.run(leases.register, "other")
    store.run(leases.reap, me)
    newer = store.run(replicas.take, other, HERE)
    assert newer is not None
    store.run(leases.fence_receiving, fence(other, newer))
    for stale in (fence(me, epoch), fence(other, epoch), fence(other)):
        with pytest.raises(LeaseLost):
            store.run(leases.fence_receiving, stale)


KEY = "telegram:default:c1"
OTHER = "web:default:c2"
"""Of a chat in which nobody has written."""


@pytest.fixture
def here(store: Store) -> int:
    """A replica that works on the conversation of `KEY`."""
    conversation, _ = store.run(admit, inbound(chat="c1"))
    assert conversation == store.run(conversations.find, KEY)
    return store.run(claim_one, conversation).replica


def test_news_are_counted(store: Store) -> None:
    """Who knows the number of before knows whether there is something new."""
    assert store.run(replicas.look_around, [], [], 1).news == {}
    assert store.run(replicas.announce, "forgotten") == 1
    assert store.run(replicas.announce, "secrets") == 1
    assert store.run(replicas.announce, "forgotten") == 2
    assert store.run(replicas.look_around, [], [], 1).news == {"forgotten": 2, "secrets": 1}


def test_who_looks_at_a_chat_elsewhere_is_known(store: Store) -> None:
    """Until they look away; a replica does not count for itself."""
    store.run(replicas.watch, 1, [KEY, OTHER])
    store.run(replicas.watch, 2, [KEY])
    store.run(replicas.watch, 2, [KEY])
    assert all(store.run(replicas.is_watched, replica) for replica in (1, 2, 3))
    store.run(replicas.unwatch, 2, [KEY])
    assert store.run(replicas.is_watched, 2)
    assert not store.run(replicas.is_watched, 1)


def test_who_has_not_said_so_for_long_looks_no_more(store: Store) -> None:
    """Its process may be gone; the next one who says something takes the row away."""
    store.run(replicas.watch, 1, [KEY])
    store.run(lambda conn: conn.execute(update(schema.chat_watch).values(until=1.0)))
    assert not store.run(replicas.is_watched, 2)
    store.run(replicas.watch, 2, [])
    assert store.rows(schema.chat_watch) == []


def test_a_growing_answer_is_stored_where_somebody_looks(store: Store, here: int) -> None:
    """Each state has a name of its own, which changes also where the text does not."""
    assert store.run(replicas.show, here, {KEY: "He"}) == []
    assert store.rows(schema.chat_preview) == []
    store.run(replicas.watch, here, [KEY])
    store.run(replicas.watch, here + 1, [OTHER])
    assert store.run(replicas.show, here, {KEY: "He"}) == []
    store.run(replicas.watch, here + 1, [KEY])
    assert store.run(replicas.show, here, {KEY: "He"}) == [KEY]
    [first] = store.run(replicas.chats, [KEY, OTHER])
    assert first == SharedChat(KEY, (1, 0), first.shown_at, "He")
    store.run(replicas.show, here, {KEY: "He"})
    [second] = store.run(replicas.chats, [KEY])
    assert (second.text, second.shown_at != first.shown_at) == ("He", True)


def test_only_who_works_on_a_conversation_shows_its_answer(store: Store, here: int) -> None:
    """Who was reaped in its sleep may still have a turn at work."""
    store.run(replicas.watch, here + 1, [KEY])
    assert store.run(replicas.show, here + 7, {KEY: "of a zombie", OTHER: "of nobody"}) == []
    assert store.rows(schema.chat_preview) == []


def test_an_answer_that_has_ended_is_taken_away(store: Store, here: int) -> None:
    """Whoever has shown it."""
    store.run(replicas.watch, here + 1, [KEY])
    store.run(replicas.show, here, {KEY: "Hello"})
    store.run(replicas.end_previews, [KEY])
    assert store.run(replicas.chats, [KEY]) == [SharedChat(KEY, (1, 0), None, "")]


def test_what_nobody_has_shown_for_long_does_not_grow(store: Store, here: int) -> None:
    """Its turn is over, or goes on elsewhere."""
    store.run(replicas.watch, here + 1, [KEY])
    store.run(replicas.show, here, {KEY: "Hello"})
    stale = schema.chat_preview.c.at - replicas.STALE_S - 1
    store.run(lambda conn: conn.execute(update(schema.chat_preview).values(at=stale)))
    assert store.run(replicas.chats, [KEY]) == [SharedChat(KEY, (1, 0), None, "")]


def test_a_long_answer_is_stored_as_far_as_pages_show_it(store: Store, here: int) -> None:
    """It may be of any length, and is stored three times a second."""
    store.run(replicas.watch, here + 1, [KEY])
    store.run(replicas.show, here, {KEY: "x" * 100_000})
    assert len(store.rows(schema.chat_preview)[0].text) == replicas.PREVIEW_CHARS


@pytest.mark.usefixtures("here")
def test_stops_are_found(store: Store) -> None:
    """Of conversations that were never stopped, or are not there, nothing is said."""
    [conversation] = store.rows(schema.conversation)
    assert store.run(replicas.stops, [conversation.id, 99]) == []
    store.run(conversations.stop_upto, conversation.id, 1)
    assert store.run(replicas.stops, [conversation.id, 99]) == [(conversation.id, 1)]


def test_what_was_forgotten_does_not_grow(store: Store, here: int) -> None:
    """The words of an answer go with its conversation."""
    store.run(replicas.watch, here + 1, [KEY])
    store.run(replicas.show, here, {KEY: "of a secret"})
    store.run(maintenance.withdraw, store.rows(schema.conversation)[0].id)
    assert store.rows(schema.chat_preview) == []


def test_one_look_finds_all_that_is_asked_for(store: Store, here: int) -> None:
    """The chats, the stops, the news, and whether anybody looks elsewhere."""
    [conversation] = store.rows(schema.conversation)
    store.run(conversations.stop_upto, conversation.id, 1)
    store.run(replicas.announce, "secrets")
    store.run(replicas.watch, here + 1, [KEY])
    found = store.run(replicas.look_around, [KEY], {conversation.id}, here)
    assert [chat.session_key for chat in found.chats] == [KEY]
    assert (list(found.stops), found.news) == ([(conversation.id, 1)], {"secrets": 1})
    assert found.is_watched
    nothing = store.run(replicas.look_around, [], set(), here)
    assert (nothing.chats, list(nothing.stops)) == ((), [])
