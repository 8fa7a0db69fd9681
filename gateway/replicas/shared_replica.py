"""A replica among others, on PostgreSQL: shows that it lives, and takes over from those who do not.

Every `LOOK_S` it looks around over its own session (gateway/storage/presence.py), and renews where
that is due. Another one is dead

- where its time is over by the database's clock: a host that is gone, a process that stands still;
- where its lock was free at two looks: its process is gone. Who lives and has only lost the session
  has another name by the second one.

Where many could not renew, and have lost their locks, since the server or the way to it was away,
nobody is believed to be dead for a while.

It may itself be taken for dead: its row tells it so, the loss of its session, or a lease that it
could not renew. Then it drops its work, all of which is fenced, and begins anew under another id,
in the same process.
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
"""How often it looks around at rest."""
AGAIN_S = 0.3
"""How soon it looks again where a lock was free: the death of a process goes unnoticed for a second
at most, and who has only lost its session has so long to say so."""
TROUBLED_FOR_S = 5.0
"""How long after trouble with the server neither a free lock nor a time that is over proves it."""
TRY_AGAIN_S = 0.1
LONGEST_PAUSE_S = 1.0
"""Between two tries to begin anew, doubled each time."""
SHARE_LOOKS = 3
"""What a replica that is gone was allowed to send goes to the others after so many looks: until
then the platform still counts what it has sent."""

Loss = Literal["reaped", "session lost", "not renewed"]
"""Why it is not who it was: others took it for dead; its lock is free; its time is over."""


class SharedReplica(Replica):
    """This process, as one of several; `join` makes it."""

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
        """Register this process; nobody who lives is touched.

        Raises:
            StorageUnavailable: The server does not work now.
        """
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
        """Hint that there is something to be seen."""
        self._wake.set()

    @override
    async def run(self) -> NoReturn:
        """Look around until cancelled, and begin anew where it has to."""
        while True:
            loss = await self._attend()
            if loss is not None:
                await self._begin_anew(loss)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S if self._free else LOOK_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _attend(self) -> Loss | None:
        """Look around and do what is to be done; return why this replica has to begin anew."""
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
        # Whose look has worked is alive, however long it took to act on it: its row has said so. If
        # nobody has taken it for dead meanwhile, nobody needs to drop anything.
        is_late = found is None and time.monotonic() - self._renewed_at > leases.LEASE_S
        return "not renewed" if is_late else None

    async def _act(self, found: Surroundings) -> None:
        self.trials = dict(found.trials)
        self._divide(found.living)
        for dead in sorted(self._dead(found)):
            if self._is_due():
                # Many can be gone at once. Who takes over from all of them must not be late itself.
                self._wake.set()
                break
            await self._reap(dead, unlocked=dead in found.unlocked)
        await self._receive(found)

    def _is_due(self) -> bool:
        return time.monotonic() - self._renewed_at >= leases.LEASE_S / BEATS

    def _divide(self, living: int) -> None:
        """Share with so many what platforms let all send; sooner than later where it gets less."""
        if not self._living and living > 1:
            # The others do not know it yet, and send as much as they did.
            self._share.hold(2 * LOOK_S)
        self._living.append(living)
        self._share.of = max(self._living)

    def _dead(self, found: Surroundings) -> frozenset[int]:
        is_calm = time.monotonic() - self._troubled_at > TROUBLED_FOR_S < found.server_up_s
        gone, self._free = found.unlocked & self._free, found.unlocked
        # Behind a server that was away for longer than a lease nobody could have renewed.
        return found.expired | gone if is_calm else frozenset()

    async def _reap(self, dead: int, *, unlocked: bool) -> None:
        """Take over from one that is dead; what cannot be taken now is at a later look."""
        reap = replicas.reap
        try:
            inherited = await self._presence.run(reap, dead, unlocked=unlocked)
        except StorageError as exc:
            log.warning("reap_failed", replica=dead, error=str(exc))
            return
        if inherited is None:
            return
        cause = "process gone" if unlocked else "lease over"
        log.warning("replica_reaped", replica=dead, reason=cause)
        tell_of(inherited)
        self._tell()
        # What it received for is free now.
        self._wake.set()

    async def _receive(self, found: Surroundings) -> None:
        """Take the accounts that are free, and give back what is too much."""
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
            # First here: what comes in meanwhile is not stored, and comes again to the other one.
            accounts.want(of).lose()
            await self._presence.run(replicas.give_back, self.id, of)
            platform, account, shard = of
            log.info("account_given_back", platform=platform, account=account, shard=shard)

    async def _begin_anew(self, loss: Loss) -> None:
        """Drop all work, and go on as somebody else."""
        former, self.is_in = self.id, False
        log.warning("replica_lost", replica=former, reason=loss)
        self.accounts.lose_all()
        async with asyncio.TaskGroup() as tasks:
            # Work ends while the new name is asked for: before others take the old one for dead.
            for drop in self._drops:
                tasks.create_task(drop(), name="drop work")
            tasks.create_task(self._presence.close(), name="end session")
            presence = await self._entered(former)
        self._become(presence)
        if loss != "reaped":
            # From here on: others may be on their way back as well.
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
        """Give everything back, so that others go on with it at once; nothing works after that."""
        try:
            await self._presence.run(replicas.leave, self.id)
            log.info("replica_left", replica=self.id)
        except StorageError as exc:
            # The others find it gone.
            log.warning("leave_failed", replica=self.id, error=str(exc))

    @override
    async def close(self) -> None:
        """End the session: whoever has not left is dead from here on."""
        await self._presence.close()
