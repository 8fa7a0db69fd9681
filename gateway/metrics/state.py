"""What `/metrics` tells of the moment: read when somebody scrapes, never on the path of a message.

One read of the database and some looks at what this process knows anyway. Where the database cannot
be read its figures are left out, and `parley_database_up` is 0: the others are what an operator
needs then.
"""

import asyncio
import math
import platform
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from gateway.agent_ports.budgets import today
from gateway.backup import backups
from gateway.errors import StorageError
from gateway.logging.setup import log_path, predecessors
from gateway.metrics import series
from gateway.metrics.series import Counts, Labels, Series
from gateway.reload.reloading import Reloading
from gateway.settings.tree import Settings
from gateway.storage.database import location_of
from gateway.storage.reports import health, spending
from gateway.storage.reports.health import Waiting
from gateway.supervision.accounts import Supervised
from gateway.supervision.silence import Watch

LOOKS_FOR_S = 2.0
"""Longest wait for the database."""
LAG_EVERY_S = 1.0
LAGS_KEPT = 60
"""So many measurements of the event loop's delay are remembered: those of the last minute."""
_INPUTS = frozenset({"input", "cache_read", "cache_write"})


class Sample(NamedTuple):
    """A value of a series."""

    series: Series
    value: float
    labels: Labels = ()


class LoopLag:
    """How late the event loop comes to what is due, measured every `LAG_EVERY_S`."""

    def __init__(self) -> None:
        self._lags: deque[float] = deque(maxlen=LAGS_KEPT)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def longest_s(self) -> float:
        """The longest delay of the last minute."""
        return max(self._lags, default=0.0)

    def begin(self) -> None:
        """Measure from now on; in the event loop."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LAG_EVERY_S, self._tick, loop.time() + LAG_EVERY_S)

    def end(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self, due: float) -> None:
        self._lags.append(max(asyncio.get_running_loop().time() - due, 0.0))
        self.begin()


class State:
    """What is read at a scrape."""

    def __init__(self, reloading: Reloading, watch: Watch, counts: Counts, lag: LoopLag) -> None:
        self._reloading, self._watch = reloading, watch
        self._counts = counts
        self._lag = lag

    async def look(self) -> list[Sample]:
        """Return all samples."""
        reloading = self._reloading
        files = asyncio.to_thread(lambda: list(_files(reloading.settings)))
        database = "sqlite" if reloading.parts.shared.database.server is None else "postgresql"
        versions = (version("parley"), platform.python_version(), database)
        return [
            *_adapters(reloading.parts.supervised, self._watch),
            *_work(reloading),
            *_cache(self._counts),
            Sample(series.LOOP_LAG, self._lag.longest_s),
            Sample(series.BUILD_INFO, 1, versions),
            *await files,
            *await self._database(),
        ]

    async def _database(self) -> list[Sample]:
        settings, database = self._reloading.settings, self._reloading.parts.shared.database
        since = today(ZoneInfo(settings.sessions.timezone)).start.timestamp()
        began = time.perf_counter()
        try:
            async with asyncio.timeout(LOOKS_FOR_S):
                standing = await database.read(lambda conn: [*_samples(conn, settings, since)])
        except (StorageError, TimeoutError):
            return [Sample(series.DATABASE_UP, 0)]
        return [
            Sample(series.DATABASE_UP, 1),
            Sample(series.SCRAPE, time.perf_counter() - began),
            *standing,
        ]


def _adapters(supervised: Sequence[Supervised], watch: Watch) -> Iterator[Sample]:
    for each in supervised:
        # Behind it stands why it was stopped, in words.
        yield Sample(series.ADAPTER_STATE, 1, (each.name, each.state.partition(":")[0]))
    for account, silent_s in watch.silent_s.items():
        yield Sample(series.ACCOUNT_SILENT, silent_s, account)
    for adapter in {id(each.adapter): each.adapter for each in supervised}.values():
        account, pool = (adapter.platform, adapter.account), adapter.pool
        if pool is not None:
            yield Sample(series.POOL_IN_USE, pool.in_use, account)
        if pool is not None and pool.limit is not None:
            yield Sample(series.POOL_LIMIT, pool.limit, account)


def _work(reloading: Reloading) -> Iterator[Sample]:
    worker, agent = reloading.parts.worker, reloading.mind.agent
    yield Sample(series.TURNS_RUNNING, worker.running)
    yield Sample(series.SERVED, worker.serving)
    yield Sample(series.TURN_PLACES, reloading.settings.queue.max_concurrent_turns)
    # Keys of one model have the same name: it rests as long as all of them do.
    for name in dict.fromkeys(model.name for model in agent.models):
        left = [agent.recovery.rests.left_s(each) for each in agent.models if each.name == name]
        yield Sample(series.MODEL_RESTS, min(left), (name,))


def _cache(counts: Counts) -> Iterator[Sample]:
    tokens = dict.fromkeys(_INPUTS, 0.0)
    for (_, kind), count in counts.counters("turn_tokens"):
        if kind in _INPUTS:
            tokens[kind] += count
    if read := sum(tokens.values()):
        yield Sample(series.CACHE_HIT_RATIO, tokens["cache_read"] / read)


def _files(settings: Settings) -> Iterator[Sample]:
    """Look at the disk; blocks."""
    disk = shutil.disk_usage(settings.home)
    yield Sample(series.DISK_FREE, disk.free)
    yield Sample(series.DISK_SIZE, disk.total)
    path = log_path(settings.logging, settings.home)
    if path is not None:
        yield Sample(series.LOG_BYTES, sum(map(_size, [path, *predecessors(path)])))
    if (to := backups.folder_of(settings)) is not None:
        age_s = backups.newest_age_s(to)
        # Without a sample no rule would ever tell of a backup that never was.
        yield Sample(series.BACKUP_AGE, math.inf if age_s is None else age_s)
    database = location_of(settings)
    if isinstance(database, Path):
        yield Sample(series.DATABASE_BYTES, _size(database))
        yield Sample(series.WAL_BYTES, _size(database.with_name(f"{database.name}-wal")))


def _size(path: Path) -> int:
    size = 0
    # A log is renamed, the database's own comes and goes.
    with suppress(FileNotFoundError):
        size = path.stat().st_size
    return size


def _samples(conn: Connection, settings: Settings, since: float) -> Iterator[Sample]:
    """Yield the samples of the database; `since`: from when on money counts."""
    waits = {what: health.waiting(conn, what) for what in health.WAITS}
    counts = health.counts(conn)
    yield from _waiting(series.INBOX_DEPTH, series.INBOX_AGE, waits["unanswered"])
    yield from _waiting(series.ASKED, series.ASKED_AGE, waits["asked"])
    yield Sample(series.STRANGERS, waits["strangers"].count)
    yield Sample(series.QUARANTINED, waits["quarantined"].count)
    for account, unsent in health.unsent_by_account(conn).items():
        yield from _waiting(series.OUTBOX_DEPTH, series.OUTBOX_AGE, unsent, account)
    yield Sample(series.DEAD_LETTERS, counts["dead_turns"], ("turn",))
    yield Sample(series.DEAD_LETTERS, counts["dead_sends"], ("send",))
    yield Sample(series.UNSEARCHED, counts["unsearched"])
    yield Sample(series.UNSEARCHED_IN, counts["unsearched_in"])
    yield Sample(series.REPLICAS, counts["replicas_alive"], ("alive",))
    yield Sample(series.REPLICAS, counts["replicas_late"], ("late",))
    yield Sample(series.LEASES, counts["leases"])
    yield Sample(series.UNOWNED, counts["unowned"])
    yield Sample(series.SPENT, spending.spent_usd(conn, since))
    if settings.budget.daily_usd is not None:
        yield Sample(series.BUDGET, settings.budget.daily_usd)
    if (size := health.size_bytes(conn)) is not None:
        yield Sample(series.DATABASE_BYTES, size)


def _waiting(
    depth: Series, age: Series, found: Waiting, labels: Labels = ()
) -> tuple[Sample, Sample]:
    return Sample(depth, found.count, labels), Sample(age, found.oldest_s, labels)
