"""The crash harness of a cluster: several replicas on one PostgreSQL, each by a way of its own.

The platform, the scripted model and the oracle are those of one process (crash.py). Here it is
noted beside that whom a test has disturbed, and when: until its lease is over, such a process may
not know that others work in its place.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from typing_extensions import override

from tests.support.crash import KILLED, Crashes, Nursery, until
from tests.support.crash_oracle import Evidence, finished_ids
from tests.support.crash_platform import LoopbackPlatform
from tests.support.crash_script import RESENT
from tests.support.database_proxy import DatabaseProxy, Loss
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import End, PostgresServer

REFUSED = 3
"""The exit code of a process that could not start."""
KNOWS_AFTER_S = 6.0
"""Beside two leases: how long after a disturbance a process of a busy machine may know nothing."""


@dataclass(eq=False)
class Replica:
    """A place in the cluster, and the process that fills it.

    Attributes:
        number: From 0.
        home: PARLEY_HOME.
        proxy: Its way to the database.
        pid: Of its newest process.
        ends: Becomes the exit code of that.
        faulty: Whether that was told to kill or to stop itself somewhere.
    """

    number: int
    home: Path
    proxy: DatabaseProxy
    pid: int = 0
    ends: "asyncio.Task[int] | None" = None
    faulty: bool = False

    @property
    def runs(self) -> bool:
        """Whether its process lives."""
        return self.ends is not None and not self.ends.done()


class Cluster(Crashes):
    """One database, one platform, and the replicas that live and die on them.

    Args:
        server: Where the database is.
        database: Its name.
        proxies: One for each replica.
        pooler: Where these lead; None where they lead to the server itself.

    Attributes:
        replicas: Their places.
        disruptions: How often each kind has happened.
        refused: How many starts were refused, since there was no database.
        paused: When a process has stopped itself, in monotonic seconds, by its pid.
    """

    def __init__(
        self,
        nursery: Nursery,
        platform: LoopbackPlatform,
        folder: Path,
        server: PostgresServer,
        database: str,
        proxies: list[DatabaseProxy],
        pooler: PgBouncer | None = None,
    ) -> None:
        super().__init__(nursery, platform, folder)
        self.server = server
        self.name = database
        self.pooler = pooler
        self.replicas = [
            Replica(number, self.home / f"replica-{number}", proxy)
            for number, proxy in enumerate(proxies)
        ]
        self.disruptions: Counter[str] = Counter()
        self.refused = 0
        self.paused: dict[int, float] = {}
        self._disturbed: list[tuple[int, float]] = []
        self._restarting = asyncio.Lock()
        for each in self.replicas:
            each.home.mkdir()
        platform.on_note = self._hear

    @property
    @override
    def books(self) -> str:
        return self.server.url(self.name)

    def _hear(self, what: str, pid: int) -> None:
        """Note that a process stops; do what one asks for that is about to commit."""
        if what == "paused":
            self.paused[pid] = time.monotonic()
        losses: dict[str, Loss] = {"lose request": "request", "lose answer": "answer"}
        if (loss := losses.get(what)) is not None:
            (one,) = [each for each in self.replicas if each.pid == pid]
            one.proxy.lose_commit(loss)
            self.disturb_now(one)

    def run(self, one: Replica, **changes: Any) -> None:
        """Start a process in a place where none lives."""
        assert not one.runs
        with suppress(psycopg.OperationalError):
            self._note(what="boot", finished=finished_ids(self.books))
        direct = None if self.pooler is None else self.books
        ways = {"url": one.proxy.url(self.name), "direct_url": direct}
        spec = replace(self.spec, home=str(one.home), **ways, **changes)
        one.faulty = bool(spec.kill or spec.pause)
        one.pid = self._begin(spec)
        one.ends = asyncio.create_task(self.ended(one.pid), name=f"replica {one.number}")

    async def run_all(self, **changes: Any) -> None:
        """Start a process in each place, and wait until all of them are ready."""
        ready = self.platform.noted("ready")
        for each in self.replicas:
            self.run(each, **changes)
        await self.platform.wait_for(
            lambda: self.platform.noted("ready") - ready == len(self.replicas), 120.0
        )

    @override
    async def ended(self, pid: int) -> int:
        # The process that forks waits for one at a time: it is asked when there is an end.
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        handle = os.pidfd_open(pid)
        loop.add_reader(handle, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        return await super().ended(pid)

    async def end_of(self, one: Replica) -> int:
        """Wait for the end of a replica's process; returns its exit code."""
        assert one.ends is not None
        return await asyncio.shield(one.ends)

    def disturb_now(self, *replicas: Replica) -> None:
        """Note that the processes of these may not know for a while who else does their work."""
        self._disturbed += [(each.pid, time.monotonic()) for each in replicas]

    def signal(self, one: Replica, number: int) -> None:
        """Send a replica's process a signal, if it lives."""
        if one.runs:
            with suppress(ProcessLookupError):
                os.kill(one.pid, number)

    async def kill_off(self, one: Replica) -> None:
        """Kill a replica's process; it may have killed itself by now, or not have started."""
        self.disturb_now(one)
        self.signal(one, signal.SIGKILL)
        await self.buried(one)

    async def buried(self, one: Replica) -> bool:
        """Wait for an end that is a crash, or a start that was refused; returns whether it began.

        A process that was ready ends only by a signal, whatever becomes of its database.
        """
        code = await self.end_of(one)
        self.disturb_now(one)
        if code == REFUSED and one.pid not in self._ready():
            self.refused += 1
            return False
        assert code == KILLED, f"pid {one.pid}, exit code {code}: {self.log()}"
        return True

    async def at_work(self, one: Replica) -> None:
        """Wait until a replica's process works, or has ended or stopped itself before."""
        await until(lambda: not one.runs or one.pid in self.paused or one.pid in self._ready())

    def _ready(self) -> set[int]:
        return {event["pid"] for event in self.events("ready")}

    async def restart_database(self, how: End, *, away_s: float = 0.0) -> None:
        """Stop the database and start it again."""
        async with self._restarting:
            self.disturb_now(*self.replicas)
            await asyncio.to_thread(self.server.stop, how)
            await asyncio.sleep(away_s)
            self.server.spawn()
            await asyncio.to_thread(self._wait_until_it_answers)
            self.disturb_now(*self.replicas)

    def _wait_until_it_answers(self) -> None:
        self.server.wait_until_it_answers()
        if self.pooler is not None:
            self.pooler.wait_until_it_answers(self.name)

    async def restart_pooler(self, *, away_s: float = 0.0) -> None:
        """Kill the pooler, and start it again."""
        assert self.pooler is not None
        async with self._restarting:
            self.disturb_now(*self.replicas)
            self.pooler.stop()
            await asyncio.sleep(away_s)
            await asyncio.to_thread(self.pooler.start)
            self.disturb_now(*self.replicas)

    async def heal(self) -> None:
        """Let everything work that was disturbed, and have a process in each place."""
        if not self.server.runs:
            self.server.spawn()
        await asyncio.to_thread(self._wait_until_it_answers)
        for each in self.replicas:
            each.proxy.flow()
            self.signal(each, signal.SIGCONT)
        for each in self.replicas:
            if each.faulty:
                await self.kill_off(each)
        # A process that began before may find out only now that there was no database.
        await until(self._all_work)

    def _all_work(self) -> bool:
        """Whether the process in each place is ready; puts one where none lives."""
        for each in self.replicas:
            if not each.runs:
                assert each.ends is None or each.ends.result() in {0, KILLED, REFUSED}, self.log()
                self.run(each)
        return {each.pid for each in self.replicas} <= self._ready()

    async def stop_all(self) -> None:
        """Ask all processes to end once they have begun, and see that they do."""
        living = [each for each in self.replicas if each.runs]
        await until(lambda: {each.pid for each in living if each.runs} <= self._ready())
        for each in living:
            self.signal(each, signal.SIGTERM)
        codes = [await self.end_of(each) for each in living]
        assert not any(codes), f"{codes}: {self.log()}"

    async def live_on(self, within_s: float = 120.0) -> None:
        """Heal, wait until everything is answered, then stop."""
        await self.heal()
        with suppress(TimeoutError):
            await self.platform.wait_for(self.all_answered, within_s)
        if "database-down" in self.raised():
            # So it was, for a replica on a machine that is busy enough.
            self.expect("database-down")
        await self.settle(len(self.replicas))
        await self.stop_all()

    @override
    def evidence(self) -> Evidence:
        pids = frozenset(pid for pid, _ in self._disturbed)
        return replace(
            super().evidence(),
            disturbed=pids,
            late=frozenset(self.platform.shown_by(pids)),
            conflicts=[*self._conflicts()],
        )

    def _conflicts(self) -> Iterator[tuple[int, int]]:
        lasts_s = 2 * (self.spec.lease_s or 12.0) + KNOWS_AFTER_S
        for first, second, at in self.platform.conflicts:
            explained = any(
                pid in {first, second} and abs(at - since) <= lasts_s
                for pid, since in self._disturbed
            )
            if not explained:
                yield first, second

    def late_copies(self) -> int:
        """Return how many answers are shown without a mark beside a copy with one."""
        shown = {chat: self.platform.finals(chat) for chat in self.platform.chats}
        return sum(f"{RESENT}{text}" in texts for texts in shown.values() for text in texts)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query finds in the database."""
        with psycopg.connect(self.books, autocommit=True) as driver:
            return driver.execute(query.encode()).fetchall()

    @override
    def log(self) -> str:
        logs = [each.home / "child.log" for each in self.replicas]
        return "\n".join(
            f"--- replica {n}\n{log.read_text()[-4000:]}"
            for n, log in enumerate(logs)
            if log.exists()
        )
