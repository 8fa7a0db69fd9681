"""Socket Mode: what is acknowledged, and when; connections, credentials, gaps."""

import asyncio
import gc
import json
from contextlib import suppress
from traceback import format_exception
from typing import Any

import pytest
from pydantic import SecretStr

from adapters.errors import AdapterDisconnected, AdapterError, AdapterRefused
from adapters.slack.adapter import SlackAdapter
from tests.adapters.slack.conftest import (
    Clock,
    MakeAdapter,
    connected,
    outgoing,
    running,
    supervised,
    until,
)
from tests.support.process import free_port
from tests.support.recording_intake import NotStored, RecordingIntake
from tests.support.slack.faults import DROP, HTML_502, JUNK, SERVER_ERROR, Fault, flood, refused
from tests.support.slack.people import ANNS_DM, GENERAL
from tests.support.slack.server import SlackServer
from tests.support.thorough import WAIT_S


async def test_an_event_is_acknowledged_after_the_commit(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """While the intake has not returned, Slack hears nothing."""
    intake.gate.clear()
    slack.write(ANNS_DM, "one")
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].attempts)
    await intake.was_tried(1)
    assert not slack.delivering.deliveries[-1].acked
    intake.gate.set()
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)
    assert intake.texts == ["one"]


async def test_what_was_not_stored_comes_again_and_is_stored_once(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """A failing commit is not acknowledged and ends the run; the next one gets a redelivery."""
    slack.delivering.ack_s = 0.1
    intake.broken = 1
    async with supervised(make()):
        await connected(slack)
        slack.write(ANNS_DM, "one")
        await intake.has(1)
        await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)
    assert slack.delivering.deliveries[-1].attempts >= 2
    assert intake.texts == ["one"]


async def test_a_failing_intake_ends_the_run(
    slack: SlackServer, intake: RecordingIntake, adapter: SlackAdapter
) -> None:
    """What the intake raises is its caller's affair; Slack heard nothing."""
    intake.broken = 1
    async with running(adapter) as task:
        await connected(slack)
        slack.write(ANNS_DM, "one")
        await asyncio.wait([task], timeout=30)
        assert isinstance(task.exception(), NotStored)
    assert not slack.delivering.deliveries[-1].acked


async def test_a_slow_commit_is_delivered_twice_and_stored_once(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """An acknowledgement that comes too late costs a duplicate, no second turn."""
    slack.delivering.ack_s = 0.05
    intake.gate.clear()
    slack.write(ANNS_DM, "one")
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].attempts >= 2)
    intake.gate.set()
    await intake.was_offered(2)
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)
    assert intake.texts == ["one"]


async def test_duplicates_in_any_order_are_one_message(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """The key is that of the message, not of the event."""
    async with slack.held() as deliveries:
        slack.write(ANNS_DM, "one")
        slack.write(ANNS_DM, "two")
        deliveries[:] = [deliveries[1], deliveries[0], deliveries[1], deliveries[0]]
    await intake.was_offered(4)
    assert sorted(intake.texts) == ["one", "two"]


async def test_a_mention_without_files_waits_for_its_message(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """The first one stored counts, and only the message tells of files."""
    async with slack.held() as deliveries:
        slack.write(GENERAL, "hello", mention=True)
        deliveries.sort(key=lambda each: str(each.payload["event"]["type"]))
    await intake.was_offered(2)
    (stored,) = intake.messages
    assert json.loads(stored.raw)["event"]["type"] == "message"


async def test_unknown_events_are_acknowledged(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """What nobody listens to must not be delivered again for an hour."""
    event = {"type": "team_join", "user": {"id": "U1"}, "event_ts": "1700000000.000001"}
    slack.tell(event)
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)
    assert intake.messages == []


async def test_an_event_that_cannot_be_read_is_set_aside(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """A message of an impossible shape is stored as it came, and acknowledged."""
    slack.tell({"type": "message", "channel": ANNS_DM, "text": 7, "event_ts": "1700000000.000001"})
    await intake.has(1)
    assert intake.poison[0].source == "slack:default"
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)


async def test_an_envelope_of_a_new_kind_is_acknowledged(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Slack would deliver it again and again."""
    news = slack.delivering.deliver("something_new", {})  # type: ignore[arg-type]
    await slack.wait_for(lambda: news.acked)
    assert intake.attempts == 0


@pytest.mark.parametrize("payload", ["words", ["a"], None, 7])
async def test_a_payload_that_is_no_object_is_set_aside(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter, payload: Any
) -> None:
    """It is stored as it came, and acknowledged."""
    broken = slack.delivering.deliver("events_api", payload)
    await slack.wait_for(lambda: broken.acked)
    assert [item.reason for item in intake.poison] == ["the payload is not an object"]


@pytest.mark.parametrize("reason", ["warning", "refresh_requested"])
async def test_slack_may_ask_for_a_new_connection(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, clock: Clock, reason: str
) -> None:
    """A refreshed connection goes on where the old one stopped, and the adapter keeps running."""
    adapter = make(clock=clock)
    async with running(adapter):
        await connected(slack)
        clock.now += 3600
        await slack.delivering.disconnect(reason, close=reason != "warning")
        await connected(slack, 2)
        slack.write(ANNS_DM, "after")
        await intake.has(1)
        assert adapter.receivers[0].connected


async def test_a_refresh_loses_nothing_that_came_with_it(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, clock: Clock
) -> None:
    """What arrived before the request to go is stored and acknowledged on the old connection."""
    slack.delivering.ack_s = WAIT_S
    async with running(make(clock=clock)):
        await connected(slack)
        clock.now += 3600
        for number in range(20):
            slack.write(ANNS_DM, str(number))
        await slack.wait_for(lambda: all(d.attempts for d in slack.delivering.deliveries))
        await slack.delivering.disconnect("warning", close=False)
        await connected(slack, 2)
        await intake.has(20)
    assert {d.attempts for d in slack.delivering.deliveries} == {1}


async def test_a_server_that_refreshes_for_ever_is_backed_off_from(
    slack: SlackServer, adapter: SlackAdapter
) -> None:
    """Connections of a moment are trouble; the supervisor waits longer and longer."""
    async with running(adapter) as task:
        await connected(slack)
        await slack.delivering.disconnect()
        await asyncio.wait([task], timeout=30)
        assert isinstance(task.exception(), AdapterDisconnected)
        assert "asks for a new connection at once" in str(task.exception())


async def test_a_dropped_connection_is_opened_again(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """Supervised as in the gateway, a cut costs no message."""
    async with supervised(make()):
        await connected(slack)
        slack.delivering.drop()
        await connected(slack, 2)
        slack.write(ANNS_DM, "after")
        await intake.has(1)
    assert intake.texts == ["after"]


async def test_a_half_open_connection_is_noticed(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that takes frames and answers nothing is replaced."""
    monkeypatch.setattr("adapters.slack.receive.HEARTBEAT_S", 0.1)
    async with supervised(make()):
        await connected(slack)
        slack.delivering.freeze()
        await connected(slack, 2)
        slack.write(ANNS_DM, "after")
        await intake.has(1)
    assert intake.texts == ["after"]


@pytest.mark.parametrize(
    ("setting", "wrong"), [("app_token", "xapp-wrong"), ("bot_token", "xoxb-wrong")]
)
async def test_wrong_tokens_end_the_adapter(
    slack: SlackServer, make: MakeAdapter, setting: str, wrong: str
) -> None:
    """The message names the setting and not the token."""
    with pytest.raises(AdapterRefused, match=setting) as caught:
        await make(**{setting: SecretStr(wrong)}).receivers[0].run()
    assert wrong not in str(caught.value)


@pytest.mark.parametrize("setting", ["app_token", "bot_token", "signing_secret"])
async def test_what_is_not_set_ends_the_adapter(make: MakeAdapter, setting: str) -> None:
    """Nothing is tried without credentials."""
    mode = "http" if setting == "signing_secret" else "socket"
    with pytest.raises(AdapterRefused, match=setting):
        await make(**{setting: None, "mode": mode}).receivers[0].run()


async def test_a_removed_app_ends_the_adapter(
    slack: SlackServer, make: MakeAdapter, clock: Clock
) -> None:
    """The next connection tells: the token was revoked while the adapter was running."""
    async with running(make(clock=clock)) as task:
        await connected(slack)
        clock.now += 3600
        slack.revoked = "token_revoked"
        await slack.delivering.disconnect()
        await asyncio.wait([task], timeout=30)
        assert isinstance(task.exception(), AdapterRefused)
        assert "platforms.slack.bot_token: token_revoked" in str(task.exception())


async def test_the_event_of_a_revoked_token_ends_the_adapter(
    slack: SlackServer, adapter: SlackAdapter
) -> None:
    """Slack says so at once where the app listens to it."""
    async with running(adapter) as task:
        await connected(slack)
        tokens = {"oauth": [], "bot": [slack.identity.user]}
        slack.tell({"type": "tokens_revoked", "tokens": tokens, "event_ts": "1700000000.000001"})
        await asyncio.wait([task], timeout=30)
        assert isinstance(task.exception(), AdapterRefused)
        assert "the app was removed from its workspace" in str(task.exception())


async def test_socket_mode_switched_off_ends_the_adapter(
    slack: SlackServer, adapter: SlackAdapter
) -> None:
    """Only its owner can switch it on again."""
    async with running(adapter) as task:
        await connected(slack)
        await slack.delivering.disconnect("link_disabled")
        await asyncio.wait([task], timeout=30)
        assert isinstance(task.exception(), AdapterRefused)
        assert "Socket Mode is switched off" in str(task.exception())


@pytest.mark.parametrize("method", ["auth.test", "apps.connections.open"])
@pytest.mark.parametrize(
    "fault", [flood(0), SERVER_ERROR, HTML_502, DROP, JUNK, refused("internal_error")]
)
async def test_trouble_at_the_start_is_a_lost_connection(
    slack: SlackServer, make: MakeAdapter, method: str, fault: Fault
) -> None:
    """Nothing but a refused credential ends an adapter for good."""
    slack.fail(method, fault)
    with pytest.raises(AdapterDisconnected):
        await make().receivers[0].run()


async def test_no_server_is_a_lost_connection(make: MakeAdapter) -> None:
    """As after a cut cable; the next attempt may succeed."""
    with pytest.raises(AdapterDisconnected):
        await make(base_url=f"http://127.0.0.1:{free_port()}/api/").receivers[0].run()


async def test_a_server_that_went_away_does_not_stay_connected(
    slack: SlackServer, live: SlackAdapter
) -> None:
    """`connected` is what /readyz shows."""
    await until(lambda: live.receivers[0].connected)
    slack.fail("apps.connections.open", *[SERVER_ERROR] * 50)
    slack.delivering.drop()
    await until(lambda: not live.receivers[0].connected)
    assert not live.receivers[0].connected


@pytest.mark.parametrize("greeting", ["disconnect", "something", None])
async def test_a_connection_that_does_not_greet_is_given_up(
    slack: SlackServer,
    adapter: SlackAdapter,
    monkeypatch: pytest.MonkeyPatch,
    greeting: str | None,
) -> None:
    """Without `hello` nothing would ever come."""
    monkeypatch.setattr("adapters.slack.receive._HELLO_S", 0.2)
    slack.delivering.greeting = greeting
    with pytest.raises(AdapterDisconnected):
        await adapter.receivers[0].run()
    await slack.wait_for(lambda: not slack.delivering.sockets)
    gc.collect()


async def test_a_connection_that_cannot_be_opened_is_tried_once(
    slack: SlackServer,
    adapter: SlackAdapter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A ticket is good for one try, and no log shows it."""
    caplog.set_level("DEBUG")
    monkeypatch.setattr(slack.delivering, "ticket", lambda: "ticket-used")
    with pytest.raises(AdapterDisconnected) as caught:
        await adapter.receivers[0].run()
    assert slack.violations == ["a socket ticket was used twice"]
    assert "ticket-used" not in caplog.text + "".join(format_exception(caught.value))
    slack.violations.clear()


async def test_too_many_connections_are_trouble(
    slack: SlackServer, make: MakeAdapter, clock: Clock
) -> None:
    """Other processes hold them: the supervisor waits before it tries again."""
    async with running(make(clock=clock)) as task:
        await connected(slack)
        clock.now += 3600
        await slack.delivering.disconnect("too_many_websockets")
        await asyncio.wait([task], timeout=30)
        assert isinstance(task.exception(), AdapterDisconnected)
        assert "too_many_websockets" in str(task.exception())


@pytest.mark.parametrize("frame", ["junk", "[]", "{}", '{"envelope_id": 7}', "[" * 100_000])
async def test_frames_of_any_shape_do_no_harm(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter, frame: str
) -> None:
    """What cannot be read is passed over."""
    await slack.delivering.send_text(frame)
    slack.write(ANNS_DM, "one")
    await intake.has(1)
    assert live.receivers[0].connected


async def test_nothing_is_left_open(slack: SlackServer, make: MakeAdapter) -> None:
    """A cancelled run takes its connection with it."""
    async with running(make()):
        await connected(slack)
        slack.write(ANNS_DM, "one")
    await slack.wait_for(lambda: not slack.delivering.sockets)
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    assert not [each for each in names if "SocketMode" in each or "Connection" in each]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "message", "channel": ANNS_DM, "user": 7, "event_ts": "1700000000.000001"},
        {"type": "message", "channel": ANNS_DM, "text": ["a"], "event_ts": "1700000000.000001"},
    ],
)
async def test_what_cannot_be_read_is_set_aside(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter, event: dict[str, Any]
) -> None:
    """It is acknowledged, too: it would be the same the next time."""
    slack.tell(event)
    await intake.has(1)
    await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)
    assert intake.poison[0].source == "slack:default"


async def test_an_event_needs_no_other_call(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """One that failed would lose the event."""
    slack.fail("auth.test", *[SERVER_ERROR] * 9)
    asked = len(slack.made("auth.test"))
    slack.write(ANNS_DM, "one")
    await intake.has(1)
    assert len(slack.made("auth.test")) == asked


async def test_secrets_are_in_no_log(
    slack: SlackServer,
    intake: RecordingIntake,
    make: MakeAdapter,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Tokens, tickets, addresses for answers and texts, at the lowest level, with faults."""
    caplog.set_level("DEBUG")
    slack.fail("auth.test", SERVER_ERROR, JUNK)
    slack.fail("apps.connections.open", JUNK, SERVER_ERROR)
    async with supervised(make()) as adapter:
        await connected(slack)
        slack.write(ANNS_DM, "a private word")
        slack.slash(ANNS_DM, "status")
        await intake.has(2)
        slack.fail("chat.postMessage", JUNK)
        with suppress(AdapterError):
            await adapter.send(outgoing("a private answer"))
    output = capsys.readouterr()
    said = caplog.text + output.out + output.err
    secrets = [slack.identity.bot_token, slack.identity.app_token, slack.identity.signing_secret]
    for secret in [*secrets, "ticket-", "/secret", "a private"]:
        assert secret not in said
