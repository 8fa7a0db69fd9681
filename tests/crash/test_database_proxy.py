"""The proxy of the cluster's tests breaks the way to a real PostgreSQL as it says."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import psycopg
import pytest

from tests.support.crash import until
from tests.support.database_proxy import DatabaseProxy, Loss
from tests.support.postgres import PostgresServer

SLEEPERS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
BEGIN = "BEGIN; INSERT INTO noted VALUES (1)"


@pytest.fixture
def noted(cluster_server: PostgresServer) -> Iterator[str]:
    """A database with the table `noted`; returns its name."""
    name = cluster_server.create()
    with psycopg.connect(cluster_server.url(name), autocommit=True) as driver:
        driver.execute("CREATE TABLE noted (n int)")
    yield name
    cluster_server.drop(name)


@pytest.fixture
async def proxy(cluster_server: PostgresServer) -> AsyncIterator[DatabaseProxy]:
    """A way to the server."""
    async with DatabaseProxy(cluster_server.port) as proxy:
        yield proxy


async def connect(proxy: DatabaseProxy, database: str) -> "psycopg.Connection[tuple[int]]":
    """Connect through the proxy, which runs on this thread."""
    return await asyncio.to_thread(psycopg.connect, proxy.url(database), autocommit=True)


async def count(server: PostgresServer, database: str) -> int:
    """Return how many rows were committed."""
    with psycopg.connect(server.url(database), autocommit=True) as driver:
        found = driver.execute("SELECT count(*) FROM noted").fetchone()
        assert found is not None
        return int(found[0])


async def test_it_lets_everything_through(proxy: DatabaseProxy, noted: str) -> None:
    """Large answers, too."""
    driver = await connect(proxy, noted)
    found = await asyncio.to_thread(driver.execute, "SELECT repeat('x', 3000000)")
    assert [len(text) for (text,) in found] == [3_000_000]  # type: ignore[arg-type]
    driver.close()
    assert proxy.opened == 1


@pytest.mark.parametrize(("loss", "committed"), [("request", 0), ("answer", 1)])
async def test_a_commit_is_lost(
    proxy: DatabaseProxy, noted: str, cluster_server: PostgresServer, loss: Loss, committed: int
) -> None:
    """The client cannot tell whether the server has committed: only where the answer was lost."""
    driver = await connect(proxy, noted)
    lost = proxy.lose_commit(loss)
    await asyncio.to_thread(driver.execute, BEGIN)
    with pytest.raises(psycopg.OperationalError):
        await asyncio.to_thread(driver.execute, "COMMIT")
    driver.close()
    await lost
    assert proxy.lost == 1
    assert await count(cluster_server, noted) == committed
    # The next one goes through.
    driver = await connect(proxy, noted)
    await asyncio.to_thread(driver.execute, f"{BEGIN}; COMMIT")
    assert await count(cluster_server, noted) == committed + 1
    driver.close()


async def test_a_loss_that_is_taken_back_does_not_happen(
    proxy: DatabaseProxy, noted: str, cluster_server: PostgresServer
) -> None:
    """What was cancelled before a COMMIT came."""
    driver = await connect(proxy, noted)
    proxy.lose_commit("request").cancel()
    await asyncio.to_thread(driver.execute, BEGIN)
    await asyncio.to_thread(driver.execute, "COMMIT")
    assert await count(cluster_server, noted) == 1
    driver.close()


async def test_connections_are_cut(
    proxy: DatabaseProxy, noted: str, cluster_server: PostgresServer
) -> None:
    """Who waits for an answer is told at once, and can connect again."""
    driver = await connect(proxy, noted)
    sleeping = asyncio.create_task(asyncio.to_thread(driver.execute, "SELECT pg_sleep(60)"))
    with psycopg.connect(cluster_server.url(noted), autocommit=True) as admin:
        await until(lambda: admin.execute(SLEEPERS).fetchone())
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        await sleeping
    driver.close()
    (await connect(proxy, noted)).close()


@pytest.mark.thorough
async def test_what_waits_goes_on_where_it_stood(
    proxy: DatabaseProxy, noted: str, cluster_server: PostgresServer
) -> None:
    """A statement that is sent while nothing gets through is done once it does; so is a connect."""
    driver = await connect(proxy, noted)
    proxy.stall()
    entering = asyncio.create_task(
        asyncio.to_thread(driver.execute, "INSERT INTO noted VALUES (1)")
    )
    connecting = asyncio.create_task(connect(proxy, noted))
    done, _ = await asyncio.wait([entering, connecting], timeout=1)
    assert not done
    assert await count(cluster_server, noted) == 0
    proxy.flow()
    await entering
    (await connecting).close()
    assert await count(cluster_server, noted) == 1
    driver.close()


async def test_a_connection_that_has_fallen_silent_stays_so(
    proxy: DatabaseProxy, noted: str, cluster_server: PostgresServer
) -> None:
    """Neither end is told; what is connected later works."""
    driver = await connect(proxy, noted)
    proxy.silence()
    entering = asyncio.create_task(
        asyncio.to_thread(driver.execute, "INSERT INTO noted VALUES (1)")
    )
    other = await connect(proxy, noted)
    await asyncio.to_thread(other.execute, "INSERT INTO noted VALUES (2)")
    assert not entering.done()
    assert await count(cluster_server, noted) == 1
    proxy.cut()
    with suppress(psycopg.OperationalError):
        await entering
    driver.close()
    other.close()


async def test_a_server_that_is_down_refuses(
    proxy: DatabaseProxy, noted: str, cluster_server: PostgresServer
) -> None:
    """While it restarts nobody gets through; afterwards the proxy works as before."""
    driver = await connect(proxy, noted)
    await asyncio.to_thread(cluster_server.stop, "immediate")
    try:
        with pytest.raises(psycopg.OperationalError):
            await asyncio.to_thread(driver.execute, "SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            await connect(proxy, noted)
    finally:
        driver.close()
        cluster_server.spawn()
        await asyncio.to_thread(cluster_server.wait_until_it_answers)
    (await connect(proxy, noted)).close()
