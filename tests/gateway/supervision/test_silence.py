"""Whether an account has fallen silent, and what is said about that."""

import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from adapters.errors import (
    SendDelayed,
    SendRejected,
    SendUnknown,
)
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.platform import TelegramSettings
from adapters.telegram.render import render
from gateway import app
from gateway.storage import schema
from gateway.storage.database import location_of
from gateway.storage.migrations import open_database
from gateway.supervision.silence import AccountHealth, Watch
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
        self.watch: Watch = chat.gateway.platforms.examination.vitals.watch
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

    monkeypatch.setattr("gateway.supervision.silence.LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(Watch, "look", look)
    async with serving(tmp_path) as gateway:
        line = await gateway.chat.logged("work_failed", count=2)
        assert await gateway.chat.ask("one") == "re: one"
    assert (line["work"], line["level"]) == ("watch", "error")
    assert line["error"] == "RuntimeError('of a driver')"


async def test_the_watch_goes_on_when_the_database_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and looks again."""
    monkeypatch.setattr("gateway.supervision.silence.LOOK_EVERY_S", 0.0)
    async with serving(tmp_path) as gateway:
        await gateway.chat.execute(update(schema.conversation).values(platform="x"))
        await gateway.chat.gateway.database.write(
            lambda conn: conn.exec_driver_sql("ALTER TABLE outbox RENAME TO gone")
        )
        await gateway.chat.logged("work_failed", count=2)
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
