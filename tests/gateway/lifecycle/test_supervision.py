"""Supervision: adapters are started again, refused ones are not, and none drags another along.

Whether an account has fallen silent, and what is said about that.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import update

from adapters.errors import (
    AdapterDisconnected,
    AdapterRefused,
    SendDelayed,
    SendRejected,
    SendUnknown,
)
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.platform import TelegramSettings
from adapters.telegram.render import render
from gateway import app
from gateway.errors import LeaseLost
from gateway.lifecycle import supervision
from gateway.lifecycle.replica import AccountLease, AccountLeases
from gateway.lifecycle.supervision import AccountHealth, Supervised, Watch, supervised_of
from gateway.storage import schema
from gateway.storage.database import location_of
from gateway.storage.migrations import open_database
from gateway.storage.queue.leases import Receiving
from gateway.wiring import Accounts
from tests.support.bot_api import HANG, TOKEN, BotApi
from tests.support.gateway import (
    RecordingModel,
    Running,
    Serving,
    agent_of,
    echo,
    log_lines,
    running,
    served,
    serving,
    settings_of,
)
from tests.support.recording_adapter import RecordingAdapter
from tests.support.recording_intake import FAST

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
        assert not task.done()
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
    ends = supervised.attempts.asked_until
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
    adapter.outages += [OverflowError("too large")] * supervision.MOST_FAILURES
    supervised = Supervised(adapter)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(supervised.run())
        await adapter.watch.until(lambda: adapter.runs == supervision.MOST_FAILURES + 1)
        assert adapter.connected
        assert supervised.state == "connecting: an unexpected error"
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + supervision.STABLE_S + 1)
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


TELEGRAM = ("telegram", "default")
BUSY = "busy for hours"


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def watched(home: Path) -> AsyncIterator["Watched"]:
    """Run a gateway; its account has sent something in chat "first"."""
    async with running(home, adapter=RecordingAdapter()) as chat:
        it = Watched(chat, Clock())
        await it.talk("first")
        yield it


class Watched:
    """A gateway whose time passes when a test says so."""

    def __init__(self, chat: Running, clock: Clock) -> None:
        self.chat, self.clock = chat, clock
        self.watch: Watch = chat.gateway.platforms.watch
        self.watch.traffic.clock = clock
        self._failing = 0

    async def talk(self, chat: str) -> None:
        """Have somebody be answered in the newest chat, and its receipt be stored."""
        await self.chat.ask("hello", chat)
        await self.chat.until_rows(schema.outbox, lambda rows: rows[-1].state == "sent")

    async def fail(self, chat: str, *errors: Exception) -> None:
        """Have somebody write in a chat, whose answer is not taken for now."""
        self.chat.adapter.failures[chat].extend(errors or [SendDelayed(BUSY)] * 100)
        await self.chat.say("hello", chat)
        self._failing += 1
        await self.chat.until_rows(
            schema.outbox,
            lambda rows: sum(row.failures > 0 for row in rows) == self._failing,
        )

    async def heal(self, chat: str) -> None:
        """Have the platform take the answer in a chat."""
        self.chat.adapter.failures[chat].clear()
        await self.chat.answers(1, chat)
        await self.chat.until_rows(schema.outbox, lambda rows: rows[-1].state == "sent")

    async def pass_s(self, seconds: float) -> AccountHealth:
        """Let time pass, then look."""
        self.clock.now += seconds
        await self.chat.execute(update(schema.outbox).values(at=schema.outbox.c.at - seconds))
        return (await self.watch.look())[TELEGRAM]

    def events(self) -> list[str]:
        """Return what was said about accounts, in order."""
        names = [line["event"] for line in self.chat.log]
        return [name for name in names if name.startswith("account_")]


async def test_an_account_that_sends_nothing_for_a_minute_is_silent(tmp_path: Path) -> None:
    """It is said once, at the minute."""
    async with watched(tmp_path) as it:
        await it.fail("c")
        assert (await it.pass_s(59)).silent_s is None
        assert it.events() == []
        assert (await it.pass_s(1.5)).silent_s == pytest.approx(60.5, abs=1)
        assert (await it.pass_s(100)).waiting == 1
        assert it.events() == ["account_silent"]


@pytest.mark.thorough
async def test_the_end_of_a_silence_is_said_once(tmp_path: Path) -> None:
    """With how long it was."""
    async with watched(tmp_path) as it:
        await it.fail("c")
        await it.pass_s(90)
        await it.heal("c")
        assert (await it.pass_s(1)).silent_s is None
        await it.pass_s(500)
        assert it.events() == ["account_silent", "account_recovered"]
        assert it.chat.events("account_recovered")[0]["silent_s"] == pytest.approx(90, abs=2)


@pytest.mark.thorough
async def test_what_will_never_be_shown_ends_a_silence(tmp_path: Path) -> None:
    """Nothing waits any more."""
    async with watched(tmp_path) as it:
        await it.fail("c")
        await it.pass_s(70)
        it.chat.adapter.failures["c"] = deque([SendRejected("blocked")] * 2)
        await it.chat.until(lambda: len(it.chat.events("message_buried")) == 2)
        assert (await it.pass_s(1)).silent_s is None
        assert it.events() == ["account_silent", "account_recovered"]


async def test_a_send_in_doubt_is_no_send(tmp_path: Path) -> None:
    """Nobody knows whether anything went out."""
    async with watched(tmp_path) as it:
        await it.fail("c", *[SendUnknown("no reply")] * 100)
        assert (await it.pass_s(61)).silent_s is not None


async def test_what_the_platform_asked_to_wait_for_is_no_silence(tmp_path: Path) -> None:
    """The minute begins when that wait is over."""
    async with watched(tmp_path) as it:
        await it.fail("c", SendDelayed("flood", retry_after_s=300))
        assert (await it.pass_s(299)).silent_s is None
        assert (await it.pass_s(59)).silent_s is None
        assert (await it.pass_s(3)).silent_s is not None


async def test_a_chat_that_is_blocked_does_not_silence_the_account(tmp_path: Path) -> None:
    """Others went out after it had failed for a minute; it is its own trouble from then on."""
    async with watched(tmp_path) as it:
        await it.fail("stuck")
        for _ in range(3):
            assert (await it.pass_s(40)).silent_s is None
            await it.talk("other")
        health = await it.pass_s(3600)
        assert (health.waiting, health.silent_s) == (1, None)
        assert it.events() == []


async def test_a_blocked_chat_does_not_hide_a_silence(tmp_path: Path) -> None:
    """Another chat waits for a minute, too."""
    async with watched(tmp_path) as it:
        await it.fail("stuck")
        await it.pass_s(59)
        await it.talk("other")
        await it.pass_s(2)
        await it.fail("c")
        assert (await it.pass_s(61)).silent_s is not None


async def test_an_idle_account_is_not_silent(tmp_path: Path) -> None:
    """It has nothing to send."""
    async with watched(tmp_path) as it:
        health = await it.pass_s(100_000)
        assert (health.waiting, health.oldest_unsent_s, health.silent_s) == (0, None, None)
        assert health.last_sent_s == pytest.approx(100_000)


async def test_a_new_process_has_a_minute(tmp_path: Path) -> None:
    """What waited before it began was not its fault."""
    async with running(tmp_path, at_work=False) as before:
        await before.say("/status")
    async with running(tmp_path, at_work=False) as chat:
        it = Watched(chat, Clock())
        it.clock.now = it.watch.traffic.began
        await it.chat.execute(update(schema.outbox).values(at=schema.outbox.c.at - 500))
        assert (await it.pass_s(59)).silent_s is None
        assert (await it.pass_s(1)).silent_s == pytest.approx(60)


async def test_the_watch_goes_on_whatever_a_look_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told with its trace, and the next look comes."""
    real, failures = Watch.look, [RuntimeError("of a driver")] * 2

    async def look(self: Watch) -> dict[tuple[str, str], AccountHealth]:
        if failures:
            raise failures.pop()
        return await real(self)

    monkeypatch.setattr("gateway.lifecycle.supervision.LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(Watch, "look", look)
    async with serving(tmp_path) as gateway:
        line = await gateway.chat.logged("accounts_not_looked_at", count=2)
        assert await gateway.chat.ask("one") == "re: one"
    assert (line["level"], line["error"]) == ("error", "RuntimeError('of a driver')")


async def test_the_watch_goes_on_when_the_database_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and looks again."""
    monkeypatch.setattr("gateway.lifecycle.supervision.LOOK_EVERY_S", 0.0)
    async with serving(tmp_path) as gateway:
        await gateway.chat.execute(update(schema.conversation).values(platform="x"))
        await gateway.chat.gateway.database.write(
            lambda conn: conn.exec_driver_sql("ALTER TABLE outbox RENAME TO gone")
        )
        await gateway.chat.logged("accounts_not_looked_at", count=2)
        status, body = await gateway.get("/readyz")
        assert status == 503
        # The words are the database's own.
        assert re.fullmatch("not readable: .*outbox.*", body["database"])


@asynccontextmanager
async def on_telegram(home: Path, api: BotApi) -> AsyncIterator[tuple[Serving, Watched]]:
    """Run a whole gateway with the real Telegram client."""
    block = TelegramSettings.model_validate({"token": TOKEN, "base_url": api.root})
    settings = settings_of(home)
    idle = RecordingAdapter()

    def connect(intake: Any, _chats: Any, _door: Any) -> list[TelegramAdapter]:
        return [TelegramAdapter(block, intake, limits=FAST, poll_timeout_s=1)]

    accounts = Accounts({("telegram", "default"): render}, connect)

    async with (
        log_lines(idle.watch) as lines,
        open_database(location_of(settings)) as database,
        app.assembled(settings, database, agent_of(RecordingModel(echo)), accounts) as gateway,
    ):
        chat = Running(gateway, agent_of(RecordingModel(echo)), idle, lines)
        async with served(chat) as gateway_:
            yield gateway_, Watched(chat, Clock())


@pytest.mark.thorough
async def test_an_exhausted_pool_is_seen(tmp_path: Path) -> None:
    """64 sockets are stuck, hundreds of answers wait: not ready, and one line says so."""
    async with BotApi() as api, on_telegram(tmp_path, api) as (gateway, it):
        api.push_text(7, "before")
        await api.wait_for(lambda: api.shown(7))
        api.fail("sendMessage", *[HANG] * 1000)
        for person in range(100, 200):
            api.push_text(person, "hello")
        await it.chat.until(lambda: len(it.chat.events("send_delayed")) >= 10)
        await it.chat.until_rows(schema.outbox, lambda rows: len(rows) == 101)
        ready, _ = await gateway.get("/readyz")
        await it.pass_s(61)
        status, body = await gateway.get("/readyz")
        account = body["accounts"]["telegram:default"]
        assert (ready, status, body["ready"]) == (200, 503, False)
        assert account["waiting"] == 100
        assert account["oldest_unsent_s"] > 60
        assert account["silent_s"] > 60
        assert account["pool"]["limit"] == 64
        assert len(it.chat.events("account_silent")) == 1


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
    monkeypatch.setattr(supervision, "ASK_AGAIN_S", 0.0)
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
    monkeypatch.setattr(supervision, "STABLE_S", 1e9)
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
