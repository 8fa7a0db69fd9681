"""The second way: what it is told, when, how it is signed, and that it is told once."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import update

from adapters.errors import SendDelayed
from agent.errors import CreditUsedUp
from gateway.app import _repeated
from gateway.findings.watch import AlertWatch
from gateway.findings.webhook import AlertWebhook, signature
from gateway.storage import schema
from gateway.supervision.vitals import Vitals
from tests.support.gateway import Running, running

SECRET = "s3cret-of-the-receiver"


@dataclass(slots=True)
class Receiver:
    """What an operator has listen: it refuses what is unsigned, and answers as a test says.

    Attributes:
        answers: Status codes of the next answers; then 204.
        posts: The bodies that came, refused ones too.
    """

    url: str = ""
    answers: list[int] = field(default_factory=list)
    posts: list[dict[str, Any]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        body, told = await request.read(), request.headers["X-Parley-Timestamp"]
        signed = hmac.new(SECRET.encode(), f"{told}.".encode() + body, hashlib.sha256)
        if request.headers["X-Parley-Signature"] != f"sha256={signed.hexdigest()}":
            return web.Response(status=401)
        self.posts.append(json.loads(body))
        status = self.answers.pop(0) if self.answers else 204
        return web.Response(status=status, headers={"Location": self.url})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver on a free port of loopback."""
    here, application = Receiver(), web.Application()
    application.add_routes([web.post("/hook", here.take)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    here.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield here
    await runner.cleanup()


@asynccontextmanager
async def posting(
    home: Path, receiver: Receiver, **alerts: Any
) -> AsyncIterator[tuple[Running, AlertWatch, AlertWebhook]]:
    """Run a gateway whose owner has written, with a webhook."""
    settings = {"webhook": receiver.url, "webhook_secret": SECRET, **alerts}
    async with running(home, alerts=settings) as chat:
        await chat.ask("hello")
        watch = chat.gateway.platforms.alerts
        assert watch is not None
        assert watch.webhook is not None
        yield chat, watch, watch.webhook


def fail(chat: Running) -> None:
    chat.agent.recovery.rests.note_failure(chat.agent.models[0].label, CreditUsedUp("402"))


async def make_old(chat: Running) -> None:
    """Have all alerts be a minute older."""
    age = {"at": schema.alert.c.at - 61, "post_at": 0.0, "seen_at": 1.0}
    await chat.execute(update(schema.alert).values(age))


@pytest.mark.thorough
async def test_what_no_chat_shows_is_posted_once(tmp_path: Path, receiver: Receiver) -> None:
    """After a minute; its end as well."""
    async with posting(tmp_path, receiver) as (chat, watch, webhook):
        chat.adapter.failures["c1"].append(SendDelayed("down", 3600.0))
        fail(chat)
        await watch.look()
        await chat.logged("send_delayed")
        await webhook.post_due()
        assert receiver.posts == []
        await make_old(chat)
        for _ in range(2):
            await webhook.post_due()
        [post] = receiver.posts
        assert (post["id"], post["event"], post["kind"]) == ("alert-1", "begin", "money-gone")
        assert "402" in post["text"]
        assert post["over"] is None
        chat.agent.recovery.rests.note_answer(chat.agent.models[0])
        await make_old(chat)
        await watch.look()
        for _ in range(2):
            await webhook.post_due()
        assert [post["event"] for post in receiver.posts] == ["begin", "over"]
        assert receiver.posts[1]["over"] is not None


async def test_what_a_chat_shows_is_not_posted(tmp_path: Path, receiver: Receiver) -> None:
    """Nor is its end."""
    async with posting(tmp_path, receiver) as (chat, watch, webhook):
        fail(chat)
        await watch.look()
        await chat.answers(2)
        await chat.until_rows(schema.outbox, lambda rows: rows[-1].state == "sent")
        await make_old(chat)
        await webhook.post_due()
        chat.agent.recovery.rests.note_answer(chat.agent.models[0])
        await make_old(chat)
        await watch.look()
        await webhook.post_due()
        assert receiver.posts == []


async def test_always_is_at_once(tmp_path: Path, receiver: Receiver) -> None:
    """Whatever chats show; what is announced in them, too."""
    async with posting(tmp_path, receiver, webhook_when="always") as (chat, watch, webhook):
        fail(chat)
        await watch.look()
        await webhook.post_due()
        assert [post["kind"] for post in receiver.posts] == ["money-gone"]


async def test_a_refusal_is_tried_again(tmp_path: Path, receiver: Receiver) -> None:
    """Until it is taken, but not at once; a redirect leads nowhere."""
    receiver.answers = [500, 302, 429, 503]
    async with posting(tmp_path, receiver, webhook_when="always") as (chat, watch, webhook):
        fail(chat)
        await watch.look()
        for tries in range(1, 5):
            for _ in range(2):
                await webhook.post_due()
            assert len(receiver.posts) == tries
            await make_old(chat)
        assert chat.events("alert_not_posted")[3]["reason"] == "HTTP 503"
        await webhook.post_due()
        assert len(receiver.posts) == 5
        assert len(chat.events("alert_posted")) == 1


async def test_an_address_where_nobody_listens_is_not_logged(
    tmp_path: Path, receiver: Receiver
) -> None:
    """It may hold a token."""
    receiver.url = "http://127.0.0.1:1/services/T0KEN"
    async with posting(tmp_path, receiver) as (chat, watch, _):
        assert await watch.test() == (1, False)
        assert "T0KEN" not in str(chat.log)


async def test_without_a_database_it_is_told_at_once(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trouble once; the row that is made later knows that its begin was told."""
    async with posting(tmp_path, receiver) as (chat, watch, webhook):
        now = [0.0]
        chat.gateway.platforms.examination.vitals.clock = lambda: now[0]

        async def down(_: Vitals) -> str:
            return "not writable: disk full"

        with monkeypatch.context() as patch:
            patch.setattr(Vitals, "database_state", down)
            for now[0] in (0.0, 45.0, 60.0):
                await watch.look()
        assert [post["kind"] for post in receiver.posts] == ["database-down"]
        await watch.look()
        [row] = await chat.rows(schema.alert)
        assert row.posted == 1
        await make_old(chat)
        await watch.look()
        await webhook.post_due()
        assert [post["event"] for post in receiver.posts] == ["begin", "over"]


async def test_a_test_goes_each_way(tmp_path: Path, receiver: Receiver) -> None:
    """To each chat, and to the webhook."""
    async with posting(tmp_path, receiver) as (chat, watch, _):
        assert await watch.test() == (1, True)
        assert receiver.posts[0]["event"] == "test"
        assert "A test" in (await chat.answers(2))[1]


def test_a_signature_is_of_time_and_body() -> None:
    """As docs/alerts.md tells receivers to compare it."""
    headers = signature("secret", b'{"id":1}', "1700000000")
    expected = hmac.new(b"secret", b'1700000000.{"id":1}', hashlib.sha256).hexdigest()
    assert headers == {
        "X-Parley-Timestamp": "1700000000",
        "X-Parley-Signature": f"sha256={expected}",
    }


async def test_a_claim_is_one_replicas(tmp_path: Path, receiver: Receiver) -> None:
    """Two that look at the same moment post once."""
    async with posting(tmp_path, receiver, webhook_when="always") as (chat, watch, webhook):
        fail(chat)
        await watch.look()
        other = AlertWebhook(webhook.database, webhook.telling)
        due = await webhook.database.read(webhook._due)
        await other.post_due()
        assert [each.id for each in due] == [1]
        await webhook.post_due()
        assert len(receiver.posts) == 1


async def test_a_post_that_fails_unforeseen_ends_no_gateway(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look goes on."""
    async with posting(tmp_path, receiver, webhook_when="always") as (chat, watch, webhook):
        due, failures = AlertWebhook._due, [ValueError("what nobody thought of")]

        def broken(self: AlertWebhook, conn: Any) -> Any:
            if failures:
                raise failures.pop()
            return due(self, conn)

        monkeypatch.setattr(AlertWebhook, "_due", broken)
        posts = _repeated("webhook of alerts", webhook.post_due, 0.01)
        running_on = asyncio.create_task(posts())
        line = await chat.logged("work_failed")
        assert (line["level"], line["error"][:10]) == ("error", "ValueError")
        fail(chat)
        await watch.look()
        await chat.logged("alert_posted")
        running_on.cancel()
        await asyncio.wait({running_on})
        assert [post["kind"] for post in receiver.posts] == ["money-gone"]
