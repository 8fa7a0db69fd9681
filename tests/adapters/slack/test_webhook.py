"""HTTP mode: the adapter's route behind a real HTTP server, called as Slack calls it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestServer

from adapters.errors import AdapterRefused
from adapters.messages import Choice
from adapters.slack.adapter import SlackAdapter
from tests.adapters.slack.conftest import MakeAdapter, outgoing, running, until
from tests.support.process import free_port
from tests.support.recording_intake import RecordingIntake
from tests.support.slack.delivery import signature
from tests.support.slack.people import ANNS_DM, GENERAL
from tests.support.slack.server import SlackServer

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
BODY = json.dumps({"type": "url_verification", "challenge": "c"}).encode()


@pytest.fixture
async def served(slack: SlackServer, make: MakeAdapter) -> AsyncIterator[SlackAdapter]:
    """An adapter in HTTP mode, running, whose route is served where Slack delivers to."""
    adapter = make(mode="http", app_token=None)
    app = web.Application()
    app.add_routes(adapter.routes())
    async with TestServer(app, port=free_port()) as server:
        slack.delivering.url = str(server.make_url("/slack/default"))
        async with running(adapter):
            await until(lambda: adapter.receivers[0].connected)
            yield adapter
        # What Slack delivers while the server ends would leave a connection open.
        await slack.delivering.close()


@pytest.fixture
def foreign_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody's other Bolt app needs."""
    for name in ("BOT_TOKEN", "APP_TOKEN", "SIGNING_SECRET", "CLIENT_ID", "CLIENT_SECRET"):
        monkeypatch.setenv(f"SLACK_{name}", "another")


async def test_slack_verifies_the_url(slack: SlackServer, served: SlackAdapter) -> None:
    """The challenge comes back as it was sent."""
    status, answer = await slack.delivering.post(BODY, JSON)
    assert status == 200
    assert "c" in answer


async def test_an_event_is_stored_and_then_answered(
    slack: SlackServer, intake: RecordingIntake, served: SlackAdapter
) -> None:
    """200 means stored; both events of a mention are one message."""
    slack.write(GENERAL, "hello", mention=True)
    await intake.was_offered(2)
    await slack.wait_for(lambda: all(each.acked for each in slack.delivering.deliveries))
    assert intake.texts == ["hello"]
    assert not slack.made("apps.connections.open")


async def test_what_was_not_stored_comes_again(
    slack: SlackServer, intake: RecordingIntake, served: SlackAdapter
) -> None:
    """Slack delivers again after any answer but 200, with the number of its attempt."""
    intake.broken = 2
    with structlog.testing.capture_logs() as logs:
        slack.write(ANNS_DM, "one")
        await intake.has(1)
        (delivery,) = slack.delivering.deliveries
        await slack.wait_for(lambda: delivery.acked)
    assert delivery.answers == [503, 503, 200]
    assert [entry["event"] for entry in logs] == ["slack_webhook_not_stored"] * 2
    assert intake.texts == ["one"]


async def test_a_slow_commit_is_delivered_again_and_stored_once(
    slack: SlackServer, intake: RecordingIntake, served: SlackAdapter
) -> None:
    """An answer after Slack's three seconds costs a duplicate."""
    slack.delivering.ack_s = 0.1
    intake.gate.clear()
    slack.write(ANNS_DM, "one")
    await intake.was_tried(2)
    intake.gate.set()
    await intake.has(1)
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)
    assert intake.texts == ["one"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Slack-Signature": "v0=" + "0" * 64},
        {"X-Slack-Signature": ""},
        {"X-Slack-Signature": "v0=ünïcode"},
        {"X-Slack-Request-Timestamp": "soon"},
        {"X-Slack-Request-Timestamp": ""},
    ],
)
async def test_an_unsigned_call_is_refused(
    slack: SlackServer, intake: RecordingIntake, served: SlackAdapter, headers: dict[str, str]
) -> None:
    """Nothing is read of it."""
    status, _ = await slack.delivering.post(BODY, JSON, **headers)
    assert status == 401
    assert intake.attempts == 0


@pytest.mark.parametrize("skew_s", [-400, 400])
async def test_an_old_call_is_refused(
    slack: SlackServer, served: SlackAdapter, skew_s: int
) -> None:
    """A recorded call is worth nothing after five minutes, with a right signature too."""
    stamp = str(int(time.time()) + skew_s)
    status, _ = await slack.delivering.post(BODY, JSON, **{"X-Slack-Request-Timestamp": stamp})
    assert status == 401


async def test_another_secret_is_refused(slack: SlackServer, served: SlackAdapter) -> None:
    """The signature is made with the app's own secret."""
    stamp = str(int(time.time()))
    signed = signature("another", stamp, BODY)
    headers = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": signed}
    assert (await slack.delivering.post(BODY, JSON, **headers))[0] == 401


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", JSON),
        (b"[" * 100_000, JSON),
        (b"payload=%7B", FORM),
        (b"nothing=here", FORM),
        (b"\xff\xfe", FORM),
        (urlencode({"payload": "[]"}).encode(), FORM),
        (b"7", JSON),
    ],
)
async def test_a_signed_call_of_any_shape_does_no_harm(
    slack: SlackServer, intake: RecordingIntake, served: SlackAdapter, body: bytes, kind: str
) -> None:
    """It is set aside or refused; the next call works."""
    status, _ = await slack.delivering.post(body, kind)
    assert status in {200, 400}
    assert intake.messages == []
    slack.write(ANNS_DM, "one")
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)
    assert intake.texts == ["one"]


async def test_a_call_that_bolt_cannot_read_is_set_aside(
    slack: SlackServer, intake: RecordingIntake, served: SlackAdapter
) -> None:
    """Our own reading decides about shapes that Bolt does not expect, as in Socket Mode."""
    event = {"type": "message", "channel": ANNS_DM, "user": 7, "event_ts": "1700000000.000001"}
    slack.tell(event)
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)
    assert len(intake.poison) == 1


@pytest.mark.parametrize("body", [b"{", b'{"event": {"type": "message", "user": 7}}', b"\xff"])
async def test_what_nobody_signed_is_not_set_aside(
    slack: SlackServer, intake: RecordingIntake, served: SlackAdapter, body: bytes
) -> None:
    """A stranger cannot fill the database with what Bolt cannot read."""
    status, _ = await slack.delivering.post(body, JSON, **{"X-Slack-Signature": "v0=0"})
    assert status in {400, 401}
    assert intake.attempts == 0


async def test_slack_checks_the_certificate(
    slack: SlackServer, intake: RecordingIntake, served: SlackAdapter
) -> None:
    """Now and then Slack calls just to see whether TLS works."""
    assert (await slack.delivering.post(b"ssl_check=1&token=t", FORM))[0] == 200
    assert intake.attempts == 0


async def test_a_slash_command_about_a_payload(
    slack: SlackServer, intake: RecordingIntake, served: SlackAdapter
) -> None:
    """Bolt takes a form with that word for a button's and finds nothing in it."""
    slack.slash(ANNS_DM, "what is a payload?")
    await intake.has(1)
    assert intake.texts == ["what is a payload?"]


async def test_the_environment_of_other_bolt_apps_does_not_matter(
    foreign_environment: None, slack: SlackServer, intake: RecordingIntake, served: SlackAdapter
) -> None:
    """Bolt takes tokens and clients of an OAuth flow from variables; only settings count."""
    slack.write(ANNS_DM, "one")
    await intake.has(1)
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)
    assert intake.texts == ["one"]


async def test_a_call_before_the_bot_is_known_comes_again(
    slack: SlackServer, make: MakeAdapter
) -> None:
    """While the adapter is not connected yet nothing can be read, so nothing is answered 200."""
    app = web.Application()
    app.add_routes(make(mode="http").routes())
    async with TestServer(app, port=free_port()) as server:
        slack.delivering.url = str(server.make_url("/slack/default"))
        assert (await slack.delivering.post(BODY, JSON))[0] == 200
        slack.write(ANNS_DM, "one")
        await slack.wait_for(lambda: slack.delivering.deliveries[-1].answers)
        assert slack.delivering.deliveries[-1].answers[0] == 503
        await slack.delivering.close()


async def test_a_huge_call_is_refused(slack: SlackServer, served: SlackAdapter) -> None:
    """Nobody can fill the memory."""
    status, _ = await slack.delivering.post(b" " * (2 << 20), JSON)
    assert status in {0, 413}


async def test_a_slash_command_and_a_button(
    slack: SlackServer, intake: RecordingIntake, served: SlackAdapter
) -> None:
    """Forms come to the same address."""
    slack.slash(ANNS_DM, "status")
    await intake.has(1)
    receipt = await served.send(outgoing("Sure?", choices=(Choice("Yes", "yes"),)))
    slack.press(ANNS_DM, receipt.platform_ref, "Yes")
    await intake.has(2)
    assert intake.texts == ["/status", "yes"]
    await slack.wait_for(lambda: not slack.messages(ANNS_DM)[-1].buttons)


async def test_a_gap_is_fetched_in_http_mode_too(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, served: SlackAdapter
) -> None:
    """What Slack gave up delivering is in its history."""
    slack.write(ANNS_DM, "one")
    await intake.has(1)
    slack.write(ANNS_DM, "two", tell=False)
    async with running(make(mode="http")):
        await intake.has(2)
    assert intake.texts == ["one", "two"]


async def test_a_removed_app_ends_the_adapter(slack: SlackServer, make: MakeAdapter) -> None:
    """HTTP mode looks at its token when it begins."""
    slack.revoked = "account_inactive"
    with pytest.raises(AdapterRefused, match="bot_token"):
        await make(mode="http").receivers[0].run()


async def test_a_token_that_was_revoked_later_ends_the_adapter(
    slack: SlackServer, make: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody connects in HTTP mode, so the token is looked at now and then."""
    monkeypatch.setattr("adapters.slack.receive._CHECK_INTERVAL_S", 0.02)
    async with running(make(mode="http")) as task:
        await slack.wait_for(lambda: len(slack.made("auth.test")) >= 2)
        slack.revoked = "token_revoked"
        await asyncio.wait([task], timeout=30)
        assert isinstance(task.exception(), AdapterRefused)
        assert "platforms.slack.bot_token: token_revoked" in str(task.exception())


async def test_texts_and_secrets_are_in_no_log(
    slack: SlackServer,
    intake: RecordingIntake,
    served: SlackAdapter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Bolt logs calls it refuses with all that is in them, at a level that others leave on."""
    caplog.set_level("DEBUG")
    body = json.dumps({"event": {"text": "a private word"}}).encode()
    assert (await slack.delivering.post(body, JSON, **{"X-Slack-Signature": "v0=0"}))[0] == 401
    slack.write(ANNS_DM, "a private word")
    await intake.has(1)
    for secret in ["a private", "v0=", slack.identity.bot_token, slack.identity.signing_secret]:
        assert secret not in caplog.text
