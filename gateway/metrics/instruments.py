"""What a gateway measures itself with: one object, which hears events and spans while it runs.

`recording` puts itself into the context of whoever enters it, and with it of all tasks that begin
there: so the parts on the path of a message know nothing of metrics (decision 331).
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from adapters.registry import platforms
from agent import spans
from agent.network import UnusableEnvironment
from agent.spans import Span
from gateway.logging.taps import TAPS
from gateway.metrics.counts import Counts, Vocabulary
from gateway.metrics.page import MetricsPage
from gateway.metrics.state import LoopLag, State
from gateway.reload.reloading import Reloading
from gateway.settings.tree import Settings
from gateway.storage import identity
from gateway.storage.database import location_of
from gateway.supervision.silence import Watch

if TYPE_CHECKING:
    from gateway.metrics.traces import Traces

log = structlog.get_logger()


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
