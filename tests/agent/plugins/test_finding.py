"""Plugins in the data directory: only sound folders are loaded, and nothing runs before."""

import os
import sys
from pathlib import Path

import pytest

from agent.context_compressor import ContextCompressor
from agent.errors import PluginRefused
from agent.plugins.finding import ENGINES, find_folder, find_folders
from agent.plugins.loading import load_engine
from agent.plugins.registry import engine_class
from tests.agent.engines.views import engine_source, write_plugin

BOMB = "raise AssertionError('this must not run')\n"


def refusal(home: Path, name: str) -> str:
    """Return why the plugin of this name is not loaded."""
    plugin = find_folder(home, "engine", name)
    assert plugin is not None
    with pytest.raises(PluginRefused) as caught:
        load_engine(plugin, {})
    return str(caught.value)


def test_an_engine_is_found_in_either_file(tmp_path: Path) -> None:
    """`__init__.py` or `engine.py`."""
    for name, file in (("one", "__init__.py"), ("two-2", "engine.py")):
        write_plugin(tmp_path, name, engine_source(name), file)
        plugin = find_folder(tmp_path, "engine", name)
        assert plugin is not None
        assert load_engine(plugin, {}).name == name


def test_modules_of_a_plugin_import_each_other(tmp_path: Path) -> None:
    """Relative imports work, and a second load reads them anew."""
    write_plugin(tmp_path, "several", "from .inner import Engine\n")
    for number in (1, 22):
        source = engine_source("several") + f"    number = {number}\n"
        write_plugin(tmp_path, "several", source, "inner.py")
        plugin = find_folder(tmp_path, "engine", "several")
        assert plugin is not None
        assert vars(load_engine(plugin, {}))["number"] == number


def test_a_plugin_registers_its_engine(tmp_path: Path) -> None:
    """With `register(registry)`, other classes in the module do not count."""
    other = engine_source("other").replace("class Engine", "class Other")
    register = "def register(registry):\n    registry.register_context_engine(Engine)\n"
    write_plugin(tmp_path, "mine", engine_source("mine") + other + register)
    plugin = find_folder(tmp_path, "engine", "mine")
    assert plugin is not None
    assert load_engine(plugin, {}).__name__ == "Engine"


def test_an_imported_engine_is_no_offer(tmp_path: Path) -> None:
    """Who derives from the built-in compressor offers one engine."""
    source = (
        "from agent.context_compressor import ContextCompressor\n"
        "class Mine(ContextCompressor):\n    name = 'mine'\n"
    )
    write_plugin(tmp_path, "mine", source)
    plugin = find_folder(tmp_path, "engine", "mine")
    assert plugin is not None
    assert issubclass(load_engine(plugin, {}), ContextCompressor)


def test_nothing_runs_when_plugins_are_listed(tmp_path: Path) -> None:
    """Name and description come from plugin.yaml."""
    folder = write_plugin(tmp_path, "quiet", BOMB)
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
    folder = write_plugin(tmp_path, "open", BOMB)
    path = (folder / place).resolve()
    path.chmod(mode | 0o111)
    reason = refusal(tmp_path, "open")
    assert f"chmod go-w {path}" in reason


def test_a_link_out_of_the_plugin_folder_is_refused(tmp_path: Path) -> None:
    """Also if what it points to looks like a plugin."""
    outside = write_plugin(tmp_path / "elsewhere", "away", BOMB)
    write_plugin(tmp_path, "home", BOMB)
    (tmp_path / ENGINES / "away").symlink_to(outside)
    assert "link that leads out" in refusal(tmp_path, "away")


def test_a_link_out_of_a_plugin_is_refused(tmp_path: Path) -> None:
    """Code of somebody else must not come in by it."""
    folder = write_plugin(tmp_path, "mine", BOMB)
    other = write_plugin(tmp_path, "other", BOMB)
    (folder / "inner.py").symlink_to(other / "__init__.py")
    assert "link that leads out" in refusal(tmp_path, "mine")


def test_a_circle_of_links_is_refused(tmp_path: Path) -> None:
    """It cannot be followed."""
    folder = write_plugin(tmp_path, "mine", BOMB)
    (folder / "inner.py").symlink_to("inner.py")
    assert "cannot be read" in refusal(tmp_path, "mine")


def test_names_are_restricted(tmp_path: Path) -> None:
    """A folder with another name is listed with its problem."""
    write_plugin(tmp_path, "Über", BOMB)
    [plugin] = find_folders(tmp_path, "engine")
    assert "is no name of an engine" in str(plugin.problem)


def test_a_folder_without_code_is_refused(tmp_path: Path) -> None:
    """The reason names the files that it needs."""
    write_plugin(tmp_path, "empty", "", "notes.txt")
    assert "neither __init__.py nor engine.py" in refusal(tmp_path, "empty")


@pytest.mark.parametrize("about", ["[1, 2]", "{", "name: other", "\udcff"])
def test_a_plugin_yaml_that_does_not_fit_is_refused(tmp_path: Path, about: str) -> None:
    """No map, no YAML, another name, no UTF-8."""
    folder = write_plugin(tmp_path, "mine", BOMB)
    (folder / "plugin.yaml").write_text(about, errors="surrogateescape")
    assert "plugin.yaml" in refusal(tmp_path, "mine")


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
            "can offer an engine alone",
        ),
        ("register = 'no function'", "it must offer exactly one engine"),
    ],
)
def test_code_that_offers_no_engine_is_refused(tmp_path: Path, source: str, reason: str) -> None:
    """The reason says what is wrong, and nothing of the plugin stays behind."""
    write_plugin(tmp_path, "mine", source)
    assert reason in refusal(tmp_path, "mine")


def test_a_failed_import_leaves_no_module(tmp_path: Path) -> None:
    """Neither the plugin's nor one that it imported from itself."""
    write_plugin(tmp_path, "half", "from . import inner\nraise ValueError\n")
    write_plugin(tmp_path, "half", "", "inner.py")
    refusal(tmp_path, "half")
    assert not [name for name in sys.modules if "context_engine_half" in name]


def test_what_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the file system is a reason and not a crash."""
    write_plugin(tmp_path, "mine", BOMB)

    def denied(path: Path, **_: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rglob", denied)
        assert "cannot be read" in refusal(tmp_path, "mine")


def test_an_engine_of_another_kind_is_refused() -> None:
    """A string is no class."""
    with pytest.raises(PluginRefused, match="not a class"):
        engine_class("text", "text")
