"""`parley engines`: the list, and the choice that is written into the settings file."""

import re
from pathlib import Path

import orjson
import pytest

from tests.agent.engines import views
from tests.agent.engines.views import engine_source
from tests.support.command_line import Result, Run, one_line

ROW = re.compile(r"([*! ]) +(\S+) +(plugin|built-in)")


def rows(result: Result) -> dict[str, tuple[str, str]]:
    """Return the mark and the source of each row of the table, by name."""
    found = (ROW.match(line) for line in result.out.splitlines())
    return {row[2]: (row[1], row[3]) for row in found if row}


def test_the_engines_are_listed(parley: Run, tmp_path: Path) -> None:
    """With source, description, what is active, and what is wrong."""
    views.write_plugin(tmp_path, "sound", "raise AssertionError('this must not run')")
    views.write_plugin(tmp_path, "empty", "", "notes.txt")
    result = parley("engines", "list")
    assert (result.code, result.err) == (0, "")
    assert rows(result) == {
        "empty": ("!", "plugin"),
        "sound": (" ", "plugin"),
        "compressor": ("*", "built-in"),
        "rounds": (" ", "built-in"),
        "lcm": (" ", "built-in"),
    }
    assert "! empty (plugin) cannot be used: " in result.out
    assert "has neither __init__.py nor engine.py" in result.out


def test_the_list_of_engines_as_json(parley: Run, tmp_path: Path) -> None:
    """What the table holds; stdout is JSON alone, also where something is to be said."""
    views.write_plugin(tmp_path, "empty", "", "notes.txt")
    (tmp_path / "parley.yaml").write_text("context: {engine: empty}\n")
    result = parley("engines", "list", "--json")
    found = {each["name"]: each for each in orjson.loads(result.out)}
    assert "neither __init__" in found["empty"]["problem"]
    assert [name for name, each in found.items() if each["active"]] == ["compressor"]
    assert "compressor is active" in result.err


def test_markup_in_a_description_is_shown_as_it_is(parley: Run, tmp_path: Path) -> None:
    """It is text of strangers."""
    folder = views.write_plugin(tmp_path, "sound", engine_source("sound"))
    (folder / "plugin.yaml").write_text("description: '[red]loud[/b]'\n")
    assert "[red]loud[/b]" in parley("engines", "list").out


def test_what_cannot_be_active_is_told(parley: Run, tmp_path: Path) -> None:
    """The mark stands where the choice falls back to."""
    (tmp_path / "parley.yaml").write_text("context: {engine: nobody}\n")
    result = parley("engines", "list")
    assert rows(result)["compressor"][0] == "*"
    assert "'nobody', which cannot be used: compressor is active" in result.err


def test_an_engine_is_chosen(parley: Run, tmp_path: Path) -> None:
    """The file keeps everything else; a restart is needed."""
    file = tmp_path / "parley.yaml"
    file.write_text("# mine\nqueue: {mode: followup}\n")
    result = parley("engines", "use", "rounds")
    assert (result.code, result.err) == (0, "")
    assert "with the next turn" in result.out
    assert file.read_text() == "# mine\nqueue: {mode: followup}\ncontext: {engine: rounds}\n"
    assert rows(parley("engines", "list"))["rounds"][0] == "*"


def test_a_plugin_is_chosen_in_another_place(parley: Run, tmp_path: Path) -> None:
    """`--home` and `--config` say where."""
    views.write_plugin(tmp_path / "other", "sound", engine_source("sound"))
    config = tmp_path / "my.yaml"
    config.write_text("")
    place = ("--home", str(tmp_path / "other"), "--config", str(config))
    assert parley(*place, "engines", "use", "sound").code == 0
    assert config.read_text() == "context:\n  engine: sound\n"
    assert rows(parley(*place, "engines", "list"))["sound"][0] == "*"
    assert not (tmp_path / "other" / "parley.yaml").exists()


def test_an_unknown_engine_is_refused(parley: Run, tmp_path: Path) -> None:
    """The error lists what there is, and nothing is written."""
    for name, reason in (("nobody", "there is no engine 'nobody'"), ("empty", "neither __init__")):
        views.write_plugin(tmp_path, "empty", "", "notes.txt")
        failure = one_line(parley("engines", "use", name))
        assert reason in failure
        assert failure.endswith("there are: compressor, rounds, lcm")
    assert not (tmp_path / "parley.yaml").exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PARLEY_CONTEXT__ENGINE", "compressor"), ("PARLEY_CONTEXT", '{"engine": "compressor"}')],
)
def test_a_variable_that_overrides_is_told(
    parley: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """The file has the choice, the next start has not."""
    monkeypatch.setenv(variable, value)
    result = parley("engines", "use", "rounds")
    assert (tmp_path / "parley.yaml").read_text() == "context:\n  engine: rounds\n"
    assert f"{variable} overrides it with 'compressor'" in result.err
    assert "next start" not in result.out
