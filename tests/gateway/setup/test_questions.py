"""The answers of a set-up before they are written."""

from pathlib import Path

import pytest

from adapters.registry import by_name
from gateway.errors import SettingsError
from gateway.setup.questions import (
    OWN_SERVER,
    Answers,
    Target,
    changed_keys,
    is_secret,
    of_platform,
    read_answers,
    secrets_to_move,
    take,
    take_model,
)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "NOUS_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """A home without settings."""
    return Target(tmp_path)


def test_a_draft_is_read_as_a_start_would_read_it(target: Target) -> None:
    """Without being written."""
    draft = Answers()
    take_model(draft, "anthropic", {"api_key": " sk-ant-1 ", "name": ""}, target.load())
    take(draft, of_platform(by_name()["telegram"]), {"token": "12345:abcdefgh"})
    settings = target.load(draft.values).settings
    assert settings.model.provider == "anthropic"
    assert settings.model.api_key is not None
    assert settings.model.api_key.get_secret_value() == "sk-ant-1"
    assert settings.platforms.accounts("telegram")[0].is_on
    assert not target.file.exists()


def test_another_provider_takes_nothing_over(target: Target) -> None:
    """Neither the address nor the key of the one before."""
    target.file.write_text(
        "model: {provider: openai, base_url: 'http://here/v1', api_key: old-key}\n"
    )
    draft = Answers()
    take_model(draft, "anthropic", {"api_key": "sk-ant-1"}, target.load())
    model = target.load(draft.values).settings.model
    assert model.api_key is not None
    assert (model.provider, model.base_url, model.name) == ("anthropic", None, None)
    assert model.api_key.get_secret_value() == "sk-ant-1"


def test_a_server_of_ones_own_speaks_openais_api(target: Target) -> None:
    """It needs no key."""
    draft = Answers()
    given = {"base_url": "http://127.0.0.1:1/v1", "name": "llama"}
    take_model(draft, OWN_SERVER, given, target.load())
    assert draft.values == {
        "model.provider": "openai",
        "model.name": "llama",
        "model.base_url": "http://127.0.0.1:1/v1",
    }


def test_which_keys_are_secret() -> None:
    """Tokens and keys are, names are not."""
    assert is_secret("model.api_key")
    assert is_secret("platforms.slack.app_token")
    assert not is_secret("model.name")
    assert not is_secret("access.owners")


def test_what_changes_is_told_without_secrets(target: Target) -> None:
    """Old and new of the others; what stays as it is is not told."""
    target.file.write_text("model: {provider: openai, name: a, api_key: old-key}\n")
    draft = Answers({"model.provider": "openai", "model.name": "b", "model.api_key": "new-key"})
    assert changed_keys(target, draft) == ["model.name: a → b", "model.api_key: another one"]


def test_secrets_that_move_are_told_by_name(target: Target) -> None:
    """So that the question before the change is asked; owners that stay are no change."""
    target.file.write_text("model: {api_key: old-key}\naccess: {owners: ['telegram:1']}\n")
    draft = Answers({"access.owners": ["telegram:1"]}, "files")
    assert secrets_to_move(target, draft) == {"model.api_key": "old-key"}
    assert changed_keys(target, draft) == ["model.api_key: no longer in this file"]


def test_answers_are_parts_of_the_settings(tmp_path: Path) -> None:
    """And what is said of the set-up itself."""
    file = tmp_path / "answers.yaml"
    file.write_text(
        "model: {provider: anthropic, api_key: k}\n"
        "platforms: {telegram: {token: t}}\n"
        "access: {owners: ['telegram:1'], groups: {'telegram:-1': {respond: always}}}\n"
        "setup: {secrets: files}\n"
    )
    draft = read_answers(file)
    assert draft.values == {
        "model.provider": "anthropic",
        "model.api_key": "k",
        "platforms.telegram.token": "t",
        "access.owners": ["telegram:1"],
        "access.groups": {"telegram:-1": {"respond": "always"}},
    }
    assert draft.keeping == "files"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("setup: {secrets: vault}", "setup.secrets: must be one of yaml, files, env"),
        ("setup: {color: red}", "known here: secrets"),
        ("- 1", "must be a map of sections"),
    ],
)
def test_answers_that_cannot_be_read_are_refused(tmp_path: Path, text: str, told: str) -> None:
    """With what would be right."""
    file = tmp_path / "answers.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=told):
        read_answers(file)


def test_no_token_of_a_list_of_accounts_is_shown(tmp_path: Path) -> None:
    """Also where the list stands in the answers as a whole."""
    (tmp_path / "parley.yaml").write_text(
        "platforms:\n  telegram:\n    - {name: a, token: old-1}\n    - {name: b, token: old-2}\n"
    )
    accounts = [{"name": "a", "token": "new-1"}, {"name": "b", "token": "new-2"}]
    lines = changed_keys(Target(tmp_path), Answers({"platforms.telegram": accounts}))
    assert lines
    assert not any(word in "".join(lines) for word in ("old-", "new-"))
