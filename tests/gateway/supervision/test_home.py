"""PARLEY_HOME: who may read it, and the modes of its files after commands that changed them."""

import os
import stat
from pathlib import Path

import pytest
import structlog

from gateway.errors import SettingsError
from gateway.settings.loading import load_settings
from gateway.settings.tree import Settings
from gateway.supervision import home as file_modes
from gateway.supervision.home import keep_modes, prepare_home, restore_modes


def settings_of(home: Path) -> Settings:
    """Settings of an installation that lets commands run."""
    overrides = {"home": home, "tools.enabled": ["terminal"], "tools.terminal.confine": False}
    return load_settings(environ={}, overrides=overrides).settings


def mode_of(path: Path) -> str:
    """Return it as people write it."""
    return f"{path.stat().st_mode & 0o7777:04o}"


def test_the_home_is_its_owners(tmp_path: Path) -> None:
    """Mode 0700; parents are created."""
    prepare_home(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_home_that_cannot_be_created(tmp_path: Path) -> None:
    """The error names the path."""
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="file/home cannot be created"):
        prepare_home(tmp_path / "file" / "home")


def test_a_folder_of_all_users_is_no_home(tmp_path: Path) -> None:
    """As /tmp is one: it is refused, and stays as it is."""
    tmp_path.chmod(0o1777)
    with pytest.raises(SettingsError, match="is a folder of all users"):
        prepare_home(tmp_path)
    assert mode_of(tmp_path) == "1777"


def test_a_home_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns it can read and change all of it; root's is root's anyway."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 4712, -1)
    with pytest.raises(SettingsError, match="belongs to another user"):
        prepare_home(home)
    os.chown(home, 0, -1)
    prepare_home(home)
    assert home.is_dir()


@pytest.mark.parametrize(
    ("name", "changed", "wanted"),
    [
        ("", 0o755, "0700"),
        ("", 0o000, "0700"),
        ("", 0o2750, "2700"),
        ("workspaces", 0o777, "0700"),
        ("parley.db", 0o000, "0600"),
        ("parley.db-wal", 0o666, "0644"),
        ("parley.yaml", 0o400, "0600"),
    ],
)
def test_a_changed_mode_is_put_back(tmp_path: Path, name: str, changed: int, wanted: str) -> None:
    """Open to others, or closed to Parley; it is logged once, with what it was."""
    home = tmp_path / "home"
    (home / "workspaces").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    for file in ("parley.db", "parley.db-wal", "parley.yaml"):
        (home / file).write_text("")
        (home / file).chmod(0o600)
    settings = settings_of(home)
    (home / name).chmod(changed)
    with structlog.testing.capture_logs() as logs:
        restore_modes(settings)
        restore_modes(settings)
    assert mode_of(home / name) == wanted
    assert [(line["event"], line["mode"]) for line in logs] == [("mode_restored", f"{changed:04o}")]


def test_what_belongs_to_another_user_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command can have changed it: the operator wants it so."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 4_294_967)
    restore_modes(settings_of(tmp_path))
    assert mode_of(tmp_path) == "0755"


def test_a_mode_that_cannot_be_put_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without modes, or a read-only one; Parley goes on."""
    tmp_path.chmod(0o755)

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "chmod", refuse)
    with structlog.testing.capture_logs() as logs:
        restore_modes(settings_of(tmp_path))
    assert logs[0]["event"] == "mode_not_restored"
    assert "Read-only" in logs[0]["error"]


async def test_modes_are_looked_at_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where commands run at all."""
    looked: list[Settings] = []
    monkeypatch.setattr(file_modes, "restore_modes", looked.append)
    without = load_settings(environ={}, overrides={"home": tmp_path}).settings
    for each in (without, settings_of(tmp_path)):
        await keep_modes(lambda each=each: each)
    assert looked == [settings_of(tmp_path)]
