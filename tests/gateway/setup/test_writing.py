"""What a set-up writes, and that it is either whole or not there."""

import os
import stat
from pathlib import Path

import pytest
import yaml

from gateway.errors import SettingsError
from gateway.settings.references import references_in
from gateway.setup.draft import Answers, Keeping, Target
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
