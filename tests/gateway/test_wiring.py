"""What is built from the settings.

The line of models: what the settings make of them, and what the providers tell about them.
"""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from pydantic import SecretStr
from structlog.testing import capture_logs

from adapters.telegram.platform import TelegramSettings
from adapters.web.adapter import WebAdapter
from agent.context_engine import Limits
from agent.models.base import ChatModel
from agent.settings import (
    CachingSettings,
    ContextSettings,
    ModelSettings,
    PluginSettings,
    RoundsSettings,
)
from agent.turn.request import Agent
from gateway.cli.run import caching_text
from gateway.commands.registry import StatusFacts, menu
from gateway.errors import SettingsError
from gateway.http.server import ChatHistory
from gateway.settings.tree import Settings
from gateway.storage.people.web_users import ChatLinks
from gateway.supervision.credentials import Configured
from gateway.wiring import (
    NO_PLUGINS,
    build_accounts,
    build_agent,
    build_context,
    build_line,
    build_mind,
    build_summariser,
    build_writers,
    choose_engine,
)
from tests.agent.engines.views import engine_source, write_plugin
from tests.support.door import AUTHORIZED, MemoryDoor
from tests.support.gateway import Running, running, settings_of
from tests.support.scripted_model import ScriptedModel

LIMITS = Limits(4_000)


def no_facts(_: str | None) -> StatusFacts:
    """Return what nobody looks at here."""
    return StatusFacts("scripted", 1000, 500, "compressor", 10)


def made(settings: Settings) -> Agent:
    return build_agent(settings, build_line(settings))


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"tools": {"enabled": ["explode"]}}, "tools.enabled: .*explode"),
        ({"tools": {"policy": {"own_records": ["terminal"]}}}, "own_records: terminal"),
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

    def build(settings: ModelSettings) -> list[ChatModel]:
        built.append(settings)
        return [ScriptedModel([])]

    monkeypatch.setattr("gateway.wiring.build_models", build)
    model = LOCAL | {"extra_body": OWN_FIELDS}
    build_writers(settings_of(tmp_path, model=model, auxiliary={"compression": block}))
    assert [settings.extra_body for settings in built] == [sent]


def test_the_summary_model_has_keys_and_a_window_of_its_own(tmp_path: Path) -> None:
    """Then come the models that answer, each with its keys; the offline one writes nothing."""
    block = {
        "model": "tiny",
        "provider": "openai",
        "base_url": "http://127.0.0.1:2/v1",
        "api_keys": ["key-one", "key-two"],
        "context_length": 8_192,
    }
    settings = settings_of(tmp_path, model=LOCAL, auxiliary={"compression": block})
    line = build_writers(settings)
    assert [each.place for each in line] == ["auxiliary.compression"]
    assert [model.context_length for model in line[0].models] == [8_192, 8_192]
    summariser = build_summariser(settings, made(settings), line)
    assert summariser is not None
    names = [model.name for model in summariser.models]
    assert names == ["tiny", "tiny", "big"]


def history_of(chat: Running) -> ChatHistory:
    return ChatHistory(chat.gateway.database, no_facts, ChatLinks(None))


async def test_the_web_chat_is_always_there(tmp_path: Path) -> None:
    """A bot only with its token."""
    async with running(tmp_path, at_work=False) as chat:
        intake, chats = chat.gateway.intake, history_of(chat)
        [page] = build_accounts(settings_of(tmp_path, web={"enabled": False})).connect(
            intake, chats, MemoryDoor()
        )
        assert page.platform == "web"
        bot = TelegramSettings(name="two", token=SecretStr("1:a"))
        settings = settings_of(tmp_path, platforms={"telegram": [bot]})
        adapters = build_accounts(settings).connect(intake, chats, MemoryDoor())
        assert [(it.platform, it.account) for it in adapters] == [
            ("web", "default"),
            ("telegram", "two"),
        ]
        for adapter in (page, *adapters):
            await adapter.close()


async def test_the_page_offers_all_commands(tmp_path: Path) -> None:
    """From the one list that all platforms have their menus from."""
    async with running(tmp_path, at_work=False) as chat:
        settings, chats = settings_of(tmp_path), history_of(chat)
        [adapter] = build_accounts(settings).connect(chat.gateway.intake, chats, MemoryDoor())
        app = web.Application()
        assert isinstance(adapter, WebAdapter)
        app.add_routes(adapter.routes())
        async with (
            TestClient(TestServer(app)) as page,
            page.get("/api/chats", headers=AUTHORIZED) as response,
        ):
            offered = (await response.json())["commands"]
    assert offered == [list(command) for command in menu()]


CLAUDE = {"provider": "anthropic", "name": "claude-sonnet-5-5", "api_key": "key-one"}
LOCAL_BLOCK = {"provider": "openai", "name": "local", "base_url": "http://127.0.0.1:1/v1"}


def line_of(home: Path, *blocks: dict[str, Any], **sections: dict[str, Any]) -> list[Configured]:
    main, *fallbacks = blocks
    settings = settings_of(home, model=main, **sections)
    more = tuple(ModelSettings.model_validate(block) for block in fallbacks)
    return build_line(settings.model_copy(update={"fallbacks": more}))


def models_of(line: list[Configured]) -> list[ChatModel]:
    return [model for block in line for model in block.models]


# build_line


def test_each_key_is_a_model_of_its_own(tmp_path: Path) -> None:
    """In the order of the settings; they differ in nothing but their label."""
    [block] = line_of(tmp_path, CLAUDE | {"api_keys": ["key-two", "key-one", "key-three"]})
    assert [model.name for model in block.models] == ["claude-sonnet-5-5"] * 3
    assert len({model.label for model in block.models}) == 3


def test_fallbacks_stand_behind_the_main_model(tmp_path: Path) -> None:
    """Each with its own block: its window, its keys."""
    line = line_of(
        tmp_path, CLAUDE, LOCAL_BLOCK | {"context_length": 32_768}, {"provider": "offline"}
    )
    names = [model.name for model in models_of(line)]
    assert names == ["claude-sonnet-5-5", "local", "parley-offline"]
    assert [block.settings.context_length for block in line] == [None, 32_768, None]
    assert line[1].models[0].context_length == 32_768


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"provider": "anthropic"}, "{place}.api_key"),
        ({"provider": "openrouter", "api_key": "abcd"}, "set {place}.name"),
        (CLAUDE | {"extra_body": {"messages": []}}, "extra_body"),
        (LOCAL_BLOCK | {"extra_body": {"stream": False}}, "extra_body"),
    ],
    ids=["no key", "no name", "extra_body of anthropic", "extra_body of openai"],
)
@pytest.mark.parametrize("place", ["model", "fallbacks.0"])
def test_a_block_that_cannot_be_used_stops_the_start(
    tmp_path: Path, block: dict[str, Any], told: str, place: str
) -> None:
    """The error is one of the settings and names block and key; no traceback of an SDK."""
    blocks = [block] if place == "model" else [CLAUDE, block]
    with pytest.raises(SettingsError, match=rf"^{place}: .*{told.format(place=place)}"):
        line_of(tmp_path, *blocks)


# caching_text


@pytest.mark.parametrize(
    ("block", "caching", "told"),
    [
        (CLAUDE, {}, "ENABLED (Claude via Anthropic, 5m TTL)"),
        (CLAUDE, {"cache_ttl": "1h"}, "ENABLED (Claude via Anthropic, 1h TTL)"),
        (LOCAL_BLOCK, {}, "left to the provider (local takes no breakpoints)"),
    ],
)
def test_the_start_tells_about_caching(
    tmp_path: Path, block: dict[str, Any], caching: dict[str, Any], told: str
) -> None:
    """Whether requests are marked, and if not, why."""
    [model] = models_of(line_of(tmp_path, block, prompt_caching=caching))
    settings = CachingSettings.model_validate(caching)
    assert caching_text(model, settings) == f"💾 Prompt caching: {told}"


READER = {
    "memory": {
        "model": "tiny",
        "provider": "openai",
        "base_url": "http://127.0.0.1:1/v1",
        "facts": {"input_usd": 1.0, "output_usd": 2.0},
    }
}


async def anew(chat: Running, **more: Any) -> Any:
    """Return the mind that a reload would make."""
    gateway, before = chat.gateway, chat.gateway.reloading.mind
    settings = gateway.settings.model_copy(update=more)
    return build_mind(settings, chat.agent, gateway.database, NO_PLUGINS, before=before)


async def test_a_model_that_reads_for_the_memory_is_one_of_all(tmp_path: Path) -> None:
    """Its key is renewed, alerts look at it, `/usage` knows its price; a reload keeps it."""
    async with running(tmp_path, auxiliary=READER) as chat:
        gateway = chat.gateway
        mind, recall = gateway.reloading.mind, gateway.beside.recall
        assert recall is not None
        reader = recall.reader
        assert reader is not None
        [model] = mind.readers
        assert list(reader.models.models) == [model]
        assert model in mind.models
        assert model in gateway.reloading.parts.rotation.models
        assert model.label in mind.standing.configured
        assert "tiny" in gateway.intake.money().prices
        assert (await anew(chat)).readers == (model,)


async def test_a_budget_needs_the_price_of_what_reads(tmp_path: Path) -> None:
    """As of each model that costs something: else it would be spent past the budget."""
    block = {name: value for name, value in READER["memory"].items() if name != "facts"}
    with pytest.raises(SettingsError, match="the price of tiny is not known"):
        async with running(tmp_path, auxiliary={"memory": block}, budget={"daily_usd": 1.0}):
            pass
    async with running(tmp_path, auxiliary={"memory": block}) as chat:
        with pytest.raises(SettingsError, match="the price of tiny is not known"):
            await anew(
                chat, budget=chat.gateway.settings.budget.model_copy(update={"daily_usd": 1.0})
            )


def test_options_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    """The engine `rounds` has settings of its own; a plugin of that name has options."""
    context = ContextSettings(engine="rounds", rounds=RoundsSettings(threshold=0.5))
    rounds = Settings(home=tmp_path, context=context)
    assert rounds.context.rounds.model_dump() == choose_engine(rounds)(LIMITS).options
    given = PluginSettings(options={"rounds": {"min_retain_rounds": 3}})
    settings = rounds.model_copy(update={"plugins": given})
    with capture_logs() as logs:
        assert choose_engine(settings).name == "compressor"
    told = "the engine rounds has no options: min_retain_rounds; context.rounds has its settings"
    assert [each["reason"] for each in logs] == [told]
    write_plugin(tmp_path, "rounds", engine_source("rounds"))
    assert choose_engine(settings).source == "plugin"
