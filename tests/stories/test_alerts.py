"""Each fault leads to the right alert, once: real clients against the strict doubles.

What every kind sees and says by itself: tests/gateway/findings. Faults of models:
test_model_fails_in_every_way. Broken networks: test_broken_networks.
"""

import asyncio
import itertools
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from sqlalchemy import select, update

from agent.errors import CreditUsedUp
from gateway.findings import telling, watch, webhook
from gateway.findings.database import DATABASE_AFTER_S, LATE_S
from gateway.findings.people import UNREACHABLE_S
from gateway.findings.report import FINDINGS
from gateway.findings.watch import AlertWatch
from gateway.storage import schema
from gateway.storage.database import Database
from tests.e2e.platforms.conftest import DRIVERS
from tests.e2e.platforms.discord import DiscordDriver
from tests.e2e.platforms.driver import Driver
from tests.e2e.platforms.scenario import Scene, scene
from tests.e2e.platforms.slack import SlackDriver
from tests.e2e.platforms.telegram import TelegramDriver
from tests.support.alerts import end_soon
from tests.support.bot_api import DROP, TOKEN, BotApi
from tests.support.bot_wire import Fault as BotFault
from tests.support.discord import faults as discord_faults
from tests.support.gateway import HeldModel, echo
from tests.support.model_server import Fault, Reply
from tests.support.openai_server import OpenAIServer
from tests.support.postgres import postgres_server
from tests.support.process import ParleyProcess
from tests.support.replicas import Page, ReplicaAtWork, replica, say
from tests.support.slack import faults as slack_faults
from tests.support.thorough import products

OWNER = {"owners": ["telegram:1"]}
LONG = 10_000
KEY = "sk-of-the-tests-0123456789"


@pytest.fixture(autouse=True)
def _quickly() -> Iterator[None]:
    """It looks all the time, and what nobody sees any more is over at the next look."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "LOOK_EVERY_S", 0.02)
        patch.setattr(webhook, "LOOK_EVERY_S", 0.02)
        patch.setattr(webhook, "UNHEARD_S", 0.0)
        end_soon(patch)
        yield


@pytest_asyncio.fixture
async def driver() -> AsyncIterator[TelegramDriver]:
    """Telegram; nothing that a correct bot never does may have happened."""
    async with TelegramDriver() as found:
        yield found
    assert found.violations == []


async def posts() -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A receiver of the webhook, and what it was told."""
    told: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        told.append(await request.json())
        return web.Response(status=204)

    application = web.Application()
    application.add_routes([web.post("/", take)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/", told
    await runner.cleanup()


receiver = pytest_asyncio.fixture(posts)


def troubles(on: Scene) -> list[str]:
    """Return what the owner was told of troubles so far, without the marks of Markdown."""
    told = [text for text in on.ann.texts() if text.startswith(("Trouble:", "Over:"))]
    return [text.splitlines()[0] for text in told]


async def told(on: Scene, count: int) -> list[str]:
    await on.until(lambda: len(troubles(on)) >= count)
    return troubles(on)


def watch_of(on: Scene) -> AlertWatch:
    found = on.gateway.platforms.alerts
    assert found is not None
    return found


async def some_looks(on: Scene) -> None:
    """Let it look a few more times: what is told twice would be told by then."""
    for _ in range(3):
        await watch_of(on).look()


async def change(on: Scene, statement: Any) -> None:
    await on.gateway.database.write(lambda conn: conn.execute(statement))


@pytest.mark.thorough
async def test_a_token_that_is_revoked(
    driver: TelegramDriver, tmp_path: Path, receiver: tuple[str, list[dict[str, Any]]]
) -> None:
    """Telegram takes nothing then: the webhook is told, and the chat once there is a token."""
    url, posted = receiver
    sections = {"access": OWNER, "alerts": {"webhook": url}}
    async with scene(driver, tmp_path, HeldModel(echo), **sections) as on:
        await on.ann.say("hello")
        await on.answered(on.ann)
        driver._api.token = "2:revoked"
        driver._api.fail("getUpdates", BotFault("error", 401, "Unauthorized"))
        await on.until(lambda: on.logged("adapter_stopped"))
        await on.until(lambda: on.logged("alert_posted"))
        await some_looks(on)
        assert [(each["kind"], each["event"]) for each in posted] == [("adapter-stopped", "begin")]
        driver._api.token = TOKEN
        driver._api._faults.clear()
    async with scene(driver, tmp_path, HeldModel(echo), **sections) as on:
        first, second = await told(on, 2)
        assert first.startswith("Trouble: telegram:default does not work:")
        assert re.search(r"it is asked again until \d\d:\d\d UTC\. Since", first)
        assert second.startswith("Over: telegram:default works again.")
        await some_looks(on)
        assert len(troubles(on)) == 2
        await on.until(lambda: on.logged("alert_posted", state="over"))


@pytest.mark.thorough
async def test_a_disk_that_fills_up(
    driver: TelegramDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told while rows can still be stored."""
    usage, free = shutil.disk_usage(tmp_path), [10**12]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free[0]))
    async with scene(driver, tmp_path, HeldModel(echo), access=OWNER) as on:
        await on.ann.say("hello")
        await on.answered(on.ann)
        free[0] = 1_000_000
        [first] = await told(on, 1)
        assert first.startswith("Trouble: only 1 MB are free on the disk of")
        free[0] = 10**12
        assert (await told(on, 2))[1].startswith("Over: there is room on the disk of")


Outage = tuple[dict[str, Any], Callable[[], object], Callable[[], object]]


@pytest.fixture(params=["sqlite", "postgres"])
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outage]:
    """Settings of a database, what takes it away, and what brings it back."""
    if request.param == "sqlite":
        here, away = tmp_path / "parley.db", tmp_path / "away.db"
        yield {}, lambda: here.rename(away), lambda: away.rename(here)
        return

    def again() -> None:
        server.spawn()
        server.wait_until_it_answers()

    with postgres_server() as server:
        yield {"url": server.url(server.create())}, lambda: server.stop("fast"), again


@pytest.mark.thorough
@pytest.mark.usefixtures("sqlite_alone")
async def test_a_database_that_is_taken_away(
    driver: TelegramDriver,
    tmp_path: Path,
    outage: Outage,
    receiver: tuple[str, list[dict[str, Any]]],
) -> None:
    """The webhook is told at once, the chat when the file or the server is there again."""
    (url, posted), (storage, take_away, bring_back) = receiver, outage
    sections = {"access": OWNER, "alerts": {"webhook": url}, "storage": storage}
    async with scene(driver, tmp_path, HeldModel(echo), **sections) as on:
        await on.ann.say("hello")
        await on.answered(on.ann)
        on.gateway.platforms.examination.vitals.clock = itertools.count(
            0.0, DATABASE_AFTER_S
        ).__next__
        take_away()
        await on.until(lambda: on.logged("alert_posted"))
        assert [each["kind"] for each in posted] == ["database-down"]
        bring_back()
        first, second = await told(on, 2)
        assert first.startswith("Trouble: nothing can be stored: not writable")
        assert second.startswith("Over: messages are stored again.")
        await on.until(lambda: on.logged("alert_posted", state="over"))
        await some_looks(on)
        assert (len(posted), len(troubles(on))) == (2, 2)


# Faults of a platform, on each


@dataclass(frozen=True, slots=True)
class Ways:
    """How a platform's double goes wrong.

    Attributes:
        fail: Lets the next requests of a route go wrong.
        recover: Takes back what has not come up yet.
        send: The route of messages.
        receive: The route over which a connection for what comes in is opened.
        down: What a platform in trouble answers.
        lost: A connection that breaks.
        blocked: What it answers for a person who takes no messages.
    """

    fail: Callable[..., None]
    recover: Callable[[], None]
    send: str
    receive: str
    down: Any
    lost: Any
    blocked: Any
    refused: Any


def ways_of(driver: Driver) -> Ways:
    answers: tuple[Any, ...]
    if isinstance(driver, TelegramDriver):
        api = driver._api
        answers = (
            BotFault("error", 502, "Bad Gateway"),
            DROP,
            BotFault("error", 403, "Forbidden: bot was blocked by the user"),
            BotFault("error", 401, "Unauthorized"),
        )
        return Ways(api.fail, api._faults.clear, "sendMessage", "getUpdates", *answers)
    if isinstance(driver, DiscordDriver):
        server = driver._server
        blocked = discord_faults.Fault("error", 403, 50007, "Cannot send messages to this user")
        answers = (discord_faults.HTML_502, discord_faults.DROP, blocked, None)
        return Ways(server.fail, server._faults.clear, "send", "gateway", *answers)
    assert isinstance(driver, SlackDriver)
    slack = driver._server
    answers = (
        slack_faults.HTML_502,
        slack_faults.DROP,
        slack_faults.refused("is_archived"),
        slack_faults.refused("account_inactive"),
    )
    return Ways(slack.fail, slack.recover, "chat.postMessage", "apps.connections.open", *answers)


Planted = Callable[[Scene, Ways], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def _stopped(on: Scene, ways: Ways) -> AsyncIterator[None]:
    """The token is revoked; on Discord an intent is switched off."""
    if isinstance(on.driver, DiscordDriver):
        on.driver._server.gateway.close_all(4014)
    else:
        ways.fail(ways.receive, ways.refused)
        await on.driver.disconnect()
    yield
    ways.recover()
    assert await on.gateway.reloading.restart_account(on.driver.name)


@asynccontextmanager
async def _unreachable(on: Scene, ways: Ways) -> AsyncIterator[None]:
    """No connection comes about, for minutes by the clock of the alerts."""
    # Telegram is asked for the bot's name first: an answer to that is a connection.
    for route in (ways.receive, "getMe"):
        ways.fail(route, *[ways.lost] * LONG)
    await on.driver.disconnect()
    on.gateway.platforms.examination.vitals.clock = itertools.count(0.0, UNREACHABLE_S).__next__
    yield
    # A connection that comes about may take a moment.
    on.gateway.platforms.examination.vitals.clock = lambda: 0.0
    ways.recover()


@asynccontextmanager
async def _silent(on: Scene, ways: Ways) -> AsyncIterator[None]:
    """Every message is answered with 502, for longer than a silence may be."""
    with pytest.MonkeyPatch.context() as patch:
        ways.fail(ways.send, *[ways.down] * LONG)
        await on.ann.say("again")
        await on.until(lambda: on.logged("send_delayed") or on.logged("send_outcome_unknown"))
        patch.setattr("gateway.supervision.silence.SILENT_AFTER_S", 0.0)
        yield
    ways.recover()


@asynccontextmanager
async def _waiting(on: Scene, ways: Ways) -> AsyncIterator[None]:
    """An answer waits for longer than it may."""
    ways.fail(ways.send, *[ways.down] * LONG)
    await on.ann.say("again")
    await on.until(lambda: on.logged("send_delayed") or on.logged("send_outcome_unknown"))
    older = {"at": schema.outbox.c.at - 2 * LATE_S}
    await change(on, update(schema.outbox).values(older))
    yield
    ways.recover()


@asynccontextmanager
async def _blocked(on: Scene, ways: Ways) -> AsyncIterator[None]:
    """A person takes no messages from the bot; the owner drops the answer."""
    ways.fail(ways.send, ways.blocked)
    await on.driver.direct(2).say("hello?")
    yield
    dead = update(schema.outbox).where(schema.outbox.c.state == "dead")
    await change(on, dead.values(state="dropped"))


@asynccontextmanager
async def _asked(on: Scene, _: Ways) -> AsyncIterator[None]:
    """Somebody whom nobody knows writes; the owner presses a button."""
    await on.driver.direct(2).say("let me in")
    await on.until(on.ann.buttons)
    yield
    await on.ann.press(on.ann.buttons()[0])


PLANTED: dict[str, Planted] = {
    "adapter-stopped": _stopped,
    "adapter-unreachable": _unreachable,
    "adapter-silent": _silent,
    "outbox-old": _waiting,
    "answer-dead": _blocked,
    "stranger-asks": _asked,
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "platform"), products([*PLANTED], ["telegram", "discord", "slack"])
)
async def test_a_fault_of_a_platform_is_told_once(
    kind: str, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right alert and no other, and its end; what is announced anyhow is told by that alone."""
    monkeypatch.setattr("gateway.supervision.accounts.LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr("gateway.pipeline.delivery.backoff_s", lambda _attempt: 0.05)
    async with DRIVERS[platform]() as driver:
        mode = "pairing" if kind == "stranger-asks" else "open"
        access: dict[str, Any] = {"owners": [driver.person_id(1)], "mode": mode}
        async with scene(driver, tmp_path, HeldModel(echo), access=access) as on:
            await on.ann.say("hello")
            await on.answered(on.ann)
            async with PLANTED[kind](on, ways_of(driver)):
                await on.until(lambda: on.logged("alert_raised"))
                await some_looks(on)
            await on.until(lambda: on.logged("alert_over"))
            how = FINDINGS[kind]
            assert how.told
            expected = [] if how.announced else ["Trouble", "Over"]
            expected = expected[: 1 + bool(how.over)]
            await told(on, len(expected))
            await some_looks(on)
            assert [text.partition(":")[0] for text in troubles(on)] == expected
            assert [line["kind"] for line in on.logged("alert_raised")] == [kind]
            assert len(on.logged("alert_over")) == 1
        assert driver.violations == []


@pytest.mark.thorough
async def test_no_credit_through_a_kill(tmp_path: Path) -> None:
    """A provider wants money, and a process is killed: it is told once, and stays open."""
    async with OpenAIServer() as server, BotApi() as api:
        server.api_key = KEY
        ann = {"id": 1, "is_bot": False, "first_name": "Ann"}
        parley = ParleyProcess(
            tmp_path / "home",
            {
                "model": {
                    "provider": "openai",
                    "base_url": server.url,
                    "api_key": KEY,
                    "name": "model-1",
                    "context_length": 100_000,
                },
                "queue": {"debounce_ms": 0},
                "access": OWNER,
                "platforms": {"telegram": {"token": TOKEN, "base_url": api.root}},
            },
        )

        def said(text: str) -> list[str]:
            return [each for each in api.shown(1) if text in each]

        async with parley:
            server.script(Reply(text="Hello!"))
            api.push_text(1, "hello", ann)
            await api.wait_for(lambda: said("Hello!"))
            server.key_faults[KEY] = Fault(
                status=429, error="insufficient_quota", message="You exceeded your current quota"
            )
            api.push_text(1, "and now?", ann)
            await parley.event("alert_raised", kind="money-gone")
            await api.wait_for(lambda: said("has no credit left"))
            # Else the next life shows what the platform has, and the database does not know of.
            await parley.event("message_sent", count=3)
            await parley.kill9()
            # Another trouble, which shows that it has looked again.
            parley.settings["alerts"] = {"disk_free_bytes": 10**15}
            await parley.restart()
            api.push_text(1, "still?", ann)
            await parley.event("alert_raised", kind="disk-full")
            await api.wait_for(lambda: said("free on the disk"))
            await api.wait_for(lambda: len(said("I could not answer")) == 2)
            assert len(said("has no credit left: ")) == 1
            await parley.event("alert_raised", count=2)
            assert len(parley.named("alert_raised")) == 2
            # Who is woken finds the causes, in each of these.
            for command in ("status", "doctor"):
                shown = (await parley.run(command)).stdout
                assert "has no credit left" in shown
                assert "free on the disk of" in shown
            (tmp_path / "home" / "parley.yaml").write_text("acess: {}\n")
            await parley.event("alert_raised", kind="settings-refused")
            await api.wait_for(lambda: said("acess: unknown key"))
            assert "acess: unknown key" in (await parley.run("config", "check")).stderr
        assert api.violations == []


async def test_two_replicas_tell_once(tmp_path: Path, postgres_url: str) -> None:
    """Both see it, both write; it is over once neither has seen it for a while."""
    page = Page()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telling, "QUIET_S", 60.0)
        # Only the looks below: one that began before an answer would raise the alert again.
        patch.setattr(watch, "LOOK_EVERY_S", 3600.0)
        async with (
            replica(tmp_path / "one", postgres_url, HeldModel(echo)) as one,
            replica(tmp_path / "two", postgres_url, HeldModel(echo)) as two,
        ):
            async with page.open_at(one):
                await say(one, "hello")
                await page.until(lambda: page.answers == ["re: hello"])
            database = one.gateway.database
            both = [alerts_of(each) for each in (one, two)]
            this, other = (each.gateway.reloading.mind.agent for each in (one, two))
            for each in (this, other):
                each.recovery.rests.note_failure(each.models[0].label, CreditUsedUp("402"))
            await look_together(both)
            assert await told_in(database) == ["begin"]
            # A replica that has another key, or was lucky, says nothing of the other one.
            other.recovery.rests.note_answer(other.models[0])
            await look_together(both)
            assert await told_in(database) == ["begin"]
            this.recovery.rests.note_answer(this.models[0])
            long_ago = update(schema.alert).values(seen_at=1.0)
            await database.write(lambda conn: conn.execute(long_ago))
            await look_together(both)
            assert await told_in(database) == ["begin", "end"]
            assert len(await rows(database, schema.alert)) == 1


def alerts_of(at: ReplicaAtWork) -> AlertWatch:
    found = at.gateway.platforms.alerts
    assert found is not None
    return found


async def look_together(both: list[AlertWatch]) -> None:
    for _ in range(5):
        await asyncio.gather(*(each.look() for each in both))


async def told_in(database: Database) -> list[str]:
    """Return what rows of the outbox tell of alerts, in order."""
    keys = [row.source_key for row in await rows(database, schema.outbox)]
    return [key.split(":")[2] for key in keys if key.startswith("alert:")]


async def rows(database: Database, table: Any) -> list[Any]:
    return await database.read(lambda conn: list(conn.execute(select(table))))
