"""Supervision: adapters are started again, refused ones are not, and none drags another along."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.errors import AdapterDisconnected, AdapterRefused
from gateway import supervision
from gateway.supervision import Supervised
from tests.support.gateway import log_lines, serving
from tests.support.recording_adapter import RecordingAdapter

pytestmark = pytest.mark.usefixtures("no_pause")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a failed adapter again at once."""
    monkeypatch.setattr(supervision, "LONGEST_PAUSE_S", 0.0)


@pytest.fixture
async def adapter() -> AsyncIterator[RecordingAdapter]:
    """An adapter whose outages a test decides; its log lines go nowhere."""
    recording = RecordingAdapter()
    async with log_lines(recording.watch):
        yield recording


async def test_an_adapter_is_started_again(adapter: RecordingAdapter) -> None:
    """After a lost connection, and also after a bug."""
    adapter.outages += [AdapterDisconnected("gone"), LookupError("bug"), AdapterDisconnected("x")]
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(Supervised(adapter).run())
        await adapter.watch.until(lambda: adapter.runs == 4)
        task.cancel()


async def test_the_pauses_double(
    adapter: RecordingAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, 2, 4 … seconds, up to the longest."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(supervision, "LONGEST_PAUSE_S", 5.0)
    monkeypatch.setattr("asyncio.sleep", sleep)
    adapter.outages += [*[AdapterDisconnected("gone")] * 5, AdapterRefused("401")]
    await Supervised(adapter).run()
    assert pauses == [1, 2, 4, 5, 5]


async def test_a_stable_run_begins_the_pauses_anew(
    adapter: RecordingAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage after a good hour is a first one."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(supervision, "LONGEST_PAUSE_S", 60.0)
    monkeypatch.setattr(supervision, "STABLE_S", -1.0)
    monkeypatch.setattr("asyncio.sleep", sleep)
    adapter.outages += [*[AdapterDisconnected("gone")] * 3, AdapterRefused("401")]
    await Supervised(adapter).run()
    assert pauses == [1, 1, 1]


async def test_a_refused_adapter_is_stopped(adapter: RecordingAdapter) -> None:
    """Calling it again is of no use; its state says why."""
    adapter.outages.append(AdapterRefused("platforms.telegram.token is wrong"))
    supervised = Supervised(adapter)
    await supervised.run()
    await supervised.run()
    assert adapter.runs == 1
    assert supervised.state == "stopped: platforms.telegram.token is wrong"
    assert supervised.name == "telegram:default"


async def test_a_stopped_adapter_leaves_the_gateway_running(tmp_path: Path) -> None:
    """Messages are still taken, answered and sent."""
    adapter = RecordingAdapter()
    adapter.outages.append(AdapterRefused("401"))
    async with serving(tmp_path, adapter=adapter) as gateway:
        await gateway.chat.logged("adapter_stopped")
        assert await gateway.chat.ask("one") == "re: one"


def test_the_state_follows_the_connection() -> None:
    """As the adapter sees it."""
    adapter = RecordingAdapter()
    assert Supervised(adapter).state == "connected"
    adapter.connected = False
    assert Supervised(adapter).state == "connecting"


async def test_pauses_stay_finite(
    adapter: RecordingAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A platform that is away for days does not overflow a number and end the gateway."""

    async def sleep(_: float) -> None:
        pass

    monkeypatch.setattr("asyncio.sleep", sleep)
    adapter.outages += [*[AdapterDisconnected("gone")] * 1100, AdapterRefused("enough")]
    supervised = Supervised(adapter)
    await supervised.run()
    assert supervised.stopped == "enough"
