"""The simulation: its rows behave as the real ones, and it notices what would be unfair."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import LeaseLost
from gateway.pipeline import worker
from gateway.storage.queue import leases
from gateway.storage.queue.leases import Lease
from gateway.storage.schema import conversation, inbox
from tests.bench import simulated
from tests.bench.simulated import Rows
from tests.bench.simulation import Result, backlogs, busy_chats, jain, percentile, stall, together
from tests.bench.simulation import simulated as simulation
from tests.support.storage import ACCOUNTS, Store, admit, inbound

CHATS, REPLICAS, STEPS = 6, 3, 300


@pytest.mark.parametrize("seed", range(3))
def test_the_rows_are_as_the_real_ones(database_file: Any, seed: int) -> None:
    """Random messages, claims, releases and ends: the same owners, epochs and line after each."""
    store = Store(database_file)
    both = _Both(store, random.Random(seed))  # noqa: S311 - repeatable, guards nothing
    for _ in range(STEPS):
        both.step()
        assert both.real_rows() == both.played_rows()
    store.close()


class _Both:
    """The same steps on the real rows and on the played ones."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store, self.rows, self.random = store, Rows(), chance
        self.replicas = [store.run(leases.register, f"r{n}") for n in range(REPLICAS)]
        self.held: list[Lease] = []
        for n in range(CHATS):
            here, _ = store.run(admit, inbound(chat=f"{n}"))
            self.rows.admit(here, 0.0)

    def step(self) -> None:
        """Do one thing."""
        do: Callable[[], None] = self.random.choice([
            self._admit,
            self._claim,
            self._take,
            self._release,
            self._finish,
        ])
        do()

    def real_rows(self) -> Any:
        found = self.store.rows(conversation)
        line = sorted((row.ready_no, row.id) for row in found if row.ready_no is not None)
        return [(row.id, row.owner, row.epoch) for row in found], [each for _, each in line]

    def played_rows(self) -> Any:
        chats = sorted(self.rows.chats.values(), key=lambda chat: chat.id)
        return [(chat.id, chat.owner, chat.epoch) for chat in chats], list(self.rows.line)

    def _admit(self) -> None:
        here, _ = self.store.run(admit, inbound(chat=f"{self.random.randrange(CHATS)}"))
        self.rows.admit(here, 0.0)

    def _claim(self) -> None:
        replica, limit = self.random.choice(self.replicas), self.random.randrange(3)
        real = self.store.run(leases.claim, replica, limit, ACCOUNTS)
        played = self.rows.claim(replica, limit)
        assert sorted(_short(each) for each in real) == sorted(_short(each) for each in played)
        self.held += real

    def _take(self) -> None:
        replica, here = self.random.choice(self.replicas), self.random.randrange(CHATS) + 1
        real = self.store.run(leases.take, replica, here, ACCOUNTS)
        played = self.rows.take(replica, here)
        assert (real is None) == (played is None)
        if real is not None:
            self.held.append(real.lease)

    def _release(self) -> None:
        if self.held:
            lease = self.random.choice(self.held)
            assert self._either(leases.release, lease) == self._played(self.rows.release, lease)

    def _finish(self) -> None:
        """Answer the oldest message, and release: the real end of a turn does both at once."""
        lease = self.random.choice(self.held) if self.held else None
        chat = None if lease is None else self.rows.chats[lease.conversation]
        if lease is None or chat is None or not chat.waits:
            return
        if (chat.owner, chat.epoch) != (lease.replica, lease.epoch):
            return
        self.store.run(_answer_oldest, lease.conversation)
        self._either(leases.release, lease)
        if not self.rows.finish(lease):
            self.rows.release(lease)

    def _either(self, function: Callable[..., Any], lease: Lease) -> Any:
        try:
            return self.store.run(function, lease)
        except LeaseLost:
            return LeaseLost

    def _played(self, function: Callable[[Lease], Any], lease: Lease) -> Any:
        try:
            return function(lease)
        except LeaseLost:
            return LeaseLost


def _short(lease: Lease) -> tuple[int, int, int]:
    return lease.conversation, lease.replica, lease.epoch


def _answer_oldest(conn: Any, here: int) -> None:
    waits = inbox.select().where(inbox.c.conversation == here, inbox.c.state == "queued")
    oldest = conn.execute(waits.order_by(inbox.c.seq).limit(1)).one()
    which = (inbox.c.conversation == here, inbox.c.seq == oldest.seq)
    conn.execute(inbox.update().where(*which).values(state="done"))


def small(trouble: Any = None, seconds: float = 90) -> Result:
    """Run three replicas for a minute and a half."""
    return simulation(trouble, replicas=3, seconds=seconds)


@pytest.mark.thorough
def test_ordinary_chats_wait_for_nobody() -> None:
    """Alone, and beside chats with backlogs and chats that never pause."""
    for trouble in (None, backlogs(50), busy_chats(50)):
        assert percentile(small(trouble).quiet, 0.99) < 1.0


@pytest.mark.thorough
def test_a_replica_that_takes_what_others_have_places_for_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a backlog of chats, and free places at others; as SQLite's one process does it."""
    fair = max(small(backlogs(90)).quiet)
    monkeypatch.setattr(simulated._OneOfSeveral, "is_shared", False)
    assert max(small(backlogs(90)).quiet) > 2 * fair


@pytest.mark.thorough
def test_without_a_limit_of_turns_a_backlog_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that never lets go of a busy chat: the others wait for it."""
    # More than there are places: they take turns, and so do the others with them.
    fair = len(small(busy_chats(500), seconds=180).quiet)
    monkeypatch.setattr(worker, "TURNS_PER_LEASE", 1_000_000)
    assert len(small(busy_chats(500), seconds=180).quiet) < 0.7 * fair


@pytest.mark.thorough
def test_a_worker_that_polls_too_often_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The looks at the line for a turn are counted."""
    before = small().cluster.calls["claim"]
    monkeypatch.setattr(worker, "POLL_S", 0.05)
    assert small().cluster.calls["claim"] > 10 * before


@pytest.mark.thorough
def test_a_stall_is_over_soon() -> None:
    """All come back at once, and what waited is begun."""
    result = small(stall)
    late = [waited for _, came, waited in result.cluster.waited if came > 40.0]
    assert max(late) < 1.0


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_figures() -> None:
    """Nothing of the real time gets in."""
    assert list(small().quiet) == list(small().quiet)


def test_fairness_is_one_where_all_have_the_same() -> None:
    """And falls where some have more."""
    assert jain(Counter({1: 5, 2: 5, 3: 5})) == 1.0
    assert jain(Counter({1: 30, 2: 1, 3: 1})) < 0.4


def test_what_is_made_at_once_is_counted() -> None:
    """In any window of that length."""
    assert together([0.0, 0.005, 0.009, 0.5, 0.505], within_s=0.01) == 3
    assert together([]) == 0


def test_virtual_time_takes_no_time() -> None:
    """An hour of sleep is over at once."""
    assert simulated.run_virtually(asyncio.sleep(3600.0, "slept")) == "slept"
