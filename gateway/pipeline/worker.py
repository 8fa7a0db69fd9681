"""The worker: claims conversations, runs their turns, releases them.

A conversation has a task only while it has work. Turns of one conversation run one after another
under its lease; at most `queue.max_concurrent_turns` conversations run concurrently.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from agent.network import in_words
from agent.processes import descriptors
from agent.spans import trace_of
from gateway.errors import CommitUnknown, LeaseLost, StorageError, StorageUnavailable
from gateway.pipeline.next_turn import NextStep, Take, TurnStarter
from gateway.pipeline.turn import TurnRunner
from gateway.replicas.replica import Replica
from gateway.settings.tree import QueueSettings
from gateway.storage.conversation import turns
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.queue import leases
from gateway.storage.queue.leases import Held, Lease
from gateway.supervision.crash_journal import as_turn

log = structlog.get_logger()

TURNS_PER_LEASE = 6
"""Turns before a busy conversation returns to the end of the queue."""
POLL_S = 1.0
"""Seconds until a lost wake-up, or the end of a back-off or debounce, is noticed."""
SWEEP_S = 30.0
DROPPED_WITHIN_S = 5.0
"""Longest wait for dropped work, in seconds; work that runs on can no longer write."""
MOST_DEBOUNCES = 5
"""A burst that never pauses is answered after this many times `queue.debounce_ms`."""
RETRY_AFTER_S = 2.0
LONGEST_RETRY_S = 54.0
"""Longest back-off after an unexpected exception, in seconds; it doubles with each attempt.

Below `leases.LONGEST_BACKOFF_S`, like every stored back-off."""


class BeganNothing(Exception):
    """A conversation is ready but has nothing to begin: one of its rows is damaged."""


@dataclass(slots=True, eq=False)
class TurnKit:
    """Starts and runs turns under one version of the settings.

    Attributes:
        places: Limit of concurrent turns; lower than configured if file descriptors are scarce.
    """

    starter: TurnStarter
    runner: TurnRunner
    queue: QueueSettings
    places: int = field(init=False)

    def __post_init__(self) -> None:
        self.places = descriptors.most_turns(self.queue.max_concurrent_turns)


class Worker:
    """Runs the turns of this replica; `drop` is called when the replica gets a new id."""

    def __init__(
        self,
        database: Database,
        replica: Replica,
        kit: TurnKit,
        accounts: Sequence[tuple[str, str]],
    ) -> None:
        self._database = database
        self.replica = replica
        self._kit = kit
        self._accounts = accounts
        self._slots = Slots(kit.places)
        if kit.places < kit.queue.max_concurrent_turns:
            log.warning("turns_limited", turns=kit.places, descriptors=descriptors.limit())
        self._serving: dict[int, Service] = {}
        self._hinted: dict[int, None] = {}
        self._arrived: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._false_starts: dict[int, int] = {}
        # The database failed: do not count the next attempt.
        self._uncounted: set[int] = set()
        self._wake = asyncio.Event()
        self._stopping = False
        self._looked = -POLL_S
        self._full = False
        self._passed_at: float | None = None

    def still_s(self) -> float:
        """Return the seconds since the last pass (every `POLL_S`); 0 while not running."""
        return 0.0 if self._passed_at is None else time.monotonic() - self._passed_at

    def take(self, kit: TurnKit) -> None:
        """Use another kit for later turns."""
        self._kit = kit
        self._slots.resize(kit.places)
        self.wake()

    @property
    def serving(self) -> int:
        """Number of conversations with a task, including those that wait for a slot."""
        return len(self._serving)

    @property
    def running(self) -> int:
        """Number of running turns."""
        return self._slots.running

    def notify(self, conversation_id: int) -> None:
        """Hint that a conversation's inbox changed."""
        self._arrived[conversation_id] = time.monotonic()
        self._hinted[conversation_id] = None
        self._wake.set()

    async def drop(self) -> None:
        """End all work within `DROPPED_WITHIN_S`: other replicas own it by now."""
        tasks = [service.task for service in self._serving.values() if service.task is not None]
        self._serving.clear()
        for each in tasks:
            each.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=DROPPED_WITHIN_S)
        self.wake()

    def wake(self, _conversation_id: int | None = None) -> None:
        """Hint that some conversation can continue; its newest message may be old."""
        self._looked = -POLL_S
        self._wake.set()

    async def run(self) -> None:
        """Claim and serve until `stop`, then return when the running turns have finished.

        On cancellation unfinished turns stay as stored and are resumed at the next start.
        """
        async with asyncio.TaskGroup() as tasks:
            sweeps = tasks.create_task(self._keep_sweeping(), name="stuck conversations")
            while not self._stopping:
                self._passed_at = time.monotonic()
                self._serve_hinted(tasks)
                if time.monotonic() - self._looked >= POLL_S:
                    await self._serve_line(tasks)
                await self._wait_for_work()
            self._passed_at = None
            sweeps.cancel()

    def stop(self) -> None:
        """Start no further turns."""
        self._stopping = True
        self._wake.set()

    def _serve_hinted(self, tasks: asyncio.TaskGroup) -> None:
        """Start a task for each conversation with new messages; it claims with its first turn.

        Use the queue instead if no slot is free or others may be ahead in it.
        """
        for conversation_id in self._hinted:
            service = self._serving.get(conversation_id)
            if service is not None:
                service.hinted = True
            elif self._full or conversation_id in self.replica.trials or self._room() <= 0:
                self.wake()
            else:
                self._spawn(tasks, Service(conversation_id))
        self._hinted.clear()

    async def _serve_line(self, tasks: asyncio.TaskGroup) -> None:
        """Claim ready conversations in order and serve them."""
        self._looked = time.monotonic()
        room = self._room()
        self._full = room <= 0
        if self._full:
            return
        try:
            me, write = self.replica.id, self._database.write
            claimed = await write(leases.claim, me, room, self._accounts)
        except StorageError as exc:
            log.warning("claim_failed", error=str(exc))
            return
        for lease in claimed:
            # A claim returns all conversations of this replica, including those already served.
            service = self._serving.get(lease.conversation)
            if service is None or service.epoch not in {None, lease.epoch}:
                self._spawn(tasks, Service(lease.conversation, lease, lease.epoch))
                room -= 1
            elif service.epoch is None:
                service.lease, service.epoch = lease, lease.epoch
        self._full = room <= 0

    def _room(self) -> int:
        """Return how many more conversations may wait for slots."""
        if not self.replica.is_in:
            return 0
        # A replica must not take conversations for which another has a free slot.
        ahead = 1 if self.replica.is_shared else 2
        return ahead * self._kit.places - len(self._serving) + self._slots.suspects

    def _spawn(self, tasks: asyncio.TaskGroup, service: "Service") -> None:
        self._serving[service.conversation] = service
        name = f"conversation {service.conversation}"
        service.task = tasks.create_task(self._serve(service), name=name)

    async def _wait_for_work(self) -> None:
        due_s = max(self._looked + POLL_S - time.monotonic(), 0.0)
        try:
            async with asyncio.timeout(due_s):
                await self._wake.wait()
        except TimeoutError:
            self._looked = -POLL_S
        self._wake.clear()

    async def _serve(self, service: "Service") -> None:
        """Run a conversation's turns, and always release it."""
        conversation_id, delay_s = service.conversation, 0.0
        more = False
        try:
            # A busy conversation returns to the end of the queue.
            for _ in range(TURNS_PER_LEASE):
                await self._settle(conversation_id)
                if self._stopping or not await self._run_next(service):
                    break
            self._failures.pop(conversation_id, None)
        except LeaseLost:
            log.warning("lease_lost", conversation=conversation_id)
        except Exception:
            log.exception("turn_failed", conversation=conversation_id)
            failures = self._failures.get(conversation_id, 0)
            self._failures[conversation_id] = failures + 1
            delay_s = min(RETRY_AFTER_S * 2.0 ** min(failures, 10), LONGEST_RETRY_S)
        try:
            if service.lease is not None:
                write = self._database.write
                more = await write(leases.release, service.lease, not_before_s=delay_s)
        except StorageError as exc:
            # This replica still owns it: the next claim returns it.
            log.warning("release_failed", conversation=conversation_id, error=str(exc))
            await asyncio.sleep(delay_s)
        finally:
            # After a lost lease the conversation may be served under a newer one by now.
            if self._serving.get(conversation_id) is service:
                del self._serving[conversation_id]
            if more or self._full or service.hinted:
                self.wake()

    async def _run_next(self, service: "Service") -> bool:
        """Run the next turn when a slot is free; return whether the lease is still held."""
        # A suspect is tried once per process.
        lasts_s = self.replica.trials.pop(service.conversation, None)
        async with self._slots.taken() if lasts_s is None else self._slots.on_trial(lasts_s):
            # `stop` may have been called during the wait for a slot.
            if self._stopping:
                return False
            kit = self._kit
            turn = await self._next_turn(service, kit)
            if turn is None:
                return False
            if released := await self._run_one(turn, kit):
                service.lease = None
            return not released

    async def _next_turn(self, service: "Service", kit: TurnKit) -> Turn | None:
        """Return the next turn; give up a message that repeatedly fails to begin.

        Return None without a lease.
        """
        here = service.conversation
        while True:
            try:
                turn = await self._begin(service, kit)
            except StorageError:
                raise  # the disk or another worker is to blame, not the message
            except Exception as exc:
                if service.lease is None:
                    # The claim was rolled back with the turn, so claim separately.
                    take = self._taking(service)
                    service.hold(await self._database.write(take))
                lease = service.lease
                failed = self._false_starts.get(here, 0) + 1
                self._false_starts[here] = failed
                reason = f"it could not begin: {in_words(exc)}"
                is_last = failed >= kit.queue.max_attempts
                if lease is None or not (is_last and await self._give_up(lease, reason, kit)):
                    raise
                log.exception("turn_failed", conversation=here)
            else:
                self._false_starts.pop(here, None)
                return turn
            # Continue with the next message.
            del self._false_starts[here]

    async def _begin(self, service: "Service", kit: TurnKit) -> Turn | None:
        """Begin the next turn, if any; the first together with the claim."""
        # Earlier hints refer to rows that are read now.
        service.hinted = False
        here = service.conversation
        counts = here not in self._uncounted
        try:
            step = await kit.starter.start(here, self._taking(service), counts=counts)
        except StorageError as exc:
            if isinstance(exc, CommitUnknown):
                # The turn may have begun, but nothing ran.
                self._uncounted.add(here)
            if service.lease is not None:
                raise
            log.warning("claim_failed", error=str(exc))
            return None
        self._uncounted.discard(here)
        if step is None:
            # The conversation has gone through the queue meanwhile, or has to.
            self.wake()
            return None if service.lease is None else await self._begin(service, kit)
        service.hold(step)
        if step.turn is None:
            service.lease = None
            if step.stuck:
                # Handled like any message that cannot begin: a growing pause, then giving up.
                raise BeganNothing(f"conversation {here} is ready, and none of its messages is")
        return step.turn

    def _taking(self, service: "Service") -> Take:
        """Return the function that takes a conversation by its lease or a claim."""
        if service.lease is not None:
            return partial(leases.look, lease=service.lease)
        claim = partial(leases.take, replica_id=self.replica.id, accounts=self._accounts)
        return partial(claim, conversation_id=service.conversation)

    async def _give_up(self, lease: Lease, reason: str, kit: TurnKit) -> bool:
        """Give up a message that cannot begin; return False if nothing waits any more."""
        turn = await kit.starter.give_up(lease, reason)
        if turn is not None and turn.stopped:
            await kit.runner.run(turn)
        return turn is not None

    async def _run_one(self, turn: Turn, kit: TurnKit) -> bool:
        """Run a turn; return whether the lease was released with its answer."""
        # Keep the trace until the next turn: later failures of this task belong to it.
        trace = trace_of(turn.lease.conversation, turn.first_seq)
        structlog.contextvars.bind_contextvars(trace=trace)
        try:
            return await as_turn(turn.id, kit.runner.run(turn))
        except asyncio.CancelledError:
            if self._stopping:
                # Count only failures of the turn itself (decision 007). A lost lease was released
                # with the answer.
                with suppress(LeaseLost):
                    await self._database.write(turns.forgive_attempt, turn)
            raise
        except StorageUnavailable:
            # The disk is to blame, not the turn, and may fail again.
            self._uncounted.add(turn.lease.conversation)
            await self._database.write(turns.forgive_attempt, turn)
            self._uncounted.discard(turn.lease.conversation)
            raise

    async def _settle(self, conversation_id: int) -> None:
        """Wait until a burst of messages has paused for `queue.debounce_ms`.

        Uses the monotonic clock and stores nothing: a step of the wall clock must not delay a
        conversation.
        """
        debounce_s = self._kit.queue.debounce_ms / 1000
        latest = time.monotonic() + MOST_DEBOUNCES * debounce_s
        while (arrived := self._arrived.get(conversation_id)) is not None:
            pause = min(arrived + debounce_s, latest) - time.monotonic()
            if pause <= 0:
                self._arrived.pop(conversation_id, None)
                return
            await asyncio.sleep(pause)

    async def _keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self._sweep()
            except StorageError as exc:
                log.warning("sweep_failed", error=str(exc))

    async def _sweep(self) -> None:
        # Messages dropped by `/stop` are never served; a burst this old has paused anyway.
        paused = time.monotonic() - self._kit.queue.debounce_ms / 1000
        self._arrived = {each: at for each, at in self._arrived.items() if at > paused}
        stuck = await self._database.write(leases.ready_stuck)
        if stuck:
            log.error("stuck_conversations_found", count=stuck)
            self.wake()


@dataclass(slots=True)
class Service:
    """A conversation served by a task.

    Attributes:
        lease: The lease; None before the claim and after the release.
        epoch: The epoch of the latest lease; None before the claim.
        hinted: Whether the inbox may have unread rows.
    """

    conversation: int
    lease: Lease | None = None
    epoch: int | None = None
    hinted: bool = False
    task: asyncio.Task[None] | None = None

    def hold(self, found: Held | NextStep | None) -> None:
        """Continue under a found lease, if any."""
        if found is not None:
            self.lease, self.epoch = found.lease, found.lease.epoch


class Slots:
    """At most `limit` turns at once, first come, first served; suspects run in addition.

    A suspect takes no slot from others, so it cannot delay them (decision 007).

    Attributes:
        suspects: Number of suspects that run or wait for their trial.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._trial = asyncio.Lock()
        self._tried = 0
        self.suspects = 0

    @property
    def running(self) -> int:
        """Number of turns with a slot."""
        return self._taken + self._tried

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Hold a slot while the body runs."""
        place = asyncio.get_running_loop().create_future()
        self._line.append(place)
        self._admit()
        try:
            await place
            yield
        finally:
            # A cancelled wait never got its slot.
            if not place.cancelled():
                self._taken -= 1
                self._admit()

    def resize(self, limit: int) -> None:
        """Change the number of slots; surplus turns run to their end."""
        self._limit = limit
        self._admit()

    def _admit(self) -> None:
        """Give free slots to the first in line."""
        while self._line and self._taken < self._limit:
            place = self._line.popleft()
            if not place.cancelled():
                self._taken += 1
                place.set_result(None)

    @asynccontextmanager
    async def on_trial(self, lasts_s: float) -> AsyncIterator[None]:
        """Hold a separate slot while the body runs; no other suspect begins for `lasts_s`."""
        self.suspects += 1
        try:
            await self._trial.acquire()
            with ExitStack() as trial:
                trial.callback(self._trial.release)
                # The suspect is cleared after this time, and the next may begin.
                timer = asyncio.get_running_loop().call_later(lasts_s, trial.close)
                trial.callback(timer.cancel)
                self._tried += 1
                try:
                    yield
                finally:
                    self._tried -= 1
        finally:
            self.suspects -= 1
