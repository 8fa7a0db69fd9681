"""Writes of the command line: through the running gateway, directly where none runs."""

import asyncio
import gc
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from adapters.errors import SendRejected
from gateway.access.pairing import APPROVED
from gateway.context.window import KeptViews
from gateway.errors import DatabaseLocked, NotFound, StorageUnavailable
from gateway.http import control
from gateway.reload.operator import Operator, routes
from gateway.storage import schema
from gateway.storage.database import Location, location_of
from tests.support.gateway import HeldModel, Running, running, serving, settings_of
from tests.support.recording_adapter import RecordingAdapter
from tests.support.storage import copy_database


def place(home: Path) -> Location:
    """Return where the database of a home is."""
    return location_of(settings_of(home))


def rejecting() -> RecordingAdapter:
    """Return a platform that refuses the first message of chat c1."""
    adapter = RecordingAdapter()
    adapter.failures["c1"] = deque([SendRejected("blocked")])
    return adapter


async def test_a_retry_goes_through_the_running_gateway(tmp_path: Path) -> None:
    """It wakes delivery: the message is shown without a restart."""
    async with serving(tmp_path, adapter=rejecting()) as gateway:
        await gateway.chat.say("one")
        await gateway.chat.logged("message_buried")
        letter = await control.act(tmp_path, place(tmp_path), "retry-dead-letter", "s1.1")
        assert (letter["id"], letter["text"]) == ("s1.1", "re: one")
        assert "re: one" in await gateway.chat.answers(2)


async def test_a_turn_is_retried_through_the_running_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes the worker."""
    monkeypatch.setattr("gateway.pipeline.worker.RETRY_AFTER_S", 0.0)
    async with serving(tmp_path, [*[KeyError("bug")] * 3, "better"]) as gateway:
        await gateway.chat.ask("one")
        await control.act(tmp_path, place(tmp_path), "retry-dead-letter", "t1")
        assert (await gateway.chat.answers(2))[1] == "better"


async def test_without_a_gateway_it_is_done_directly(tmp_path: Path) -> None:
    """The next start finds the row."""
    async with running(tmp_path, adapter=rejecting()) as chat:
        await chat.say("one")
        await chat.logged("message_buried")
    dropped = await control.act(tmp_path, place(tmp_path), "drop-dead-letter", "s1.1")
    assert dropped["reason"] == "blocked"
    async with running(tmp_path, at_work=False) as chat:
        assert (await chat.rows(schema.outbox))[0].state == "dropped"


@pytest.mark.parametrize(
    "action", ["retry-dead-letter", "drop-dead-letter", "forget", "revoke-member"]
)
@pytest.mark.parametrize("target", ["t99", "nonsense", "99"])
async def test_what_is_not_there_is_said(
    tmp_path: Path, database_template: Path, action: str, target: str
) -> None:
    """The same words with and without a gateway."""
    copy_database(database_template, tmp_path / "parley.db")
    with pytest.raises(NotFound) as directly:
        await control.act(tmp_path, place(tmp_path), action, target)
    async with serving(tmp_path):
        with pytest.raises(NotFound) as asked:
            await control.act(tmp_path, place(tmp_path), action, target)
    assert str(asked.value) == str(directly.value)
    assert target in str(asked.value)


OWNED = {"mode": "pairing", "owners": ["telegram:1"]}


async def asked(chat: Running) -> str:
    """Have a stranger ask to be let in; returns the code."""
    await chat.say("hi", "dm", sender="666", sender_name="Ann")
    [request] = await chat.rows(schema.pairing)
    return str(request.code)


@asynccontextmanager
async def controlled(home: Path, chat: Running) -> AsyncIterator[None]:
    """Serve the control socket of a gateway."""
    gateway = chat.gateway
    app = web.Application()
    app.add_routes(routes(Operator(gateway.reloading)))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(home / control.SOCKET)).start()
    yield
    await runner.cleanup()


async def test_approving_through_the_running_gateway(tmp_path: Path) -> None:
    """The stranger is told at once, and heard; once, however often it is approved."""
    async with running(tmp_path, access=OWNED) as chat, controlled(tmp_path, chat):
        code = await asked(chat)
        for words in ("may write to me now", "already has access"):
            decision = await control.act(tmp_path, tmp_path, "approve-pairing", code)
            assert words in decision["text"]
        assert (await chat.answers(2, "dm"))[1:] == [APPROVED]
        assert await chat.ask("hi again", "dm", sender="666") == "re: hi again"
        [line] = chat.events("pairing_approved")
        assert (line["sender"], line["by"]) == ("666", "command line")
        assert code not in str(chat.log)


async def test_denying_and_revoking_through_the_running_gateway(tmp_path: Path) -> None:
    """Nobody is told; the log tells."""
    async with running(tmp_path, access=OWNED) as chat, controlled(tmp_path, chat):
        code = await asked(chat)
        for action, target in (
            ("deny-pairing", code),
            ("approve-pairing", code),
            ("revoke-member", "telegram:666"),
        ):
            await control.act(tmp_path, tmp_path, action, target)
        assert await chat.rows(schema.member) == []
        for event in ("pairing_denied", "pairing_approved", "member_revoked"):
            assert len(chat.events(event)) == 1


async def test_who_is_approved_without_a_gateway_is_told_later(tmp_path: Path) -> None:
    """At the next start."""
    async with running(tmp_path, at_work=False, access=OWNED) as chat:
        code = await asked(chat)
    decision = await control.act(tmp_path, place(tmp_path), "approve-pairing", code.lower())
    assert decision["text"] == "`Ann` (telegram 666) may write to me now."
    async with running(tmp_path, access=OWNED) as chat:
        await chat.gateway.intake.tell_approved()
        assert APPROVED in await chat.answers(2, "dm")


@pytest.mark.parametrize("action", ["approve-pairing", "deny-pairing"])
async def test_a_code_that_is_none(tmp_path: Path, database_template: Path, action: str) -> None:
    """The command line says so, and the code is not repeated."""
    database = copy_database(database_template, tmp_path / "parley.db")
    with pytest.raises(NotFound, match=r"^There is no such code, or it has expired\.$"):
        await control.act(tmp_path, database, action, "ABCD2345")


async def test_forgetting_ends_a_running_turn(tmp_path: Path) -> None:
    """Nothing of the conversation comes back, and its next message is a new one's first."""
    model = HeldModel()
    gate = model.hold("secret")
    async with serving(tmp_path, model) as gateway:
        await gateway.chat.say("secret")
        await gateway.chat.until(lambda: model.waiting)
        assert await control.act(tmp_path, place(tmp_path), "forget", "1") == 1
        gate.set()
        await gateway.chat.logged("lease_lost")
        for table in (schema.conversation, schema.inbox, schema.message, schema.turn):
            assert await gateway.chat.rows(table) == []
        assert await gateway.chat.ask("hello") == "re: hello"
        assert (await gateway.chat.transcript())[0].get("content") == "hello"


async def test_forgetting_lets_go_of_what_is_kept_in_memory(tmp_path: Path) -> None:
    """The view of the last turn is kept for the next one; an erased conversation has none."""
    async with serving(tmp_path) as gateway:
        await gateway.chat.ask("the word is plugh-xyzzy")
        found = [each for each in gc.get_objects() if isinstance(each, KeptViews)]
        [kept] = [each for each in found if "plugh-xyzzy" in str(each._kept)]
        await control.act(tmp_path, place(tmp_path), "forget", "1")
        assert kept.size == 0
        assert "plugh-xyzzy" not in str(kept._kept)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
DIGITS = st.text("0123456789", min_size=1, max_size=40)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("name", "by", "secret"), st.one_of(JSON, st.just("ann"))),
        "role": st.one_of(JSON, st.sampled_from(["owner", "removed"])),
        "same_as": st.one_of(JSON, st.sampled_from(["telegram:7", "telegram:", ":"])),
        "retention": st.one_of(JSON, st.dictionaries(st.just("audit_days"), JSON)),
        "raw_days": st.one_of(JSON, st.just(30)),
    },
)
TARGETS = st.one_of(
    JSON,
    DIGITS,
    st.builds("{}{}.{}".format, st.sampled_from(["s", "t", "-", ""]), DIGITS, DIGITS),
    st.builds(dumps, st.one_of(JSON, FIELDS)),
)
BODIES = st.one_of(
    st.binary(max_size=20),
    st.builds(lambda body: dumps(body).encode(), JSON),
    st.builds(lambda target: dumps({"target": target}).encode(), TARGETS),
)
POSTS = st.lists(st.tuples(st.sampled_from(sorted(control.ACTIONS)), BODIES), min_size=40)


@pytest.mark.thorough
@settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(POSTS)
def test_no_body_breaks_the_socket(posts: list[tuple[str, bytes]]) -> None:
    """It is done, or refused in words: whatever stands in the place of what the commands send."""

    async def told() -> list[tuple[int, Any]]:
        with TemporaryDirectory() as folder:
            home = Path(folder)
            async with running(home, at_work=False) as chat, controlled(home, chat):
                return [await posted(home, action, body) for action, body in posts]

    for status, body in asyncio.run(told()):
        assert status in {200, 400, 409}, body
        assert status == 200 or body["error"]


async def posted(home: Path, action: str, body: bytes) -> tuple[int, Any]:
    """Post a body; returns status and answer."""
    connector = aiohttp.UnixConnector(str(home / control.SOCKET))
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.post(f"http://parley/control/{action}", data=body) as response,
    ):
        is_json = response.content_type == "application/json"
        return response.status, await response.json() if is_json else await response.text()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"target": 7}', b"\xff"])
async def test_a_body_without_a_target_is_told(tmp_path: Path, body: bytes) -> None:
    """As a mistake of whoever asks."""
    async with running(tmp_path, at_work=False) as chat, controlled(tmp_path, chat):
        status, told = await posted(tmp_path, "forget", body)
    assert (status, told) == (400, {"error": 'send {"target": "…"}, a text'})


@pytest.mark.parametrize("action", ["explode", "approve-tool"])
async def test_an_unknown_action_is_refused(tmp_path: Path, action: str) -> None:
    """Status 404 and a word why; the socket agrees to no text of an MCP tool either."""
    async with serving(tmp_path):
        connector = aiohttp.UnixConnector(str(tmp_path / control.SOCKET))
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            http.post(f"http://parley/control/{action}", json={"target": "1"}) as response,
        ):
            assert response.status == 404
            assert await response.json() == {"error": "unknown action"}


async def test_actions_are_not_on_the_port(tmp_path: Path) -> None:
    """Only the socket's owner may act."""
    async with serving(tmp_path) as gateway, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{gateway.port}/control/forget"
        async with http.post(url, json={"target": "1"}) as response:
            assert response.status == 404


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_a_wrong_home_gets_no_database(tmp_path: Path) -> None:
    """An operator who mistypes PARLEY_HOME must not believe that the data is gone."""
    with pytest.raises(StorageUnavailable, match="no database"):
        await control.act(tmp_path, place(tmp_path), "forget", "1")
    assert names_in(tmp_path) == []


@pytest.mark.usefixtures("sqlite_alone")
async def test_a_home_too_long_for_a_socket(tmp_path: Path, database_template: Path) -> None:
    """Directly without a gateway; while one runs, the lock says so."""
    home = tmp_path / ("x" * 110)
    home.mkdir()
    copy_database(database_template, home / "parley.db")
    with pytest.raises(NotFound):
        await control.act(home, place(home), "forget", "1")
    async with serving(home):
        with pytest.raises(DatabaseLocked):
            await control.act(home, place(home), "forget", "1")


async def test_a_letter_of_a_platform_that_is_off_harms_nobody(tmp_path: Path) -> None:
    """It waits in its queue until the platform is on again."""
    async with running(tmp_path, adapter=rejecting()) as chat:
        await chat.say("one")
        await chat.logged("message_buried")
    async with serving(tmp_path, adapter=RecordingAdapter("slack")) as gateway:
        await control.act(tmp_path, place(tmp_path), "retry-dead-letter", "s1.1")
        assert await gateway.chat.ask("two", platform="slack") == "re: two"
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == ["re: one"]
