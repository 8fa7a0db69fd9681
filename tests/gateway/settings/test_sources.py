"""Settings that went: a start names each once, with what applies instead, and goes on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import SettingsError
from gateway.settings.loading import Loaded, load_settings, read_foreign
from gateway.settings.sources import FORMER, former, path_of
from gateway.settings.tree import all_keys

PAGE = Path(__file__).parents[3] / "docs" / "upgrade.md"


def load(home: Path, tree: dict[str, Any] | None = None, **variables: str) -> Loaded:
    """Load settings of a home with this tree in its file and these variables alone."""
    # JSON is YAML.
    (home / "parley.yaml").write_text(json.dumps(tree or {}))
    return load_settings(environ={"PARLEY_HOME": str(home), **variables})


def example(key: str) -> str:
    """Return a key that a pattern means."""
    name = key.replace("*.facts", "model.facts").replace("auxiliary.*", "auxiliary.memory")
    return name.replace("fallbacks.", "fallbacks.0.")


def nested(key: str) -> dict[str, Any]:
    """Return a tree with a value at a key."""
    value: Any = 1
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


@pytest.mark.parametrize("key", [example(key) for key in FORMER if "fallbacks." not in key])
def test_a_former_variable_is_named_once_and_stops_nothing(tmp_path: Path, key: str) -> None:
    """In the environment, where values are texts or JSON."""
    variable = "PARLEY_" + key.upper().replace(".", "__")
    found = load(tmp_path, **{variable: "1"})
    [line] = [each for each in found.warnings if each.startswith(f"{key} in ")]
    assert f"{key} in {variable} is no longer a setting" in line


def test_a_section_that_went_is_named_once(tmp_path: Path) -> None:
    """Whatever is in it; a file of a secret in it, too."""
    section = {"search": {"embeddings": "provider", "model": "large"}}
    found = load(tmp_path, section)
    assert found.warnings == (f"search in parley.yaml is no longer a setting: {FORMER['search']}",)
    # A model that is named would have texts sent out.
    assert found.settings.auxiliary.embeddings.model is None
    [line] = load(tmp_path, {}, PARLEY_SEARCH__API_KEY_FILE="/nowhere").warnings
    assert line.startswith("search.api_key_file in PARLEY_SEARCH__API_KEY_FILE is no longer")


def test_the_address_of_sign_ins_stops_no_start(tmp_path: Path) -> None:
    """The page's own address is safe: a provider refuses one that is not registered there."""
    oidc = {
        "issuer": "https://id.example",
        "client_id": "parley",
        "allowed": {"group:family": "guest"},
        "redirect_url": "https://chat.example/sign-in/oidc/callback",
    }
    found = load(tmp_path, {"web": {"auth": "oidc", "oidc": oidc}})
    former, address = found.warnings
    assert former.startswith("web.oidc.redirect_url in parley.yaml is no longer a setting")
    callback = "http://parley.localhost:8765/sign-in/oidc/callback"
    assert address == f"web.public_url: is not set, so sign-ins come back to {callback}"
    assert found.settings.web.callback_url == callback


def test_no_key_is_a_former_one() -> None:
    """Patterns mean what went alone."""
    assert [key.pattern for key in all_keys() if former(key.pattern)] == []


def test_a_wrong_section_is_refused_as_before(tmp_path: Path) -> None:
    """It may be one that had former keys."""
    with pytest.raises(SettingsError, match=r"context: .* must be a section"):
        load(tmp_path, {"context": 5})


def test_the_page_lists_them() -> None:
    """docs/upgrade.md, "Settings that went"."""
    page = PAGE.read_text().partition("### Settings that went")[2].partition("\n### ")[0]
    assert dict(re.findall(r"^\| `([\w.*]+)` \| (.*) \|$", page, re.M)) == FORMER
