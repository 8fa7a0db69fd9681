"""One chat of the web at two replicas: what is said, made, stopped at one is seen at the other."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.http import control
from gateway.storage import schema
from gateway.storage.database import location_of
from tests.gateway.agent_ports.test_questions import ONCE, Acting, acting
from tests.support.door import AUTHORIZED
from tests.support.gateway import HeldModel, RecordingModel, log_lines
from tests.support.recording_adapter import Watch
from tests.support.replicas import Page, ReplicaAtWork, cut, replica, say
from tests.support.thorough import WAIT_S

RELOADED = "secrets_reloaded"


@asynccontextmanager
async def two(
    tmp_path: Path, url: str, one: object, other: object | None = None, **sections: dict
) -> AsyncIterator[tuple[ReplicaAtWork, ReplicaAtWork]]:
    """Run two replicas with their models."""
    async with (
        log_lines(Watch()),
        replica(tmp_path / "one", url, one, **sections) as first,
        replica(tmp_path / "two", url, other or RecordingModel(), **sections) as second,
    ):
        async with asyncio.timeout(WAIT_S):
            while not all(_has_looked(each) for each in (first, second)):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        yield first, second


def _has_looked(at: ReplicaAtWork) -> bool:
    """Whether a replica has looked at the rows once: older news are none."""
    others: Any = at.gateway.platforms.others
    return others._told is not None


def idle(patch: pytest.MonkeyPatch, at: ReplicaAtWork) -> None:
    """Have a replica claim nothing: now and then it is faster than the one with the message."""
    patch.setattr(at.gateway.worker, "_room", lambda: 0)


@pytest.mark.thorough
async def test_an_answer_made_elsewhere_is_seen(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows, and is replaced by the answer."""
    model, page = HeldModel(begun="Well, "), Page()
    async with two(tmp_path, postgres_url, model) as (one, other), page.open_at(other):
        idle(monkeypatch, other)
        for n in range(3):
            go_on = model.hold(f"hello {n}")
            await say(one, f"hello {n}")
            await page.until(lambda: page.preview == "Well, ")
            go_on.set()
            await page.until(partial(is_answered, page, f"re: hello {n}"))
            await page.until(lambda: page.preview is None)
    assert page.said == [f"{re}hello {n}" for n in range(3) for re in ("", "re: ")]
    assert page.works > 0


@pytest.mark.thorough
async def test_a_browser_that_is_moved_misses_nothing(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an answer, to and fro; nothing comes twice."""
    model = HeldModel(begun="Well, ")
    holds = [model.hold(text) for text in ("one", "two")]
    page = Page()
    async with two(tmp_path, postgres_url, model) as (first, other):
        idle(monkeypatch, other)
        async with page.open_at(first):
            await say(first, "one")
            await page.until(lambda: page.preview == "Well, ")
        async with page.open_at(other):
            page.preview = None
            await page.until(lambda: page.preview == "Well, ")
            holds[0].set()
            await page.until(lambda: page.answers == ["re: one"])
        await say(first, "two")
        async with page.open_at(first):
            await page.until(lambda: page.preview == "Well, ")
        holds[1].set()
        async with page.open_at(other):
            await page.until(lambda: page.answers == ["re: one", "re: two"])
        assert page.said == ["one", "re: one", "two", "re: two"]


@pytest.mark.thorough
async def test_a_stop_at_another_replica_takes_effect(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its next look; what it says and what was begun are seen where the page is."""
    model, page = HeldModel(begun="Well, "), Page()
    async with two(tmp_path, postgres_url, model) as (one, other), page.open_at(other):
        idle(monkeypatch, other)
        for n in range(3):
            model.hold(f"hello {n}")
            await say(one, f"hello {n}")
            await page.until(lambda: page.preview)
            await say(other, "/stop")
            await page.until(partial(has_answers, page, 2 * n + 2))
            page.preview = None
        assert sorted(set(page.answers)) == ["Stopped.", "Well, \n\n*[stopped]*"]
        assert {turn.outcome for turn in await rows(one, schema.turn)} == {"interrupted"}


@pytest.mark.thorough
async def test_a_question_is_answered_at_another_replica(tmp_path: Path, postgres_url: str) -> None:
    """Its buttons are seen there, the press lets the call run, whoever goes on with the turn."""
    acts = Acting()
    page = Page()
    async with (
        two(tmp_path, postgres_url, acting(acts), acting(acts)) as (one, other),
        page.open_at(other),
    ):
        await say(one, "go")
        await page.until(lambda: any("choices" in item for item in page.items))
        assert acts.done == []
        await say(other, ONCE)
        await page.until(lambda: "did it" in page.answers)
        assert acts.done == ["it"]
        assert len(page.said) == len(page.items)


@pytest.mark.thorough
async def test_a_file_is_seen_at_every_replica(tmp_path: Path, postgres_url: str) -> None:
    """It was posted at one of them."""
    page = Page()
    async with (
        two(tmp_path, postgres_url, RecordingModel()) as (one, other),
        page.open_at(other),
    ):
        await say(one, "look", note_txt=b"what I saw")
        await page.until(lambda: page.answers)
        [[file]] = [item["files"] for item in page.items if "files" in item]
        path = f"{other.url}/api/chats/c1/files/{file['id']}"
        async with aiohttp.ClientSession(headers=AUTHORIZED) as http, http.get(path) as response:
            assert await response.read() == b"what I saw"


@pytest.mark.thorough
async def test_what_is_forgotten_leaves_the_memory_of_all(
    tmp_path: Path, postgres_url: str
) -> None:
    """Whichever replica was asked, or none of them."""
    async with two(tmp_path, postgres_url, RecordingModel()) as (one, other):
        page = Page()
        async with page.open_at(other):
            await say(other, "a secret")
            await page.until(lambda: page.answers)
        forgotten: asyncio.Queue[str] = asyncio.Queue()
        listen(one, forgotten, "one")
        listen(other, forgotten, "two")
        home, location = one.gateway.settings.home, location_of(one.gateway.settings)
        assert await control.act(home, location, "forget", "1") == 2
        async with asyncio.timeout(WAIT_S):
            heard = {await forgotten.get(), await forgotten.get(), await forgotten.get()}
        assert heard == {"one", "two"}
        assert await rows(other, schema.message) == []


@pytest.mark.thorough
async def test_a_session_that_is_revoked_ends_everywhere(tmp_path: Path, postgres_url: str) -> None:
    """The others find it in the rows."""
    async with two(tmp_path, postgres_url, RecordingModel()) as (one, other):
        home, location = one.gateway.settings.home, location_of(one.gateway.settings)
        link = await control.act(home, location, "web-link", "owner")
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
            signed_in = {"link": link["secret"]}
            async with http.post(f"{one.url}/api/sign-in", json=signed_in) as response:
                assert response.status == 204
                [cookie] = response.cookies.values()
            there = {"Cookie": f"parley_{other.port}={cookie.value}"}
        async with aiohttp.ClientSession(headers=there) as http:
            assert await status(http, other) == 200
            await control.act(home, location, "web-revoke", "owner")
            await asyncio.wait_for(refused(http, other), WAIT_S)


@pytest.mark.thorough
async def test_an_answer_goes_on_where_its_replica_is_stopped(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page was at the other one, or is moved there; it sees one answer."""
    model, page = HeldModel(begun="Well, "), Page()
    model.hold("hello")
    async with (
        log_lines(Watch()),
        replica(tmp_path / "two", postgres_url, RecordingModel()) as other,
    ):
        async with replica(tmp_path / "one", postgres_url, model) as one:
            async with page.open_at(one):
                idle(monkeypatch, other)
                await say(one, "hello")
                await page.until(lambda: page.preview == "Well, ")
                monkeypatch.delattr(other.gateway.worker, "_room")
            async with page.open_at(other):
                await page.until(lambda: len(page.previews) >= 2)
                one.gateway.worker.stop()
        async with page.open_at(other):
            await page.until(lambda: page.answers)
        assert page.said == ["hello", "re: hello"]
        assert [turn.state for turn in await rows(other, schema.turn)] == ["done"]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 10))]
)
async def test_any_life_of_a_page_shows_all_once(
    tmp_path: Path, postgres_url: str, seed: int
) -> None:
    """Messages come in anywhere, the page is moved, connections to the database are cut."""
    chance, page = random.Random(seed), Page()  # noqa: S311 - not for secrets
    texts = [f"message {n}" for n in range(8)]
    async with two(tmp_path, postgres_url, RecordingModel(), RecordingModel()) as replicas:
        for text in texts:
            async with page.open_at(chance.choice(replicas)):
                await disturb(chance, postgres_url)
                await say(chance.choice(replicas), text)
                # Half of the time the next one does not wait for the answer.
                await page.until(partial(is_answered, page, chance.choice([text, ""])))
        async with page.open_at(replicas[0]):
            await page.until(partial(is_answered, page, texts[-1]))
    # What waits together is answered together.
    asked = "\n".join(answer.removeprefix("re: ") for answer in page.answers)
    assert [line for line in asked.split("\n") if line] == texts
    assert [each for each in page.said if each in texts] == texts


async def disturb(chance: random.Random, url: str) -> None:
    """Cut, now and then, all connections to the database."""
    if chance.random() < 0.3:
        await asyncio.to_thread(cut, url)


def has_answers(page: Page, count: int) -> bool:
    """Whether a page shows so many answers."""
    return len(page.answers) == count


def is_answered(page: Page, text: str) -> bool:
    """Whether a page shows the answer to a message."""
    return text in "\n".join(page.answers)


@pytest.mark.thorough
async def test_secrets_are_read_again_by_all(tmp_path: Path, postgres_url: str) -> None:
    """Each reads its own, and logs what came of it; the answer is that of the one asked."""
    watch = Watch()
    async with (
        two(tmp_path, postgres_url, RecordingModel()) as (one, other),
        log_lines(watch) as lines,
        asyncio.TaskGroup() as tasks,
    ):
        work = tasks.create_task(other.gateway.reloading.run())
        found = await control.ask_settings(one.gateway.settings.home, "secrets")
        assert found["references"] == 0
        await watch.until(lambda: [each["event"] for each in lines].count(RELOADED) == 2)
        work.cancel()


@pytest.mark.thorough
async def test_who_is_full_leaves_messages_to_others(tmp_path: Path, postgres_url: str) -> None:
    """Nobody is told: those who have room look once a second."""
    model, there = HeldModel(), RecordingModel(lambda _: "from the other one")
    hold, page = model.hold("long"), Page("another")
    async with (
        two(tmp_path, postgres_url, model, there, queue={"max_concurrent_turns": 1}) as (
            one,
            other,
        ),
        page.open_at(other),
    ):
        begun = 0
        # Now and then the other one is faster: then the next message is for this one.
        while not model.waiting:
            await say(one, "long", f"chat-{begun}")
            begun += 1
            await until_begun(one, begun)
        await say(one, "hello", "another")
        await page.until(lambda: page.answers)
        assert page.answers == ["from the other one"]
        assert model.waiting == ["long"]
        hold.set()


async def until_begun(at: ReplicaAtWork, count: int) -> None:
    """Wait until so many turns were begun, wherever."""
    async with asyncio.timeout(WAIT_S):
        while len(await rows(at, schema.turn)) < count:
            pass


async def status(http: aiohttp.ClientSession, at: ReplicaAtWork) -> int:
    """Return how a replica answers who asks for the chats."""
    async with http.get(f"{at.url}/api/chats") as response:
        return response.status


async def refused(http: aiohttp.ClientSession, at: ReplicaAtWork) -> None:
    """Ask until the replica knows who asks no longer."""
    while await status(http, at) != 401:
        pass


def listen(at: ReplicaAtWork, heard: "asyncio.Queue[str]", name: str) -> None:
    """Have a replica's hints that something was forgotten go into a queue."""
    at.gateway.intake._wakeups.forgotten.listen(lambda: heard.put_nowait(name))


async def rows(at: ReplicaAtWork, table: object) -> list:
    """Return the rows of a table as a replica sees them."""
    return await at.gateway.database.read(lambda conn: list(conn.execute(table.select())))
