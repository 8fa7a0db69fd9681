"""Traces, as a strict collector gets them: one tree for each message, and no word of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent.network import certificates
from agent.spans import Span, Value
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool
from gateway.metrics.traces import Traces, address_of
from gateway.settings.loading import load_settings
from gateway.settings.tree import TelemetrySettings
from tests.support.gateway import HeldModel, Running, agent_of, echo, running, serving
from tests.support.otlp_server import Collector, Received, collecting
from tests.support.scripted_model import ScriptedModel, tool_call


class Sum(Arguments):
    """What is asked."""

    expression: str


async def _calculated(_context: ToolContext, _arguments: Sum) -> str:
    return "1234"


CALCULATE = Tool("calculate", "Calculates.", "read", Sum, _calculated)

pytestmark = pytest.mark.usefixtures("sqlite_alone")


@pytest.fixture(autouse=True)
def _sent_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread sends at the end alone, and not beside a test that sends itself."""
    monkeypatch.setattr("gateway.metrics.traces.EVERY_S", 3600.0)


def told(collector: Collector, **more: Any) -> dict[str, Any]:
    """Return the section that names a collector."""
    return {"otlp_endpoint": collector.url, **more}


def tree(spans: list[Received]) -> dict[str, list[str]]:
    """Return the names of the spans below each span, by its name."""
    names = {each.id: each.name for each in spans}
    found: dict[str, list[str]] = {}
    for each in sorted(spans, key=lambda span: span.begun_ns):
        found.setdefault(names.get(each.parent, each.parent), []).append(each.name)
    return found


def traces_in(chat: Running) -> set[str]:
    """Return the traces that log lines about messages name."""
    events = ("message_admitted", "turn_finished", "message_sent")
    return {line["trace"] for event in events for line in chat.events(event)}


async def test_a_message_is_one_tree_from_its_update_to_its_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its calls of models and tools; each line of the log has its id."""
    model = ScriptedModel([[tool_call("calculate", {"expression": "6 * 7"})], "It is 42."])
    async with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "X-Key=a-secret-of-the-collector")
        section = told(collector)
        async with serving(
            tmp_path, agent_of(model, tools=[CALCULATE]), telemetry=section
        ) as gateway:
            await gateway.chat.ask("what is six times seven?")
            await gateway.chat.logged("message_sent")
        await collector.until("message")
    [trace] = traces_in(gateway.chat)
    assert collector.refused == []
    assert {each.trace for each in collector.spans} == {trace}
    below = tree(collector.spans)
    assert below[""] == ["message"]
    assert sorted(below["message"]) == ["admission", "delivery", "queued", "turn"]
    assert below["turn"] == [
        "hygiene",
        "chat scripted",
        "execute_tool calculate",
        "chat scripted",
    ]
    assert collector.services == {"parley"}
    assert collector.headers["X-Key"] == "a-secret-of-the-collector"


async def test_no_span_holds_what_was_said(tmp_path: Path) -> None:
    """Neither the question, nor the answer, nor what a tool was told."""
    number = "98765432109876543210"  # long: times and ids of spans hold any short one
    call = tool_call("calculate", {"expression": f"{number} * 1"})
    model = ScriptedModel([[call], "the private answer"])
    async with collecting() as collector:
        async with serving(
            tmp_path, agent_of(model, tools=[CALCULATE]), telemetry=told(collector)
        ) as gateway:
            await gateway.chat.ask("my private question")
            await gateway.chat.logged("message_sent")
        await collector.until("message")
    everything = repr(collector.spans)
    assert "chat scripted" in everything
    for said in ("private", number):
        assert said not in everything


async def test_a_turn_that_goes_on_after_a_crash_adds_to_its_tree(tmp_path: Path) -> None:
    """The trace follows from the row of its message; the second attempt is a second turn."""
    async with collecting() as collector:
        section = told(collector)
        held = HeldModel(echo)
        held.hold("hello")
        async with running(tmp_path, held, telemetry=section) as chat:
            await chat.say("hello")
            await chat.until(lambda: held.waiting)
            first = chat.events("message_admitted")[0]["trace"]
        async with running(tmp_path, telemetry=section) as chat:
            await chat.logged("message_sent")
            assert (await chat.logged("turn_finished"))["trace"] == first
        turns = await collector.until("turn", 2)
        [root] = await collector.until("message")
    assert collector.refused == []
    assert {each.trace for each in turns} == {root.trace} == {first}
    assert len([each for each in collector.spans if each.name == "queued"]) == 1
    assert {each.parent for each in turns} == {root.id}
    assert turns[0].is_error


async def test_a_sampled_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the ids of traces: whoever adds to one decides alike; work for no message has none."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    async with collecting() as collector:
        traces = Traces(TelemetrySettings(otlp_endpoint=collector.url))
        for high in range(16):
            traces.ended(Span("turn", f"{'0' * 15}1{high:x}{'0' * 14}1", 7, None, 1, 2))
        traces.ended(Span("chat", "", 7, None, 1, 2))
        await asyncio.to_thread(traces.close)
    assert [each.trace[16] for each in collector.spans] == ["0", "1", "2", "3"]


async def test_a_disabled_sdk_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's variable for it, whatever the sampler."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    async with collecting() as collector:
        traces = Traces(TelemetrySettings(otlp_endpoint=collector.url))
        traces.ended(Span("turn", "0" * 31 + "1", 7, None, 1, 2))
        await asyncio.to_thread(traces.close)
    assert collector.spans == []


async def test_what_a_collector_cannot_take_now_is_sent_again() -> None:
    """503: again."""
    async with collecting() as collector:
        collector.busy = 1
        traces = Traces(TelemetrySettings(otlp_endpoint=collector.url))
        traces.ended(Span("turn", "0" * 31 + "1", 7, None, 1, 2))
        await asyncio.to_thread(traces.close)
        assert collector.busy == 0
    assert [each.name for each in collector.spans] == ["turn"]


async def test_what_is_refused_is_told_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """400: never again, and what comes later is sent."""
    async with collecting() as collector:
        traces = Traces(TelemetrySettings(otlp_endpoint=collector.url))
        traces.ended(Span("", "0" * 31 + "1", 8, None, 1, 2))
        await asyncio.to_thread(traces._sent.force_flush)
        traces.ended(Span("chat", "0" * 31 + "1", 9, None, 1, 2))
        await asyncio.to_thread(traces.close)
    assert len(collector.refused) == 1
    assert [each.name for each in collector.spans] == ["chat"]
    assert "Failed to export spans batch code: 400" in caplog.text


async def test_without_certificates_the_gateway_runs_untraced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log names the variable."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nothing.pem"))
    certificates.cache_clear()
    async with running(tmp_path, telemetry={"otlp_endpoint": "https://127.0.0.1:9"}) as chat:
        assert await chat.ask("hello") == "re: hello"
        assert "SSL_CERT_FILE" in (await chat.logged("traces_not_sent"))["error"]
    certificates.cache_clear()


async def test_a_redirection_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers are secrets of this collector."""
    async with collecting() as collector, collecting() as other:
        collector.moved_to = f"{other.url}/v1/traces"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "X-Key=a-secret-of-the-collector")
        traces = Traces(TelemetrySettings(otlp_endpoint=collector.url))
        traces.ended(Span("turn", "0" * 31 + "1", 7, None, 1, 2))
        await asyncio.to_thread(traces.close)
    assert collector.headers["X-Key"] == "a-secret-of-the-collector"
    assert other.headers == {}


async def test_values_of_all_kinds_are_told_apart() -> None:
    """What is not known is left out."""
    given: dict[str, Value | None] = {"a": 1, "b": True, "c": 1.5, "d": "x", "none": None}
    given["gen_ai.e"] = ("y", "z")
    async with collecting() as collector:
        traces = Traces(TelemetrySettings(otlp_endpoint=collector.url))
        traces.ended(Span("turn", "0" * 31 + "1", 7, None, 1, 2, given))
        await asyncio.to_thread(traces.close)
    [span] = collector.spans
    assert span.attributes == {
        "parley.a": 1,
        "parley.b": True,
        "parley.c": 1.5,
        "parley.d": "x",
        "gen_ai.e": ["y", "z"],
    }
    assert span.attributes["parley.b"] is True


async def test_a_collector_that_is_down_holds_up_nobody(tmp_path: Path) -> None:
    """What it does not take is dropped."""
    section = {"otlp_endpoint": "http://127.0.0.1:9"}
    async with running(tmp_path, telemetry=section) as chat:
        assert await chat.ask("hello") == "re: hello"
        assert await chat.ask("again") == "re: again"


def test_both_forms_of_an_address() -> None:
    """Collectors document the base; some the whole path."""
    assert address_of("http://c:4318") == address_of("http://c:4318/v1/traces/")
    assert address_of("https://c/otlp/") == "https://c/otlp/v1/traces"


def test_the_extra_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, not with the first message."""
    monkeypatch.setattr("gateway.settings.rules.find_spec", lambda _: None)
    wanted = {"home": tmp_path, "telemetry.otlp_endpoint": "http://127.0.0.1:4318"}
    with pytest.raises(Exception, match=r"pip install 'parley\[otel\]'"):
        load_settings(environ={}, overrides=wanted)
