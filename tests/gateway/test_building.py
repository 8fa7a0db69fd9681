"""What is built from the settings."""

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from pydantic import SecretStr

from adapters.settings import TelegramSettings
from adapters.web.adapter import WebAdapter
from agent.loop import Agent
from agent.models.scripted import ScriptedModel
from agent.settings import ModelSettings
from gateway.building import build_adapters, build_agent, build_context, build_summariser
from gateway.chats import ChatHistory
from gateway.commands import DESCRIPTIONS, StatusFacts
from gateway.errors import SettingsError
from gateway.modelline import build_line
from gateway.settings import Settings
from tests.support.gateway import running, settings_of


def no_facts(_: str | None) -> StatusFacts:
    """Return what nobody looks at here."""
    return StatusFacts("scripted", 1000, 500, "compressor", 10)


def made(settings: Settings) -> Agent:
    return build_agent(settings, build_line(settings))


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"tools": {"enabled": ["explode"]}}, "tools.enabled: .*explode"),
        ({"model": {"provider": "anthropic"}}, "model: "),
    ],
)
def test_settings_that_fit_no_agent(
    tmp_path: Path, sections: dict[str, dict[str, object]], told: str
) -> None:
    """The error names the setting."""
    with pytest.raises(SettingsError, match=told):
        made(settings_of(tmp_path, **sections))


def test_an_agent_has_the_model_its_fallbacks_and_the_tools(tmp_path: Path) -> None:
    """In the order of the settings."""
    settings = settings_of(tmp_path, tools={"enabled": ["calculate"]})
    settings = settings.model_copy(update={"fallbacks": (settings.model,)})
    agent = made(settings)
    assert [model.name for model in agent.models] == ["parley-offline"] * 2
    assert [schema.name for schema in agent.tools.schemas] == ["calculate"]


@pytest.mark.parametrize(
    "block", [{"provider": "anthropic", "model": "tiny"}, {"provider": "openai", "model": "tiny"}]
)
def test_a_summary_model_without_a_key_is_refused(tmp_path: Path, block: dict[str, str]) -> None:
    """At the start, not in the middle of a conversation; the error names the setting."""
    settings = settings_of(tmp_path, auxiliary={"compression": block})
    with pytest.raises(SettingsError, match=r"auxiliary\.compression: "):
        build_context(settings, made(settings))


OWN_FIELDS = {"reasoning_effort": "low"}
LOCAL = {"provider": "openai", "name": "big", "base_url": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("block", "sent"),
    [
        ({"model": "tiny"}, OWN_FIELDS),
        ({"model": "tiny", "provider": "main"}, OWN_FIELDS),
        ({"model": "tiny", "provider": "openai"}, OWN_FIELDS),
        ({"model": "tiny", "provider": "anthropic", "api_key": "abcd"}, {}),
        ({"model": "tiny", "provider": "openai", "base_url": "http://127.0.0.1:2/v1"}, {}),
    ],
)
def test_further_fields_go_to_the_same_provider_only(
    tmp_path: Path,
    block: dict[str, str],
    sent: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one, or another server, may refuse what it does not know."""
    built: list[ModelSettings] = []

    def build(settings: ModelSettings) -> ScriptedModel:
        built.append(settings)
        return ScriptedModel([])

    monkeypatch.setattr("gateway.building.build_model", build)
    model = LOCAL | {"extra_body": OWN_FIELDS}
    build_summariser(
        settings_of(tmp_path, model=model, auxiliary={"compression": block}), ScriptedModel([])
    )
    assert [settings.extra_body for settings in built] == [sent]


async def test_the_web_chat_is_always_there(tmp_path: Path) -> None:
    """A bot only with its token."""
    async with running(tmp_path, at_work=False) as chat:
        intake, chats = chat.gateway.intake, ChatHistory(chat.gateway.database, no_facts)
        [page] = build_adapters(settings_of(tmp_path, web={"enabled": False}), intake, chats)
        assert page.platform == "web"
        bot = TelegramSettings(name="two", token=SecretStr("1:a"))
        settings = settings_of(tmp_path, platforms={"telegram": [bot]})
        adapters = build_adapters(settings, intake, chats)
        assert [(it.platform, it.account) for it in adapters] == [
            ("web", "default"),
            ("telegram", "two"),
        ]
        for adapter in (page, *adapters):
            await adapter.close()


async def test_the_page_offers_all_commands(tmp_path: Path) -> None:
    """From the one list that all platforms have their menus from."""
    async with running(tmp_path, at_work=False) as chat:
        settings, chats = settings_of(tmp_path), ChatHistory(chat.gateway.database, no_facts)
        [adapter] = build_adapters(settings, chat.gateway.intake, chats)
        app = web.Application()
        assert isinstance(adapter, WebAdapter)
        app.add_routes(adapter.routes())
        async with TestClient(TestServer(app)) as page, page.get("/api/chats") as response:
            offered = (await response.json())["commands"]
    assert offered == [list(command) for command in DESCRIPTIONS.items()]
