"""A collector of OpenTelemetry traces on loopback: takes OTLP over HTTP, and is strict about it.

Refused are another path or content type, a body that is no `ExportTraceServiceRequest`, ids of a
wrong length or of zeros alone, spans without a name, that end before they begin, whose parent is
themselves, or that are sent twice, and attributes without a name or a value.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

PATH = "/v1/traces"
PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it came; ids are hexadecimal, `parent` is "" for a root."""

    name: str
    trace: str
    id: str
    parent: str
    begun_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    is_error: bool


@dataclass(slots=True)
class Collector:
    """What was sent, and what was refused.

    Attributes:
        headers: Of the newest request.
        services: `service.name` of all that was sent.
        busy: So many requests are answered 503.
        moved_to: Where requests are sent on to; "" for nowhere.
    """

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    services: set[str] = field(default_factory=set)
    busy: int = 0
    moved_to: str = ""
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        """Take an export, or say what is wrong with it."""
        body = await request.read()
        self.headers = request.headers
        if self.busy:
            self.busy -= 1
            return web.Response(status=503)
        if self.moved_to:
            return web.Response(status=307, headers={"Location": self.moved_to})
        try:
            self._enter(request, body)
        except (ValueError, DecodeError, OSError) as exc:
            self.refused.append(str(exc))
            return web.Response(status=400, text=str(exc))
        self.came.set()
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type=PROTOBUF)

    def _enter(self, request: web.Request, body: bytes) -> None:
        if request.content_type != PROTOBUF:
            raise ValueError(f"content type {request.content_type}")
        # aiohttp has unpacked it where the header says so.
        plain = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        message = ExportTraceServiceRequest.FromString(plain)
        if not message.resource_spans:
            raise ValueError("nothing is in it")
        for resource in message.resource_spans:
            told = _attributes(resource.resource.attributes)
            self.services.add(str(told.get("service.name")))
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self._add(_received(span))

    def _add(self, span: Received) -> None:
        if any((each.trace, each.id) == (span.trace, span.id) for each in self.spans):
            raise ValueError(f"{span.name}: sent twice")
        self.spans.append(span)

    def of(self, trace: str) -> list[Received]:
        """Return the spans of a trace."""
        return [each for each in self.spans if each.trace == trace]

    async def until(self, name: str, count: int = 1) -> list[Received]:
        """Wait for spans of a name; returns them."""
        async with asyncio.timeout(60):
            while len(found := [each for each in self.spans if each.name == name]) < count:
                self.came.clear()
                await self.came.wait()
        return found


def _received(span: Any) -> Received:
    for what, found, size in (("trace", span.trace_id, 16), ("span", span.span_id, 8)):
        if len(found) != size or not any(found):
            raise ValueError(f"{what} id {found.hex()!r}")
    parent = span.parent_span_id
    if parent and (len(parent) != 8 or parent == span.span_id):
        raise ValueError(f"parent {parent.hex()!r}")
    if not span.name or not span.start_time_unix_nano:
        raise ValueError("a span without a name or a time")
    if span.end_time_unix_nano < span.start_time_unix_nano:
        raise ValueError(f"{span.name}: ends before it begins")
    return Received(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        parent.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        span.status.code == 2,
    )


def _attributes(given: Any) -> dict[str, Any]:
    return dict(_pairs(given))


def _pairs(given: Any) -> Iterator[tuple[str, Any]]:
    for each in given:
        kind = each.value.WhichOneof("value")
        if not each.key or kind is None:
            raise ValueError(f"attribute {each.key!r} without a value")
        value = getattr(each.value, kind)
        yield each.key, [item.string_value for item in value.values] if "array" in kind else value


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """Run a collector on a free port; its `url` has no path."""
    collector = Collector()
    application = web.Application()
    application.router.add_post(PATH, collector.take)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()
