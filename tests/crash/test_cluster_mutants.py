"""The oracle must find what the design forbids: replicas on PostgreSQL with a flaw built in."""

import signal

import pytest

from tests.support.crash import KILLED, describe
from tests.support.crash_cluster import Cluster

pytestmark = pytest.mark.timeout(300)

LEASE_S = 5.0
"""A busy machine keeps a process waiting for two seconds and more."""
NOTED_TWICE = "m1-note: the side effect happened 2 times"


@pytest.mark.thorough
async def test_acknowledging_before_the_commit_is_caught(cluster: Cluster) -> None:
    """A message that the platform forgot and the database never had is missed."""
    cluster.excuse(await cluster.write("a"))
    one = cluster.replicas[0]
    point = ["before commit of admit_all", 1]
    cluster.run(one, mutant="acknowledge before commit", kill=point)
    assert await cluster.end_of(one) == KILLED
    await cluster.write("a")
    await cluster.live_on()
    assert cluster.violations() == ["chat a: acknowledged ['m1', 'm2'], stored ['m2']"]


@pytest.mark.thorough
async def test_a_zombie_writes_nothing(cluster: Cluster) -> None:
    """A replica that slept while another one took over finds its token stale, and starts over."""
    await wake_a_zombie(cluster)
    assert not (found := cluster.violations()), describe(found, cluster)


@pytest.mark.thorough
async def test_a_missing_fence_is_caught(cluster: Cluster) -> None:
    """Without it the zombie repeats the side effect and writes into the transcript."""
    await wake_a_zombie(cluster, zombie="no fence")
    assert NOTED_TWICE in cluster.violations()


@pytest.mark.thorough
async def test_a_zombie_claim_is_caught(cluster: Cluster) -> None:
    """Who goes on under a living replica's name, with its tokens, does not keep it out."""
    await wake_a_zombie(cluster, successor="zombie claim")
    assert NOTED_TWICE in cluster.violations()


async def test_two_pollers_are_caught(cluster: Cluster) -> None:
    """Replicas that all ask for updates meet at the platform."""
    cluster.configure(mutant="two pollers")
    await cluster.run_all()
    await cluster.write("a")
    await cluster.platform.wait_for(lambda: len(cluster.platform.conflicts) > 1, 90.0)
    await cluster.platform.wait_for(cluster.all_answered, 90.0)
    await cluster.stop_all()
    assert any("asked for updates at the same time" in each for each in cluster.violations())


async def wake_a_zombie(
    cluster: Cluster, *, zombie: str | None = None, successor: str | None = None
) -> None:
    """Stop a replica in mid-turn, let another one take over, wake the first one beside it."""
    platform = cluster.platform
    cluster.configure(lease_s=LEASE_S)
    first, second, _ = cluster.replicas
    await cluster.write("a", "gate note look")
    cluster.run(first, pause=["model: asked", 1], mutant=zombie)
    await platform.wait_for(lambda: platform.noted("paused"), 90.0)
    cluster.disturb_now(first)
    cluster.run(second, mutant=successor)
    await platform.wait_for(lambda: platform.gate.reached >= 1, 90.0)
    cluster.disturb_now(first)
    cluster.signal(first, signal.SIGCONT)
    if zombie or successor:
        await platform.wait_for(lambda: platform.gate.reached >= 2, 90.0)
        await platform.open_gate(first.pid)
        await platform.wait_for(lambda: platform.gate.reached >= 3, 90.0)
        await platform.open_gate(second.pid)
        await platform.wait_for(lambda: platform.gate.reached >= 4, 90.0)
    await platform.open_gate()
    await platform.wait_for(cluster.all_answered, 90.0)
    await cluster.stop_all()
