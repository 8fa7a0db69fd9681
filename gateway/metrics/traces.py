"""Exports spans to an OpenTelemetry collector, over OTLP/HTTP; needs the extra `otel`.

Spans are Parley's own (agent/spans.py). Here they are written in OpenTelemetry's words and handed
to its SDK, which sends them in batches from a thread: a collector that is down holds up no message,
and what does not get through is dropped. Whether a trace is sampled follows from its id, so all
processes that add to it decide alike.
"""

from typing import TYPE_CHECKING

from agent.models import observed
from agent.spans import Span
from agent.tools.execute import TOOL, TOOL_NAME
from gateway.settings.tree import TelemetrySettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.trace import SpanContext

TRACES_PATH = "/v1/traces"
EXPORT_TIMEOUT_S = 5.0
EVERY_MS = 2_000
MOST_WAITING = 4_096
"""Spans that wait to be sent; more are dropped."""
BATCH = 512
SCOPE = "parley"
_NAMED_BY = {observed.CHAT: observed.MODEL, TOOL: TOOL_NAME}
"""The attribute that stands behind a span's name, as the conventions have it."""
_CALLS_OTHERS = frozenset({observed.CHAT, "delivery"})
_IDS = 2**64


class Traces:
    """Hands spans that are over to OpenTelemetry's SDK."""

    def __init__(self, settings: TelemetrySettings, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        self._processor = processor
        self._sampled_below = int(settings.sampling_ratio * _IDS)
        self._resource = Resource.create({"service.name": settings.service_name})
        self._scope = InstrumentationScope(SCOPE)

    @classmethod
    def to(cls, settings: TelemetrySettings) -> "Traces":
        """Return what sends to the collector of the settings."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        headers = {name: value.get_secret_value() for name, value in settings.otlp_headers.items()}
        url = address_of(settings.otlp_endpoint or "")
        exporter = OTLPSpanExporter(url, headers=headers, timeout=EXPORT_TIMEOUT_S)
        return cls(settings, BatchSpanProcessor(exporter, MOST_WAITING, EVERY_MS, BATCH))

    def ended(self, span: Span) -> None:
        """Have a span sent, if its trace is sampled; work for no message has none."""
        if span.trace and int(span.trace[16:], 16) < self._sampled_below:
            self._processor.on_end(self._translated(span))

    def close(self) -> None:
        """Send what waits, and end the thread; blocks for seconds where nobody answers."""
        self._processor.shutdown()

    def _translated(self, span: Span) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.trace import SpanKind  # noqa: PLC0415
        from opentelemetry.trace.status import Status, StatusCode  # noqa: PLC0415

        named = span.attributes.get(_NAMED_BY.get(span.name, ""))
        told = {_qualified(name): value for name, value in span.attributes.items()}
        if span.error:
            told["error.type"] = span.error
        return ReadableSpan(
            span.name if named is None else f"{span.name} {named}",
            context=_context(span.trace, span.id),
            parent=None if span.parent is None else _context(span.trace, span.parent),
            resource=self._resource,
            attributes=told,
            kind=SpanKind.CLIENT if span.name in _CALLS_OTHERS else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
            start_time=span.begun_ns,
            end_time=max(span.ended_ns, span.begun_ns),
            instrumentation_scope=self._scope,
        )


def _context(trace: str, span_id: int) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(trace, 16), span_id, is_remote=False, trace_flags=sampled)


def _qualified(name: str) -> str:
    """Return the name of an attribute: our own ones are told from those of the conventions."""
    return name if "." in name else f"{SCOPE}.{name}"


def address_of(endpoint: str) -> str:
    """Return where traces go to: a base address stands for its path, as collectors document it."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else f"{base}{TRACES_PATH}"
