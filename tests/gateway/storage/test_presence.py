"""The session that shows that a replica lives, on a real PostgreSQL."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import Connection, text

from gateway.errors import StorageUnavailable
from gateway.storage import presence
from gateway.storage.presence import USED_LOCK, Presence
from gateway.storage.queue import replicas
from gateway.storage.queue.blame import Death
from tests.support.postgres import server_at

WITHIN_S = 30.0
SESSION = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
Enter = Callable[[str], Awaitable[Presence]]


@pytest_asyncio.fixture
async def enter(postgres_url: str) -> AsyncIterator[Enter]:
    """Enter a replica of some name; all end with the test."""
    async with AsyncExitStack() as closing:

        async def entered(name: str) -> Presence:
            server = server_at(postgres_url)
            made, _ = await Presence.enter(server, name, Death(), 3600.0)
            closing.push_async_callback(made.close)
            return made

        yield entered


def slow(conn: Connection) -> int:
    conn.execute(text("SELECT pg_sleep(30)"))
    return 1


def pid_of(conn: Connection) -> int:
    return int(conn.execute(text("SELECT pg_backend_pid()")).scalar_one())


async def test_transactions_run_over_it(enter: Enter) -> None:
    """One after the other, also where they are asked for at once."""
    here = await enter("here")
    async with asyncio.TaskGroup() as tasks:
        found = [tasks.create_task(here.run(pid_of)) for _ in range(3)]
    assert len({each.result() for each in found}) == 1
    seen = await here.run(replicas.attend, here.replica_id, renews=True)
    assert seen is not None
    assert seen.living == 1


async def test_who_stood_still_while_it_entered_enters_again(
    enter: Enter, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has ended that transaction, so nothing of it is there."""
    rows, tries = replicas.enter, []

    def slowly(conn: Connection, **given: Any) -> Any:
        tries.append(pid_of(conn))
        if len(tries) == 1:
            conn.execute(text("SET LOCAL idle_in_transaction_session_timeout = 1"))
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                while admin.execute(SESSION, tries).fetchone():
                    pass
        return rows(conn, **given)

    monkeypatch.setattr(replicas, "enter", slowly)
    assert (await enter("here")).replica_id == 1
    assert len(tries) == 2


async def test_its_end_is_noticed_without_a_look(enter: Enter, postgres_url: str) -> None:
    """The server, or the way to it, has ended the session: the kernel says so."""
    here = await enter("here")
    lost = asyncio.Event()
    here.on_lost = lost.set
    pid = await here.run(pid_of)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as admin:
        await admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
    await asyncio.wait_for(lost.wait(), WITHIN_S)
    with pytest.raises(StorageUnavailable):
        await here.run(pid_of)


async def test_a_server_that_does_not_answer_is_given_up(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits for it is woken; the replica begins anew elsewhere."""
    here = await enter("here")
    monkeypatch.setattr(presence, "ANSWERS_IN_S", 0.1)
    with pytest.raises(StorageUnavailable, match="does not answer"):
        await here.run(slow)
    assert here.is_lost
    await asyncio.wait_for(here.close(), WITHIN_S)


async def test_who_is_cancelled_leaves_it_as_it_is(enter: Enter) -> None:
    """What was begun ends by itself; the session goes on."""
    here = await enter("here")
    begun = threading.Event()

    def slowly(conn: Connection) -> None:
        begun.set()
        conn.execute(text("SELECT pg_sleep(.1)"))

    waiting = asyncio.ensure_future(here.run(slowly))
    assert await asyncio.to_thread(begun.wait, WITHIN_S)
    waiting.cancel()
    assert await here.run(pid_of)
    assert not here.is_lost


async def test_a_failed_transaction_is_no_loss(enter: Enter) -> None:
    """The server has said no; it is asked again."""
    here = await enter("here")
    with pytest.raises(StorageUnavailable):
        await here.run(lambda conn: conn.execute(text("SELECT 1/0")))
    assert await here.run(pid_of)


async def test_a_database_that_is_copied_takes_no_replica(enter: Enter, postgres_url: str) -> None:
    """And nobody copies one that a replica uses."""
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as copier:
        await copier.execute("SELECT pg_advisory_lock(%s)", (USED_LOCK,))
        with pytest.raises(StorageUnavailable, match="copied"):
            await enter("here")
        await copier.execute("SELECT pg_advisory_unlock(%s)", (USED_LOCK,))
        await enter("here")
        asked = await copier.execute("SELECT pg_try_advisory_lock(%s)", (USED_LOCK,))
        assert await asked.fetchone() == (False,)


async def test_it_goes_past_the_pooler(postgres_url: str) -> None:
    """A pooler would lend another session for each transaction, and the lock would be nobody's."""
    server = server_at("postgresql://nowhere.invalid/", pooled=True)
    direct = server_at(postgres_url).url
    server = type(server)(server.url, direct, pooled=True)
    here, _ = await Presence.enter(server, "here", Death(), 3600.0)
    assert await here.run(pid_of)
    await here.close()
