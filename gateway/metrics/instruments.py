"""What a gateway measures itself with, and `/metrics`, which shows it.

`recording` puts itself into the context of whoever enters it, and with it of all tasks that begin
there: so the parts on the path of a message know nothing of metrics (decision 331).

The page is read by programs of this machine that come to it directly: over loopback, under a name
of loopback, without any header that a proxy adds. All others show `metrics.token`. If the settings
name a proxy everybody does: one that adds no header cannot be told from a program of this machine.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from adapters.registry import platforms
from adapters.web.guard import names_loopback
from adapters.web.proxies import connection_of, forwarding_header, over_unix_socket
from agent import spans
from agent.network import UnusableEnvironment
from agent.spans import Span
from gateway.logging.recent import TAPS
from gateway.metrics.series import Counts, Vocabulary
from gateway.metrics.state import LoopLag, Sample, State
from gateway.reload.reloading import Reloading
from gateway.settings.tree import Settings
from gateway.storage import identity
from gateway.storage.database import location_of
from gateway.supervision.silence import Watch

if TYPE_CHECKING:
    from gateway.metrics.traces import Traces

log = structlog.get_logger()

PATH = "/metrics"
REFUSED = (
    "Metrics are read on this machine itself where no proxy is before Parley, else with the token"
    " of `metrics.token` in the header Authorization: Bearer.\n"
)


class Instruments:
    """Counts, the page that shows them, and traces where they are wanted."""

    def __init__(self, reloading: Reloading, watch: Watch) -> None:
        self._settings = reloading.settings
        self._lag = LoopLag()
        self.counts = Counts(Vocabulary(partial(known_labels, reloading)))
        state = State(reloading, watch, self.counts, self._lag)
        self.page = MetricsPage(self._settings, self.counts, state)

    @asynccontextmanager
    async def recording(self) -> AsyncIterator[None]:
        """Hear all that happens in the context of the caller, until the body ends."""
        seed, traces = seed_of(self._settings), _traces(self._settings)
        before = spans.RECORDER.get()
        ends = [TAPS.listen([name], partial(self.counts.event, name)) for name in self.counts.heard]
        spans.RECORDER.set(CountsAndTraces(seed, self.counts, traces))
        self._lag.begin()
        try:
            yield
        finally:
            self._lag.end()
            for end in ends:
                end()
            # Not by its token: a fixture of a test may end in another context than it began in.
            spans.RECORDER.set(before)
            if traces is not None:
                await asyncio.to_thread(traces.close)


class CountsAndTraces:
    """`agent.spans.Recorder`: counts spans, and hands them to who exports them."""

    def __init__(self, seed: bytes, counts: Counts | None, traces: "Traces | None") -> None:
        self.seed = seed
        self.exports = traces is not None
        self._counts = counts
        self._traces = traces

    def ended(self, span: Span) -> None:
        """Take note of a span."""
        if self._counts is not None:
            self._counts.span(span)
        if self._traces is not None:
            self._traces.ended(span)


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
    """Return what tells this installation from others; all replicas have the same."""
    location = location_of(settings)
    if isinstance(location, Path):
        # Beside the database, since a start asks that for nothing that a file tells.
        seen = identity.read_mark(identity.mark_of(location, settings.home))
        name = "" if seen is None else seen.name
    else:
        # Without user and password: those may change.
        parts = urlsplit(location.url.get_secret_value())
        name = f"{parts.hostname}:{parts.port}{parts.path}"
    return blake2b(name.encode(), digest_size=16).digest()


def known_labels(reloading: Reloading) -> Mapping[str, Collection[str]]:
    """Return all values of each label that has such a list: what is configured now."""
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


class MetricsPage:
    """The route, and what it shows."""

    def __init__(self, settings: Settings, counts: Counts, state: State) -> None:
        self._settings = settings.metrics
        self._has_proxy = bool(settings.web.trusted_proxies or settings.web.public_url)
        self._counts = counts
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        """Return the route."""
        return [web.get(PATH, self._metrics)]

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self._may_read(request):
            log.info("metrics_refused", address=request.remote or "")
            headers = {"WWW-Authenticate": 'Bearer realm="parley metrics"'}
            return web.Response(text=REFUSED, status=401, headers=headers)
        samples = await self._state.look()
        accepted = ",".join(request.headers.getall("Accept", []))
        body, content_type = await asyncio.to_thread(shown, self._counts, samples, accepted)
        headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
        return web.Response(body=body, headers=headers)

    def _may_read(self, request: web.Request) -> bool:
        if over_unix_socket(request):
            return True
        scheme, _, offered = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(offered.strip())
        return not self._has_proxy and _is_from_here(request)

    def _is_token(self, offered: str) -> bool:
        token = self._settings.token
        wanted = b"" if token is None else token.get_secret_value().encode()
        same = hmac.compare_digest(offered.encode(errors="replace"), wanted)
        return same and bool(wanted)


def _is_from_here(request: web.Request) -> bool:
    """Whether a program of this machine asks, and no page that a browser here has opened."""
    try:
        is_loopback = ip_address(request.remote or "").is_loopback
    except ValueError:
        return False
    if not is_loopback or forwarding_header(request) is not None or "Origin" in request.headers:
        return False
    # A foreign page may make its own name lead here (DNS rebinding).
    return names_loopback(request.headers.get("Host", ""), connection_of(request).getsockname()[1])


def shown(counts: Counts, samples: Sequence[Sample], accepted: str) -> tuple[bytes, str]:
    """Return the page and its content type, in the format that was asked for; blocks.

    Args:
        accepted: The header Accept: OpenMetrics where it is wanted, else the plain text format.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(counts.registry)
    registry.register(_Gauges(samples))
    encode, content_type = choose_encoder(accepted)
    return encode(registry), content_type


class _Gauges:
    """What was read for this page, as prometheus-client collects it."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        """Yield each family with its values."""
        families: dict[str, GaugeMetricFamily] = {}
        for sample in self._samples:
            series = sample.series
            made = GaugeMetricFamily(series.name, series.about, labels=series.labels)
            families.setdefault(series.name, made).add_metric(sample.labels, sample.value)
        return families.values()
