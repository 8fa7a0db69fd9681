"""Replicas on a real PostgreSQL: killed, stopped, cut off, reaped alive, and back as new ones."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import Connection, select, update

from adapters.base import Share
from gateway.replicas import shared_replica
from gateway.replicas.replica import AccountLeases
from gateway.replicas.shared_replica import SharedReplica
from gateway.storage import schema
from gateway.storage.postgres import PostgresDatabase
from gateway.storage.presence import Presence
from gateway.storage.queue import leases, replicas
from gateway.storage.queue.blame import Death, Inheritance
from gateway.storage.queue.leases import Receiving
from gateway.wiring import registered
from tests.support.gateway import log_lines
from tests.support.postgres import server_at
from tests.support.recording_adapter import Watch
from tests.support.storage import ACCOUNTS, admit, inbound

ROOT = Path(__file__).resolve().parents[3]
WITHIN_S = 60.0
Living = Callable[..., AbstractAsyncContextManager["Life"]]
HERE = Receiving("telegram", "default")


@dataclass
class Life:
    """A replica of this process, with its database and what it has logged."""

    replica: SharedReplica
    database: PostgresDatabase
    share: Share
    lines: list[dict[str, Any]]
    dropped: list[int] = field(default_factory=list)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == name]

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110 - processes tell nobody
                await asyncio.sleep(0.01)

    async def value(self, column: Any) -> Any:
        return await self.database.read(lambda conn: conn.execute(select(column)).scalar())


@asynccontextmanager
async def _living(
    url: str, lines: list[dict[str, Any]], name: str, *, receives: bool = False
) -> AsyncIterator[Life]:
    """Run a replica; leaving it is a death."""
    database = PostgresDatabase(server_at(url, connections=2))
    accounts, share = AccountLeases(), Share()
    if receives:
        accounts.want(HERE)
    async with asyncio.TaskGroup() as tasks:
        replica = await registered(database, name, Death(), accounts, share)
        assert isinstance(replica, SharedReplica)
        life = Life(replica, database, share, lines)

        async def drop() -> None:
            life.dropped.append(replica.id)

        replica.on_lost(drop)
        running = tasks.create_task(replica.run())
        try:
            yield life
        finally:
            running.cancel()
            await replica.close()
            await database.close()


@pytest_asyncio.fixture
async def lines() -> AsyncIterator[list[dict[str, Any]]]:
    """What all replicas of the test have logged."""
    async with log_lines(Watch()) as found:
        yield found


@pytest.fixture
def living(postgres_url: str, lines: list[dict[str, Any]]) -> Living:
    """Run replicas on the database of the test."""
    return partial(_living, postgres_url, lines)


class Process:
    """`tests.support.replica_process`, and the events that it has told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []

    async def told(self, event: str, **facts: Any) -> dict[str, Any]:
        """Read on until it tells this."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            while True:
                line = await self.process.stdout.readline()
                assert line, f"it ended without {event}: {self.events}"
                self.events.append(json.loads(line))
                if self.events[-1] | {"event": event} | facts == self.events[-1]:
                    return self.events[-1]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def process(url: str, name: str) -> AsyncIterator[Process]:
    """Run a replica in a process of its own, until it is killed at the end."""
    command = [sys.executable, "-m", "tests.support.replica_process", url, name]
    started = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Process(started)
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


def cut(url: str) -> None:
    """End all other sessions with the database, as the server does when it is restarted."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def stand_still(other: Process, life: Life) -> None:
    """Stop a process where it is in no transaction: with one the server ends its session."""
    other.send(signal.SIGSTOP)
    while await life.database.read(transactions_of_others):
        other.send(signal.SIGCONT)
        await life.database.read(transactions_of_others)
        other.send(signal.SIGSTOP)


def transactions_of_others(conn: Connection) -> int:
    """Return how many other sessions of this database are in a transaction."""
    return conn.exec_driver_sql(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
    ).scalar_one()


async def a_chat(life: Life) -> int:
    return (await life.database.write(admit, inbound()))[0]


@pytest.mark.thorough
async def test_a_killed_process_is_noticed_at_once(postgres_url: str, living: Living) -> None:
    """Its conversations are free within little more than a second; its lease had 12 more."""
    async with living("here") as life, process(postgres_url, "there") as other:
        joined = await other.told("replica_joined")
        await a_chat(life)
        await other.told("owns", count=1)
        other.send(signal.SIGKILL)
        await life.until(lambda: life.events("replica_reaped"))
        [reaped] = life.events("replica_reaped")
        assert (reaped["replica"], reaped["reason"]) == (joined["replica"], "process gone")
        assert life.events("conversations_reclaimed")[0]["count"] == 1
        assert await life.database.write(leases.claim, life.replica.id, 1, ACCOUNTS)


@pytest.mark.thorough
async def test_a_process_that_stands_still_loses_all_and_begins_anew(
    postgres_url: str, living: Living
) -> None:
    """Its lock is held, its time is over; awake, it is another replica without a restart."""
    async with (
        living("here") as life,
        process(postgres_url, "there") as other,
    ):
        first = (await other.told("replica_joined"))["replica"]
        await a_chat(life)
        await other.told("owns", count=1)
        await stand_still(other, life)
        # A short lease might be over before, on a busy machine; this one is over now.
        await life.database.write(end_lease, first)
        await life.until(lambda: life.events("replica_reaped"))
        assert life.events("replica_reaped")[0]["reason"] == "lease over"
        [lease] = await life.database.write(leases.claim, life.replica.id, 1, ACCOUNTS)
        other.send(signal.SIGCONT)
        assert (await other.told("replica_lost"))["replica"] == first
        joined = await other.told("replica_joined")
        assert joined["former"] == first
        assert joined["replica"] > life.replica.id
        # It has taken nothing back.
        assert (await life.database.write(leases.fence, lease)).epoch == lease.epoch
        await a_chat(life)


async def test_two_live_side_by_side(living: Living) -> None:
    """Far beyond a lease neither takes the other for dead, and the limits are shared."""
    async with living("here") as life, living("there") as other:
        await life.until(lambda: life.share.of == 2 == other.share.of)
        await asyncio.sleep(4 * shared_replica.LOOK_S)
        assert not life.events("replica_reaped")
        assert not life.dropped + other.dropped
    assert not life.events("heartbeat_failed")


async def test_who_was_reaped_alive_is_told_by_its_row(living: Living) -> None:
    """It drops its work, and goes on under another id."""
    async with living("here") as life:
        first = life.replica.id
        await life.database.write(leases.reap, first)
        await life.until(lambda: life.replica.id != first)
        assert life.dropped == [first]
        [lost] = life.events("replica_lost")
        assert (lost["replica"], lost["reason"]) == (first, "reaped")
        assert life.events("replica_joined")[-1]["former"] == first
        assert await life.database.write(leases.heartbeat, life.replica.id)


@pytest.mark.thorough
async def test_a_lost_session_costs_no_turn_an_attempt(postgres_url: str, living: Living) -> None:
    """A restart of the database: all locks are free, and nobody is reaped by another one."""
    async with living("here") as life, living("there") as other:
        ids = {life.replica.id, other.replica.id}
        await a_chat(life)
        assert await life.database.write(leases.claim, life.replica.id, 1, ACCOUNTS)
        cut(postgres_url)
        await life.until(lambda: not ids & {life.replica.id, other.replica.id})
        await asyncio.sleep(3 * shared_replica.LOOK_S)
        assert [line["reason"] for line in life.events("replica_lost")] == ["session lost"] * 2
        assert not life.events("replica_reaped")
        assert await life.value(schema.conversation.c.owner) is None
        assert await life.database.write(leases.claim, other.replica.id, 1, ACCOUNTS)


@pytest.mark.thorough
async def test_who_was_away_for_long_takes_nobody_for_dead_at_once(
    postgres_url: str, living: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may be on their way back as well; a while after its own return they are dead."""
    now_s, looks, enter, attend = 0.0, 0, Presence.enter, replicas.attend
    monkeypatch.setattr(shared_replica, "time", SimpleNamespace(monotonic=lambda: now_s))
    async with living("here") as life:

        async def enter_late(*args: Any) -> tuple[Presence, Inheritance]:
            nonlocal now_s
            now_s += 60.0
            await life.database.write(dead_one)
            return await enter(*args)

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal looks
            looks += 1
            return attend(*args, **options)

        monkeypatch.setattr(Presence, "enter", enter_late)
        monkeypatch.setattr(replicas, "attend", counted)
        first = life.replica.id
        cut(postgres_url)
        await life.until(lambda: life.replica.id != first)
        before = looks
        await life.until(lambda: looks > before + 2)
        assert not life.events("replica_reaped")
        now_s += shared_replica.TROUBLED_FOR_S + 1.0
        await life.until(lambda: life.events("replica_reaped"))


def dead_one(conn: Connection) -> int:
    """Enter a replica whose time is over; returns its id."""
    its = leases.register(conn, "long ago")
    end_lease(conn, its)
    return its


def end_lease(conn: Connection, its: int) -> None:
    """Have the time of a replica be over."""
    conn.execute(update(schema.replica).where(schema.replica.c.id == its).values(heartbeat_until=1))


@pytest.mark.thorough
async def test_who_cannot_renew_gives_up_before_others_take_over(
    living: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is over by its own clock: it works on nothing any more."""
    monkeypatch.setattr(leases, "LEASE_S", 1.0)
    async with living("here") as life:
        first = life.replica.id

        def fails(*_: Any, **__: Any) -> None:
            raise shared_replica.StorageError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr("gateway.storage.queue.leases.heartbeat", fails)
            await life.until(lambda: life.dropped)
        assert life.events("replica_lost")[0]["reason"] == "not renewed"
        await life.until(lambda: life.replica.id != first)


@pytest.mark.thorough
async def test_one_receives_and_the_next_follows_a_kill(postgres_url: str, living: Living) -> None:
    """The account's receiver moves to who is left, before a lease would end."""
    async with process(postgres_url, "there") as other:
        await other.told("account_taken")
        async with living("here", receives=True) as life:
            mine = life.replica.accounts.want(HERE)
            await life.until(lambda: mine.elsewhere)
            other.send(signal.SIGKILL)
            async with asyncio.timeout(WITHIN_S):
                await mine.acquire()
            assert mine.epoch == 3
            assert {line["reason"] for line in life.events("replica_reaped")} == {"process gone"}


async def test_who_leaves_leaves_at_once(living: Living) -> None:
    """Nothing waits for a lease, and no turn is charged."""
    async with living("here") as life, living("there") as other:
        await a_chat(life)
        assert await life.database.write(leases.claim, life.replica.id, 1, ACCOUNTS)
        await life.replica.leave()
        assert await other.database.write(leases.claim, other.replica.id, 1, ACCOUNTS)
        assert life.events("replica_left")[0]["replica"] == life.replica.id


async def test_a_copied_row_is_reaped(living: Living) -> None:
    """Replicas of a database that was copied are none here: their time is over."""
    async with living("here") as life:
        old = await life.database.write(dead_one)
        await life.until(lambda: life.events("replica_reaped"))
        assert life.events("replica_reaped")[0]["replica"] == old


async def test_a_lease_that_is_over_by_the_own_clock_holds_nothing(
    living: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped knows so before it has asked the database."""
    async with living("a") as life:
        me = life.replica
        assert [me.holds(by) for by in (me.id, None, me.id + 1)] == [True, True, False]
        monkeypatch.setattr(leases, "LEASE_S", 0.0)
        assert [me.holds(by) for by in (me.id, None)] == [False, False]
