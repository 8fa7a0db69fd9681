"""Sends spans to an OpenTelemetry collector, as OTLP over HTTP; needs the extra `otel`.

Spans are Parley's own (agent/spans.py). A thread writes those that are over in OpenTelemetry's
words and sends them in batches: a collector that is down holds up no message, and what waits too
long is dropped. Whether a trace is sampled follows from its id, so all processes that add to it
decide alike. The messages are those of opentelemetry-proto, without the SDK: that takes five times
as long for a span (decision 332).
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import structlog
from typing_extensions import override

from agent.models import observed
from agent.spans import Span, Value
from agent.tools.execute import TOOL, TOOL_NAME
from gateway.settings.tree import TelemetrySettings

log = structlog.get_logger()

TRACES_PATH = "/v1/traces"
PROTOBUF = "application/x-protobuf"
TIMEOUT_S = 5.0
EVERY_S = 2.0
MOST_WAITING = 4_096
"""Spans that wait to be sent; of more the oldest are dropped."""
BATCH = 512
TRY_AGAIN = frozenset({429, 502, 503, 504})
"""Source: OpenTelemetry Protocol Specification, OTLP/HTTP, "Retryable Response Codes"."""
SCOPE = "parley"
_NAMED_BY = {observed.CHAT: observed.MODEL, TOOL: TOOL_NAME}
"""The attribute that stands behind a span's name, as the conventions have it."""
_CALLS_OTHERS = frozenset({observed.CHAT, "delivery"})
_IDS = 2**64


class _Straight(HTTPRedirectHandler):
    """Follows no redirection: the headers are secrets, and another host must not get them."""

    @override
    def redirect_request(self, *_: Any) -> None:
        return None


_opener = build_opener(_Straight)


class Traces:
    """Takes spans that are over, and has a thread send them."""

    def __init__(self, settings: TelemetrySettings) -> None:
        """Send to the collector of the settings, from now until `close`."""
        told = {name: value.get_secret_value() for name, value in settings.otlp_headers.items()}
        self._headers = {**told, "Content-Type": PROTOBUF}
        self._url = address_of(settings.otlp_endpoint or "")
        self._service = settings.service_name
        self._sampled_below = int(settings.sampling_ratio * _IDS)
        self._waiting: deque[Span] = deque(maxlen=MOST_WAITING)
        self._told = ""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def ended(self, span: Span) -> None:
        """Have a span sent, if its trace is sampled; work for no message has none."""
        if span.trace and int(span.trace[16:], 16) < self._sampled_below:
            self._waiting.append(span)

    def close(self) -> None:
        """Send what waits, and end the thread; blocks for seconds where nobody answers."""
        self._ends.set()
        self._thread.join(2 * TIMEOUT_S)

    def _run(self) -> None:
        while not self._ends.wait(EVERY_S):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        """Send batches until nothing waits, or the collector does not take one."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            if not self._send(batch):
                return

    def _send(self, batch: Sequence[Span]) -> bool:
        """Send a batch; one that may get through later waits again. A trouble is told once."""
        again = False
        try:
            body = encoded(batch, self._service)
            request = Request(self._url, body, dict(self._headers))  # noqa: S310 - the settings take http and https alone
            with _opener.open(request, timeout=TIMEOUT_S) as response:
                response.read()
        except HTTPError as exc:
            error, again = f"HTTP {exc.code}", exc.code in TRY_AGAIN
            exc.close()
        except Exception as exc:  # noqa: BLE001 - also of a span that is wrong: the thread goes on
            # Its text may hold the address, with a password in it.
            lacks = f": {exc.name}" if isinstance(exc, ImportError) else ""
            error = f"{type(exc).__name__}{lacks}"
            again = isinstance(exc, OSError | HTTPException)
        else:
            self._told = ""
            return True
        if error != self._told:
            self._told = error
            log.warning("traces_not_sent", error=error, spans=len(batch), again=again)
        if again and len(self._waiting) + len(batch) <= MOST_WAITING:
            self._waiting.extendleft(reversed(batch))
        return not again


def encoded(batch: Sequence[Span], service: str) -> bytes:
    """Return the body of an export."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTraceServiceRequest,
    )

    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.append(_attribute("service.name", service))
    scope = resource.scope_spans.add()
    scope.scope.name = SCOPE
    scope.spans.extend(map(_translated, batch))
    body: bytes = request.SerializeToString()
    return body


def _translated(span: Span) -> Any:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message  # noqa: PLC0415
    from opentelemetry.proto.trace.v1.trace_pb2 import Status  # noqa: PLC0415

    named = span.attributes.get(_NAMED_BY.get(span.name, ""))
    calls = span.name in _CALLS_OTHERS
    kind = Message.SPAN_KIND_CLIENT if calls else Message.SPAN_KIND_INTERNAL
    return Message(
        trace_id=bytes.fromhex(span.trace),
        span_id=_id(span.id),
        parent_span_id=b"" if span.parent is None else _id(span.parent),
        name=span.name if named is None else f"{span.name} {named}",
        kind=kind,
        start_time_unix_nano=span.begun_ns,
        end_time_unix_nano=max(span.ended_ns, span.begun_ns),
        attributes=list(_attributes(span.attributes, span.error)),
        status=Status(code=Status.STATUS_CODE_ERROR) if span.error else None,
    )


def _attributes(told: Mapping[str, Value | None], error: str) -> Iterator[Any]:
    for name, value in told.items():
        # Our own ones are told from those of the conventions. True equals 1, as a key of a cache.
        if value is not None:
            yield _attribute(name if "." in name else f"{SCOPE}.{name}", value)
    if error:
        yield _attribute("error.type", error)


@lru_cache(maxsize=1024, typed=True)
def _attribute(name: str, value: Value) -> Any:
    from opentelemetry.proto.common.v1.common_pb2 import (  # noqa: PLC0415
        AnyValue,
        ArrayValue,
        KeyValue,
    )

    match value:
        case bool():
            held = AnyValue(bool_value=value)
        case int():
            held = AnyValue(int_value=value)
        case float():
            held = AnyValue(double_value=value)
        case str():
            held = AnyValue(string_value=value)
        case _:
            held = AnyValue(
                array_value=ArrayValue(values=[AnyValue(string_value=each) for each in value])
            )
    return KeyValue(key=name, value=held)


def _id(number: int) -> bytes:
    return number.to_bytes(8, "big")


def address_of(endpoint: str) -> str:
    """Return where traces go to: a base address stands for its path, as collectors document it."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else f"{base}{TRACES_PATH}"
