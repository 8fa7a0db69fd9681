"""Assembly, start and stop."""

import asyncio
import ctypes
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import update

from agent.messages import Usage, assistant_message
from agent.models.base import Completion
from agent.models.catalog import ModelFacts, Prices
from agent.processes import descriptors
from gateway.app import Gateway, OnReady, run
from gateway.cli.run import caching_text
from gateway.errors import GatewayError, SettingsError, StorageUnavailable
from gateway.settings.tree import Settings
from gateway.storage import schema
from gateway.supervision.crash_journal import CrashJournal
from gateway.supervision.credentials import Checked
from gateway.supervision.home import own_home
from gateway.wiring import build_line
from tests.support.anthropic_server import AnthropicServer
from tests.support.faulty_models import forget_certificates
from tests.support.gateway import (
    HeldModel,
    RecordingModel,
    log_lines,
    running,
    serving,
    settings_of,
)
from tests.support.model_server import Fault
from tests.support.openai_server import OpenAIServer
from tests.support.process import free_port
from tests.support.recording_adapter import RecordingAdapter, Watch


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PARLEY_HOME for a gateway with the real SDKs."""
    forget_certificates(tmp_path, monkeypatch)
    return tmp_path


async def test_a_stop_lets_the_running_turn_finish(tmp_path: Path) -> None:
    """Its answer is sent before the end; what waits is kept for the next start."""
    model = HeldModel()
    gate = model.hold("one")
    async with serving(tmp_path, model) as gateway:
        await gateway.chat.say("one")
        await gateway.chat.until(lambda: model.waiting)
        await gateway.chat.say("two")
        gateway.stop.set()
        await gateway.chat.logged("gateway_stopping")
        gate.set()
        await gateway.ended()
        assert gateway.chat.texts() == ["re: one"]
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == ["re: two"]


async def test_a_stop_begins_no_turn_that_waited_for_its_place(tmp_path: Path) -> None:
    """It is left for the next start, however much grace there is."""
    model = HeldModel()
    gate = model.hold("one")
    async with serving(tmp_path, model, queue={"max_concurrent_turns": 1}) as gateway:
        await gateway.chat.say("one", "a")
        await gateway.chat.until(lambda: model.waiting)
        await gateway.chat.say("two", "b")
        await gateway.chat.until_rows(
            schema.conversation, lambda rows: rows[-1].ready_no is not None
        )
        gateway.stop.set()
        await gateway.chat.logged("gateway_stopping")
        gate.set()
        await gateway.ended()
        assert len(model.requests) == 1
    async with running(tmp_path) as chat:
        assert await chat.answers(1, "b") == ["re: two"]


@pytest.mark.parametrize("how", ["grace is over", "second signal"])
async def test_a_forced_stop_keeps_the_turn(tmp_path: Path, how: str) -> None:
    """It is resumed at the next start, and the attempt does not count."""
    model = HeldModel()
    model.hold("one")
    grace_s = 0.0 if how == "grace is over" else 60.0
    async with serving(tmp_path, model, queue={"grace_s": grace_s}) as gateway:
        await gateway.chat.say("one")
        await gateway.chat.until(lambda: model.waiting)
        gateway.stop.set()
        if how == "second signal":
            gateway.force.set()
        await gateway.ended()
        assert gateway.chat.texts() == []
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == ["re: one"]
        assert (await chat.logged("turn_finished"))["attempt"] == 1


async def test_a_forced_stop_forgives_turns_that_waited_for_a_place(tmp_path: Path) -> None:
    """A turn that had not begun has had no attempt either."""
    model = HeldModel()
    model.hold("one")
    queue = {"grace_s": 0, "max_concurrent_turns": 1}
    async with serving(tmp_path, model, queue=queue) as gateway:
        await gateway.chat.say("one", "a")
        await gateway.chat.until(lambda: model.waiting)
        await gateway.chat.say("two", "b")
        await gateway.chat.until_rows(
            schema.conversation, lambda rows: rows[-1].ready_no is not None
        )
        gateway.stop.set()
        await gateway.ended()
    async with running(tmp_path) as chat:
        await chat.logged("turn_finished", 2)
        assert [line["attempt"] for line in chat.events("turn_finished")] == [1, 1]


async def test_committed_answers_are_delivered_before_the_end(tmp_path: Path) -> None:
    """A slow platform gets its time."""
    adapter = RecordingAdapter()
    gate = adapter.held["c1"] = asyncio.Event()
    async with serving(tmp_path, adapter=adapter) as gateway:
        await gateway.chat.say("one")
        await gateway.chat.until(lambda: adapter.attempts)
        gateway.stop.set()
        await gateway.chat.logged("gateway_stopping")
        gate.set()
        await gateway.ended()
        assert gateway.chat.texts() == ["re: one"]
    assert adapter.closed


async def test_what_cannot_be_delivered_is_left_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop does not wait for a platform that hangs."""
    monkeypatch.setattr("gateway.app.DELIVER_WITHIN_S", 0.05)
    adapter = RecordingAdapter()
    adapter.held["c1"] = asyncio.Event()
    async with serving(tmp_path, adapter=adapter) as gateway:
        await gateway.chat.say("one")
        await gateway.chat.until(lambda: adapter.attempts)
        gateway.stop.set()
        await gateway.ended()
        assert gateway.chat.events("delivery_unfinished")
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == ["re: one"]


async def test_a_taken_port_ends_the_start_with_one_clear_error(tmp_path: Path) -> None:
    """Not with a group of exceptions, and the database is usable afterwards."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        settings = settings_of(tmp_path, web={"port": other.getsockname()[1]})
        async with log_lines(Watch()):
            with (
                own_home(settings) as journal,
                pytest.raises(GatewayError, match="cannot listen on"),
            ):
                await run(settings, stopping, journal)
    async with running(tmp_path) as chat:
        assert await chat.ask("one") == "re: one"


def stop_now(_port: int, _checks: object) -> None:
    """Stop the gateway once it is ready."""
    os.kill(os.getpid(), signal.SIGTERM)


async def stopping(_: Gateway) -> OnReady:
    """Have the gateway stop once it is ready."""
    return stop_now


def caching_of(gateway: Gateway) -> str:
    """Return what the start says about caching."""
    agent = gateway.reloading.mind.agent
    return caching_text(agent.models[0], agent.caching)


async def test_a_start_without_its_database_closes_what_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The models were asked about their windows by then."""
    settings, closed = settings_of(tmp_path), asyncio.Event()
    line = build_line(settings)

    async def close() -> None:
        closed.set()

    def refuse(*_: object) -> None:
        raise StorageUnavailable("too many clients already")

    monkeypatch.setattr(line[0].models[0], "close", close)
    monkeypatch.setattr("gateway.wiring.build_line", lambda _: line)
    monkeypatch.setattr("gateway.app.open_locked", refuse)
    async with log_lines(Watch()):
        with own_home(settings) as journal, pytest.raises(StorageUnavailable, match="too many"):
            await run(settings, stopping, journal)
    assert closed.is_set()


async def test_what_a_start_writes_precedes_the_first_message(tmp_path: Path) -> None:
    """An owner's code of an earlier start must be void before a backlog is read.

    An error of it is the start's own, as the command line expects it; nothing was served.
    """
    port = free_port()
    settings = settings_of(tmp_path, web={"port": port})

    async def on_start(_: Gateway) -> OnReady:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        raise StorageUnavailable("the disk is full")

    async with log_lines(Watch()) as lines:
        with own_home(settings) as journal, pytest.raises(StorageUnavailable, match="disk is full"):
            await run(settings, on_start, journal)
    assert "gateway_ready" not in [line["event"] for line in lines]


async def test_a_signal_stops_a_running_gateway(tmp_path: Path) -> None:
    """SIGTERM after the start: it ends by itself, with the real model and web chat."""
    ports: list[int] = []
    told: list[str] = []

    async def on_start(gateway: Gateway) -> OnReady:
        told.append(caching_of(gateway))
        return on_ready

    def on_ready(port: int, checks: Sequence[Checked]) -> None:
        ports.append(port)
        stop_now(port, checks)

    async with log_lines(Watch()) as lines:
        settings = settings_of(tmp_path / "home")
        with own_home(settings) as journal:
            await run(settings, on_start, journal)
    events = [line["event"] for line in lines]
    assert ports[0] > 0
    assert "Prompt caching" in told[0]
    assert events.index("gateway_ready") < events.index("gateway_stopping")
    assert events[-1] == "gateway_stopped"


@pytest.mark.parametrize(
    ("key", "outcome", "said"),
    [("good", "accepted", "answers"), ("bad", "refused", "correct model.api_key")],
)
async def test_a_refused_key_is_said_before_ready(
    home: Path, key: str, outcome: str, said: str
) -> None:
    """At the start, and not at the first message; in the log it stands before `gateway_ready`."""
    said_at_start: list[Checked] = []

    async def on_start(_: Gateway) -> OnReady:
        return on_ready

    def on_ready(port: int, checks: Sequence[Checked]) -> None:
        said_at_start.extend(checks)
        stop_now(port, checks)

    async with AnthropicServer(api_key="good") as server, log_lines(Watch()) as lines:
        server.key_faults = {"bad": Fault(status=401, error="authentication_error")}
        server.infos = {"claude-sonnet-5-5": {"max_input_tokens": 200_000}}
        model = {"provider": "anthropic", "name": "claude-sonnet-5-5", "api_key": key}
        settings = settings_of(home, model=model | {"base_url": server.url})
        with own_home(settings) as journal:
            await run(settings, on_start, journal)
    [check] = said_at_start
    assert (check.outcome, said in check.text) == (outcome, True)
    events = [line["event"] for line in lines]
    assert events.index("credentials_checked") < events.index("gateway_ready")


async def started(settings: Settings) -> list[str]:
    """Start a gateway, stop it when it is ready, and return what it said about caching."""
    told: list[str] = []

    async def on_start(gateway: Gateway) -> OnReady:
        told.append(caching_of(gateway))
        return stop_now

    async with log_lines(Watch()):
        with own_home(settings) as journal:
            await run(settings, on_start, journal)
    return told


async def test_the_start_says_whether_requests_are_marked(home: Path) -> None:
    """Once the gateway is ready; it is about the main model."""
    async with AnthropicServer() as server:
        main = {"provider": "anthropic", "api_key": "key-one", "base_url": server.url}
        [told] = await started(settings_of(home, model=main))
    assert "ENABLED (Claude via Anthropic, 5m TTL)" in told


async def test_a_budget_that_cannot_be_enforced_stops_the_start_at_once(home: Path) -> None:
    """Nobody is asked for anything, and no database is made."""
    async with OpenAIServer() as server:
        main = {"provider": "openai", "base_url": server.url, "name": "local"}
        settings = settings_of(home / "new", model=main, budget={"daily_usd": 5})
        with pytest.raises(SettingsError, match=r"budget\.daily_usd is set, .* local is not known"):
            await started(settings)
        assert server.look_ups == []
    assert not (home / "new" / "parley.db").exists()


async def test_a_budget_with_known_prices_starts(home: Path) -> None:
    """Those of the table, or of the settings; the server is asked for the window."""
    facts = {"input_usd": 0, "output_usd": 0}
    async with OpenAIServer() as server:
        main = {"provider": "openai", "base_url": server.url, "name": "local", "facts": facts}
        assert await started(settings_of(home, model=main, budget={"daily_usd": 5}))
        assert server.look_ups == ["/v1/models"]


async def test_a_budget_counts_the_summary_model_too(tmp_path: Path) -> None:
    """Its price must be known as well."""
    block = {"provider": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "tiny"}
    budget = {"sender_daily_usd": 1}
    with pytest.raises(SettingsError, match="the price of tiny is not known"):
        async with running(tmp_path, auxiliary={"compression": block}, budget=budget):
            pass


async def test_a_start_that_fails_takes_nothing_over(tmp_path: Path) -> None:
    """Else its successor would charge the same death again, and find nobody who ran at it."""
    model = HeldModel()
    model.hold("one")
    async with running(tmp_path, model) as chat:
        await chat.say("one")
        await chat.until(lambda: model.waiting)
    unpriced = {"provider": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "tiny"}
    with pytest.raises(SettingsError):
        async with running(
            tmp_path, auxiliary={"compression": unpriced}, budget={"sender_daily_usd": 1}
        ):
            pass
    async with running(tmp_path) as chat:
        assert (await chat.logged("conversations_reclaimed"))["turns"] == 1


async def test_usage_knows_prices_and_budget(tmp_path: Path) -> None:
    """What caching saved goes by the prices of the model, what is left by the sender's budget."""
    dollar_a_token = Prices(1e6, 1.25e6, 2e6, 0.1e6, 5e6)
    answer = Completion(assistant_message("Hi."), "stop", Usage(1, 1, cache_read_tokens=10))
    facts = ModelFacts("claude", prices=dollar_a_token)
    model = RecordingModel([answer], facts=facts, cache_layout="native")
    async with running(tmp_path, model, budget={"sender_daily_usd": 1_000}) as chat:
        await chat.ask("one")
        told = await chat.ask("/usage")
        assert "saved $9.00 so far" in told
        assert "**Your spending today**: $7.00 of $1,000.00, $993.00 left" in told


async def test_old_raw_updates_are_dropped_while_it_runs(tmp_path: Path) -> None:
    """`storage.raw_days` after they came in."""
    async with running(tmp_path) as chat:
        await chat.ask("one")
        await chat.execute(update(schema.inbox).values(at=schema.inbox.c.at - 31 * 86400))
    async with serving(tmp_path) as gateway:
        rows = await gateway.chat.until_rows(schema.inbox, lambda rows: rows[0].raw is None)
        assert rows[0].text == "one"


async def test_the_summary_model_is_closed_with_the_others(tmp_path: Path) -> None:
    """A model of its own has connections of its own."""
    block = {"provider": "anthropic", "api_key": "k", "model": "tiny"}
    async with running(tmp_path, auxiliary={"compression": block}) as chat:
        summariser = chat.gateway.beside.preparations._parts.summariser
        assert summariser is not None
        client = summariser.models[0]._client  # type: ignore[attr-defined]
        assert not client.is_closed()
    assert client.is_closed()


async def test_conversations_of_a_lost_account_are_named(tmp_path: Path) -> None:
    """Somebody renamed an account: the start says what rests."""
    async with running(tmp_path, adapter=RecordingAdapter("slack")) as chat:
        await chat.ask("hello", platform="slack")
    async with running(tmp_path, adapter=RecordingAdapter("telegram")) as chat:
        [line] = chat.events("account_not_configured")
    assert (line["platform"], line["account"], line["conversations"]) == ("slack", "default", 1)


class Halted(BaseException):
    """Ends a start where the test looks."""


async def test_attack_11_the_gateway_closes_its_memory_before_it_starts_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says so of this process (PR_GET_DUMPABLE)."""

    def halt() -> None:
        raise Halted

    prctl = ctypes.CDLL(None).prctl
    monkeypatch.setattr(descriptors, "raise_limit", halt)
    # Gateways of other tests ran in this process.
    prctl(4, 1, 0, 0, 0)
    with pytest.raises(Halted):
        await run(settings_of(tmp_path), lambda _: None, CrashJournal(tmp_path))
    assert prctl(3, 0, 0, 0, 0) == 0
