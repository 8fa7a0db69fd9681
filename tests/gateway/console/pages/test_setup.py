"""Set up: a model and platforms of a home that has none, tried before they are written."""

from collections.abc import AsyncIterator
from html import escape
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from pydantic import SecretStr

from adapters.discord.platform import DiscordSettings
from gateway.reload.reloading import Reloading
from gateway.settings import references
from gateway.settings.loading import load_settings
from gateway.setup import questions
from gateway.supervision.credentials import Checked, SettingsReloaded
from tests.support.bot_api import TOKEN, BotApi
from tests.support.console import BY_WEB_OWNER, Answered, ConsoleBrowser, console, said
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
    given = {
        "provider": "server",
        "api_key": KEY,
        "name": "double",
        "base_url": server.url,
    } | fields
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
        ({"api_key": "sk-wrong-key"}, "the provider refuses the key"),
        ({"api_key": TOKEN}, "This is Telegram&#39;s bot token"),
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
    assert fields.get("api_key", KEY) not in refused.text
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
        assert "It is set up;" in (await browser.get("/admin/setup")).text
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
            assert "works after a restart" in page
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


REFERENCES = ["command:touch {}", "file:{}", "env:HOME", "credential:key", "keyring:parley/key"]


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("form", ["model", "platforms/telegram"])
async def test_a_form_takes_no_reference(
    tmp_path: Path,
    server: OpenAIServer,
    form: str,
    reference: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would run a program here, or send a file to whoever answers for the model."""
    asked: list[str] = []

    def read(text: str, _: object) -> str:
        asked.append(text)
        return KEY

    monkeypatch.setattr(references, "read_secret", read)
    given = f" {reference.format(tmp_path / 'ran')} "
    async with console(tmp_path) as running, running.browser() as browser:
        if form == "model":
            refused = await choose(browser, server, api_key=given)
        else:
            refused = await browser.submit("/admin/setup", f"/admin/setup/{form}", token=given)
        assert (refused.status, "are set with `parley setup`" in refused.text) == (409, True)
    assert (asked, server.requests, written(tmp_path)) == ([], [], None)


async def test_to_look_runs_no_program(tmp_path: Path) -> None:
    """Of a reference that the gateway goes by, though the page reads the file."""
    script, ran = tmp_path / "token.sh", tmp_path / "ran"
    script.write_text(f"#!/bin/sh\necho ran >> {ran}\necho MTIz.loopback.TOKEN\n")
    script.chmod(0o700)
    block = {"token": f"command:{script}"}
    (tmp_path / "parley.yaml").write_text(yaml.safe_dump({"platforms": {"discord": block}}))
    found = load_settings(overrides={"home": tmp_path}).settings
    platforms = {"discord": found.platforms.accounts("discord")}
    async with console(tmp_path, platforms=platforms) as running, running.browser() as browser:
        with patch.object(Reloading, "file", tmp_path / "parley.yaml"):
            assert (await browser.get("/admin/setup")).status == 200
    assert ran.read_text() == "ran\n"


async def test_a_refused_form_is_shown_as_it_was_filled_in(
    tmp_path: Path, server: OpenAIServer
) -> None:
    """But for the key; a theme that is chosen there leads to the page of the form."""
    async with console(tmp_path) as running, running.browser() as browser:
        page = await choose(browser, server, api_key="sk-wrong-key", name="<double>")
        assert page.status == 409
        assert f'value="{server.url}"' in page.text
        assert 'name="name" value="&lt;double&gt;"' in page.text
        assert '<option value="server" selected>' in page.text
        assert "sk-wrong-key" not in page.text
        assert 'name="back" value="/admin/setup"' in page.text
        assert "the provider refuses the key" not in (await browser.get("/admin/setup")).text


async def test_a_provider_without_a_usual_model_needs_a_name(
    tmp_path: Path, server: OpenAIServer
) -> None:
    """The form says so before, and again."""
    async with console(tmp_path) as running, running.browser() as browser:
        assert (
            "OpenRouter has no default model: name one." in (await browser.get("/admin/setup")).text
        )
        refused = await choose(browser, server, provider="openrouter", name=" ")
    assert (refused.status, "OpenRouter has no default model; please" in refused.text) == (
        409,
        True,
    )


async def test_what_cannot_be_used_is_not_written(tmp_path: Path, server: OpenAIServer) -> None:
    """A budget counts nothing for a model without a price."""
    file = tmp_path / "parley.yaml"
    file.write_text("budget: {daily_usd: 3}\n")
    async with console(tmp_path) as running, running.browser() as browser:
        with patch.object(Reloading, "file", file):
            refused = await choose(browser, server)
    assert (refused.status, "the price of double is not known" in refused.text) == (409, True)
    assert written(tmp_path) == {"budget": {"daily_usd": 3}}


async def test_what_the_gateway_does_not_go_by_is_told(
    tmp_path: Path, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written, and the one before goes on."""

    async def refused(_: object) -> SettingsReloaded:
        return SettingsReloaded(problems=("parley.yaml:3: no number",))

    monkeypatch.setattr(Reloading, "reload", refused)
    async with console(tmp_path) as running, running.browser() as browser:
        assert (await choose(browser, server)).status == 303
        page = (await browser.get("/admin/setup")).text
        assert "goes on by what it had before: parley.yaml:3: no number" in page
        assert 'class="said bad"' in page
        assert await said(running, "settings_reloaded") == []
    assert written(tmp_path) is not None


async def test_a_long_answer_arrives_whole_with_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invitation is an address of some length, and is opened by a click."""
    address = "https://discord.com/oauth2/authorize?" + "&".join(f"scope={n:060}" for n in range(9))

    async def checked(*_: object) -> Checked:
        lacks = (f"invite the bot: {address}", f"see {address}")
        return Checked("telegram:default", "accepted", "it is @parley_bot", lacks)

    monkeypatch.setattr(questions, "check_account", checked)
    async with console(tmp_path) as running, running.browser() as browser:
        path = "/admin/setup/platforms/telegram"
        assert (await browser.submit("/admin/setup", path, token=TOKEN)).status == 303
        page = (await browser.get("/admin/setup")).text
    assert page.count(f'<a href="{escape(address)}" rel="noreferrer">') == 2
    assert "Written to" in page
