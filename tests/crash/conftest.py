"""Fixtures of the crash tests."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway.storage.maintenance import upgrade
from tests.support.crash import Crashes, Nursery
from tests.support.crash_cluster import Cluster
from tests.support.crash_platform import LoopbackPlatform
from tests.support.database_proxy import DatabaseProxy
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import HONEST, PostgresServer, postgres_server, server_at

REPLICAS = 3


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks gateways; it has imported everything once."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an empty, migrated database lies."""
    return tmp_path_factory.mktemp("template") / "parley.db"


@pytest.fixture
async def platform() -> AsyncIterator[LoopbackPlatform]:
    """The platform that outlives the gateways."""
    async with LoopbackPlatform() as platform:
        yield platform


@pytest.fixture
def crashes(
    nursery: Nursery, platform: LoopbackPlatform, template: Path, tmp_path: Path
) -> Iterator[Crashes]:
    """A fresh home with its platform."""
    crashes = Crashes(nursery, platform, tmp_path)
    crashes.migrate(template)
    yield crashes
    crashes.close()


@pytest.fixture(scope="session")
def cluster_server() -> Iterator[PostgresServer]:
    """A server whose commits hold when it crashes."""
    with postgres_server(HONEST) as server:
        yield server


@pytest.fixture(scope="session")
def cluster_template(cluster_server: PostgresServer) -> str:
    """The name of an empty, migrated database, to be copied."""
    return migrated(cluster_server)


def migrated(server: PostgresServer) -> str:
    """Make a database with the newest schema; returns its name."""
    name = server.create()
    upgrade(server_at(server.url(name)))
    return name


@pytest.fixture
async def cluster(
    nursery: Nursery, tmp_path: Path, cluster_server: PostgresServer, cluster_template: str
) -> AsyncIterator[Cluster]:
    """Three replicas' places on a fresh database, at a platform with one poller."""
    name = cluster_server.create(cluster_template)
    async with in_cluster(nursery, tmp_path, cluster_server, name) as cluster:
        yield cluster
    if not cluster_server.runs:
        cluster_server.spawn()
    cluster_server.wait_until_it_answers()
    cluster_server.drop(name)


@asynccontextmanager
async def in_cluster(
    nursery: Nursery,
    folder: Path,
    server: PostgresServer,
    database: str,
    pooler: PgBouncer | None = None,
) -> AsyncIterator[Cluster]:
    """Make the places of three replicas; whoever lives in them at the end is killed."""
    port = server.port if pooler is None else pooler.port
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(LoopbackPlatform(one_poller=True))
        proxies = [await stack.enter_async_context(DatabaseProxy(port)) for _ in range(REPLICAS)]
        cluster = Cluster(nursery, platform, folder, server, database, proxies, pooler)
        stack.callback(cluster.close)
        yield cluster
