"""A replica: alone on SQLite, and what one of several receives for and leaves to others."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, select
from sqlalchemy.exc import OperationalError

from adapters.base import Share
from gateway.replicas.replica import (
    PATIENCE_S,
    STEADY_S,
    AccountLease,
    AccountLeases,
    Replica,
)
from gateway.storage import schema
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from gateway.storage.queue import leases
from gateway.storage.queue.blame import Death
from gateway.storage.queue.leases import Receivers, Receiving, ReceivingFence
from gateway.wiring import registered
from tests.support.gateway import running
from tests.support.storage import ACCOUNTS, admit, inbound


async def registered_in(database: Database) -> Replica:
    return await registered(database, "here", Death(), AccountLeases(is_alone=True), Share())


@pytest.mark.usefixtures("sqlite_alone")
async def test_what_an_earlier_process_left_is_ready(tmp_path: Path) -> None:
    """There can be no other one."""
    async with open_database(tmp_path / "parley.db") as database:
        first = await registered_in(database)
        await database.write(admit, inbound())
        assert await database.write(leases.claim, first.id, 1, ACCOUNTS)
        second = await registered_in(database)
        assert not second.is_shared
        assert await database.write(leases.claim, second.id, 1, ACCOUNTS)
        assert not await database.write(leases.heartbeat, first.id)


async def until_renewed(database: Database, replica: int, after: float) -> None:
    async with asyncio.timeout(30):
        while await database.read(_until, replica) <= after:  # noqa: ASYNC110 - rows tell nobody
            await asyncio.sleep(0.01)


def _until(conn: Connection, replica: int) -> float:
    found = select(schema.replica.c.heartbeat_until)
    return float(conn.execute(found.where(schema.replica.c.id == replica)).scalar_one())


@pytest.mark.usefixtures("sqlite_alone")
async def test_it_renews_four_times_in_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its end is neither a leave nor a close that anybody waits for."""
    monkeypatch.setattr(leases, "LEASE_S", 0.2)
    async with open_database(tmp_path / "parley.db") as database, asyncio.TaskGroup() as tasks:
        replica = await registered_in(database)
        began = await database.read(_until, replica.id)
        running = tasks.create_task(replica.run())
        await until_renewed(database, replica.id, began)
        running.cancel()
        await replica.leave()
        await replica.close()
        assert await database.read(_until, replica.id) > began


@pytest.mark.usefixtures("sqlite_alone")
async def test_a_failed_heartbeat_is_logged_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that could not be written ends nothing."""

    def heartbeat(*_: object) -> bool:
        failure = sqlite3.OperationalError("database or disk is full")
        failure.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise OperationalError("heartbeat", {}, failure)

    monkeypatch.setattr(leases, "LEASE_S", 0.04)
    monkeypatch.setattr(leases, "heartbeat", heartbeat)
    async with running(tmp_path) as chat:
        await chat.logged("heartbeat_failed", 2)
        assert await chat.ask("one") == "re: one"


ME, OTHER = 7, 8
BOTS = [Receiving("telegram", name) for name in ("a", "b", "c")]


class Clock:
    """Goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """By which leases are left to others, and given back."""
    return Clock()


@pytest.fixture
def accounts(clock: Clock) -> AccountLeases:
    """Three accounts, nobody's yet."""
    accounts = AccountLeases(clock=clock)
    accounts.replica = ME
    for each in BOTS:
        accounts.want(each)
    return accounts


def rows(*owners: int | None, epoch: int = 1) -> Receivers:
    return {of: (owner, epoch) for of, owner in zip(BOTS, owners, strict=False)}


def take(accounts: AccountLeases, *which: Receiving) -> None:
    for each in which:
        accounts.take(each, 1)


def test_the_only_replica_takes_all(accounts: AccountLeases) -> None:
    """At once: there is nobody to leave anything to."""
    accounts.note(rows(None, None, None))
    assert accounts.to_take(living=1) == BOTS


def test_one_of_three_takes_its_part(accounts: AccountLeases, clock: Clock) -> None:
    """What the others do not take in time it takes, too."""
    accounts.note(rows(None, None, None))
    first = accounts.to_take(living=3)
    assert first == BOTS[:1]
    take(accounts, *first)
    accounts.note(rows(ME, OTHER, None))
    assert accounts.to_take(living=3) == []
    clock.now += PATIENCE_S
    accounts.note(rows(ME, OTHER, None))
    assert accounts.to_take(living=3) == BOTS[2:]


def test_too_much_is_given_back_one_by_one(accounts: AccountLeases, clock: Clock) -> None:
    """Not before things have been quiet for a while: each move interrupts what is received."""
    take(accounts, *BOTS)
    assert accounts.to_give_back(living=3) == []
    clock.now += STEADY_S
    assert accounts.to_give_back(living=1) == []
    assert accounts.to_give_back(living=3) == BOTS[:1]


async def test_a_lease_is_held_until_another_one_has_it(accounts: AccountLeases) -> None:
    """Whoever waits for it is woken, whoever uses it is told."""
    lease = accounts.want(BOTS[0])
    accounts.note(rows(OTHER))
    assert lease.elsewhere
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(lease.acquire())
        await asyncio.sleep(0)
        assert not waiting.done()
        accounts.take(lease.of, 3)
        await waiting
        assert not lease.elsewhere
        gone = tasks.create_task(lease.gone())
        accounts.note(rows(ME, epoch=3))
        await asyncio.sleep(0)
        assert not gone.done()
        accounts.note(rows(OTHER, epoch=4))
        await gone
    assert lease.epoch is None


def test_what_was_taken_unnoticed_is_held(accounts: AccountLeases) -> None:
    """The answer to the COMMIT was lost; the row says whose it is."""
    accounts.note(rows(ME, epoch=5))
    assert accounts.want(BOTS[0]).epoch == 5


def test_what_is_not_wanted_is_given_back_and_left(accounts: AccountLeases) -> None:
    """Its credentials are refused, or the gateway stops."""
    take(accounts, BOTS[0])
    accounts.want(BOTS[0]).give_up()
    assert accounts.to_give_back(living=1) == BOTS[:1]
    accounts.want(BOTS[0]).lose()
    accounts.note(rows(None))
    assert accounts.to_take(living=1) == []


def test_the_fence_says_what_is_believed_to_be_held(accounts: AccountLeases) -> None:
    """Of an account that any replica may receive for there is none."""
    assert accounts.fence("telegram", "a") == ReceivingFence(ME, "telegram", "a", ())
    take(accounts, BOTS[0])
    assert accounts.fence("telegram", "a") == ReceivingFence(ME, "telegram", "a", (1,))
    assert accounts.fence("slack", "a") is None


async def test_who_is_not_who_it_was_holds_nothing(accounts: AccountLeases) -> None:
    """All that it received for is lost at once."""
    take(accounts, *BOTS)
    accounts.lose_all()
    async with asyncio.timeout(30):
        for each in BOTS:
            await accounts.want(each).gone()
    assert [accounts.want(each).epoch for each in BOTS] == [None] * len(BOTS)


async def test_a_lease_can_be_had_again() -> None:
    """It waits anew."""
    lease = AccountLease(BOTS[0])
    lease.take(1)
    lease.lose()
    lease.take(2)
    async with asyncio.timeout(30):
        await lease.acquire()
    assert lease.epoch == 2
