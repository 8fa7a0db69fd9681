"""Three replicas on one PostgreSQL are disturbed again and again; then the oracle is asked.

`PARLEY_TEST_SEED=7 pytest tests/crash/test_cluster.py` repeats one episode, as far as three
processes and a database repeat anything: the seed draws what is done, not what happens.
"""

import asyncio
import math
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from tests.crash.points import COMMON, OUTSIDE, around
from tests.support.crash import describe, seeds
from tests.support.crash_cluster import Cluster, Replica
from tests.support.crash_script import LONG, SMALL_WINDOW

pytestmark = pytest.mark.timeout(600)

DISRUPTIONS = 50
"""In one episode; with one behind a pooler 4 episodes in `make test-all`, 120 in `make test-deep`,
and one at the desk, where the pooler has tests of its own."""
LEASE_S = 2.0
"""Twelve seconds in earnest: what takes that long is done in test_failover.py."""
CHATS = "abcdefgh"
VERBS = (
    *("", "", "", "note", "note look", "put long", "parts", "note put look parts"),
    *(LONG, LONG, LONG, "hand", "plan keep", "trouble", "huge note"),
)
OF_REPLICAS = ("attend", "take", "reap", "leave")
POINTS = [*around(*COMMON, "set_preview", "compact", *OF_REPLICAS, *OF_REPLICAS), *OUTSIDE]
AT_ONCE = 2
AT_WORK = 0.8
"""Of the disturbed: the others may not have begun yet."""
SLEEPS = 1.3
"""Leases for which a process sleeps that has stopped itself somewhere."""

Disruption = Callable[[Cluster, Replica, Random], Coroutine[Any, Any, bool]]
"""Returns whether it came to that."""


async def kill(cluster: Cluster, one: Replica, dice: Random) -> bool:
    """SIGKILL; another process takes the place."""
    await cluster.kill_off(one)
    begin(cluster, one, dice)
    return True


async def freeze(cluster: Cluster, one: Replica, dice: Random) -> bool:
    """SIGSTOP, mostly for longer than a lease, then SIGCONT."""
    cluster.signal(one, signal.SIGSTOP)
    await asyncio.sleep(LEASE_S * dice.choice([0.1, 1.3, 1.6]))
    cluster.disturb_now(one)
    cluster.signal(one, signal.SIGCONT)
    return one.runs


async def part(cluster: Cluster, one: Replica, dice: Random) -> bool:
    """Nothing gets through between a replica and the database, mostly for longer than a lease."""
    one.proxy.stall()
    await asyncio.sleep(LEASE_S * dice.choice([0.1, 1.3, 1.6]))
    cluster.disturb_now(one)
    one.proxy.flow()
    return one.runs


async def cut(cluster: Cluster, one: Replica, _: Random) -> bool:
    """All connections of a replica are reset."""
    cluster.disturb_now(one)
    one.proxy.cut()
    return one.runs


async def lose_commit(cluster: Cluster, one: Replica, dice: Random) -> bool:
    """A COMMIT, or the answer to it, is lost, together with its connection."""
    lost = one.proxy.lose_commit(dice.choice(["answer", "answer", "request"]))
    # Where it does not live at this moment there is none to be lost.
    await asyncio.wait([lost], timeout=LEASE_S)
    cluster.disturb_now(one)
    return lost.done() or not lost.cancel()


async def restart(cluster: Cluster, _: Replica, dice: Random) -> bool:
    """The database is stopped, or crashes, and comes back."""
    await cluster.restart_database(
        dice.choice(["fast", "immediate"]), away_s=dice.choice([0, 0, 0.5])
    )
    return True


OFTEN: dict[Disruption, int] = {kill: 6, freeze: 3, part: 3, cut: 3, lose_commit: 6, restart: 1}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", seeds(1, 3, 100))
async def test_disruptions_lose_and_repeat_nothing(cluster: Cluster, seed: int) -> None:
    """Fifty disruptions, some of them at the same time, while people write."""
    dice = Random(seed)  # noqa: S311 - repeatable on purpose
    await live_through(cluster, dice, OFTEN)
    told = f"{cluster.refused} starts refused, {cluster.late_copies()} late copies"
    print(f"seed {seed}: {dict(cluster.disruptions)}, {told}")
    assert sum(cluster.disruptions.values()) >= DISRUPTIONS
    assert not (found := cluster.violations()), describe(found, cluster)


async def live_through(cluster: Cluster, dice: Random, often: Mapping[Disruption, int]) -> None:
    """Draw how the cluster works, disturb it, and have everything be answered in the end."""
    style = dice.choice(["plain", "once", "edit"])
    cluster.platform.show_once = style == "once"
    window, debounce_ms = dice.choice([100_000, SMALL_WINDOW]), dice.choice([0, 5, 30])
    cluster.configure(
        style=style,
        # What is asked at once may outgrow a small window: then the model sees a part of it.
        mode=dice.choice(["collect", "followup"]) if window > SMALL_WINDOW else "followup",
        debounce_ms=debounce_ms if window > SMALL_WINDOW else 0,
        batch=dice.choice([1, 10]),
        window=window,
        attempts=100,
        lease_s=LEASE_S,
    )
    await cluster.run_all()
    await disturb(cluster, dice, often)
    await cluster.live_on()


async def disturb(cluster: Cluster, dice: Random, often: Mapping[Disruption, int]) -> None:
    """Disturb the replicas, at most two of them at once, while people write."""
    under_way: dict[asyncio.Task[None], Replica] = {}
    while (happened := sum(cluster.disruptions.values())) < DISRUPTIONS:
        if len(under_way) < min(AT_ONCE, DISRUPTIONS - happened):
            for _ in range(dice.randrange(3)):
                await cluster.write(dice.choice(CHATS), dice.choice(VERBS))
            await asyncio.sleep(dice.uniform(0.02, 0.2))
            at_rest = [each for each in cluster.replicas if each not in under_way.values()]
            await fill_places(cluster, at_rest, dice)
            one, [kind] = dice.choice(at_rest), dice.choices([*often], [*often.values()])
            under_way[asyncio.create_task(happens(kind, cluster, one, dice))] = one
        else:
            await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        for each in [task for task in under_way if task.done()]:
            each.result()
            del under_way[each]
    await asyncio.gather(*under_way)


async def happens(kind: Disruption, cluster: Cluster, one: Replica, dice: Random) -> None:
    """Disturb, mostly one that works, and count it if it came to that."""
    if dice.random() < AT_WORK:
        await cluster.at_work(one)
        await asyncio.sleep(dice.uniform(0, LEASE_S if one.faulty else 0.3))
        if not one.runs:
            return
    came = await kind(cluster, one, dice)
    # Not in one line: others of the kind may be counted while it is under way.
    cluster.disruptions[kind.__name__] += came


async def fill_places(cluster: Cluster, at_rest: Sequence[Replica], dice: Random) -> None:
    """Start a process where one is gone; wake those that have slept enough."""
    for one in at_rest:
        if time.monotonic() - cluster.paused.get(one.pid, math.inf) > LEASE_S * SLEEPS:
            del cluster.paused[one.pid]
            cluster.disturb_now(one)
            cluster.signal(one, signal.SIGCONT)
            cluster.disruptions["freeze at a point"] += 1
        if not one.runs:
            killed = await cluster.buried(one)
            cluster.disruptions["kill at a point"] += killed
            begin(cluster, one, dice)


def begin(cluster: Cluster, one: Replica, dice: Random) -> None:
    """Start a process, which may be told to kill or to stop itself somewhere."""
    at_point = [dice.choice(POINTS), dice.randint(1, 4)]
    does = dice.choices(["kill", "pause", "live"], [3, 2, 5])[0]
    cluster.run(one, **({} if does == "live" else {does: at_point}))
