"""Settings that went: a start names each once, with what applies instead, and goes on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.settings.former import FORMER
from gateway.settings.loading import Loaded, load_settings, read_foreign
from gateway.settings.tree import INDEX, all_keys

PAGE = Path(__file__).parents[3] / "docs" / "upgrade.md"
VALUES: dict[str, Any] = {}
"""Old values of the keys that are handed on."""


def load(home: Path, tree: dict[str, Any] | None = None, **variables: str) -> Loaded:
    """Load settings of a home with this tree in its file and these variables alone."""
    # JSON is YAML.
    (home / "parley.yaml").write_text(json.dumps(tree or {}))
    return load_settings(environ={"PARLEY_HOME": str(home), **variables})


def nested(key: str) -> dict[str, Any]:
    """Return a tree with a value at a key."""
    value = VALUES.get(key, 1)
    for step in reversed(key.split(".")):
        value = [value] if step == INDEX else {step: value}
    tree: dict[str, Any] = value
    return tree


@pytest.mark.parametrize("key", FORMER)
def test_a_former_key_is_named_once_and_stops_nothing(tmp_path: Path, key: str) -> None:
    """In a file; no other line is about it, and no setting has its name."""
    found = load(tmp_path, nested(key))
    name = key.replace(INDEX, "0")
    told = [each for each in found.warnings if each.startswith(f"{name} in ")]
    assert told == [f"{name} in parley.yaml is no longer a setting: {FORMER[key]}"]
    assert all_keys().find(tuple(key.split("."))) is None
    assert read_foreign(tmp_path / "parley.yaml", tmp_path).home == tmp_path


@pytest.mark.parametrize("key", [key for key in FORMER if INDEX not in key])
def test_a_former_variable_is_named_once_and_stops_nothing(tmp_path: Path, key: str) -> None:
    """In the environment, where values are texts or JSON."""
    variable = "PARLEY_" + key.upper().replace(".", "__")
    found = load(tmp_path, **{variable: json.dumps(VALUES.get(key, 1))})
    [line] = [each for each in found.warnings if each.startswith(f"{key} in ")]
    assert f"{key} in {variable} is no longer a setting" in line


def test_a_section_that_went_may_be_empty_or_json(tmp_path: Path) -> None:
    """Only what is set in it is named; other names in it are refused as before."""
    assert load(tmp_path, {"commands": None}).warnings == ()
    assert load(tmp_path, {"commands": {}}).warnings == ()
    [line] = load(tmp_path, PARLEY_COMMANDS='{"unknown": "model"}').warnings
    assert line.startswith("commands.unknown in PARLEY_COMMANDS is no longer")
    with pytest.raises(Exception, match=r"commands: unknown key in parley\.yaml"):
        load(tmp_path, {"commands": {"unknwon": "model"}})


def test_the_page_lists_them() -> None:
    """docs/upgrade.md, "Settings that went"."""
    page = PAGE.read_text().partition("### Settings that went")[2].partition("\n### ")[0]
    assert dict(re.findall(r"^\| `([\w.*]+)` \| (.*) \|$", page, re.M)) == FORMER
