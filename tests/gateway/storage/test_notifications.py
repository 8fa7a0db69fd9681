"""LISTEN and NOTIFY on a real server: who hears what, and what a lost connection costs."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from gateway.storage import notifications
from gateway.storage.notifications import HINT_BYTES, Notifications
from tests.support.database_proxy import DatabaseProxy
from tests.support.gateway import log_lines
from tests.support.postgres import PostgresServer, server_at
from tests.support.recording_adapter import Watch


class Ear:
    """A replica that notes what it hears, and how often it had to look at all rows.

    Attributes:
        known_as: Its id.
    """

    def __init__(self, url: str, replica: int) -> None:
        self.known_as = replica
        self.heard: list[str] = []
        self.looks = 0
        self.watch = Watch()
        self.hints = Notifications(server_at(url))

    def hear(self, hint: str) -> None:
        self.heard.append(hint)
        self.watch.note()

    def look_anew(self) -> None:
        self.looks += 1
        self.watch.note()

    async def until(self, condition: Callable[[], bool]) -> None:
        await self.watch.until(condition)


@asynccontextmanager
async def ears(url: str, *replicas: int) -> AsyncIterator[list[Ear]]:
    """Run replicas that listen by now."""
    made = [Ear(url, each) for each in replicas]
    tasks = [asyncio.create_task(each.hints.run(each)) for each in made]
    try:
        for each in made:
            await each.until(lambda each=each: each.looks == 1)
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_hint_reaches_the_replica_that_is_meant(postgres_url: str) -> None:
    """And no other one, in the order in which they were told."""
    async with ears(postgres_url, 1, 2) as (one, two):
        one.hints.tell(2, "stop 7")
        one.hints.tell(1, "chat web:default:ü\n'\"")
        one.hints.tell(2, "chat x")
        await two.until(lambda: len(two.heard) == 2)
        await one.until(lambda: len(one.heard) == 1)
    assert (one.heard, two.heard) == (["chat web:default:ü\n'\""], ["stop 7", "chat x"])


async def test_the_same_hint_is_sent_once(postgres_url: str) -> None:
    """A hundred of them at once say no more than one."""
    async with ears(postgres_url, 1, 2) as (one, two):
        for _ in range(100):
            one.hints.tell(2, "chat x")
        one.hints.tell(2, "end")
        await two.until(lambda: "end" in two.heard)
    assert two.heard == ["chat x", "end"]


async def test_many_hints_go_in_several_statements(postgres_url: str) -> None:
    """All of them arrive."""
    wanted = [f"stop {n}" for n in range(250)]
    async with ears(postgres_url, 1, 2) as (one, two):
        for hint in wanted:
            one.hints.tell(2, hint)
        await two.until(lambda: len(two.heard) == len(wanted))
    assert two.heard == wanted


async def test_a_hint_has_ids_alone(postgres_url: str) -> None:
    """What is longer than any id is not sent."""
    async with ears(postgres_url, 1, 2) as (one, two):
        one.hints.tell(2, "x" * (HINT_BYTES + 1))
        one.hints.tell(2, "x" * HINT_BYTES)
        await two.until(lambda: bool(two.heard))
    assert [len(each) for each in two.heard] == [HINT_BYTES]


async def test_a_lost_connection_is_opened_anew_and_all_rows_are_looked_at(
    postgres_url: str,
) -> None:
    """What was told meanwhile is not heard, so that nobody may rely on it."""
    watch = Watch()
    async with log_lines(watch) as lines, ears(postgres_url, 1, 2) as (one, two):
        terminate(postgres_url)
        await two.until(lambda: two.looks == 2)
        await one.until(lambda: one.looks == 2)
        one.hints.tell(2, "chat x")
        await two.until(lambda: two.heard == ["chat x"])
    told = [line for line in lines if line["event"] == "hints_interrupted"]
    assert len(told) == 2
    assert all(line["retry_in_s"] == notifications.FIRST_PAUSE_S for line in told)


async def test_a_server_that_is_away_is_tried_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pause that grows; hints of that time are dropped, and do not pile up."""
    monkeypatch.setattr(notifications, "FIRST_PAUSE_S", 0.01)
    watch = Watch()
    ear = Ear("postgresql://parley@127.0.0.1:1/nothing", 1)
    async with log_lines(watch) as lines:
        task = asyncio.create_task(ear.hints.run(ear))
        await watch.until(lambda: len(lines) >= 3)
        ear.hints.tell(2, "stop 7")
        task.cancel()
        await asyncio.wait({task})
    pauses = [line["retry_in_s"] for line in lines]
    assert pauses[:3] == [0.01, 0.02, 0.04]
    assert ear.looks == 0


async def test_a_silent_connection_is_tried(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose end was never told is found out by that."""
    monkeypatch.setattr(notifications, "PULSE_S", 0.05)
    async with ears(postgres_url, 1) as (one,):
        await asyncio.sleep(0.2)
        one.hints.tell(1, "still there")
        await one.until(lambda: one.heard == ["still there"])
    assert one.looks == 1


async def test_a_connection_that_falls_silent_while_it_is_opened_is_opened_anew(
    postgres_worker: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the replica nor the end of its process waits for it."""
    monkeypatch.setattr(notifications, "ANSWER_S", 0.5)
    opened = notifications._HintSession.connect
    async with DatabaseProxy(postgres_worker.port) as proxy:

        async def patient(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(notifications, "ANSWER_S", 30.0)
            return await opened(*args, **options)

        async def silent(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(notifications._HintSession, "connect", patient)
            driver = await opened(*args, **options)
            proxy.silence()
            return driver

        monkeypatch.setattr(notifications._HintSession, "connect", silent)
        async with ears(proxy.url(postgres_worker.create()), 1) as (one,):
            one.hints.tell(1, "chat x")
            await one.until(lambda: one.heard == ["chat x"])
    assert proxy.opened == 2


async def test_a_replica_with_a_new_id_listens_as_that(postgres_url: str) -> None:
    """It was reaped, and started over."""
    async with ears(postgres_url, 1, 2) as (one, two):
        two.known_as = 3
        two.hints.check()
        await two.until(lambda: two.looks == 2)
        one.hints.tell(3, "chat x")
        await two.until(lambda: bool(two.heard))
    assert (one.heard, two.heard) == ([], ["chat x"])


async def test_no_connection_is_left_behind(postgres_url: str) -> None:
    """Neither by an end in the middle of the opening."""
    ear = Ear(postgres_url, 1)
    for pause_s in (0.0, 0.0005, 0.002, 0.005):
        task = asyncio.create_task(ear.hints.run(ear))
        await asyncio.sleep(pause_s)
        task.cancel()
        await asyncio.wait({task})
    async with asyncio.timeout(30):
        while await asyncio.to_thread(connections, postgres_url):
            # One that was being opened ends with its last reference.
            gc.collect()


def connections(url: str) -> int:
    """Return how many others are connected to a database."""
    with psycopg.connect(url, autocommit=True) as admin:
        row = admin.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def terminate(url: str) -> None:
    """End all connections to a database."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
