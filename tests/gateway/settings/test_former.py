"""Settings that went: a start names each once, with what applies instead, and goes on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import SettingsError
from gateway.settings.former import FORMER
from gateway.settings.loading import Loaded, load_settings, read_foreign
from gateway.settings.sources import path_of
from gateway.settings.tree import INDEX, all_keys

PAGE = Path(__file__).parents[3] / "docs" / "upgrade.md"
VALUES: dict[str, Any] = {"tools.policy.lists": {"guest": ["todo"]}}
"""Old values, where any will not do."""
PROVIDER = {"embeddings": "provider", "base_url": "http://127.0.0.1:9/v1"}


def load(home: Path, tree: dict[str, Any] | None = None, **variables: str) -> Loaded:
    """Load settings of a home with this tree in its file and these variables alone."""
    # JSON is YAML.
    (home / "parley.yaml").write_text(json.dumps(tree or {}))
    return load_settings(environ={"PARLEY_HOME": str(home), **variables})


def example(key: str) -> str:
    """Return a key that a pattern means."""
    return key.replace(f"auxiliary.{INDEX}", "auxiliary.memory").replace(INDEX, "0")


def nested(key: str) -> dict[str, Any]:
    """Return a tree with a value at a key."""
    value = VALUES.get(key, 1)
    for step in reversed(key.split(".")):
        value = [value] if step == "0" else {step: value}
    tree: dict[str, Any] = value
    return tree


@pytest.mark.parametrize("key", FORMER)
def test_a_former_key_is_named_once_and_stops_nothing(tmp_path: Path, key: str) -> None:
    """In a file; no other line is about it, and no setting has its name."""
    name = example(key)
    found = load(tmp_path, nested(name))
    told = [each for each in found.warnings if each.startswith(f"{name} in ")]
    assert told == [f"{name} in parley.yaml is no longer a setting: {FORMER[key]}"]
    assert all_keys().find(path_of(name)) is None
    assert read_foreign(tmp_path / "parley.yaml", tmp_path).home == tmp_path


@pytest.mark.parametrize("key", [example(key) for key in FORMER if "fallbacks.*" not in key])
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


def test_a_wrong_section_is_refused_as_before(tmp_path: Path) -> None:
    """What is handed on takes the place of nothing."""
    with pytest.raises(SettingsError, match=r"context: .* must be a section"):
        load(tmp_path, {"context": 5})


def test_old_lists_of_tools_still_restrict(tmp_path: Path) -> None:
    """As rows below the rows of a higher layer; what is no such list is refused."""
    lists = {"guest": ["todo", "memory"], "telegram:-1": []}
    old = {"tools": {"policy": {"lists": lists}}}
    rules = load(tmp_path, old, PARLEY_TOOLS__POLICY__RULES='[{"tool": "x"}]').settings.tools.policy
    assert [(row.tool, row.then, row.role, row.group) for row in rules.rules] == [
        ("x", "deny", "*", "*"),
        ("!todo,memory", "deny", "guest", "*"),
        ("!", "deny", "*", "telegram:-1"),
    ]
    with pytest.raises(SettingsError, match=r"tools\.policy\.rules"):
        load(tmp_path, {"tools": {"policy": {"lists": ["todo"]}}})


def test_options_of_an_engine_are_those_of_its_plugin(tmp_path: Path) -> None:
    """What the plugin's block says itself wins."""
    old = {"context": {"engine": "mine", "options": {"a": 1, "b": 2}}}
    new = {"plugins": {"options": {"mine": {"b": 3}}}}
    assert load(tmp_path, old | new).settings.plugins.options_of("mine") == {"a": 1, "b": 3}
    assert load(tmp_path, {"context": {"options": {"a": 1}}}).settings.plugins.options == {}


def test_the_way_back_from_a_provider_says_where_the_page_is(tmp_path: Path) -> None:
    """A page's address that is set itself wins."""
    back = "https://example.org/sign-in/oidc/callback"
    old = {"web": {"oidc": {"redirect_url": back}}}
    web = load(tmp_path, old).settings.web
    assert (web.public_url, web.callback_url) == ("https://example.org", back)
    web = load(tmp_path, old, PARLEY_WEB__PUBLIC_URL="https://other.example").settings.web
    assert web.public_url == "https://other.example"


@pytest.mark.parametrize("search", [{}, {"embeddings": "off"}, {"model": "large", "api_key": "k"}])
def test_meanings_that_were_not_compared_are_not_compared(
    tmp_path: Path, search: dict[str, Any]
) -> None:
    """A model that is named would have texts sent out."""
    assert load(tmp_path, {"search": search}).settings.auxiliary.embeddings.model is None


def test_meanings_go_on_with_their_model(tmp_path: Path) -> None:
    """The one that was the default, or named; its server, its key from a file, its price."""
    (tmp_path / "key").write_text("sk-embeddings-1")
    (tmp_path / "key").chmod(0o600)
    file = str(tmp_path / "key")
    block = load(
        tmp_path, {"search": PROVIDER | {"input_usd": 0.5}}, PARLEY_SEARCH__API_KEY_FILE=file
    ).settings.auxiliary.embeddings
    assert (block.model, block.base_url) == ("text-embedding-3-small", PROVIDER["base_url"])
    assert block.api_key is not None
    assert block.api_key.get_secret_value() == "sk-embeddings-1"
    assert block.facts.input_usd == 0.5
    new = {"auxiliary": {"embeddings": {"model": "mine"}}}
    block = load(
        tmp_path, {"search": PROVIDER | {"model": "old"}, **new}
    ).settings.auxiliary.embeddings
    assert (block.model, block.base_url) == ("mine", PROVIDER["base_url"])


def test_the_page_lists_them() -> None:
    """docs/upgrade.md, "Settings that went"."""
    page = PAGE.read_text().partition("### Settings that went")[2].partition("\n### ")[0]
    assert dict(re.findall(r"^\| `([\w.*]+)` \| (.*) \|$", page, re.M)) == FORMER
