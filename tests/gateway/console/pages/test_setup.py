"""Set up: a model and platforms of a home that has none, tried before they are written."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from adapters.discord.platform import DiscordSettings
from tests.gateway.console.pages.test_work import BY_WEB_OWNER, said
from tests.support.bot_api import TOKEN, BotApi
from tests.support.console import Answered, ConsoleBrowser, console
from tests.support.model_server import Fault, Reply
from tests.support.openai_server import OpenAIServer

KEY = "sk-right-key"


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    """A server of one's own that speaks OpenAI's API, and takes one key."""
    async with OpenAIServer(KEY, default=Reply(text="ready")) as own:
        yield own


async def choose(browser: ConsoleBrowser, server: OpenAIServer, **fields: str) -> Answered:
    """Send the form of the model."""
    given = {"provider": "server", "key": KEY, "name": "double", "base_url": server.url} | fields
    return await browser.submit("/admin/setup", "/admin/setup/model", **given)


def written(home: Path) -> Any:
    """Return what stands in the settings; None where there are none."""
    file = home / "parley.yaml"
    return yaml.safe_load(file.read_text()) if file.exists() else None


async def test_a_model_that_answers_is_written(tmp_path: Path, server: OpenAIServer) -> None:
    """With a real answer and its price; who did it is on record."""
    async with console(tmp_path) as running, running.browser() as browser:
        assert "Only the demo model answers" in (await browser.get("/admin/setup")).text
        done = await choose(browser, server)
        assert (done.status, done.headers["Location"]) == (303, "/admin/setup")
        assert "answers “ready”" in (await browser.get("/admin/setup")).text
        assert await said(running, "settings_reloaded") == [BY_WEB_OWNER]
    assert written(tmp_path) == {
        "model": {"provider": "openai", "name": "double", "base_url": server.url, "api_key": KEY}
    }


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"key": "sk-wrong-key"}, "the provider refuses the key"),
        ({"key": TOKEN}, "This is Telegram&#39;s bot token"),
        ({"provider": "nobody"}, "Please choose a provider"),
        ({"base_url": "ftp://here"}, "must begin with http"),
    ],
)
async def test_what_is_wrong_is_told_and_not_written(
    tmp_path: Path, server: OpenAIServer, fields: dict[str, str], told: str
) -> None:
    """The key is not repeated."""
    async with console(tmp_path) as running, running.browser() as browser:
        refused = await choose(browser, server, **fields)
    assert refused.status == 409
    assert told in refused.text
    assert fields.get("key", KEY) not in refused.text
    assert written(tmp_path) is None


async def test_a_server_in_trouble_writes_nothing(tmp_path: Path, server: OpenAIServer) -> None:
    """It may be tried again."""
    server.script(Fault(status=500))
    async with console(tmp_path) as running, running.browser() as browser:
        assert "does not answer now" in (await choose(browser, server)).text
    assert written(tmp_path) is None


async def test_a_model_that_is_there_is_not_replaced(tmp_path: Path, server: OpenAIServer) -> None:
    """A session in a browser cannot send conversations to another server."""
    model = {"provider": "openai", "api_key": "sk-12345678"}
    async with console(tmp_path, model=model) as running, running.browser() as browser:
        refused = await choose(browser, server)
        assert "A model answers" in (await browser.get("/admin/setup")).text
    assert (refused.status, server.requests) == (409, [])
    assert "There is a model already" in refused.text


async def test_a_token_is_tried_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong one, and one of another platform, are told."""
    async with BotApi() as api:
        monkeypatch.setenv("PARLEY_PLATFORMS__TELEGRAM__BASE_URL", api.root)
        async with console(tmp_path) as running, running.browser() as browser:
            path = "/admin/setup/platforms/telegram"
            mixed = await browser.submit("/admin/setup", path, token="xoxb-1-2")
            assert "This is Slack&#39;s Bot User OAuth Token" in mixed.text
            wrong = await browser.submit("/admin/setup", path, token="12345:wrong-token")
            assert "Telegram does not know this bot" in wrong.text
            assert written(tmp_path) is None
            assert (await browser.submit("/admin/setup", path, token=TOKEN)).status == 303
            page = (await browser.get("/admin/setup")).text
            assert "the token is that of @parley_bot" in page
            assert "takes part after a restart" in page
            again = await browser.submit("/admin/setup", path, token=TOKEN)
            assert "is set up already" in again.text
    assert written(tmp_path) == {"platforms": {"telegram": {"token": TOKEN}}}


async def test_a_platform_that_is_on_is_not_replaced(tmp_path: Path) -> None:
    """Nor one that there is not."""
    discord = DiscordSettings(token=SecretStr("MTIz.loopback.TOKEN-SECRET"))
    platforms = {"discord": (discord,)}
    async with console(tmp_path, platforms=platforms) as running, running.browser() as browser:
        path = "/admin/setup/platforms/discord"
        refused = await browser.submit("/admin/setup", path, token="AAAA.BBBB.CCCCCCCC")
        lost = await browser.submit("/admin/setup", "/admin/setup/platforms/web")
    assert "is set up already" in refused.text
    assert lost.status == 404
