"""What a set-up writes, and that it is either whole or not there."""

import os
import stat
from pathlib import Path

import pytest
import yaml

from gateway.errors import SettingsError
from gateway.settings.references import references_in
from gateway.setup.questions import Answers, Keeping, Target
from gateway.setup.writing import refuse_unwritable, write

VALUES = {
    "model.provider": "anthropic",
    "model.api_key": "sk-ant-secret",
    "platforms.telegram.token": "12345:abcdefgh",
    "access.owners": ["telegram:1"],
}


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """A home that is not there yet."""
    return Target(tmp_path / "home")


def mode(file: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(file.stat().st_mode)


def test_a_new_file_has_comments_and_is_for_its_owner_alone(target: Target) -> None:
    """A start reads from it what was answered."""
    assert write(target, Answers(dict(VALUES))).file == target.file
    text = target.file.read_text()
    assert mode(target.file) == 0o600
    assert yaml.safe_load(text) == {
        "model": {"provider": "anthropic", "api_key": "sk-ant-secret"},
        "platforms": {"telegram": {"token": "12345:abcdefgh"}},
        "access": {"owners": ["telegram:1"]},
    }
    assert "# Telegram: docs/platforms/telegram.md\n  telegram:" in text
    assert "# budget:" in text
    assert target.load().settings.access.owners == ("telegram:1",)


def test_a_file_that_is_there_keeps_all_else(target: Target) -> None:
    """Comments, order and keys of others, and its mode."""
    target.home.mkdir()
    queue = "# mine\nqueue:\n  debounce_ms: 100 # quick\nmodel:\n  provider: "
    target.file.write_text(f"{queue}openai\n")
    target.file.chmod(0o640)
    write(target, Answers({"model.provider": "offline", "web.port": 9999}))
    assert target.file.read_text() == f"{queue}offline\nweb: {{port: 9999}}\n"
    assert mode(target.file) == 0o640


def test_secrets_in_files_of_their_own(target: Target) -> None:
    """One each, for their owner alone; the settings refer to them."""
    written = write(target, Answers(dict(VALUES), "files"))
    assert [file.name for file in written.secrets] == ["model.api_key", "platforms.telegram.token"]
    assert [mode(file) for file in written.secrets] == [0o600, 0o600]
    assert mode(target.home / "secrets") == 0o700
    assert "sk-ant-secret" not in target.file.read_text()
    key = target.load().settings.model.api_key
    assert key is not None
    assert key.get_secret_value() == "sk-ant-secret"


def test_a_reference_stays_where_it_points(target: Target, tmp_path: Path) -> None:
    """It is no secret that could be kept somewhere else."""
    (tmp_path / "key").write_text("sk-ant-secret")
    written = write(target, Answers({"model.api_key": f"file:{tmp_path}/key"}, "files"))
    assert written.secrets == ()
    assert f"api_key: file:{tmp_path}/key" in target.file.read_text().replace('"', "")


def test_secrets_in_the_environment_are_named_and_not_written(target: Target) -> None:
    """Whoever starts Parley sets them."""
    written = write(target, Answers(dict(VALUES), "env"))
    assert written.variables == {
        "model.api_key": "PARLEY_MODEL__API_KEY",
        "platforms.telegram.token": "PARLEY_PLATFORMS__TELEGRAM__TOKEN",
    }
    assert "secret" not in target.file.read_text()
    assert "12345" not in target.file.read_text()


@pytest.mark.parametrize("keeping", ["yaml", "files"])
def test_what_a_start_would_refuse_leaves_nothing(target: Target, keeping: Keeping) -> None:
    """Neither settings nor secrets, and what was there is as it was."""
    target.home.mkdir()
    target.file.write_text("model: {provider: offline}\n")
    with pytest.raises(SettingsError, match="must be PLATFORM:ID"):
        write(target, Answers({**VALUES, "access.owners": ["nobody"]}, keeping))
    assert target.file.read_text() == "model: {provider: offline}\n"
    files = [file.name for file in target.home.rglob("*") if file.is_file()]
    assert files == ["parley.yaml"]


def test_a_secret_that_is_there_outlives_a_refusal(target: Target) -> None:
    """The settings that go on to be used refer to its file."""
    write(target, Answers(dict(VALUES), "files"))
    with pytest.raises(SettingsError, match="must be PLATFORM:ID"):
        write(target, Answers({"model.api_key": "sk-ant-other", "access.owners": ["x"]}, "files"))
    key = target.load().settings.model.api_key
    assert key is not None
    assert key.get_secret_value() == "sk-ant-secret"


def test_a_file_that_only_a_person_can_change_is_left_alone(target: Target) -> None:
    """What is to be written by hand is said, but no secret."""
    target.home.mkdir()
    target.file.write_text("model: &same {provider: offline}\nauxiliary: {compression: *same}\n")
    with pytest.raises(SettingsError, match="by hand") as refused:
        write(target, Answers({"model.provider": "anthropic", "model.api_key": "sk-ant-secret"}))
    assert "secret" not in str(refused.value)


def test_a_home_that_cannot_be_made_is_told_first(tmp_path: Path) -> None:
    """Before the first question."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be created"):
        refuse_unwritable(Target(tmp_path / "file" / "home"))


def test_a_home_that_cannot_be_written_is_told_first(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root may write everywhere, the system's answer is played."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SettingsError, match="cannot be written: choose another home"):
        refuse_unwritable(target)


@pytest.mark.parametrize("keeping", ["yaml", "files", "env"])
def test_what_cannot_be_used_is_not_written(target: Target, keeping: Keeping) -> None:
    """A budget counts nothing for a model without a price: a start refuses them together."""
    target.home.mkdir()
    target.file.write_text("budget: {daily_usd: 3}\n")
    unpriced = {
        "model.provider": "openai",
        "model.name": "nobodys-model",
        "model.api_key": "sk-right-key",
    }
    with pytest.raises(SettingsError, match="nobodys-model"):
        write(target, Answers(unpriced, keeping))
    assert target.file.read_text() == "budget: {daily_usd: 3}\n"
    assert [file.name for file in target.home.rglob("*") if file.is_file()] == ["parley.yaml"]


def test_a_file_that_everybody_reads_is_closed_for_a_secret(target: Target) -> None:
    """Whoever writes is told so; a secret elsewhere changes nothing."""
    target.home.mkdir()
    target.file.write_text("queue: {debounce_ms: 100}\n")
    target.file.chmod(0o644)
    assert not write(target, Answers(dict(VALUES), "files")).is_closed
    assert mode(target.file) == 0o644
    assert write(target, Answers(dict(VALUES))).is_closed
    assert mode(target.file) == 0o600


def test_a_known_secret_is_not_read_again(target: Target, tmp_path: Path) -> None:
    """Its program does not run for each look at the settings."""
    target.home.mkdir()
    ran = tmp_path / "ran"
    script = tmp_path / "key.sh"
    script.write_text(f"#!/bin/sh\necho ran >> {ran}\necho sk-ant-secret\n")
    script.chmod(0o700)
    target.file.write_text(f"model: {{provider: anthropic, api_key: 'command:{script}'}}\n")
    known = dict(references_in(target.load().settings))
    again = Target(target.home, None, known).load().settings.model.api_key
    assert again is not None
    assert again.get_secret_value() == "sk-ant-secret"
    assert ran.read_text() == "ran\n"


FILE = """\
# mine
model: {provider: anthropic, api_key: sk-ant-secret} # the key
platforms:
  telegram:
    - name: one # the first
      token: "12345:abcdefgh"
    - name: two
      token: 12345:other-bot
  discord: {token: "file:KEPT"}
"""


@pytest.fixture
def second(target: Target, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A home with secrets in its file, and one elsewhere."""
    target.home.mkdir()
    (target.home / "discord").write_text("kept.elsewhere.token")
    target.file.write_text(FILE.replace("KEPT", str(target.home / "discord")))
    monkeypatch.delenv("PARLEY_MODEL__API_KEY", raising=False)
    return target


def secrets(target: Target) -> list[str]:
    """Return the secrets that a start finds."""
    settings = target.load().settings
    held = [
        settings.model.api_key,
        *(each.token for each in settings.platforms.accounts("telegram")),
    ]
    held += [each.token for each in settings.platforms.accounts("discord")]
    return [each.get_secret_value() for each in held if each]


HELD = ["sk-ant-secret", "12345:abcdefgh", "12345:other-bot", "kept.elsewhere.token"]


def test_secrets_that_are_there_move_into_files(second: Target) -> None:
    """Of each account; comments, and what is kept elsewhere already, stay."""
    file = second.home / "secrets" / "platforms.telegram.1.token"
    file.parent.mkdir()
    file.write_text("of another account")
    moved = write(second, Answers(keeping="files"))
    text = second.file.read_text()
    assert [each for each in HELD if each in text] == []
    assert [text.count(each) for each in ("# mine", "# the key", "# the first")] == [1, 1, 1]
    assert f'discord: {{token: "file:{second.home}/discord"}}' in text
    assert secrets(second) == HELD
    assert len(moved.secrets) == 3
    assert file.read_text() == "of another account"
    assert write(second, Answers(keeping="files")).secrets == ()


def test_a_move_that_fails_leaves_all_as_it_was(second: Target) -> None:
    """Neither file of a secret nor a change."""
    before = second.file.read_text()
    with pytest.raises(SettingsError, match="must be PLATFORM:ID"):
        write(second, Answers({"access.owners": ["x"]}, "files"))
    assert second.file.read_text() == before
    assert list((second.home / "secrets").glob("*")) == []


def test_a_new_secret_is_not_replaced_by_the_one_that_is_there(second: Target) -> None:
    """Nor by one of the list of accounts that it replaces."""
    accounts = [{"token": "12345:new-token"}]
    write(second, Answers({"model.api_key": "sk-ant-2", "platforms.telegram": accounts}, "files"))
    assert secrets(second) == ["sk-ant-2", "12345:new-token", HELD[-1]]


def test_what_the_environment_lacks_is_not_taken_out(
    second: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be lost; what is to be set is said, without the secrets."""
    before = second.file.read_text()
    monkeypatch.setenv("PARLEY_MODEL__API_KEY", "another")
    with pytest.raises(
        SettingsError, match="would be lost: set PARLEY_MODEL__API_KEY, "
    ) as refused:
        write(second, Answers(keeping="env"))
    assert not [each for each in HELD if each in str(refused.value)]
    assert second.file.read_text() == before
    monkeypatch.setenv("PARLEY_MODEL__API_KEY", HELD[0])
    monkeypatch.setenv("PARLEY_PLATFORMS__TELEGRAM__0__TOKEN", HELD[1])
    monkeypatch.setenv("PARLEY_PLATFORMS__TELEGRAM__1__TOKEN", HELD[2])
    write(second, Answers(keeping="env"))
    assert 'api_key: "env:PARLEY_MODEL__API_KEY"} # the key' in second.file.read_text()
    assert not [each for each in HELD if each in second.file.read_text()]
    assert secrets(second) == HELD
