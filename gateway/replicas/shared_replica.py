"""A replica among others on PostgreSQL: proves that it is alive and takes over from dead ones.

Every `LOOK_S` it checks the others over its own session (gateway/storage/presence.py) and renews
its lease when due. Another replica is dead

- if its lease has expired by the database's clock: its host is gone or its process hangs;
- if its lock was free at two checks: its process is gone. A living replica that only lost its
  session has a new id by the second check.

After a database outage, when many could not renew, no replica counts as dead for a while.

It may itself be taken for dead, as shown by its row, a lost session or an expired lease. Then it
drops its work, all of which is fenced, and starts over under a new id.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NoReturn

import structlog
from typing_extensions import override

from adapters.base import Share
from gateway.errors import StorageError
from gateway.replicas.replica import BEATS, AccountLeases, Drop, Replica, tell_of
from gateway.storage.database import Database, DatabaseServer
from gateway.storage.presence import Presence
from gateway.storage.queue import leases, replicas
from gateway.storage.queue.blame import Death
from gateway.storage.queue.leases import Receiving
from gateway.storage.queue.replicas import Surroundings

log = structlog.get_logger()

LOOK_S = 0.7
"""Seconds between checks."""
AGAIN_S = 0.3
"""Pause after a free lock: a dead process is noticed within a second, and one that only lost its
session has this long to get a new id."""
TROUBLED_FOR_S = 5.0
"""Seconds after a database outage during which neither a free lock nor an expired lease proves a
death."""
TRY_AGAIN_S = 0.1
LONGEST_PAUSE_S = 1.0
"""Longest pause between attempts to start over; doubles each time."""
SHARE_LOOKS = 3
"""Checks before others get a dead replica's share of platform limits: until then the platform still
counts its messages."""

Loss = Literal["reaped", "session lost", "not renewed"]
"""Why it needs a new id: others took it for dead; its lock was lost; its lease expired."""


class SharedReplica(Replica):
    """This process as one of several; created by `join`."""

    is_shared = True

    def __init__(
        self,
        database: Database,
        server: DatabaseServer,
        place: str,
        presence: Presence,
        accounts: AccountLeases,
        share: Share,
    ) -> None:
        super().__init__(database, presence.replica_id)
        self.accounts = accounts
        self._server, self._place, self._share = server, place, share
        self._troubled_at = float("-inf")
        self._living: deque[int] = deque(maxlen=SHARE_LOOKS)
        self._offered: set[Receiving] = set()
        self._wake = asyncio.Event()
        self._become(presence)
        self._drops: list[Drop] = []
        self._listeners: list[Callable[[], None]] = []

    @classmethod
    async def join(
        cls,
        database: Database,
        server: DatabaseServer,
        place: str,
        death: Death,
        accounts: AccountLeases,
        share: Share,
    ) -> "SharedReplica":
        """Register this process without affecting living replicas."""
        presence, inherited = await Presence.enter(server, place, death)
        log.info("replica_joined", replica=presence.replica_id)
        tell_of(inherited)
        joined = cls(database, server, place, presence, accounts, share)
        joined.trials = inherited.trials
        return joined

    def _become(self, presence: Presence) -> None:
        presence.on_lost = self._wake.set
        self._presence = presence
        self._renewed_at = time.monotonic()
        self._free: frozenset[int] = frozenset()
        self.id = self.shared_id = self.accounts.replica = presence.replica_id
        self.is_in = True

    @override
    def holds(self, by: int | None) -> bool:
        return by in {None, self.id} and time.monotonic() - self._renewed_at < leases.LEASE_S

    @override
    def on_lost(self, drop: Drop) -> None:
        self._drops.append(drop)

    @override
    def on_news(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def look(self) -> None:
        """Check at once."""
        self._wake.set()

    @override
    async def run(self) -> NoReturn:
        """Check until cancelled, starting over when needed."""
        while True:
            loss = await self._attend()
            if loss is not None:
                await self._start_over(loss)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S if self._free else LOOK_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _attend(self) -> Loss | None:
        """Check and act; return the reason to start over, or None."""
        began, renews = time.monotonic(), self._is_due()
        found: Surroundings | None = None
        try:
            found = await self._presence.run(replicas.attend, self.id, renews=renews)
            if found is None:
                return "reaped"
            if renews:
                self._renewed_at = began
            await self._act(found)
        except StorageError as exc:
            log.warning("heartbeat_failed", error=str(exc))
        if self._presence.is_lost:
            return "session lost"
        # After a successful check it is alive, no matter how long acting on it took.
        is_late = found is None and time.monotonic() - self._renewed_at > leases.LEASE_S
        return "not renewed" if is_late else None

    async def _act(self, found: Surroundings) -> None:
        self.trials = dict(found.trials)
        self._divide(found.living)
        for dead in sorted(self._dead(found)):
            if self._is_due():
                # Taking over from many must not delay its renewal.
                self._wake.set()
                break
            await self._reap(dead, unlocked=dead in found.unlocked)
        await self._receive(found)

    def _is_due(self) -> bool:
        return time.monotonic() - self._renewed_at >= leases.LEASE_S / BEATS

    def _divide(self, living: int) -> None:
        """Divide platform limits among the replicas; at once if the share shrinks."""
        if not self._living and living > 1:
            # The others do not know this replica yet and still send as before.
            self._share.hold(2 * LOOK_S)
        self._living.append(living)
        self._share.of = max(self._living)

    def _dead(self, found: Surroundings) -> frozenset[int]:
        is_calm = time.monotonic() - self._troubled_at > TROUBLED_FOR_S < found.server_up_s
        gone, self._free = found.unlocked & self._free, found.unlocked
        # During a database outage longer than a lease, no replica can renew.
        return found.expired | gone if is_calm else frozenset()

    async def _reap(self, dead: int, *, unlocked: bool) -> None:
        """Take over from a dead replica; after an error, retry at a later check."""
        try:
            inherited = await self._presence.run(replicas.reap, dead, unlocked=unlocked)
        except StorageError as exc:
            log.warning("reap_failed", replica=dead, error=str(exc))
            return
        if inherited is None:
            return
        cause = "process gone" if unlocked else "lease over"
        log.warning("replica_reaped", replica=dead, reason=cause)
        tell_of(inherited)
        self._tell()
        # Its account leases are free now.
        self._wake.set()

    async def _receive(self, found: Surroundings) -> None:
        """Take free accounts and give back those beyond its share."""
        accounts = self.accounts
        if missing := [each for each in accounts.wanted if each not in self._offered]:
            await self._presence.run(replicas.offer, missing)
            self._offered.update(missing)
            self._wake.set()
        accounts.note(found.receivers)
        for of in accounts.to_take(found.living):
            epoch = await self._presence.run(replicas.take, self.id, of)
            if epoch is not None:
                accounts.take(of, epoch)
                platform, account, shard = of
                log.info("account_taken", platform=platform, account=account, shard=shard)
        for of in accounts.to_give_back(found.living):
            # Lose it here first: updates meanwhile are not stored and come again elsewhere.
            accounts.want(of).lose()
            await self._presence.run(replicas.give_back, self.id, of)
            platform, account, shard = of
            log.info("account_given_back", platform=platform, account=account, shard=shard)

    async def _start_over(self, loss: Loss) -> None:
        """Drop all work and continue under a new id."""
        former, self.is_in = self.id, False
        log.warning("replica_lost", replica=former, reason=loss)
        self.accounts.lose_all()
        async with asyncio.TaskGroup() as tasks:
            # End the work before others take the old id for dead.
            for drop in self._drops:
                tasks.create_task(drop(), name="drop work")
            tasks.create_task(self._presence.close(), name="end session")
            presence = await self._entered(former)
        self._become(presence)
        if loss != "reaped":
            # Others may be coming back as well.
            self._troubled_at = time.monotonic()
        log.info("replica_joined", replica=self.id, former=former)
        self._tell()

    async def _entered(self, former: int) -> Presence:
        pause_s = TRY_AGAIN_S
        while True:
            try:
                presence, _ = await Presence.enter(self._server, self._place, replicas.LEFT, former)
            except StorageError as exc:
                log.warning("join_failed", former=former, error=str(exc))
            else:
                return presence
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    @override
    async def leave(self) -> None:
        """Release everything, so that others continue at once; call this last."""
        try:
            await self._presence.run(replicas.leave, self.id)
            log.info("replica_left", replica=self.id)
        except StorageError as exc:
            # The others will notice.
            log.warning("leave_failed", replica=self.id, error=str(exc))

    @override
    async def close(self) -> None:
        """End the session; without `leave`, this replica now counts as dead."""
        await self._presence.close()
