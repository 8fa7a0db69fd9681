"""What is asked about an app's tokens before anything is received for them."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr

from adapters.registry import AccountReport, check
from adapters.slack.client import SCOPES
from adapters.slack.platform import SlackSettings
from tests.support.process import free_port
from tests.support.slack.server import SlackServer

PAGE = Path(__file__).resolve().parents[3] / "docs/platforms/slack.md"


async def asked(server: SlackServer, **block: str | None) -> AccountReport:
    """Return what Slack says of an app; `block` replaces tokens."""
    identity = server.identity
    given = {"bot_token": identity.bot_token, "app_token": identity.app_token} | block
    secrets = {key: SecretStr(value) for key, value in given.items() if value is not None}
    return await check("slack", SlackSettings(base_url=server.base_url, **secrets))


async def test_good_tokens_tell_the_bot_and_its_workspace() -> None:
    """Two calls, and no socket is opened."""
    async with SlackServer() as server:
        report = await asked(server)
        assert [call.method for call in server.calls] == ["auth.test", "apps.connections.open"]
    assert report.outcome == "accepted"
    assert report.bot == server.identity.name
    assert "Loopback" in report.text
    assert report.lacks == ()


async def test_missing_scopes_are_named_with_where_they_are_added() -> None:
    """All of them at once."""
    async with SlackServer() as server:
        server.api.scopes -= {"files:read", "users:read"}
        report = await asked(server)
    assert report.outcome == "accepted"
    assert "add files:read, users:read under OAuth & Permissions" in report.lacks[0]
    assert "https://api.slack.com/apps" in report.lacks[0]


@pytest.mark.parametrize("key", ["bot_token", "app_token"])
async def test_a_wrong_token_is_named(key: str) -> None:
    """Which of the two it is."""
    async with SlackServer() as server:
        report = await asked(server, **{key: "xoxb-wrong"})
    assert (report.outcome, report.text) == (
        "refused",
        f"Slack refuses platforms.slack.{key}: invalid_auth",
    )


async def test_a_missing_app_token_is_named() -> None:
    """Without it nothing can be received by socket."""
    async with SlackServer() as server:
        report = await asked(server, app_token=None)
    assert (report.outcome, report.text) == ("refused", "platforms.slack.app_token is not set")


async def test_without_a_network_nothing_is_said_of_the_tokens() -> None:
    """Slack is said to be away."""
    server = SlackServer()
    server.base_url = f"http://127.0.0.1:{free_port()}/api/"
    assert (await asked(server)).outcome == "unreachable"


def test_the_scopes_are_those_of_the_manifest() -> None:
    """Who follows docs/platforms/slack.md lacks none."""
    manifest = next(
        text
        for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
        if "scopes" in text
    )
    assert tuple(yaml.safe_load(manifest)["oauth_config"]["scopes"]["bot"]) == SCOPES
