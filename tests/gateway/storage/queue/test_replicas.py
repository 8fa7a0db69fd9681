"""Replicas on one server of PostgreSQL: who is dead, and that the living keep what is theirs."""

import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, text, update
from sqlalchemy.exc import DBAPIError

from gateway.errors import LeaseLost
from gateway.storage import postgres
from gateway.storage.queue import adapter_leases, leases, outbox, replicas, sending
from gateway.storage.queue.blame import Death
from gateway.storage.queue.leases import AdapterLease, Receiving
from gateway.storage.queue.replicas import LEFT, Surroundings
from gateway.storage.schema import adapter_lease, conversation, now_s, replica, turn
from gateway.storage.schema import outbox as outbox_table
from tests.support.postgres import server_at
from tests.support.storage import (
    ACCOUNTS,
    ServerSession,
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
    first.run(adapter_leases.offer, [here])
    assert first.run(adapter_leases.take, one, here) == 1
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
    first.run(adapter_leases.offer, [here])
    first.run(adapter_leases.take, one, here)
    chat, _ = first.run(admit, inbound())
    current = first.run(begin_turn, first.run(claim_one, chat, one))
    suspected = update(turn).where(turn.c.id == current.id).values(deaths=2, quiet_s=40.0)
    first.run(lambda conn: conn.execute(suspected))
    found = seen(second, two)
    assert found.receivers == [AdapterLease(here, one, 1)]
    assert found.trials == {chat: 10.0}
