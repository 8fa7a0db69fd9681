"""Names of people, asked from a real server."""

import pytest

from adapters.messages import InboundMessage
from adapters.slack.adapter import SlackAdapter
from tests.support.recording_intake import RecordingIntake
from tests.support.slack.faults import refused, slow
from tests.support.slack.people import ANN, ANNS_DM, BOB, GENERAL
from tests.support.slack.server import SlackServer


async def heard(slack: SlackServer, intake: RecordingIntake, text: str = "hi") -> InboundMessage:
    """Return what Ann writes as it was stored."""
    count = len(intake.messages)
    slack.write(ANNS_DM, text)
    await intake.has(count + 1)
    return intake.messages[-1]


async def test_a_name_is_asked_once(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Of who writes and of who is named."""
    slack.write(GENERAL, f"<@{BOB}>?")
    await intake.has(1)
    await heard(slack, intake)
    first, second = intake.messages
    assert first.sender_name == second.sender_name != ANN
    assert BOB not in first.text
    assert len(slack.made("users.info")) == 2


async def test_a_refused_name_is_not_asked_again(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Without the scope the id has to do."""
    slack.fail("users.info", *[refused("missing_scope")] * 3)
    assert (await heard(slack, intake)).sender_name == ANN
    assert (await heard(slack, intake)).sender_name == ANN
    assert len(slack.made("users.info")) == 1


async def test_nobody_waits_long_for_a_name(
    slack: SlackServer,
    intake: RecordingIntake,
    live: SlackAdapter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message is stored with the id, and those behind it do not wait either."""
    monkeypatch.setattr("adapters.slack.inbound.WAIT_S", 0.02)
    slack.fail("users.info", slow(0.2))
    assert (await heard(slack, intake)).sender_name == ANN
    assert (await heard(slack, intake)).sender_name == ANN
    assert len(slack.made("users.info")) == 1
