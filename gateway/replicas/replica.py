"""The replica: this process among all processes on the database.

On SQLite it is alone and owns everything an earlier process left unfinished. On PostgreSQL others
(gateway/replicas/shared_replica.py) may take it for dead while it is alive; then it continues under
a new id, so do not cache its id.

`AccountLeases` decides which replica receives for an account with a single receiver. The rows are
authoritative (gateway/storage/queue/replicas.py): a replica that lost a lease unnoticed cannot
store what it receives. Leases spread evenly: a replica below its share takes a free one at once,
others wait for `PATIENCE_S`; one above its share occasionally returns one.
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from adapters.base import Clock
from gateway.errors import StorageError
from gateway.storage.database import Database
from gateway.storage.queue import leases
from gateway.storage.queue.blame import Inheritance
from gateway.storage.queue.leases import Receivers, Receiving, ReceivingFence

log = structlog.get_logger()

BEATS = 4
"""Renewals per lease duration."""
Drop = Callable[[], Coroutine[Any, Any, None]]
"""Ends work that now belongs to another replica."""
Listener = Callable[[], None]
PATIENCE_S = 1.2
"""Seconds that a replica with its full share leaves a free lease to others."""
STEADY_S = 10.0
"""Seconds without changes before a replica returns a lease."""


class AccountLease:
    """This replica's right to receive for an account or shard.

    Attributes:
        epoch: The fencing token; None while not held.
        elsewhere: Whether another replica holds it.
        is_wanted: Whether this replica would use it.
    """

    def __init__(self, of: Receiving) -> None:
        self.of = of
        self.epoch: int | None = None
        self.elsewhere = False
        self.is_wanted = True
        self._held = asyncio.Event()
        self._lost = asyncio.Event()

    async def acquire(self) -> None:
        """Wait until this replica may receive."""
        await self._held.wait()

    async def gone(self) -> None:
        """Wait until the lease is lost."""
        await self._lost.wait()

    def take(self, epoch: int) -> None:
        """Take the lease."""
        self.epoch, self.elsewhere = epoch, False
        self._lost.clear()
        self._held.set()

    def give_up(self) -> None:
        """Stop wanting the lease; the next check returns it."""
        self.is_wanted = False

    def lose(self) -> None:
        """Lose the lease."""
        self.epoch = None
        self._held.clear()
        self._lost.set()


class AccountLeases:
    """The leases that this replica holds or could hold.

    Attributes:
        is_alone: Whether no other replica exists, so leases are unneeded.
        replica: The replica's current id; 0 before it has one.
    """

    def __init__(self, *, is_alone: bool = False, clock: Clock = time.monotonic) -> None:
        self.is_alone = is_alone
        self.replica = 0
        self._clock = clock
        self._leases: dict[Receiving, AccountLease] = {}
        self._free_since: dict[Receiving, float] = {}
        self._changed_at = clock()

    def want(self, receiving: Receiving) -> AccountLease:
        """Return the lease for a receiver that this replica could run."""
        return self._leases.setdefault(receiving, AccountLease(receiving))

    @property
    def wanted(self) -> list[Receiving]:
        """All receivers that this replica could run."""
        return list(self._leases)

    def fence(self, platform: str, account: str) -> ReceivingFence | None:
        """Return the fence of an account's updates; None if any replica may receive."""
        its = [each for of, each in self._leases.items() if of[:2] == (platform, account)]
        if not its:
            return None
        held = tuple(each.epoch for each in its if each.epoch is not None)
        return ReceivingFence(self.replica, platform, account, held)

    def note(self, known: Receivers) -> None:
        """Update the owners of leases; lose those held by another replica."""
        now = self._clock()
        for of, lease in self._leases.items():
            owner, epoch = known.get(of, (None, None))
            mine = epoch if owner == self.replica else None
            if lease.epoch is not None and lease.epoch != mine:
                self._changed_at = now
                lease.lose()
            if mine is not None and lease.epoch is None:
                # The response to a COMMIT that took or returned it was lost.
                self.take(of, mine)
            lease.elsewhere = owner not in {None, self.replica}
            if of in known and owner is None and lease.is_wanted:
                self._free_since.setdefault(of, now)
            else:
                self._free_since.pop(of, None)

    def to_take(self, living: int) -> list[Receiving]:
        """Return the free leases to take now, given the number of living replicas."""
        held = sum(each.epoch is not None for each in self._leases.values())
        room, now = self._part(living) - held, self._clock()
        chosen: list[Receiving] = []
        for of, since in self._free_since.items():
            if len(chosen) < room or now - since >= PATIENCE_S:
                chosen.append(of)
        return chosen

    def to_give_back(self, living: int) -> list[Receiving]:
        """Return the leases to give back, given the number of living replicas."""
        held = {of: each for of, each in self._leases.items() if each.epoch is not None}
        unwanted = [of for of, each in held.items() if not each.is_wanted]
        is_steady = self._clock() - self._changed_at >= STEADY_S
        if unwanted or len(held) <= self._part(living) or not is_steady:
            return unwanted
        return list(held)[:1]

    def take(self, of: Receiving, epoch: int) -> None:
        """Take a lease under this epoch."""
        self._free_since.pop(of, None)
        self._changed_at = self._clock()
        self._leases[of].take(epoch)

    def lose_all(self) -> None:
        """Lose all leases, because this replica gets a new id."""
        for lease in self._leases.values():
            if lease.epoch is not None:
                lease.lose()
        self._free_since.clear()
        self._changed_at = self._clock()

    def _part(self, living: int) -> int:
        return math.ceil(len(self._leases) / max(living, 1))


class Replica:
    """This process as the only one on the database.

    Attributes:
        shared_id: Its id if others may exist; None if alone.
        trials: Seconds of each suspect conversation's trial; its first turn removes the entry.
        is_shared: Whether others may exist.
        is_in: Whether it may take work; False between two ids.
    """

    is_shared = False

    def __init__(
        self, database: Database, replica_id: int, trials: Mapping[int, float] | None = None
    ) -> None:
        self.id = replica_id
        self.shared_id: int | None = None
        self.is_in = True
        self.trials = dict(trials or {})
        self._database = database

    async def run(self) -> None:
        """Renew the leases of this replica until cancelled."""
        while True:
            await asyncio.sleep(leases.LEASE_S / BEATS)
            try:
                await self._database.write(leases.heartbeat, self.id)
            except StorageError as exc:
                log.warning("heartbeat_failed", error=str(exc))

    def holds(self, _by: int | None) -> bool:
        """Whether a replica's lease is still valid by this process's clock."""
        return True

    def on_lost(self, drop: Drop) -> None:
        """Register `drop` for when others take this replica for dead."""

    def on_news(self, listener: Listener) -> None:
        """Register `listener` for work left behind by others."""

    async def leave(self) -> None:
        """Release everything that others could continue."""

    async def close(self) -> None:
        """Close its database session."""


def tell_of(inherited: Inheritance) -> None:
    """Log the conversations taken over from a dead replica, if any."""
    if inherited.conversations:
        log.info(
            "conversations_reclaimed",
            count=inherited.conversations,
            turns=inherited.ran,
            suspects=len(inherited.trials),
        )
