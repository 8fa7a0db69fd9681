"""What is said at the start about keys and tokens: gateway/supervision/start_checks.py."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.registry import account_types
from gateway.supervision import start_checks
from gateway.supervision.accounts import Supervised
from gateway.supervision.start_checks import Checked, of_platforms
from tests.support.recording_adapter import RecordingAdapter
from tests.support.slack.server import SlackServer
from tests.support.thorough import WAIT_S

REFUSAL = AdapterRefused("Telegram does not know this bot; correct platforms.telegram.token")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start waits for platforms for seconds, which a busy machine takes for itself."""
    monkeypatch.setattr(start_checks, "PLATFORMS_WITHIN_S", WAIT_S)


async def checked(*outages: Exception) -> tuple[list[Checked], list[Any]]:
    """Return what is found of a platform whose first runs end so, and what was logged."""
    adapter = RecordingAdapter()
    adapter.connected = not outages
    adapter.outages += outages
    supervised = Supervised(adapter)
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(supervised.run())
            found = await of_platforms([supervised], asyncio.Event())
            running.cancel()
    return found, [line for line in logs if line["event"] == "credentials_checked"]


@pytest.mark.parametrize(
    ("outages", "outcome", "level"),
    [
        ((), "accepted", "info"),
        ((REFUSAL,), "refused", "error"),
        ((AdapterDisconnected("no route"),), "unreachable", "warning"),
    ],
)
async def test_a_platform_shows_by_its_first_steps_what_its_token_is_worth(
    outages: tuple[Exception, ...], outcome: str, level: str
) -> None:
    """One event for each account, and the reason that names the setting."""
    [finding], [event] = await checked(*outages)
    assert (finding.subject, finding.outcome) == ("telegram:default", outcome)
    assert all(str(outage) in finding.text for outage in outages)
    assert (event["outcome"], event["log_level"]) == (outcome, level)


async def connected_with(scopes: set[str]) -> Checked:
    """Return what is found of an app of Slack that is connected and has lost these scopes."""
    async with SlackServer() as slack:
        slack.api.scopes -= scopes
        tokens = {"bot_token": slack.identity.bot_token, "app_token": slack.identity.app_token}
        block = account_types()["slack"].model_validate({**tokens, "base_url": slack.base_url})
        adapter = RecordingAdapter()
        adapter.platform = "slack"
        [finding] = await of_platforms([Supervised(adapter)], asyncio.Event(), [("slack", block)])
    return finding


async def test_what_an_app_lacks_is_told_although_it_is_connected() -> None:
    """It works, but for that."""
    finding = await connected_with({"files:read"})
    assert (finding.outcome, finding.text) == ("accepted", "connected as parley")
    assert "add files:read" in finding.lacks[0]
    first, second = start_checks.lines([finding])
    assert (first, second.startswith("    ! ")) == ("  ✓ slack:default: connected as parley", True)
    assert (await connected_with(set())).lacks == ()


async def test_who_does_not_answer_again_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter that is connected is connected."""
    monkeypatch.setattr(start_checks, "LEAST_S", 0.0)
    monkeypatch.setattr(start_checks, "PLATFORMS_WITHIN_S", 0.0)
    finding = await connected_with({"files:read"})
    assert (finding.outcome, finding.text, finding.lacks) == ("accepted", "connected", ())


async def test_a_question_that_breaks_ends_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK may make anything of an odd answer; it is in the log."""

    async def broken(*_: object) -> None:
        raise KeyError("user")

    monkeypatch.setattr(start_checks, "check", broken)
    with capture_logs() as logs:
        finding = await connected_with(set())
    assert (finding.outcome, finding.text) == ("accepted", "connected")
    assert "account_not_asked" in [line["event"] for line in logs]


def silent() -> Supervised:
    """Return a platform that neither answers nor refuses."""
    adapter = RecordingAdapter()
    adapter.connected = False
    return Supervised(adapter)


async def test_a_platform_that_hangs_holds_the_start_up_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said that it is not there yet; the start goes on."""
    monkeypatch.setattr(start_checks, "PLATFORMS_WITHIN_S", 0.0)
    [finding] = await of_platforms([silent()], asyncio.Event())
    assert finding.outcome == "unreachable"


async def test_a_stop_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a platform in a gateway that is to end."""
    stop = asyncio.Event()
    stop.set()
    monkeypatch.setattr(start_checks, "PLATFORMS_WITHIN_S", 600.0)
    async with asyncio.timeout(30):
        [finding] = await of_platforms([silent()], stop)
    assert finding.outcome == "unreachable"


def test_what_has_to_be_changed_is_printed_first() -> None:
    """With what it lacks below; no control characters of a provider reach the terminal."""
    fine = Checked("main", "accepted", "answers")
    wrong = Checked("spare", "refused", "no\x1b[2J")
    lacking = Checked("discord:default", "accepted", "connected", ("an intent is off",))
    first, *others = start_checks.lines([fine, lacking, wrong])
    assert first.startswith("  ✗ spare: no")
    assert "\x1b" not in first
    assert others == [
        "  ✓ main: answers",
        "  ✓ discord:default: connected",
        "    ! an intent is off",
    ]
