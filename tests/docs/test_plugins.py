"""docs/plugins.md: its example plugin works as it stands there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from agent.plugins.contracts import Exchange, MemoryProvider, Query
from agent.plugins.loading import available, load_plugins
from agent.plugins.registry import Plugins, TurnHooks
from agent.settings import PluginSettings
from agent.tools.registry import ToolRegistry
from tests.agent.plugins.plugins import install, write_plugin
from tests.agent.tools.doubles import call, context

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
ANN, BO = "telegram:1", "telegram:2"


def blocks(language: str) -> list[str]:
    """Return the page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.S | re.M)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with the plugin as the page says, and nothing installed."""
    install(monkeypatch)
    _, about = blocks("yaml")
    write_plugin(tmp_path, "diary", blocks("python")[0], about)
    return tmp_path


@pytest.fixture
def plugins(home: Path) -> Iterator[Plugins]:
    """The plugin, with the settings of the page in another folder; nothing is complained of."""
    settings = PluginSettings(**yaml.safe_load(blocks("yaml")[0])["plugins"])
    settings.options["diary"]["folder"] = str(home)
    with capture_logs() as logs:
        yield load_plugins(settings, home)
    assert {each["event"] for each in logs} <= {"plugin_loaded"}


@pytest.fixture
def diary(plugins: Plugins) -> MemoryProvider:
    """Its memory provider."""
    return plugins.providers[0][1]


def test_it_is_listed_with_what_it_offers(home: Path) -> None:
    """From the plugin.yaml of the page."""
    [info] = available(home)
    assert info.problem is None
    assert info.offers == ("memory_providers: diary", "hooks: pre_tool_call")


async def test_it_recalls_what_a_person_said(diary: MemoryProvider) -> None:
    """And what nobody else did."""
    await diary.store(Exchange("My cat is Tom", "Nice.", ANN, "7", "1"))
    await diary.store(Exchange("And what is the weather?", "Sun.", ANN, "7", "2"))
    recalled = await diary.prefetch(Query("the weather again", ANN, "8"))
    assert recalled == "- And what is the weather?: Sun."
    assert await diary.prefetch(Query("the weather again", BO, "9")) == ""


async def test_its_tool_shows_the_newest_entries(plugins: Plugins, diary: MemoryProvider) -> None:
    """Of the scope of the turn."""
    await diary.store(Exchange("My cat is Tom", "Nice.", ANN, "7", "1"))
    box = ToolRegistry(plugins.tools(()))
    for scope, text in ((ANN, "- My cat is Tom: Nice."), (BO, "The diary is empty.")):
        outcome = await box.execute(call("diary_newest"), context(scope=scope))
        assert (outcome.text, outcome.status) == (text, "ok")


async def test_it_forbids_commands(plugins: Plugins) -> None:
    """In the terminal only."""
    hooks = TurnHooks(plugins, lambda _: True)
    refused = await hooks.before("terminal", {"command": "rm -r x"}, context())
    assert str(refused).endswith("these commands are forbidden: rm")
    assert await hooks.before("terminal", {"command": "ls"}, context()) is None
    assert await hooks.before("look", {"command": "rm"}, context()) is None
