"""Plugins are found without running them, and loaded only where they are enabled.

What is secret among the options of a plugin is shown to that plugin alone.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from agent.context_compressor import ContextCompressor
from agent.errors import PluginRefused
from agent.plugins import engines
from agent.plugins.contracts import MemoryProvider, Query
from agent.plugins.loading import (
    ENGINES,
    MAX_PROMPT_CHARS,
    PLUGINS,
    Found,
    available,
    find_folder,
    find_folders,
    load_engine,
    load_plugins,
)
from agent.plugins.registry import PluginRegistry, Plugins, engine_class
from agent.prompt.system import SourcedText
from agent.settings import PluginSettings
from agent.tools.registry import Tool
from gateway.settings.loading import secret_values
from gateway.settings.tree import Settings
from tests.agent.engines.views import engine_source
from tests.agent.engines.views import write_plugin as write_engine
from tests.agent.plugins.plugins import BOMB, install, tool, write_plugin

FULL = """
from agent.context_engine import ContextEngine
from agent.plugins.contracts import MemoryProvider
from agent.tools.registry import Arguments, Tool

class Where(Arguments):
    place: str

async def weather(context, arguments):
    return "sun"

class Diary(MemoryProvider):
    name = "diary"
    def prompt(self):
        return "There is a diary: " + self.options["where"]
    async def prefetch(self, query):
        return ""
    def tools(self):
        return [Tool("diary", "Reads the diary.", "read", Where, weather)]

class Engine(ContextEngine):
    name = "from_plugin"
    def compress(self, request):
        return None

def register(registry):
    registry.register_tool(Tool("weather", "Tells the weather.", "read", Where, weather))
    registry.register_memory_provider(Diary)
    registry.register_hook("pre_tool_call", lambda call: None)
    registry.register_hook("pre_tool_call", lambda call: None)
    registry.register_context_engine(Engine)
"""
ABOUT = """
name: full
description: Offers everything.
version: 1.2
provides:
  tools: [weather]
  memory_providers: [diary]
  hooks: [pre_tool_call]
  context_engines: [from_plugin]
"""
OPTIONS = {"full": {"where": "home"}}


@pytest.fixture(autouse=True)
def _forget_modules() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith("parley_plugin_")]:
        del sys.modules[name]


def load(home: Path, *enabled: str) -> Plugins:
    settings = PluginSettings(enabled=enabled, options=OPTIONS)
    return load_plugins(settings, home)


def refusal(home: Path, name: str) -> tuple[str, bool]:
    """Return why a plugin is not loaded, and whether guarded tools are refused for that."""
    with capture_logs() as logs:
        found = load(home, name)
    assert found.loaded == ()
    [event] = [each for each in logs if each["event"] == "plugin_unavailable"]
    assert event["tools_refused"] == bool(found.missing_guards)
    assert found.missing == {name: event["reason"]}
    return event["reason"], event["tools_refused"]


def test_a_plugin_offers_all_kinds(tmp_path: Path) -> None:
    """Its provider's tools and standing text among them; the log says what was loaded."""
    write_plugin(tmp_path, "full", FULL, ABOUT)
    with capture_logs() as logs:
        found = load(tmp_path, "full", "full")
    [plugin] = found.loaded
    assert [each.name for each in found.tools([])] == ["weather", "diary"]
    assert found.external() == (SourcedText("memory full", "There is a diary: home"),)
    assert [provider.name for _, provider in found.providers] == ["diary"]
    assert {name: len(hooks) for name, hooks in plugin.hooks.items()} == {"pre_tool_call": 2}
    assert engines.resolve("from_plugin", tmp_path, {}).source == "registered"
    assert [each["event"] for each in logs] == ["plugin_loaded"]


def test_a_refused_plugin_leaves_no_engine_behind(tmp_path: Path) -> None:
    """Not even the one that could be used."""
    good, bad = "first_engine", "no name!"
    named = FULL.replace('name = "from_plugin"', f'name = "{good}"')
    also = f'    registry.register_context_engine(type("Bad", (Engine,), {{"name": "{bad}"}}))\n'
    write_plugin(tmp_path, "full", named + also)
    assert "cannot be the name of an engine" in refusal(tmp_path, "full")[0]
    assert engines.resolve(good, tmp_path, {}).name != good


def test_nothing_runs_that_is_not_enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when plugins are listed, nor when others are loaded."""
    write_plugin(tmp_path, "full", FULL)
    write_plugin(tmp_path, "quiet", BOMB, ABOUT.replace("full", "quiet"))
    write_plugin(tmp_path, "context_engine/mine")
    install(monkeypatch, box=lambda: pytest.fail("loaded"))
    listed = available(tmp_path)
    assert [each.name for each in load(tmp_path, "full").loaded] == ["full"]
    assert [(each.name, each.offers) for each in listed] == [
        ("full", ()),
        (
            "quiet",
            (
                "tools: weather",
                "memory_providers: diary",
                "hooks: pre_tool_call",
                "context_engines: from_plugin",
            ),
        ),
        ("box", ()),
    ]
    assert listed[1].description == "Offers everything. (version 1.2)"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ValueError('no')", "importing it failed: ValueError: no"),
        ("x = 1", "no function register"),
        (
            "def register(registry): raise SystemExit('bye')",
            r"register\(\) failed: SystemExit: bye",
        ),
        ("def register(it): it.register_hook('pre_tool_cal', print)", "no hook 'pre_tool_cal'"),
        ("def register(it): it.register_hook('pre_tool_call', 7)", "is not a function: 7"),
        ("def register(it): it.register_memory_provider(7)", "7 is not a class derived"),
        (FULL + "    registry.options.clear()", "failed: KeyError: 'where'"),
        (FULL.replace('name = "diary"', "pass"), "Diary has no class attribute name"),
        (FULL.replace('name = "from_plugin"', 'name = "compressor"'), "name of the built-in"),
        ("def register(it): it.tools = 7", "taking what it offers failed: TypeError"),
    ],
)
def test_a_plugin_that_is_wrong_is_not_loaded(tmp_path: Path, source: str, reason: str) -> None:
    """Since nobody knows what it was there for, guarded tools are refused."""
    write_plugin(tmp_path, "full", source)
    found, refused = refusal(tmp_path, "full")
    assert refused
    assert re.search(reason, found), found


@pytest.mark.parametrize(
    ("about", "reason", "refused"),
    [
        ("provides: {tools: [weather]}", "does not name memory_providers: diary", False),
        ("provides: {tools: [], hooks: [post_tool_call]}", "does not name tools: weather", False),
        ("provides: {hooks: [pre_tool_call]}", "does not name tools: weather", True),
        ("provides: {tool: [weather]}", "`provides` in its plugin.yaml must be lists", True),
        ("provides: weather", "`provides` in its plugin.yaml must be lists", True),
        ("name: other", "calls it 'other'", True),
        ("a: &a [x, x]\nname: [*a, *a]", "plugin.yaml cannot be read: aliases", True),
    ],
)
def test_a_plugin_offers_what_it_says(
    tmp_path: Path, about: str, reason: str, refused: bool
) -> None:
    """Operators read that and not its code; what says that it forbids nothing closes nothing."""
    write_plugin(tmp_path, "full", FULL, about)
    found, closed = refusal(tmp_path, "full")
    assert reason in found
    assert closed == refused


def test_a_plugin_that_is_not_there_closes_guarded_tools(tmp_path: Path) -> None:
    """A name that is misspelt may be that of a guard; so may one that is none."""
    assert refusal(tmp_path, "guard") == (
        f"there is neither {tmp_path / PLUGINS / 'guard'} nor an entry point 'guard'",
        True,
    )
    assert refusal(tmp_path, "../x")[1]
    assert "no name of a plugin" in refusal(tmp_path, "../x")[0]


def test_an_unsafe_folder_is_not_loaded(tmp_path: Path) -> None:
    """Others may write to it, to the folder above, or a link leads out of it."""
    folder = write_plugin(tmp_path, "full")
    (tmp_path / PLUGINS).chmod(0o777)
    assert "chmod go-w" in refusal(tmp_path, "full")[0]
    (tmp_path / PLUGINS).chmod(0o755)
    (folder / "more.py").symlink_to(tmp_path / "elsewhere.py")
    assert "link that leads out" in refusal(tmp_path, "full")[0]
    assert "link that leads out" in str(available(tmp_path)[0].problem)


class Memory(MemoryProvider):
    """Remembers nothing; its text is too long."""

    name: ClassVar[str] = "memory"

    @override
    def prompt(self) -> str:
        return "x" * 3_000

    @override
    async def prefetch(self, query: Query) -> str:
        return ""


def register(registry: PluginRegistry) -> None:
    """Offer a tool, a memory and a hook, as a plugin's folder does."""
    where = registry.options.get("where")
    registry.register_tool(tool(lambda *_: None))
    registry.register_memory_provider(Memory)
    registry.register_hook("pre_tool_call", lambda _call: f"not at {where}")


def offering(*tools: Tool) -> Callable[[], Any]:
    """Return what loads an entry point that offers tools."""

    def register_tools(registry: PluginRegistry) -> None:
        for each in tools:
            registry.register_tool(each)

    return lambda: register_tools


def test_installed_packages_register_as_folders_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a module with a function register, or the function itself."""
    module = SimpleNamespace(register=register)
    install(monkeypatch, full=lambda: module, one=lambda: register)
    found = load(tmp_path, "full", "one")
    assert [len(each.tools) for each in found.loaded] == [1, 1]
    hooks = [each.hooks["pre_tool_call"][0]({}) for each in found.loaded]
    assert hooks == ["not at home", "not at None"]
    assert [len(told.text) for told in found.external()] == [MAX_PROMPT_CHARS] * 2


def broken() -> None:
    """Be an entry point that cannot be loaded."""
    raise ImportError("no such module")


def failing(_registry: object) -> None:
    """Be a function register that fails."""
    raise ValueError("no")


@pytest.mark.parametrize(
    ("load_it", "reason"),
    [
        (broken, "importing pkg:full failed: ImportError: no such module"),
        (lambda: 7, "no function register"),
        (lambda: failing, "its register() failed: ValueError: no"),
    ],
)
def test_entry_points_that_are_wrong_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_it: Callable[[], Any], reason: str
) -> None:
    """It may have forbidden something: guarded tools are refused."""
    install(monkeypatch, full=load_it)
    found, closed = refusal(tmp_path, "full")
    assert reason in found
    assert closed


def test_a_package_of_version_05_is_told_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry points are not loaded any more."""
    install(monkeypatch, "parley.tools", full=broken)
    assert refusal(tmp_path, "full") == (
        "its package has no entry point in the group parley.plugins, as version 0.6 wants it",
        True,
    )


def test_a_folder_goes_before_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list says so, and that a name cannot be used."""
    write_plugin(tmp_path, "full", FULL)
    install(monkeypatch, full=broken, **{"No Name": broken})
    assert [each.name for each in load(tmp_path, "full").tools(["diary"])] == ["weather"]
    assert available(tmp_path)[1:] == [
        Found(
            "No Name",
            "entry point",
            "From a package.",
            "'No Name' is no name of a plugin: only a-z, 0-9, _ and - are allowed",
        ),
        Found("full", "entry point", "From a package.", "a plugin's folder has its name"),
    ]


def test_tools_whose_name_is_taken_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a built-in one or by a plugin before; the log says which."""
    install(
        monkeypatch,
        one=offering(tool(lambda *_: 1), tool(lambda *_: 1, name="todo")),
        two=offering(tool(lambda *_: 2)),
    )
    with capture_logs() as logs:
        found = load(tmp_path, "one", "two").tools({"todo"})
    assert [each.name for each in found] == ["weather"]
    skipped = [each for each in logs if each["event"] == "plugin_tool_skipped"]
    assert [(each["plugin"], each["tool"]) for each in skipped] == [
        ("one", "todo"),
        ("two", "weather"),
    ]


def test_a_tool_that_is_no_use_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its plugin are there."""
    bad = tool(lambda *_: 1, name="bad name")
    install(monkeypatch, one=offering(bad, tool(lambda *_: 1)))
    with capture_logs() as logs:
        found = load(tmp_path, "one").tools(())
    assert [each.name for each in found] == ["weather"]
    assert [each["tool"] for each in logs if each["log_level"] == "warning"] == ["bad name"]


BLOCK = {
    "api_key": "abcdefgh1",
    "deep": [{"authToken": 7, "auth-token": "ijklmnop2"}],
    "appSecret": "mnopqrst3",
    "keyboard": "qwerty",
    "monkey": "banana",
}


def test_secrets_are_hidden_in_the_settings() -> None:
    """By the ends of their keys, at any depth; the plugin gets what was written."""
    settings = PluginSettings(options={"mine": BLOCK})
    assert "abcdefgh1" not in repr(settings)
    assert "ijklmnop2" not in repr(settings)
    assert "mnopqrst3" not in repr(settings)
    assert "qwerty" in repr(settings)
    assert "banana" in repr(settings)
    assert settings.options_of("mine") == BLOCK
    assert settings.options_of("other") == {}


@pytest.mark.parametrize("secret", ["abcdefgh1", "ijklmnop2", "mnopqrst3"])
def test_secrets_are_masked_in_logs(secret: str) -> None:
    """Like every other one that is configured."""
    settings = Settings(home=Path("/x"), plugins=PluginSettings(options={"mine": BLOCK}))
    assert secret in secret_values(settings)


def engine_refusal(home: Path, name: str) -> str:
    """Return why the plugin of this name is not loaded."""
    plugin = find_folder(home, "engine", name)
    assert plugin is not None
    with pytest.raises(PluginRefused) as caught:
        load_engine(plugin, {})
    return str(caught.value)


def test_an_engine_is_found_in_either_file(tmp_path: Path) -> None:
    """`__init__.py` or `engine.py`."""
    for name, file in (("one", "__init__.py"), ("two-2", "engine.py")):
        write_engine(tmp_path, name, engine_source(name), file)
        plugin = find_folder(tmp_path, "engine", name)
        assert plugin is not None
        assert load_engine(plugin, {}).name == name


def test_modules_of_a_plugin_import_each_other(tmp_path: Path) -> None:
    """Relative imports work, and a second load reads them anew."""
    write_engine(tmp_path, "several", "from .inner import Engine\n")
    for number in (1, 22):
        source = engine_source("several") + f"    number = {number}\n"
        write_engine(tmp_path, "several", source, "inner.py")
        plugin = find_folder(tmp_path, "engine", "several")
        assert plugin is not None
        assert vars(load_engine(plugin, {}))["number"] == number


def test_a_plugin_registers_its_engine(tmp_path: Path) -> None:
    """With `register(registry)`, other classes in the module do not count."""
    other = engine_source("other").replace("class Engine", "class Other")
    register = "def register(registry):\n    registry.register_context_engine(Engine)\n"
    write_engine(tmp_path, "mine", engine_source("mine") + other + register)
    plugin = find_folder(tmp_path, "engine", "mine")
    assert plugin is not None
    assert load_engine(plugin, {}).__name__ == "Engine"


def test_an_imported_engine_is_no_offer(tmp_path: Path) -> None:
    """Who derives from the built-in compressor offers one engine."""
    source = (
        "from agent.context_compressor import ContextCompressor\n"
        "class Mine(ContextCompressor):\n    name = 'mine'\n"
    )
    write_engine(tmp_path, "mine", source)
    plugin = find_folder(tmp_path, "engine", "mine")
    assert plugin is not None
    assert issubclass(load_engine(plugin, {}), ContextCompressor)


def test_nothing_runs_when_plugins_are_listed(tmp_path: Path) -> None:
    """Name and description come from plugin.yaml."""
    folder = write_engine(tmp_path, "quiet", BOMB)
    about = "name: quiet\ndescription: Says nothing.\nversion: 1.2\n"
    (folder / "plugin.yaml").write_text(about)
    (tmp_path / ENGINES / ".hidden").mkdir()
    (tmp_path / ENGINES / "file.py").write_text(BOMB)
    [plugin] = find_folders(tmp_path, "engine")
    assert (plugin.name, plugin.problem) == ("quiet", None)
    assert plugin.description == "Says nothing. (version 1.2)"


def test_without_a_folder_there_are_no_plugins(tmp_path: Path) -> None:
    """Neither the list nor a name finds anything."""
    assert find_folders(tmp_path, "engine") == []
    assert find_folder(tmp_path, "engine", "any") is None


@pytest.mark.parametrize("mode", [0o664, 0o646])
@pytest.mark.parametrize("place", ["", "__init__.py", "..", "../.."])
def test_what_others_may_write_is_refused(tmp_path: Path, place: str, mode: int) -> None:
    """A file, the plugin's folder, or a folder above; the remedy stands in the reason."""
    folder = write_engine(tmp_path, "open", BOMB)
    path = (folder / place).resolve()
    path.chmod(mode | 0o111)
    reason = engine_refusal(tmp_path, "open")
    assert f"chmod go-w {path}" in reason


def test_a_link_out_of_the_plugin_folder_is_refused(tmp_path: Path) -> None:
    """Also if what it points to looks like a plugin."""
    outside = write_engine(tmp_path / "elsewhere", "away", BOMB)
    write_engine(tmp_path, "home", BOMB)
    (tmp_path / ENGINES / "away").symlink_to(outside)
    assert "link that leads out" in engine_refusal(tmp_path, "away")


def test_a_link_out_of_a_plugin_is_refused(tmp_path: Path) -> None:
    """Code of somebody else must not come in by it."""
    folder = write_engine(tmp_path, "mine", BOMB)
    other = write_engine(tmp_path, "other", BOMB)
    (folder / "inner.py").symlink_to(other / "__init__.py")
    assert "link that leads out" in engine_refusal(tmp_path, "mine")


def test_a_circle_of_links_is_refused(tmp_path: Path) -> None:
    """It cannot be followed."""
    folder = write_engine(tmp_path, "mine", BOMB)
    (folder / "inner.py").symlink_to("inner.py")
    assert "cannot be read" in engine_refusal(tmp_path, "mine")


def test_names_are_restricted(tmp_path: Path) -> None:
    """A folder with another name is listed with its problem."""
    write_engine(tmp_path, "Über", BOMB)
    [plugin] = find_folders(tmp_path, "engine")
    assert "is no name of an engine" in str(plugin.problem)


def test_a_folder_without_code_is_refused(tmp_path: Path) -> None:
    """The reason names the files that it needs."""
    write_engine(tmp_path, "empty", "", "notes.txt")
    assert "neither __init__.py nor engine.py" in engine_refusal(tmp_path, "empty")


@pytest.mark.parametrize("about", ["[1, 2]", "{", "name: other", "\udcff"])
def test_a_plugin_yaml_that_does_not_fit_is_refused(tmp_path: Path, about: str) -> None:
    """No map, no YAML, another name, no UTF-8."""
    folder = write_engine(tmp_path, "mine", BOMB)
    (folder / "plugin.yaml").write_text(about, errors="surrogateescape")
    assert "plugin.yaml" in engine_refusal(tmp_path, "mine")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ValueError('broken')", "importing it failed: ValueError: broken"),
        ("import sys; sys.exit(3)", "importing it failed: SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
        ("import parley_nowhere", "ModuleNotFoundError"),
        ("", "exactly one engine, by register() or alone: none"),
        (
            engine_source("mine") + engine_source("mine").replace("Engine(", "Other("),
            "exactly one engine, by register() or alone: Engine, Other",
        ),
        (engine_source("another"), "must have the class attribute name = 'mine'"),
        (engine_source("mine").replace("compress", "squeeze"), "does not define compress"),
        ("def register(registry): registry.missing()", "register() failed: AttributeError"),
        (
            "def register(registry): registry.register_context_engine(42)",
            "42 is not a class derived from ContextEngine",
        ),
        (
            engine_source("mine") + "def register(registry): registry.register_tool('any')",
            "can only offer an engine",
        ),
        ("register = 'no function'", "it must offer exactly one engine"),
    ],
)
def test_code_that_offers_no_engine_is_refused(tmp_path: Path, source: str, reason: str) -> None:
    """The reason says what is wrong, and nothing of the plugin stays behind."""
    write_engine(tmp_path, "mine", source)
    assert reason in engine_refusal(tmp_path, "mine")


def test_a_failed_import_leaves_no_module(tmp_path: Path) -> None:
    """Neither the plugin's nor one that it imported from itself."""
    write_engine(tmp_path, "half", "from . import inner\nraise ValueError\n")
    write_engine(tmp_path, "half", "", "inner.py")
    engine_refusal(tmp_path, "half")
    assert not [name for name in sys.modules if "context_engine_half" in name]


def test_what_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the file system is a reason and not a crash."""
    write_engine(tmp_path, "mine", BOMB)

    def denied(path: Path, **_: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rglob", denied)
        assert "cannot be read" in engine_refusal(tmp_path, "mine")


def test_an_engine_of_another_kind_is_refused() -> None:
    """A string is no class."""
    with pytest.raises(PluginRefused, match="not a class"):
        engine_class("text", "text")
