"""`make cluster`: replicas on a real PostgreSQL behind the balancer, one killed, all stopped."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from gateway.supervision.home import WEB_TOKEN
from tests.e2e.web_chat import WebChat
from tests.support.cluster.balancer import Balancer, is_ready
from tests.support.cluster.replicas import Replica, Shared, command, running
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.process import ParleyProcess, free_port

WITHIN_S = 60.0
"""Long enough for three starts on a machine that is busy."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server with room for three replicas."""
    with postgres_server({"max_connections": "100"}) as found:
        yield found


@dataclass
class Cluster:
    """What runs.

    Attributes:
        url: Where browsers come to.
        home: Has the web token, as PARLEY_HOME of one process would.
    """

    shared: Shared
    balancer: Balancer
    replicas: list[Replica]
    url: str
    home: Path


@asynccontextmanager
async def cluster(folder: Path, database_url: str, count: int) -> AsyncIterator[Cluster]:
    """Migrate, and run so many replicas behind a balancer."""
    port = free_port()
    shared = Shared(folder, database_url, f"http://127.0.0.1:{port}/")
    await command(shared, "migration", "db", "migrate")
    replicas = [Replica(shared, f"replica-{n}", free_port()) for n in range(count)]
    balancer = Balancer.of(each.port for each in replicas)
    async with balancer.listening(port), running(replicas):
        async with asyncio.timeout(WITHIN_S):
            await balancer.wait_ready(count)
        home = folder / "access"
        home.mkdir()
        (home / WEB_TOKEN).write_text(shared.token)
        yield Cluster(shared, balancer, replicas, shared.address.rstrip("/"), home)


@pytest.mark.thorough
async def test_a_cluster_answers_while_one_replica_is_killed(
    tmp_path: Path, server: PostgresServer
) -> None:
    """It is left out, the others answer, and it comes back; a stop ends all with code 0."""
    async with cluster(tmp_path, server.url(server.create()), 3) as found:
        chat = WebChat(cast("ParleyProcess", found))
        await chat.ask("my name is Ada", WITHIN_S)
        victim = found.replicas[0]
        victim.kill()
        assert "Ada" in await chat.ask("what was my first message?", WITHIN_S)
        async with asyncio.timeout(WITHIN_S):
            # It is asked itself: the balancer may not have noticed yet that it was gone.
            while victim.lives < 2 or not await is_ready(victim.port):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
            await found.balancer.wait_ready(3)
        assert "Ada" in await chat.ask("and my first message now?", WITHIN_S)
        said = [item["markdown"] for item in chat.items if item["who"] != "parley"]
        assert said == ["my name is Ada", "what was my first message?", "and my first message now?"]
        assert len(chat.answers) == 3
    codes = [each.process.returncode for each in found.replicas if each.process is not None]
    assert codes == [0, 0, 0]


async def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    """Nothing is started then."""
    shared = Shared(tmp_path, "postgresql://parley@127.0.0.1:1/nowhere", "http://127.0.0.1:1/")
    with pytest.raises(RuntimeError, match="parley db migrate: "):
        await command(shared, "migration", "db", "migrate")
