"""Sends spans to an OpenTelemetry collector through its SDK (optional dependency `otel`).

Finished spans of agent/spans.py become SDK spans with the same ids. The SDK samples and batches
them and sends them as OTLP over HTTP in a thread. An unavailable collector delays no message; spans
not accepted in time are dropped.
"""

from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NoOpTracer, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from requests import Session
from requests.adapters import HTTPAdapter
from typing_extensions import override

from agent.models import base
from agent.network import proxy_for, tls_for
from agent.spans import Span
from agent.tools.execute import TOOL, TOOL_NAME
from gateway.settings.tree import TelemetrySettings

TRACES_PATH = "/v1/traces"
TIMEOUT_S = 5.0
"""Time limit of an export with all attempts, and of the last one at a stop."""
EVERY_S = 2.0
SCOPE = "parley"
_NAMED_BY = {base.CHAT: base.MODEL, TOOL: TOOL_NAME}
"""The attribute appended to a span's name by OpenTelemetry's conventions."""
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_CALLS_OTHERS = frozenset({base.CHAT, "delivery"})


class Traces:
    """Passes finished spans to the SDK."""

    def __init__(self, settings: TelemetrySettings) -> None:
        """Send to the configured collector until `close`."""
        address = address_of(settings.otlp_endpoint or "")
        exporter = OTLPSpanExporter(address, timeout=TIMEOUT_S, session=_session(address))
        self._sent = BatchSpanProcessor(exporter, schedule_delay_millis=EVERY_S * 1000)
        self._resource = Resource.create({SERVICE_NAME: "parley"})
        provider = TracerProvider(shutdown_on_exit=False)
        is_disabled = isinstance(provider.get_tracer(SCOPE), NoOpTracer)
        # By OTEL_SDK_DISABLED and OTEL_TRACES_SAMPLER; without them all messages are traced.
        self._sampler = ALWAYS_OFF if is_disabled else provider.sampler

    def ended(self, span: Span) -> None:
        """Send a span of a sampled trace; work without a message has no trace."""
        if not span.trace:
            return
        trace = int(span.trace, 16)
        attributes: dict[str, Any] = {"error.type": span.error} if span.error else {}
        for key, value in span.attributes.items():
            if value is not None:
                # Names without a dot are Parley's.
                attributes[key if "." in key else f"{SCOPE}.{key}"] = value
        named = span.attributes.get(_NAMED_BY.get(span.name, ""))
        name = span.name if named is None else f"{span.name} {named}"
        kind = SpanKind.CLIENT if span.name in _CALLS_OTHERS else SpanKind.INTERNAL
        sampled = self._sampler.should_sample(None, trace, name, kind, attributes)
        if sampled.decision is not Decision.RECORD_AND_SAMPLE:
            return
        parent = None if span.parent is None else _context(trace, span.parent)
        self._sent.on_end(
            ReadableSpan(
                name,
                _context(trace, span.id),
                parent,
                self._resource,
                attributes,
                kind=kind,
                status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
                start_time=span.begun_ns,
                end_time=max(span.ended_ns, span.begun_ns),
                instrumentation_scope=InstrumentationScope(SCOPE),
            )
        )

    def close(self) -> None:
        """Send waiting spans and end the thread; may block for seconds if the collector is down."""
        self._sent.shutdown()  # type: ignore[no-untyped-call]


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=_SAMPLED)


def _session(address: str) -> Session:
    """Return a session with Parley's proxy and certificates (agent/network.py).

    Raises:
        UnusableEnvironment: A variable for them is invalid.
    """
    session = Session()
    session.trust_env = False
    if (proxy := proxy_for(address)) is not None:
        session.proxies = {"all": proxy}
    session.mount("https://", _Verified(address))
    return session


class _Verified(HTTPAdapter):
    """Verifies the collector with Parley's trusted certificates instead of requests' own."""

    def __init__(self, address: str) -> None:
        self._tls = tls_for(address)
        super().__init__()

    @override
    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._tls, **options)

    @override
    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        return super().proxy_manager_for(*args, ssl_context=self._tls, **options)

    @override
    def cert_verify(self, *_: Any, **__: Any) -> None:
        """Keep requests' own certificates out of the shared context."""


def address_of(endpoint: str) -> str:
    """Return the traces URL; append the standard path to a base URL."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else f"{base}{TRACES_PATH}"
