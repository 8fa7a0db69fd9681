"""A cluster that is larger than this machine: 50 replicas, 20,000 chats an hour of activity each.

Simulated, not measured: the scheduler is the product's own (`gateway/pipeline/worker.py`), database
and model are their service times, the time is virtual (tests/bench/simulated.py). It shows whether
chats are treated alike, whether replicas run to the same rows, and whether a chat waits behind
another one's backlog. It says nothing about the speed of real machines: that is measured by
`python -m tests.bench scaling`.
"""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.settings.tree import QueueSettings
from tests.bench.figures import Figure, percentile
from tests.bench.page import ROOT
from tests.bench.simulated import Cluster, Times, run_virtually

PAGE = ROOT / "docs" / "scaling.md"
REPLICAS = 50
CHATS_AN_HOUR = 20_000
CORES = 16
"""Of the database."""
MINUTES = 3
SEED = 17

TIMES = Times(
    # Half of what issue 17 allows for a turn (2 ms) is shared out as the statements are.
    database_ms={
        "admit": 0.3,
        "claim": 0.3,
        "begin": 0.4,
        "step": 0.2,
        "finish": 0.5,
        "release": 0.2,
        "deliver": 0.4,
        "look": 0.1,
        "sweep": 1.0,
    },
    network_ms=0.5,
    replica_ms=10.0,
    model_s=4.0,
    model_spread=0.8,
    steps=2,
)
"""Longer than what was measured on this machine (docs/scaling.md); the model's are assumed."""

BACKLOGS, BACKLOG = 200, 400
"""Chats that come with so many messages at once."""
BUSY = 500
"""Chats in which always something waits."""
STARTED_S = 30.0
"""Until then nothing is troubled, and nothing is counted that comes of the start."""
STALL_S = 5.0
TOGETHER_S = 0.01
"""Looks at the line within this time are made at once."""


@dataclass(frozen=True, slots=True)
class Result:
    """What happened.

    Attributes:
        quiet: Seconds that each message of an ordinary chat waited for its turn.
        turns: Turns by chat, of those with much to do.
        cluster: All else.
        lasted_s: Virtual time.
    """

    quiet: Sequence[float]
    turns: Counter[int]
    cluster: Cluster
    lasted_s: float


Trouble = Callable[[Cluster], Awaitable[None]]


def measure() -> Iterator[Figure]:
    """Yield what ordinary chats wait: alone, beside backlogs and busy chats, after a stall."""
    alone = simulated()
    yield from _load(alone)
    yield from _waits("alone", alone)
    yield from _herd(alone)
    beside = simulated(backlogs(BACKLOGS))
    yield from _waits(f"beside {BACKLOGS} chats with {BACKLOG} messages each", beside)
    busy = simulated(busy_chats(BUSY))
    yield from _waits(f"beside {BUSY} chats that never pause", busy)
    yield Figure("… turns of these chats: fairness (Jain)", jain(busy.turns), "", at_least=0.95)
    after = simulated(stall)
    yield from _after_stall(after)


def simulated(
    trouble: Trouble | None = None,
    *,
    replicas: int = REPLICAS,
    chats_an_hour: float = CHATS_AN_HOUR,
    seconds: float = MINUTES * 60,
    queue: QueueSettings | None = None,
) -> Result:
    """Run a cluster in virtual time; each message of an ordinary chat is in another chat."""
    # Each message is a turn of its own: what waits in a chat is a backlog, not one question.
    settings = queue or QueueSettings(mode="followup", debounce_ms=0, max_pending=100_000)
    return run_virtually(_run(replicas, chats_an_hour, seconds, settings, trouble))


async def _run(
    replicas: int,
    chats_an_hour: float,
    seconds: float,
    queue: QueueSettings,
    trouble: Trouble | None,
) -> Result:
    cluster = Cluster(replicas, queue, TIMES, CORES, SEED)
    quiet_from = 1_000_000
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in cluster.replicas]
        if trouble is not None:
            running.append(tasks.create_task(_troubled(cluster, trouble)))
        rate = replicas * chats_an_hour / 3600
        chat = quiet_from
        while cluster.now < seconds:
            await asyncio.sleep(cluster.random.expovariate(rate))
            tasks.create_task(cluster.write(chat))
            chat += 1
        for each in running:
            each.cancel()
    quiet = [waited for chat, _, waited in cluster.waited if chat >= quiet_from]
    turns = Counter(chat for chat, _, _ in cluster.waited if chat < quiet_from)
    return Result(quiet, turns, cluster, cluster.now)


async def _troubled(cluster: Cluster, trouble: Trouble) -> None:
    """Begin the trouble once all is under way."""
    await asyncio.sleep(STARTED_S)
    await trouble(cluster)


def backlogs(chats: int, messages: int = BACKLOG) -> Trouble:
    """Return what has some chats come with many messages at once."""

    async def come(cluster: Cluster) -> None:
        for chat in range(chats):
            for _ in range(messages):
                cluster.rows.admit(chat, cluster.now)

    return come


def busy_chats(chats: int) -> Trouble:
    """Return what has some chats always have something that waits."""
    return backlogs(chats, messages=1000)


async def stall(cluster: Cluster) -> None:
    """Have the database stand still, so that all replicas come back at the same moment."""
    cluster.database.stall(cluster.now + STALL_S)


def jain(turns: Counter[int]) -> float:
    """Return Jain's index of what each chat had: 1 where all had the same."""
    counts = list(turns.values()) or [1]
    return sum(counts) ** 2 / (len(counts) * sum(each * each for each in counts))


def _load(result: Result) -> Iterator[Figure]:
    cluster, turns = result.cluster, len(result.cluster.waited)
    yield Figure("replicas", len(cluster.replicas), "")
    yield Figure("messages", turns / result.lasted_s, "/s")
    yield Figure("turns at the same time, at most", cluster.most_running, "")
    share = cluster.database.busy_s / (CORES * result.lasted_s)
    yield Figure(f"use of {CORES} cores of the database", share * 100, "%", at_most=50)


def _waits(name: str, result: Result) -> Iterator[Figure]:
    what = f"an ordinary chat's wait for its turn, {name}"
    yield Figure(f"{what}, p50", percentile(result.quiet, 0.5) * 1000, "ms")
    yield Figure(f"{what}, p99", percentile(result.quiet, 0.99) * 1000, "ms", at_most=100)
    yield Figure(f"… {name}, longest", max(result.quiet) * 1000, "ms", at_most=2000)


def _herd(result: Result) -> Iterator[Figure]:
    cluster, turns = result.cluster, len(result.cluster.waited)
    calls = cluster.calls
    yield Figure("looks at the line for a turn", calls["claim"] / turns, "", at_most=1)
    all_calls = sum(count for kind, count in calls.items() if kind != "claims in vain")
    yield Figure("transactions for a turn", all_calls / turns, "", at_most=7)
    # Not those of the first second, in which all of them are started.
    most = together([at for at in cluster.claims_at if at > STARTED_S])
    yield Figure("looks at the line within 10 ms, at most", most, "", at_most=REPLICAS / 2)
    spent = calls["claim"] * TIMES.database_ms["claim"] / 1000 / cluster.database.busy_s
    yield Figure("part of the database's time for looks at the line", spent * 100, "%", at_most=10)


def together(moments: Sequence[float], within_s: float = TOGETHER_S) -> int:
    """Return how many moments lie within such a time, at most."""
    ordered = sorted(moments)
    return max(
        (bisect_right(ordered, at + within_s) - n for n, at in enumerate(ordered)), default=0
    )


def _after_stall(result: Result) -> Iterator[Figure]:
    """Yield how long a database that stood still is felt by those who come after it."""
    over = STARTED_S + STALL_S
    late = [came for chat, came, waited in result.cluster.waited if came > over and waited > 1.0]
    felt_s = max(late, default=over) - over
    yield Figure(f"after a stall of {STALL_S:.0f} s: waits beyond 1 s for", felt_s, "s", at_most=3)
    waited = [waited for _, came, waited in result.cluster.waited if came > over + 5.0]
    p99_ms = percentile(waited, 0.99) * 1000
    yield Figure("… 5 s after it, p99", p99_ms, "ms", at_most=1000)
