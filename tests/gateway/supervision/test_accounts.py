"""Supervision: adapters are started again, refused ones are not, and none drags another along.

An account whose adapter is replaced: no call is lost, and none is made twice.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from adapters.errors import (
    AdapterDisconnected,
    AdapterRefused,
)
from adapters.messages import Address, MessageRef, Outgoing
from gateway.errors import LeaseLost
from gateway.replicas.replica import AccountLease, AccountLeases
from gateway.storage.queue.leases import Receiving
from gateway.supervision import accounts
from gateway.supervision.accounts import ReplaceableAdapter, Supervised, supervised_of
from tests.support.gateway import (
    log_lines,
    serving,
)
from tests.support.recording_adapter import RecordingAdapter

pytestmark = pytest.mark.usefixtures("no_pause")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a failed adapter again at once."""
    monkeypatch.setattr(accounts, "LONGEST_PAUSE_S", 0.0)


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
        assert not task.done()
        task.cancel()


async def test_the_pauses_double(
    adapter: RecordingAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, 2, 4 … seconds, up to the longest."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(accounts, "LONGEST_PAUSE_S", 5.0)
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

    monkeypatch.setattr(accounts, "LONGEST_PAUSE_S", 60.0)
    monkeypatch.setattr(accounts, "STABLE_S", -1.0)
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
    ends = supervised.asked_until
    assert supervised.state == f"refused: platforms.telegram.token is wrong; {ends}"
    assert supervised.name == "telegram:default"


async def test_a_stopped_adapter_leaves_the_gateway_running(tmp_path: Path) -> None:
    """Messages are still taken, answered and sent."""
    adapter = RecordingAdapter()
    adapter.outages.append(AdapterRefused("401"))
    async with serving(tmp_path, adapter=adapter) as gateway:
        await gateway.chat.logged("adapter_stopped")
        assert await gateway.chat.ask("one") == "re: one"


async def test_an_adapter_that_fails_again_and_again_is_not_connected(
    adapter: RecordingAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the platform answers each time; it is again once a run has lasted."""
    adapter.outages += [OverflowError("too large")] * accounts.MOST_FAILURES
    supervised = Supervised(adapter)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(supervised.run())
        await adapter.watch.until(lambda: adapter.runs == accounts.MOST_FAILURES + 1)
        assert adapter.connected
        assert supervised.state == "connecting: an unexpected error"
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + accounts.STABLE_S + 1)
        assert supervised.state == "connected"
        task.cancel()


def test_the_state_follows_the_connection() -> None:
    """As the adapter sees it."""
    adapter = RecordingAdapter()
    assert Supervised(adapter).state == "connected"
    adapter.connected = False
    assert Supervised(adapter).state == "connecting"
    lost = Supervised(adapter, trouble="another program receives")
    assert lost.state == "connecting: another program receives"


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


HERE = Receiving("telegram", "default")


async def test_an_adapter_receives_while_its_lease_is_held(adapter: RecordingAdapter) -> None:
    """Not before, and not after: another replica receives for the account then."""
    lease, run, ended = AccountLease(HERE), adapter.run, asyncio.Event()

    async def noted() -> None:
        try:
            await run()
        finally:
            ended.set()

    adapter.run = noted  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(Supervised(adapter, lease).run())
        await asyncio.sleep(0)
        assert adapter.runs == 0
        lease.take(1)
        await adapter.watch.until(lambda: adapter.runs == 1)
        assert not ended.is_set()
        lease.lose()
        await asyncio.wait_for(ended.wait(), 5)
        assert adapter.runs == 1
        lease.take(3)
        await adapter.watch.until(lambda: adapter.runs == 2)
        task.cancel()
    assert not lease.is_wanted


async def test_who_receives_elsewhere_leaves_this_one_in_standby(
    adapter: RecordingAdapter,
) -> None:
    """It works as far as it goes: it sends."""
    lease = AccountLease(HERE)
    adapter.connected = False
    supervised = Supervised(adapter, lease)
    assert (supervised.state, supervised.is_settled) == ("connecting", False)
    lease.elsewhere = True
    assert (supervised.state, supervised.is_settled) == ("standby", True)


async def test_what_is_another_replicas_to_store_ends_the_run(adapter: RecordingAdapter) -> None:
    """The fence has refused what came in: the lease is lost, whoever has it now."""
    lease = AccountLease(HERE)
    lease.take(1)
    adapter.outages.append(LeaseLost("another replica receives"))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(Supervised(adapter, lease).run())
        await asyncio.wait_for(lease.gone(), 5)
        assert lease.epoch is None
        task.cancel()


async def test_a_refused_adapter_gives_its_lease_up(adapter: RecordingAdapter) -> None:
    """Another replica may have other credentials by now."""
    lease = AccountLease(HERE)
    lease.take(1)
    adapter.outages.append(AdapterRefused("the token is wrong"))
    await Supervised(adapter, lease).run()
    assert not lease.is_wanted


def test_each_connection_has_a_lease_of_its_own(adapter: RecordingAdapter) -> None:
    """Where one process is alone, or any may receive, there is none."""
    receiving = AccountLeases()
    adapter.receivers, adapter.is_exclusive = (adapter, adapter), True
    assert [each.name for each in supervised_of([adapter], receiving)] == [
        "telegram:default",
        "telegram:default#1",
    ]
    assert receiving.wanted == [HERE, HERE._replace(shard=1)]
    alone = supervised_of([adapter], AccountLeases(is_alone=True))
    adapter.is_exclusive = False
    anywhere = supervised_of([adapter], receiving)
    assert [each.lease for each in (*alone, *anywhere)] == [None] * 4


async def test_each_connection_is_run_and_judged_by_itself(adapter: RecordingAdapter) -> None:
    """One that is lost leaves the others as they are."""
    lost, other = RecordingAdapter(), RecordingAdapter()
    lost.connected = False
    adapter.receivers = (other, lost)
    first, second = supervised_of([adapter], AccountLeases(is_alone=True))
    assert (first.state, second.state) == ("connected", "connecting")
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(second.run())
        await lost.watch.until(lambda: lost.runs == 1)
        task.cancel()
    assert (adapter.runs, other.runs) == (0, 0)


async def test_a_refused_adapter_asks_again(
    adapter: RecordingAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One 401 may be the platform's own trouble: it works again without anybody's help."""
    monkeypatch.setattr(accounts, "ASK_AGAIN_S", 0.0)
    adapter.outages += [AdapterRefused("401")] * 3
    supervised = Supervised(adapter)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(supervised.keep())
        await adapter.watch.until(lambda: adapter.runs == 4)
        assert supervised.state == "connected"
        keeping.cancel()


async def test_a_refused_adapter_asks_ever_more_slowly_for_an_hour(
    adapter: RecordingAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then it has stopped; before, all is said with the end of that hour."""
    pauses: list[float] = []
    states: set[str] = set()
    adapter.outages += [AdapterRefused("401")] * 100
    supervised = Supervised(adapter)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        states.add(supervised.state)

    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + sum(pauses))
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0 + sum(pauses))
    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr(accounts, "STABLE_S", 1e9)
    with structlog.testing.capture_logs() as lines:
        await supervised._run_though_refused()
    assert pauses[:8] == [5, 10, 20, 40, 80, 160, 300, 300]
    assert 3300 <= sum(pauses) <= 3600
    assert states == {"refused: 401; it is asked again until 09:00 UTC"}
    assert supervised.state == "stopped: 401"
    asked, stopped = "it is asked again until 09:00 UTC", "it has stopped"
    assert [each["ends"] for each in lines] == [asked] * len(pauses) + [stopped]
    supervised.resume()
    assert supervised.state == "connected"
    adapter.outages.append(AdapterRefused("401"))
    await supervised.run()
    assert supervised.state == "refused: 401; it is asked again until 09:55 UTC"


async def test_a_refusal_after_hours_of_short_connections_is_a_first_one(
    adapter: RecordingAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short they are, the account worked in between."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0])
    supervised = Supervised(adapter)
    for hour in (1, 4):
        now[0] = hour * 3600.0
        adapter.outages.append(AdapterRefused("401"))
        await supervised.run()
        assert supervised.state == f"refused: 401; it is asked again until 0{hour + 1}:00 UTC"
        supervised.stopped = None


async def test_a_halted_adapter_receives_again_when_it_is_resumed() -> None:
    """Also one that was refused: with another token it may be taken."""
    adapter = RecordingAdapter()
    adapter.outages.append(AdapterRefused("401"))
    supervised = Supervised(adapter)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(supervised.keep())
        await adapter.watch.until(lambda: supervised.stopped)
        await supervised.halt()
        supervised.resume()
        assert supervised.stopped is None
        await adapter.watch.until(lambda: adapter.runs == 2)
        await supervised.halt()
        assert adapter.runs == 2
        supervised.resume()
        await adapter.watch.until(lambda: adapter.runs == 3)
        keeping.cancel()


CHAT = Address("telegram", "default", "1", None)


def message(text: str) -> Outgoing:
    """Return a message to a chat."""
    return Outgoing(conversation=1, seq=1, address=CHAT, payload=text, nonce="0" * 24)


async def settled() -> None:
    """Let all tasks go on as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_is_on_its_way_ends_with_the_adapter_before() -> None:
    """What comes meanwhile waits, and goes out over the new one."""
    before, after = RecordingAdapter(), RecordingAdapter()
    before.held["1"] = asyncio.Event()
    account = ReplaceableAdapter(before)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(account.send(message("one")))
        await settled()
        replacing = tasks.create_task(account.replace(after))
        await settled()
        tasks.create_task(account.send(message("two")))
        await settled()
        assert (len(before.attempts), len(after.attempts)) == (1, 0)
        assert not (replacing.done())
        assert not (before.closed)
        before.held["1"].set()
    assert [each.payload for each in before.shown] == ["one"]
    assert [each.payload for each in after.shown] == ["two"]
    assert before.closed
    assert not after.closed


async def test_what_takes_too_long_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its outcome is found out as after a crash."""
    before, after = RecordingAdapter(), RecordingAdapter()
    before.held["1"] = asyncio.Event()
    account = ReplaceableAdapter(before)
    monkeypatch.setattr(accounts, "CALLS_END_WITHIN_S", 0.0)
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(account.send(message("one")))
        await settled()
        await account.replace(after)
        assert before.closed
        await account.send(message("two"))
        sending.cancel()
    assert [each.payload for each in after.shown] == ["two"]


async def test_one_that_cannot_be_closed_is_replaced_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The account goes on with the other one, and the log says so."""
    before, after = RecordingAdapter(), RecordingAdapter()

    async def broken() -> None:
        raise RuntimeError("its session is gone")

    monkeypatch.setattr(before, "close", broken)
    account = ReplaceableAdapter(before)
    with capture_logs() as lines:
        await account.replace(after)
    [line] = [each for each in lines if each["event"] == "adapter_not_closed"]
    assert (line["adapter"], line["error"]) == ("telegram:default", "its session is gone")
    await account.send(message("two"))
    assert [each.payload for each in after.shown] == ["two"]


async def test_it_is_the_adapter_that_is_there() -> None:
    """Whatever is asked of it."""
    now = RecordingAdapter()
    account = ReplaceableAdapter(now)
    question = MessageRef(CHAT, "ann", "5")
    assert (account.platform, account.account, account.pool) == ("telegram", "default", None)
    assert account.receivers == now.receivers
    assert account.is_exclusive is now.is_exclusive
    assert account.render("text") == ["text"]
    await account.acknowledge(question, "received")
    await account.show_working(question)
    assert await account.find_preview(question, "nonce", frozenset()) is None
    await account.preview(question, "grows", None)
    assert now.marks == [("5", "received")]
    await account.close()
    assert now.closed


class Hooked(RecordingAdapter):
    """An adapter with a webhook that says which it is."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def routes(self) -> list[web.RouteDef]:
        """Return its path."""

        async def handle(_: web.Request) -> web.Response:
            return web.Response(text=self.name)

        return [web.post("/telegram/default", handle)]


async def test_a_webhook_leads_to_the_adapter_that_is_there() -> None:
    """The server knows the path since it listens."""
    account = ReplaceableAdapter(Hooked("before"))
    app = web.Application()
    app.add_routes(account.routes())
    async with TestClient(TestServer(app)) as client:
        assert await (await client.post("/telegram/default")).text() == "before"
        await account.replace(Hooked("after"))
        assert await (await client.post("/telegram/default")).text() == "after"
