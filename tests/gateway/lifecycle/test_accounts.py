"""An account whose adapter is replaced: no call is lost, and none is made twice."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from adapters.messages import Address, MessageRef, Outgoing
from gateway.lifecycle import accounts
from gateway.lifecycle.accounts import ReplaceableAdapter
from tests.support.recording_adapter import RecordingAdapter

HERE = Address("telegram", "default", "1", None)


def message(text: str) -> Outgoing:
    """Return a message to a chat."""
    return Outgoing(conversation=1, seq=1, address=HERE, payload=text, nonce="0" * 24)


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
    question = MessageRef(HERE, "ann", "5")
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
