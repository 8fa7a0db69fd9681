"""The replica: this process among all that work on the database.

On SQLite it is the only one, and owns whatever an earlier process left unfinished. On PostgreSQL
there are others (gateway/replicas/shared_replica.py), which may take it for dead while it lives;
then it continues under a new id. So its id must not be kept.

There `AccountLeases` decides which replica receives for an account that allows only one receiver.
The rows are the truth (gateway/storage/queue/replicas.py): a replica that lost a lease unnoticed
stores nothing of what it receives. The leases spread evenly: a replica with less than its share
takes a free one at once, another waits for `PATIENCE_S`; one with more gives one back at times.
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
"""Renewals of a lease in its time."""
Drop = Callable[[], Coroutine[Any, Any, None]]
"""Ends work that belongs to another replica by now."""
Listener = Callable[[], None]
PATIENCE_S = 1.2
"""A replica with its share leaves a free lease to others for longer than they take to notice it."""
STEADY_S = 10.0
"""Time without changes before a replica gives something back."""


class AccountLease:
    """The right of this replica to receive for an account, or for a shard of it.

    Attributes:
        epoch: The fencing token; None while it is not held.
        elsewhere: Whether another replica has it.
        is_wanted: Whether it would be used.
    """

    def __init__(self, of: Receiving) -> None:
        self.of = of
        self.epoch: int | None = None
        self.elsewhere = False
        self.is_wanted = True
        self._held = asyncio.Event()
        self._lost = asyncio.Event()

    async def acquire(self) -> None:
        """Return as soon as this replica may receive."""
        await self._held.wait()

    async def gone(self) -> None:
        """Return as soon as it may not any more."""
        await self._lost.wait()

    def take(self, epoch: int) -> None:
        """Hold it from now on."""
        self.epoch, self.elsewhere = epoch, False
        self._lost.clear()
        self._held.set()

    def give_up(self) -> None:
        """Stop wanting it; it is given back at the next look around."""
        self.is_wanted = False

    def lose(self) -> None:
        """Stop holding it."""
        self.epoch = None
        self._held.clear()
        self._lost.set()


class AccountLeases:
    """The leases that this replica has, and those that it could have.

    Attributes:
        is_alone: Whether there is no other replica: then it needs no leases.
        replica: Its current id; 0 before it has one.
    """

    def __init__(self, *, is_alone: bool = False, clock: Clock = time.monotonic) -> None:
        self.is_alone = is_alone
        self.replica = 0
        self._clock = clock
        self._leases: dict[Receiving, AccountLease] = {}
        self._free_since: dict[Receiving, float] = {}
        self._changed_at = clock()

    def want(self, receiving: Receiving) -> AccountLease:
        """Return the lease of something that this replica could receive."""
        return self._leases.setdefault(receiving, AccountLease(receiving))

    @property
    def wanted(self) -> list[Receiving]:
        """All that it could receive."""
        return list(self._leases)

    def fence(self, platform: str, account: str) -> ReceivingFence | None:
        """Return the fence of an account's updates; None if any replica may receive for it."""
        its = [each for of, each in self._leases.items() if of[:2] == (platform, account)]
        if not its:
            return None
        held = tuple(each.epoch for each in its if each.epoch is not None)
        return ReceivingFence(self.replica, platform, account, held)

    def note(self, known: Receivers) -> None:
        """Note the owners of leases; one that another replica has is lost."""
        now = self._clock()
        for of, lease in self._leases.items():
            owner, epoch = known.get(of, (None, None))
            mine = epoch if owner == self.replica else None
            if lease.epoch is not None and lease.epoch != mine:
                self._changed_at = now
                lease.lose()
            if mine is not None and lease.epoch is None:
                # The answer to the COMMIT of taking it was lost, or of giving it back.
                self.take(of, mine)
            lease.elsewhere = owner not in {None, self.replica}
            if of in known and owner is None and lease.is_wanted:
                self._free_since.setdefault(of, now)
            else:
                self._free_since.pop(of, None)

    def to_take(self, living: int) -> list[Receiving]:
        """Return the free leases to take now, of so many living replicas."""
        held = sum(each.epoch is not None for each in self._leases.values())
        room, now = self._part(living) - held, self._clock()
        chosen: list[Receiving] = []
        for of, since in self._free_since.items():
            if len(chosen) < room or now - since >= PATIENCE_S:
                chosen.append(of)
        return chosen

    def to_give_back(self, living: int) -> list[Receiving]:
        """Return the leases to give to other replicas, of so many living ones."""
        held = {of: each for of, each in self._leases.items() if each.epoch is not None}
        unwanted = [of for of, each in held.items() if not each.is_wanted]
        is_steady = self._clock() - self._changed_at >= STEADY_S
        if unwanted or len(held) <= self._part(living) or not is_steady:
            return unwanted
        return list(held)[:1]

    def take(self, of: Receiving, epoch: int) -> None:
        """Hold a lease from now on, under this epoch."""
        self._free_since.pop(of, None)
        self._changed_at = self._clock()
        self._leases[of].take(epoch)

    def lose_all(self) -> None:
        """Lose all leases: this replica gets another id."""
        for lease in self._leases.values():
            if lease.epoch is not None:
                lease.lose()
        self._free_since.clear()
        self._changed_at = self._clock()

    def _part(self, living: int) -> int:
        return math.ceil(len(self._leases) / max(living, 1))


class Replica:
    """This process, as the only one that works on the database.

    Attributes:
        shared_id: Its id if there may be others; None if it is alone.
        trials: Seconds for which each suspect conversation runs alone at its first turn, which
            removes it.
        is_shared: Whether there may be others.
        is_in: Whether it may take work: not between two ids.
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
        """Return whether a replica's lease is still valid by this process's own clock."""
        return True

    def on_lost(self, drop: Drop) -> None:
        """Call `drop` if others have taken this replica for dead."""

    def on_news(self, listener: Listener) -> None:
        """Call `listener` if others have left something behind."""

    async def leave(self) -> None:
        """Give back what others could continue."""

    async def close(self) -> None:
        """Release its session of the database."""


def tell_of(inherited: Inheritance) -> None:
    """Log the conversations taken over from a dead replica, if any."""
    if inherited.conversations:
        log.info(
            "conversations_reclaimed",
            count=inherited.conversations,
            turns=inherited.ran,
            suspects=len(inherited.trials),
        )
