"""A cluster in virtual time: real workers, a model of the rows, servers with service times.

`gateway.pipeline.worker.Worker` is the product's own, one for each replica: its line, slots,
polls, back-offs. Played are what stands around it: the rows of conversations (`Rows`, which
tests/bench/test_simulation.py holds against the real functions on SQLite), the time that the
database takes (`Queue`: so many cores, first come, first served) and what a turn does (`Turns`).
The clock jumps to the next timer, so an hour of a cluster takes as long as its events.
"""

import asyncio
import heapq
import random
import selectors
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import pytest
from typing_extensions import override

from adapters.messages import Address
from gateway.errors import LeaseLost
from gateway.pipeline.next_turn import NextStep, TurnStarter
from gateway.pipeline.turn import TurnRunner
from gateway.pipeline.worker import TurnKit, Worker
from gateway.replicas.replica import Replica
from gateway.replicas.shared_replica import LOOK_S
from gateway.settings.tree import QueueSettings
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.queue import leases
from gateway.storage.queue.leases import Lease

T = TypeVar("T")

ACCOUNT = ("telegram", "default")
_ADDRESS = Address(*ACCOUNT, "1")


class _JumpingLoop(asyncio.SelectorEventLoop):
    """Its time moves only when nothing is to be done; there are no sockets and no threads."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumps(self))

    @override
    def time(self) -> float:
        return self.now


class _Jumps(selectors.SelectSelector):
    def __init__(self, loop: _JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    @override
    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing will ever happen again"
        self._loop.now += timeout
        return []


def run_virtually(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a time of its own, which `time.monotonic` follows."""
    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        loop = runner.get_loop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic", loop.time)
            return runner.run(coroutine)


class Queue:
    """Servers with one line before them: how long work takes that somebody comes with now."""

    def __init__(self, servers: int) -> None:
        self._free_at = [0.0] * servers
        self.busy_s = 0.0

    def begins(self, now: float) -> float:
        """Return when a server is free for whoever comes now."""
        return max(now, self._free_at[0])

    def ends(self, now: float, service_s: float) -> float:
        """Take the first server that is free; return when the work is done."""
        ends = self.begins(now) + service_s
        heapq.heapreplace(self._free_at, ends)
        self.busy_s += service_s
        return ends

    def held(self, until: float) -> None:
        """Take the first server that is free, up to a moment."""
        heapq.heapreplace(self._free_at, until)

    def stall(self, until: float) -> None:
        """Let nothing begin before a moment: the servers are gone until then."""
        self._free_at = sorted(max(each, until) for each in self._free_at)


@dataclass(slots=True)
class Chat:
    """A conversation: who has it, its place in the line, and when what waits in it came."""

    id: int
    waits: deque[float] = field(default_factory=deque)
    owner: int | None = None
    epoch: int = 0
    ready: bool = False


class Rows:
    """What `gateway/storage/queue/leases.py` does, on conversations in memory."""

    def __init__(self) -> None:
        self.chats: dict[int, Chat] = {}
        self.line: dict[int, None] = {}
        self.owned: dict[int, dict[int, None]] = {}

    def admit(self, conversation: int, at: float) -> None:
        """Enter a message; its conversation is ready, unless it waits or is worked on already."""
        chat = self.chats.setdefault(conversation, Chat(conversation))
        chat.waits.append(at)
        if chat.owner is None and not chat.ready:
            self._make_ready(chat)

    def claim(self, replica: int, limit: int) -> list[Lease]:
        """Take the first ones of the line; return all that the replica owns."""
        for conversation in [each for _, each in zip(range(limit), self.line, strict=False)]:
            self._own(self.chats[conversation], replica)
        mine = self.owned.get(replica, {})
        return [self._lease(self.chats[each]) for each in mine]

    def take(self, replica: int, conversation: int) -> Lease | None:
        """Take one past the line; None where it is not ready."""
        chat = self.chats[conversation]
        if not chat.ready:
            return None
        self._own(chat, replica)
        return self._lease(chat)

    def release(self, lease: Lease) -> bool:
        """Give a conversation back; return whether it has work."""
        chat = self._leased(lease)
        self._disown(chat)
        if chat.waits:
            self._make_ready(chat)
        return bool(chat.waits)

    def look(self, lease: Lease) -> Lease:
        """Return a lease that holds."""
        return self._lease(self._leased(lease))

    def finish(self, lease: Lease) -> bool:
        """Take out what was answered; return whether the lease ended, since nothing waits."""
        chat = self._leased(lease)
        chat.waits.popleft()
        if not chat.waits:
            self._disown(chat)
        return not chat.waits

    def _leased(self, lease: Lease) -> Chat:
        chat = self.chats[lease.conversation]
        if (chat.owner, chat.epoch) != (lease.replica, lease.epoch):
            raise LeaseLost(f"conversation {chat.id} has another owner")
        return chat

    def _make_ready(self, chat: Chat) -> None:
        chat.ready = True
        self.line[chat.id] = None

    def _own(self, chat: Chat, replica: int) -> None:
        del self.line[chat.id]
        chat.ready, chat.owner, chat.epoch = False, replica, chat.epoch + 1
        self.owned.setdefault(replica, {})[chat.id] = None

    def _disown(self, chat: Chat) -> None:
        assert chat.owner is not None
        del self.owned[chat.owner][chat.id]
        chat.owner = None

    def _lease(self, chat: Chat) -> Lease:
        assert chat.owner is not None
        return Lease(chat.id, chat.owner, chat.epoch, _ADDRESS, shared=False)


@dataclass(frozen=True, slots=True)
class Times:
    """How long things take; milliseconds unless said otherwise.

    Attributes:
        database_ms: Of a core of the database, by transaction; `step` is a turn's record of a step,
            `deliver` what an answer takes on its way out.
        network_ms: There and back.
        replica_ms: Of the replica's core for a turn, in all.
        model_s: Median seconds of a turn's calls of models and tools.
        model_spread: Sigma of the logarithm of these seconds.
        steps: Records of a turn between its beginning and its end.
    """

    database_ms: dict[str, float]
    network_ms: float
    replica_ms: float
    model_s: float
    model_spread: float
    steps: int


class Cluster:
    """Replicas on one database.

    Attributes:
        waited: Seconds from each message to the beginning of its turn, by conversation, with when
            it came.
        calls: Transactions by kind, and claims that found nothing.
        claims_at: When each look at the line was made.
    """

    def __init__(
        self, replicas: int, queue: QueueSettings, times: Times, cores: int, seed: int
    ) -> None:
        self.rows = Rows()
        self.random = random.Random(seed)  # noqa: S311 - repeatable, guards nothing
        self.times = times
        self.database = Queue(cores)
        self.waited: list[tuple[int, float, float]] = []
        self.calls: Counter[str] = Counter()
        self.claims_at: list[float] = []
        self.running = self.most_running = 0
        self.replicas = [Member(self, n, queue) for n in range(1, replicas + 1)]

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return asyncio.get_running_loop().time()

    async def ask(self, member: "Member", kind: str, change: Callable[[], T]) -> T:
        """Run a transaction: wait for a connection of the replica and a core of the database.

        The rows change at its end, in one moment.
        """
        self.calls[kind] += 1
        service_s, way_s = self.times.database_ms[kind] / 1000, self.times.network_ms / 2000
        arrives = member.connections.begins(self.now) + way_s
        done = self.database.ends(arrives, service_s)
        member.connections.held(done + way_s)
        await asyncio.sleep(done - self.now)
        result = change()
        await asyncio.sleep(way_s)
        return result

    async def write(self, conversation: int) -> None:
        """Have a message come in at any replica, as by a load balancer or a poller."""
        member = self.random.choice(self.replicas)
        at = self.now
        await self.ask(member, "admit", partial(self.rows.admit, conversation, at))
        member.worker.notify(conversation)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a turn as running."""
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            yield
        finally:
            self.running -= 1


CONNECTIONS = 6
"""The default of `storage.connections`."""


class _OneOfSeveral(Replica):
    """A replica that knows of others; it looks around as `SharedReplica` does."""

    is_shared = True


class Member:
    """One replica: the real worker between played parts."""

    def __init__(self, cluster: Cluster, number: int, queue: QueueSettings) -> None:
        self.cluster = cluster
        self.id = number
        self.connections = Queue(CONNECTIONS)
        self.core = Queue(1)
        database = cast("Database", _Played(self))
        self.worker = Worker(
            database,
            _OneOfSeveral(database, number),
            TurnKit(cast("TurnStarter", _Starter(self)), cast("TurnRunner", _Runner(self)), queue),
            [ACCOUNT],
        )

    async def run(self) -> None:
        """Work until cancelled; replicas were started at different moments."""
        await asyncio.sleep(self.cluster.random.random())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.worker.run())
            tasks.create_task(self._look_around())

    async def _look_around(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.cluster.ask(self, "look", lambda: True)

    async def compute(self, share: float) -> None:
        """Take a share of a turn's time on the replica's core."""
        service_s = share * self.cluster.times.replica_ms / 1000
        now = self.cluster.now
        await asyncio.sleep(self.core.ends(now, service_s) - now)


@dataclass(frozen=True, slots=True)
class _Played:
    """What the worker writes, by the function that it hands over."""

    member: Member

    async def write(self, fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Run a function of `leases` on the rows in memory."""
        rows, cluster, member = self.member.cluster.rows, self.member.cluster, self.member
        if fn is leases.claim:
            cluster.claims_at.append(cluster.now)
            owned = len(rows.owned.get(member.id, {}))
            found = await cluster.ask(member, "claim", partial(rows.claim, member.id, args[1]))
            cluster.calls["claims in vain"] += len(found) <= owned
            return found
        if fn is leases.release:
            return await cluster.ask(member, "release", partial(rows.release, args[0]))
        assert fn is leases.ready_stuck, fn
        return await cluster.ask(member, "sweep", lambda: 0)


@dataclass(frozen=True, slots=True)
class _Turn:
    id: int
    lease: Lease
    first_seq: int = 1


@dataclass(frozen=True, slots=True)
class _Starter:
    """Begins turns as `next_turn` does, with the claim or under a lease that holds."""

    member: Member

    async def start(self, conversation: int, take: Any, *, counts: bool = True) -> NextStep | None:
        """Begin a turn about the oldest message; None where the conversation is not to be had."""
        member, cluster = self.member, self.member.cluster
        await member.compute(0.5)
        return await cluster.ask(member, "begin", partial(self._begin, conversation, take))

    def _begin(self, conversation: int, take: Any) -> NextStep | None:
        rows = self.member.cluster.rows
        lease: Lease | None
        if take.func is leases.look:
            lease = rows.look(take.keywords["lease"])
        else:
            assert take.func is leases.take, take
            lease = rows.take(self.member.id, conversation)
        if lease is None:
            return None
        if not rows.chats[conversation].waits:
            rows.release(lease)
            return NextStep(lease, None)
        return NextStep(lease, cast("Turn", _Turn(conversation, lease)))


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs a turn: calls of models, records of steps, the commit."""

    member: Member

    async def run(self, turn: _Turn) -> bool:
        """Answer; return whether the conversation was given back."""
        member, cluster = self.member, self.member.cluster
        came = cluster.rows.chats[turn.lease.conversation].waits[0]
        cluster.waited.append((turn.lease.conversation, came, cluster.now - came))
        times = cluster.times
        model_s = times.model_s * cluster.random.lognormvariate(0.0, times.model_spread)
        with cluster.counted():
            for _ in range(times.steps):
                await asyncio.sleep(model_s / times.steps)
                await cluster.ask(member, "step", lambda: None)
            await member.compute(0.5)
            finish = partial(cluster.rows.finish, turn.lease)
            released = await cluster.ask(member, "finish", finish)
        await cluster.ask(member, "deliver", lambda: None)
        return released
