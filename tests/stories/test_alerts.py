"""Each fault leads to the right alert, once: real clients against the strict doubles.

What every kind sees and says by itself: tests/gateway/alerts.
"""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from sqlalchemy import select, update

from agent.errors import CreditUsedUp
from gateway.alerts import watch, webhook
from gateway.alerts.troubles import DATABASE_AFTER_S, TROUBLES
from gateway.alerts.watch import AlertWatch
from gateway.storage import schema
from gateway.storage.database import Database
from tests.e2e.platforms.scenario import Scene, scene
from tests.e2e.platforms.telegram import TelegramDriver
from tests.support.bot_api import TOKEN, BotApi
from tests.support.bot_wire import Fault as BotFault
from tests.support.gateway import HeldModel, echo
from tests.support.model_server import Fault, Reply
from tests.support.openai_server import OpenAIServer
from tests.support.process import ParleyProcess
from tests.support.replicas import Page, ReplicaAtWork, replica, say

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
        for kind in list(TROUBLES.values()):
            patch.setitem(TROUBLES, kind.id, replace(kind, quiet_s=0.0))
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


async def some_looks(on: Scene) -> None:
    """Let it look a few more times: what is told twice would be told by then."""
    sources = on.gateway.platforms.alerts
    assert sources is not None
    for _ in range(3):
        await sources.look()


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
        assert first.startswith("Trouble: telegram:default has stopped:")
        assert second.startswith("Over: telegram:default works again.")
        await some_looks(on)
        assert len(troubles(on)) == 2
        await on.until(lambda: on.logged("alert_posted", state="over"))


async def test_an_account_that_takes_nothing(
    driver: TelegramDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is silent: told as soon as it takes something again, as is that it is over."""
    monkeypatch.setattr("gateway.lifecycle.supervision.SILENT_AFTER_S", 0.2)
    monkeypatch.setattr("gateway.pipeline.delivery.backoff_s", lambda _attempt: 0.05)
    model = HeldModel(echo)
    async with scene(driver, tmp_path, model, access=OWNER) as on:
        await on.ann.say("hello")
        await on.answered(on.ann)
        for method in ("sendMessage", "sendMessageDraft"):
            driver._api.fail(method, *[BotFault("error", 502, "Bad Gateway")] * LONG)
        await on.ann.say("again")
        await on.until(lambda: on.logged("alert_raised", kind="adapter-silent"))
        await some_looks(on)
        driver._api._faults.clear()
        first, second = await told(on, 2)
        assert first.startswith("Trouble: telegram:default takes no messages: 1 answers wait")
        assert second.startswith("Over: telegram:default takes messages again.")
        assert len(on.logged("alert_raised")) == 1


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


@pytest.mark.usefixtures("sqlite_alone")
async def test_a_database_that_is_taken_away(
    driver: TelegramDriver, tmp_path: Path, receiver: tuple[str, list[dict[str, Any]]]
) -> None:
    """The webhook is told at once, the chat when the file is there again."""
    url, posted = receiver
    sections = {"access": OWNER, "alerts": {"webhook": url}}
    async with scene(driver, tmp_path, HeldModel(echo), **sections) as on:
        await on.ann.say("hello")
        await on.answered(on.ann)
        found, ticks = on.gateway.platforms.alerts, itertools.count(0.0, DATABASE_AFTER_S)
        assert found is not None
        found.memory.clock = lambda: next(ticks)
        here, away = tmp_path / "parley.db", tmp_path / "away.db"
        here.rename(away)
        await on.until(lambda: on.logged("alert_posted"))
        assert [each["kind"] for each in posted] == ["database-down"]
        away.rename(here)
        first, second = await told(on, 2)
        assert first.startswith("Trouble: nothing can be stored: not writable")
        assert second.startswith("Over: messages are stored again.")
        await on.until(lambda: on.logged("alert_posted", state="over"))
        assert len(posted) == 2


async def test_a_stranger(driver: TelegramDriver, tmp_path: Path) -> None:
    """The owner gets one message, the one with the buttons."""
    access = OWNER | {"mode": "pairing"}
    async with scene(driver, tmp_path, HeldModel(echo), access=access) as on:
        await on.ann.say("hello")
        await on.answered(on.ann)
        await driver.direct(2).say("let me in")
        await on.until(lambda: on.logged("alert_raised", kind="stranger-asks"))
        await on.answered(on.ann, 2)
        await some_looks(on)
        assert troubles(on) == []
        assert len(on.ann.texts()) == 2


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
            await parley.kill9()
            # Another trouble, which shows that it has looked again.
            parley.settings["alerts"] = {"disk_free_bytes": 10**15}
            await parley.restart()
            api.push_text(1, "still?", ann)
            await parley.event("alert_raised", kind="disk-full")
            await api.wait_for(lambda: said("free on the disk"))
            await api.wait_for(lambda: len(said("I could not answer")) == 2)
            assert len(said("has no credit left: ")) == 1
            assert len(parley.named("alert_raised")) == 2
        assert api.violations == []


async def test_two_replicas_tell_once(tmp_path: Path, postgres_url: str) -> None:
    """Both see it, both write; it is over once neither has seen it for a while."""
    page = Page()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TROUBLES, "money-gone", replace(TROUBLES["money-gone"], quiet_s=60.0))
        async with (
            replica(tmp_path / "one", postgres_url, HeldModel(echo)) as one,
            replica(tmp_path / "two", postgres_url, HeldModel(echo)) as two,
        ):
            async with page.open_at(one):
                await say(one, "hello")
                await page.until(lambda: page.answers == ["re: hello"])
            database = one.gateway.database
            both = [alerts_of(each) for each in (one, two)]
            for each in both:
                models, rests = each.sources.models()
                rests.note_failure(models[0].label, CreditUsedUp("402"))
            await look_together(both)
            assert await told_in(database) == ["begin"]
            # A replica that has another key, or was lucky, says nothing of the other one.
            models, rests = both[1].sources.models()
            rests.note_answer(models[0])
            await look_together(both)
            assert await told_in(database) == ["begin"]
            models, rests = both[0].sources.models()
            rests.note_answer(models[0])
            await database.write(
                lambda conn: conn.execute(update(schema.alert).values(seen_at=1.0))
            )
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
