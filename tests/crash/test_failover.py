"""Whose replica is gone is answered by another one, and how soon; with the real lease.

A process that is killed is noticed by its connection, a host that is gone by its lease.
"""

import signal
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest

from gateway.storage.queue.leases import LEASE_S
from tests.support.crash import describe, until
from tests.support.crash_cluster import Cluster, Replica
from tests.support.crash_oracle import is_answer
from tests.support.thorough import DEEP, amount, deep

pytestmark = pytest.mark.timeout(600)

CHATS = "abcdefghi"
THINKS_S = 0.2
KILLS = amount(2, 2, 120)
KILLED_S = 2.0
"""What a chat of a killed replica may wait: the target, which `make test-deep` asserts."""
GONE_S = 2.0
"""Beside the lease, what a chat of a host that is gone may wait."""
SLACK_S = 0.0 if DEEP else LEASE_S - KILLED_S
"""Where several workers share two cores: sooner than a lease ends; the figures are printed."""
SHARE = 0.99 if DEEP else 0.5
"""Of the chats; of the dozen on a busy desk one was seen to wait for the lease."""


async def test_a_killed_replicas_chats_are_answered_at_once(cluster: Cluster) -> None:
    """SIGKILL in the middle of turns: from the kill to the answer, without waiting for a lease."""
    cluster.configure(think_s=THINKS_S, mode="followup")
    await cluster.run_all()
    waited: list[float] = []
    for _ in range(KILLS):
        written = [await cluster.write(chat) for chat in CHATS]
        busy = await at_work(cluster, written)
        victim, ids = max(busy.items(), key=lambda each: len(each[1]))
        killed_at = time.monotonic()
        await cluster.kill_off(victim)
        await cluster.platform.wait_for(cluster.all_answered, 120.0)
        waited += [at - killed_at for at in shown_at(cluster, ids)]
        cluster.run(victim)
    await cluster.stop_all()
    print(f"{len(waited)} chats of {KILLS} killed replicas: {figures(waited)}")
    assert percentile(waited, SHARE) <= KILLED_S + SLACK_S, figures(waited)
    assert not (found := cluster.violations()), describe(found, cluster)


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["before commit of commit", *deep("model: asked"), *deep("part")])
async def test_the_chats_of_a_host_that_is_gone_wait_for_its_lease(
    cluster: Cluster, point: str
) -> None:
    """It stops within a transaction, whose locks it keeps, or in between; or the network is parted.

    It starts over when it is there again.
    """
    cluster.configure(think_s=THINKS_S)
    # Who is there first asks for updates, and is told of its work first.
    gone, *others = cluster.replicas
    cluster.run(gone, pause=None if point == "part" else [point, 9])
    await cluster.platform.wait_for(lambda: cluster.platform.noted("ready"), 90.0)
    for each in others:
        cluster.run(each)
    await cluster.platform.wait_for(lambda: cluster.platform.noted("ready") >= 3, 90.0)
    written = [await cluster.write(chat) for chat in CHATS]
    if point == "part":
        busy = await at_work(cluster, written)
        gone = max(busy, key=lambda each: len(busy[each]))
        gone.proxy.stall()
    since = time.monotonic()
    if point != "part":
        # What waits behind other messages on a busy machine would not wait for the lease alone.
        while gone.pid not in cluster.paused:
            written += [await cluster.write(chat) for chat in CHATS]
            await cluster.platform.wait_for(
                lambda: gone.pid in cluster.paused or cluster.all_answered(), 120.0
            )
        since = cluster.paused[gone.pid]
    cluster.disturb_now(gone)
    written += [await cluster.write(chat) for chat in CHATS]
    await cluster.platform.wait_for(cluster.all_answered, 120.0)
    waited = [at - since for at in shown_at(cluster, written) if at > since]
    print(f"{point}: {figures(waited)}")
    assert max(waited) <= LEASE_S + GONE_S + THINKS_S + SLACK_S, figures(waited)
    cluster.disturb_now(gone)
    gone.proxy.flow()
    cluster.signal(gone, signal.SIGCONT)
    for chat in CHATS:
        await cluster.write(chat)
    await cluster.platform.wait_for(cluster.all_answered, 120.0)
    await cluster.stop_all()
    assert not (found := cluster.violations()), describe(found, cluster)


async def at_work(cluster: Cluster, ids: Sequence[str]) -> dict[Replica, list[str]]:
    """Wait until all of these are with a model; return whose replica's they are."""
    by_pid = {each.pid: each for each in cluster.replicas}
    asked: dict[str, int] = {}

    def all_are_asked() -> bool:
        asked.update((event["text"], event["pid"]) for event in cluster.events("model"))
        return asked.keys() >= set(ids)

    await until(all_are_asked)
    busy: dict[Replica, list[str]] = defaultdict(list)
    for each in ids:
        busy[by_pid[asked[each]]].append(each)
    return busy


def shown_at(cluster: Cluster, ids: Sequence[str]) -> list[float]:
    """Return when the answers to these were taken by the platform first, in monotonic seconds."""
    first: dict[str, float] = {}
    for text, at in cluster.platform.sent:
        if is_answer(text):
            for each in text.removeprefix("(re-sent) ").split()[0].split(","):
                first.setdefault(each, at)
    return [first[each] for each in ids]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of them does not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def figures(waited: Sequence[float]) -> str:
    """Return how long chats waited, in words."""
    p50, p99 = percentile(waited, 0.5), percentile(waited, 0.99)
    return f"p50 {p50:.2f} s, p99 {p99:.2f} s, at most {max(waited):.2f} s"
