"""Sends spans to an OpenTelemetry collector, as OTLP over HTTP; needs the extra `otel`.

Spans are Parley's own (agent/spans.py). A thread writes those that are over in OpenTelemetry's
words and sends them in batches: a collector that is down holds up no message, and what waits too
long is dropped. Whether a trace is sampled follows from its id, so all processes that add to it
decide alike. The messages are those of opentelemetry-proto, without the SDK: that takes five times
as long for a span (decision 332).
"""

import struct
import threading
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request

import structlog
from typing_extensions import override

from agent.models import observed
from agent.network import opener_for
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
            with opener_for(self._url, _Straight()).open(request, timeout=TIMEOUT_S) as response:
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
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: PLC0415
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue  # noqa: PLC0415

    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.append(KeyValue(key="service.name", value=_value(service)))
    scope = resource.scope_spans.add()
    scope.scope.name = SCOPE
    scope.MergeFromString(b"".join([_SPAN + _sized(_translated(span)) for span in batch]))
    body: bytes = request.SerializeToString()
    return body


# What differs from span to span is written here: messages of the library take five times as long.
# Source: opentelemetry-proto, trace.proto: the numbers and types of fields.
_SPAN, _TRACE_ID, _SPAN_ID, _PARENT_ID = b"\x12", b"\n\x10", b"\x12\x08", b'"\x08'
_TIMES = struct.Struct("<cQcQ")


def _translated(span: Span) -> bytes:
    named = span.attributes.get(_NAMED_BY.get(span.name, ""))
    return b"".join((
        _TRACE_ID + bytes.fromhex(span.trace),
        _SPAN_ID + _id(span.id),
        b"" if span.parent is None else _PARENT_ID + _id(span.parent),
        _TIMES.pack(b"9", span.begun_ns, b"A", max(span.ended_ns, span.begun_ns)),
        _head(span.name, named, span.error),
        *[_attribute(*told) for told in span.attributes.items() if told[1] is not None],
    ))


def _sized(message: bytes) -> bytes:
    """Return a message behind its length."""
    size, head = len(message), b""
    while size > 0x7F:
        head += bytes((size & 0x7F | 0x80,))
        size >>= 7
    return head + bytes((size,)) + message


@lru_cache(maxsize=256)
def _head(name: str, named: Value | None, error: str) -> bytes:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message  # noqa: PLC0415
    from opentelemetry.proto.trace.v1.trace_pb2 import Status  # noqa: PLC0415

    calls = name in _CALLS_OTHERS
    message = Message(
        name=name if named is None else f"{name} {named}",
        kind=Message.SPAN_KIND_CLIENT if calls else Message.SPAN_KIND_INTERNAL,
        status=Status(code=Status.STATUS_CODE_ERROR) if error else None,
    )
    body: bytes = message.SerializeToString()
    return body + _attribute("error.type", error) if error else body


@lru_cache(maxsize=4096, typed=True)
def _attribute(name: str, value: Value) -> bytes:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue  # noqa: PLC0415
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message  # noqa: PLC0415

    # Our own ones are told from those of the conventions. True equals 1, as a key of a cache.
    key = name if "." in name else f"{SCOPE}.{name}"
    body: bytes = Message(attributes=[KeyValue(key=key, value=_value(value))]).SerializeToString()
    return body


def _value(value: Value) -> Any:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue  # noqa: PLC0415

    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=map(_value, value)))


def _id(number: int) -> bytes:
    return number.to_bytes(8, "big")


def address_of(endpoint: str) -> str:
    """Return where traces go to: a base address stands for its path, as collectors document it."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else f"{base}{TRACES_PATH}"
