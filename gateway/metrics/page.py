"""Serves `/metrics`: who may read it, and in which of Prometheus' formats.

Read by whoever is on this machine and comes to it directly, as `/readyz` tells nobody else its
details: a request over loopback without any header that a proxy adds, under a name of loopback. All
others show `metrics.token`. Where the settings tell of a proxy everybody does: one that adds no
header cannot be told from a program of this machine.
"""

import asyncio
import hmac
from collections.abc import Iterable, Sequence
from ipaddress import ip_address

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from adapters.web.guard import names_loopback
from adapters.web.proxies import connection_of, forwarding_header, over_unix_socket
from gateway.metrics.counts import Counts
from gateway.metrics.state import Sample, State
from gateway.settings.tree import Settings

log = structlog.get_logger()

PATH = "/metrics"
REFUSED = (
    "Metrics are read on this machine itself where no proxy is before Parley, else with the token"
    " of `metrics.token` in the header Authorization: Bearer.\n"
)


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
