"""The metrics of a gateway, and the route `/metrics`.

`recording` sets the instruments in its caller's context, which later tasks inherit, so the message
path knows nothing about metrics (decision 039). A scrape reads the database once; if that fails,
its metrics are omitted and `parley_database_up` is 0.
"""

import asyncio
import hmac
import math
import platform
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.exposition import choose_encoder
from sqlalchemy import Connection

from adapters.registry import platforms
from adapters.web.guard import names_loopback
from adapters.web.proxies import connection_of, forwarding_header, over_unix_socket
from agent import spans
from agent.network import UnusableEnvironment
from agent.spans import Span
from gateway.agent_ports.budgets import today
from gateway.backup import backups
from gateway.errors import StorageError
from gateway.logging.recent import TAPS
from gateway.logging.setup import log_path, predecessors
from gateway.metrics import series
from gateway.metrics.series import Counts, Labels, Series, Vocabulary
from gateway.reload.reloading import Reloading
from gateway.settings.tree import Settings
from gateway.storage import sqlite_file
from gateway.storage.database import location_of
from gateway.storage.reports import health, spending
from gateway.storage.reports.health import Waiting
from gateway.supervision.accounts import Supervised
from gateway.supervision.silence import Watch

if TYPE_CHECKING:
    from gateway.metrics.traces import Traces

log = structlog.get_logger()

PATH = "/metrics"
REFUSED = (
    "Without a proxy in front of Parley, metrics are read on this machine; else with the token"
    " of `metrics.token` in the header Authorization: Bearer.\n"
)
LOOKS_FOR_S = 2.0
"""Longest wait for the database, in seconds."""
LAG_EVERY_S = 1.0
LAGS_KEPT = 60
"""Number of stored event loop delays: one minute."""


class Sample(NamedTuple):
    """A value of a series."""

    series: Series
    value: float
    labels: Labels = ()


class Instruments:
    """A `spans.Recorder`: counts, serves the page, and sends traces if a collector is set."""

    def __init__(self, reloading: Reloading, watch: Watch) -> None:
        self.seed, self.exports = b"", False
        self._reloading, self._watch = reloading, watch
        self._settings = reloading.settings
        self._counts = Counts(Vocabulary(partial(known_labels, reloading)))
        self._traces: Traces | None = None
        self._lags: deque[float] = deque(maxlen=LAGS_KEPT)
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def recording(self) -> AsyncIterator[None]:
        """Count everything in the caller's context while the body runs."""
        self.seed, self._traces = seed_of(self._settings), _traces(self._settings)
        self.exports = self._traces is not None
        before = spans.RECORDER.get()
        counts = self._counts
        ends = [TAPS.listen([name], partial(counts.event, name)) for name in counts.events]
        spans.RECORDER.set(self)
        self._measure_lag()
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for end in ends:
                end()
            # Not by token: a test fixture may end in another context.
            spans.RECORDER.set(before)
            if self._traces is not None:
                await asyncio.to_thread(self._traces.close)

    def _measure_lag(self, due: float | None = None) -> None:
        """Measure the event loop's delay every second."""
        loop = asyncio.get_running_loop()
        if due is not None:
            self._lags.append(max(loop.time() - due, 0.0))
        self._timer = loop.call_later(LAG_EVERY_S, self._measure_lag, loop.time() + LAG_EVERY_S)

    def ended(self, span: Span) -> None:
        """Count and send a span."""
        self._counts.span(span)
        if self._traces is not None:
            self._traces.ended(span)

    def routes(self) -> list[web.RouteDef]:
        """Return the route of the page."""
        return [web.get(PATH, self._metrics)]

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self._may_read(request):
            log.info("metrics_refused", address=request.remote or "")
            headers = {"WWW-Authenticate": 'Bearer realm="parley metrics"'}
            return web.Response(text=REFUSED, status=401, headers=headers)
        # OpenMetrics if accepted, else the text format.
        encode, kind = choose_encoder(",".join(request.headers.getall("Accept", [])))
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        self._counts.begin()
        registry.register(self._counts.registry)
        gauges: dict[str, Gauge] = {}
        for made, value, labels in await self._look():
            if made.name not in gauges:
                gauges[made.name] = Gauge(made.name, made.about, made.labels, registry=registry)
            gauge = gauges[made.name]
            (gauge.labels(*labels) if labels else gauge).set(value)
        body = await asyncio.to_thread(encode, registry)
        return web.Response(body=body, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    def _may_read(self, request: web.Request) -> bool:
        """Allow direct requests from this machine, and others with `metrics.token`.

        With a configured proxy all need the token, since a proxy without headers looks like a local
        program.
        """
        if over_unix_socket(request):
            return True
        scheme, _, offered = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            token = self._settings.metrics.token
            wanted = b"" if token is None else token.get_secret_value().encode()
            same = hmac.compare_digest(offered.strip().encode(errors="replace"), wanted)
            return same and bool(wanted)
        has_proxy = self._settings.web.trusted_proxies or self._settings.web.public_url
        return not has_proxy and _is_from_here(request)

    async def _look(self) -> list[Sample]:
        reloading = self._reloading
        files = asyncio.to_thread(lambda: list(_files(reloading.settings)))
        database = "sqlite" if reloading.parts.shared.database.server is None else "postgresql"
        versions = (version("parley"), platform.python_version(), database)
        return [
            *_adapters(reloading.parts.supervised, self._watch),
            *_work(reloading),
            Sample(series.LOOP_LAG, max(self._lags, default=0.0)),
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
        # The reason follows the colon.
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
    # A model's keys share a name: it is paused only while all of them are.
    for name in dict.fromkeys(model.name for model in agent.models):
        left = [agent.recovery.rests.left_s(each) for each in agent.models if each.name == name]
        yield Sample(series.MODEL_RESTS, min(left), (name,))


def _files(settings: Settings) -> Iterator[Sample]:
    """Yield the samples of the disk; blocking."""
    disk = shutil.disk_usage(settings.home)
    yield Sample(series.DISK_FREE, disk.free)
    yield Sample(series.DISK_SIZE, disk.total)
    if (path := log_path(settings.logging, settings.home)) is not None:
        yield Sample(series.LOG_BYTES, sum(map(_size, [path, *predecessors(path)])))
    if (to := backups.folder_of(settings)) is not None:
        age_s = backups.newest_age_s(to)
        # Without a sample no rule could report a backup that was never made.
        yield Sample(series.BACKUP_AGE, math.inf if age_s is None else age_s)
    database = location_of(settings)
    if isinstance(database, Path):
        yield Sample(series.DATABASE_BYTES, _size(database))
        yield Sample(series.WAL_BYTES, _size(database.with_name(f"{database.name}-wal")))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        # Logs are renamed, and the database's journal comes and goes.
        return 0


def _samples(conn: Connection, settings: Settings, since: float) -> Iterator[Sample]:
    """Yield the samples of the database; `since` is the start of counted costs."""
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


def _traces(settings: Settings) -> "Traces | None":
    if settings.telemetry.otlp_endpoint is None:
        return None
    # The extra `otel`.
    from gateway.metrics.traces import Traces  # noqa: PLC0415

    try:
        return Traces(settings.telemetry)
    except UnusableEnvironment as exc:
        log.warning("traces_not_sent", error=str(exc))
        return None


def seed_of(settings: Settings) -> bytes:
    """Return 16 bytes that identify this installation, equal on all replicas."""
    location = location_of(settings)
    if isinstance(location, Path):
        # From the file next to the database, to avoid reading the database at start.
        seen = sqlite_file.read_mark(sqlite_file.mark_of(location, settings.home))
        name = "" if seen is None else seen.name
    else:
        # Without user and password, which may change.
        parts = urlsplit(location.url.get_secret_value())
        name = f"{parts.hostname}:{parts.port}{parts.path}"
    return blake2b(name.encode(), digest_size=16).digest()


def known_labels(reloading: Reloading) -> Mapping[str, Collection[str]]:
    """Return the configured values of each label with a list."""
    mind, settings, supervised = reloading.mind, reloading.settings, reloading.parts.supervised
    own = [each.adapter.platform for each in supervised]
    return {
        "platform": [*own, *(each.name for each in platforms())],
        "account": [each.adapter.account for each in supervised],
        "adapter": [each.name for each in supervised],
        "model": [word for each in mind.models for word in (each.name, each.label)],
        "tool": [each.name for each in mind.agent.tools.schemas],
        "server": settings.tools.mcp,
        "plugin": settings.plugins.enabled,
    }


def _is_from_here(request: web.Request) -> bool:
    """Whether the request comes from a program on this machine, not from a web page."""
    try:
        is_loopback = ip_address(request.remote or "").is_loopback
    except ValueError:
        return False
    if not is_loopback or forwarding_header(request) is not None or "Origin" in request.headers:
        return False
    # A foreign page may resolve its own name to this machine (DNS rebinding).
    return names_loopback(request.headers.get("Host", ""), connection_of(request).getsockname()[1])
