"""Three replicas behind PgBouncer in transaction mode, whose sessions they share, are disturbed.

Each reaches it by a way of its own, and the database past it by another one, which stays: the lock
that shows that it lives, and its notices.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from tests.crash.conftest import in_cluster
from tests.crash.test_cluster import DISRUPTIONS, OFTEN, Disruption, live_through
from tests.support.crash import Nursery, describe, seeds
from tests.support.crash_cluster import Cluster, Replica
from tests.support.pgbouncer import TAKES_PGBOUNCER, pgbouncer
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.timeout(600), TAKES_PGBOUNCER]

CHATS = "abcdef"


@pytest.fixture
async def cluster(
    nursery: Nursery, tmp_path: Path, cluster_server: PostgresServer, cluster_template: str
) -> AsyncIterator[Cluster]:
    """Three replicas' places behind a pooler."""
    name = cluster_server.create(cluster_template)
    with pgbouncer(cluster_server) as pooler:
        async with in_cluster(nursery, tmp_path, cluster_server, name, pooler) as cluster:
            yield cluster
    if not cluster_server.runs:
        cluster_server.spawn()
    cluster_server.wait_until_it_answers()
    cluster_server.drop(name)


async def restart_pooler(cluster: Cluster, _: Replica, dice: Random) -> bool:
    """The pooler is killed and comes back."""
    await cluster.restart_pooler(away_s=dice.choice([0.0, 0.0, 0.5]))
    return True


BEHIND: dict[Disruption, int] = {**OFTEN, restart_pooler: 3}


@pytest.mark.parametrize("seed", seeds(0, 1, 20))
async def test_disruptions_lose_and_repeat_nothing(cluster: Cluster, seed: int) -> None:
    """Fifty disruptions as without it, and ends of the pooler itself."""
    dice = Random(seed)  # noqa: S311 - repeatable on purpose
    await live_through(cluster, dice, BEHIND)
    print(f"seed {seed}: {dict(cluster.disruptions)}")
    assert sum(cluster.disruptions.values()) >= DISRUPTIONS
    assert not (found := cluster.violations()), describe(found, cluster)


@pytest.mark.thorough
async def test_a_restart_of_the_pooler_costs_no_attempt(cluster: Cluster) -> None:
    """Replicas live on past it: nobody is taken for dead, and no turn is blamed."""
    await cluster.run_all()
    for chat in CHATS:
        await cluster.write(chat, "gate note")
    await cluster.platform.wait_for(lambda: cluster.platform.gate.reached >= len(CHATS), 90.0)
    replicas = cluster.rows("SELECT id FROM replica ORDER BY id")
    for _ in range(3):
        await cluster.restart_pooler(away_s=0.5)
    await cluster.platform.open_gate()
    await cluster.platform.wait_for(cluster.all_answered, 120.0)
    assert cluster.rows("SELECT id FROM replica ORDER BY id") == replicas
    await cluster.stop_all()
    assert not (found := cluster.violations()), describe(found, cluster)
    assert {deaths for (deaths,) in cluster.rows("SELECT deaths FROM turn")} == {0}


async def test_a_killed_replica_is_replaced(cluster: Cluster) -> None:
    """Its sessions are the pooler's; the lock that shows that it lived was past it."""
    await cluster.run_all()
    for chat in CHATS:
        await cluster.write(chat, "gate note")
    await cluster.platform.wait_for(lambda: cluster.platform.gate.reached >= len(CHATS), 90.0)
    dead = cluster.replicas[0]
    await cluster.kill_off(dead)
    await cluster.platform.open_gate()
    await cluster.platform.wait_for(cluster.all_answered, 90.0)
    frozen = cluster.replicas[1]
    cluster.signal(frozen, signal.SIGSTOP)
    for chat in CHATS:
        await cluster.write(chat, "note")
    await asyncio.sleep(0.2)
    cluster.disturb_now(frozen)
    cluster.signal(frozen, signal.SIGCONT)
    await cluster.live_on()
    assert not (found := cluster.violations()), describe(found, cluster)
