"""Restoring into an empty home, looked at first."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import DatabaseLocked, DatabaseTooNew, GatewayError, StorageUnavailable
from gateway.lifecycle import restoring
from gateway.lifecycle.backups import MANIFEST, make
from gateway.lifecycle.home import RESTORING, own_home
from gateway.lifecycle.restoring import plan_of, restore
from gateway.storage.engine import lock_database
from tests.gateway.lifecycle.test_backups import lived_in, names_in
from tests.support.gateway import running, settings_of

pytestmark = pytest.mark.usefixtures("sqlite_alone")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a home with one conversation."""
    folder = tmp_path_factory.mktemp("made")
    return make(lived_in(folder / "home"), folder / "kept").path


@pytest.fixture
def backup(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(made, tmp_path / made.name, symlinks=True))


async def test_a_restored_home_goes_on(backup: Path, tmp_path: Path) -> None:
    """All that was there is there, and a gateway starts on it without a question."""
    home = tmp_path / "new"
    plan = plan_of(backup, home)
    assert "the database into" in "\n".join(plan.lines())
    restore(plan)
    assert {"parley.yaml", "SOUL.md", "skills/cook/SKILL.md", "parley.db"} <= names_in(home)
    assert (home / "workspaces/1/out/result.txt").read_text() == "42"
    assert (home / "workspaces/1/link").is_symlink()
    assert not (home / RESTORING).exists()
    async with running(home) as chat:
        assert await chat.ask("two") == "re: two"
        assert len([each for each in await chat.transcript() if each["role"] == "user"]) == 2


def test_a_home_with_anything_in_it_is_left_alone(backup: Path, tmp_path: Path) -> None:
    """Nothing is replaced, and nothing of it named in vain."""
    home = tmp_path / "new"
    home.mkdir()
    (home / "parley.yaml").write_text("mine")
    with pytest.raises(GatewayError, match=r"is not empty .parley\.yaml"):
        plan_of(backup, home)
    assert names_in(home) == {"parley.yaml"}


def test_a_running_home_is_left_alone(backup: Path, tmp_path: Path) -> None:
    """Also where nothing else is in it yet."""
    home = tmp_path / "new"
    plan = plan_of(backup, home)
    home.mkdir()
    lock = lock_database(home / "parley.db")
    with lock, pytest.raises(DatabaseLocked):
        restoring.restore(plan)


@pytest.mark.parametrize("name", ["home/SOUL.md", "parley.db"])
def test_a_backup_that_was_changed_is_refused(backup: Path, tmp_path: Path, name: str) -> None:
    """Before anything is written."""
    file = backup / name
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(StorageUnavailable, match="is not what was written"):
        plan_of(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_backup_that_lacks_a_file_is_refused(backup: Path, tmp_path: Path) -> None:
    """It is named."""
    (backup / "home/SOUL.md").unlink()
    with pytest.raises(StorageUnavailable, match=r"SOUL\.md"):
        plan_of(backup, tmp_path / "new")


def rewritten(backup: Path, **told: Any) -> None:
    """Have the list of a backup say something else."""
    file = backup / MANIFEST
    file.write_text(json.dumps(json.loads(file.read_text()) | told))


@pytest.mark.parametrize("key", ["database_at", "workspaces_at"])
@pytest.mark.parametrize("place", ["{}/outside", "../outside", "a/../../outside", "."])
def test_nothing_is_written_outside_of_the_home(
    backup: Path, tmp_path: Path, key: str, place: str
) -> None:
    """Wherever the list says; but where whoever restores names the place."""
    rewritten(backup, **{key: place.format(tmp_path)})
    home = tmp_path / "new"
    with pytest.raises(GatewayError, match=r"is not below .*: if it belongs"):
        plan_of(backup, home)
    with pytest.raises(GatewayError, match=r"is not below .*: if it belongs"):
        plan_of(backup, home, outside=[tmp_path])
    assert not home.exists()
    plan = plan_of(backup, home, outside=[tmp_path / "outside", tmp_path / "new"])
    assert plan.home == home


def test_a_place_that_was_named_is_written_to(backup: Path, tmp_path: Path) -> None:
    """As with a database on another disk."""
    place = tmp_path / "disk/parley.db"
    place.parent.mkdir()
    rewritten(backup, database_at=str(place))
    restore(plan_of(backup, tmp_path / "new", outside=[place]))
    assert place.read_bytes() == (backup / "parley.db").read_bytes()


def test_nothing_is_written_through_a_link(backup: Path, tmp_path: Path) -> None:
    """That comes with the home's files, with the workspaces, or under the copy's first name."""
    (tmp_path / "outside").mkdir()
    (backup / "home/away").symlink_to(tmp_path / "outside")
    rewritten(backup, database_at="away/parley.db")
    with pytest.raises(GatewayError, match="through a link, home/away"):
        plan_of(backup, tmp_path / "new")
    rewritten(backup, database_at="workspaces/1/parley.db")
    with pytest.raises(GatewayError, match="among the workspaces"):
        plan_of(backup, tmp_path / "new")
    rewritten(backup, database_at="parley.db")
    (backup / "home/parley.db.partial").symlink_to(tmp_path / "outside/file")
    restore(plan_of(backup, tmp_path / "new"))
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("name", ["home/parley.yaml", "../x", None])
def test_a_list_that_names_no_database_is_refused(
    backup: Path, tmp_path: Path, name: str | None
) -> None:
    """It is one of two."""
    rewritten(backup, database=name)
    with pytest.raises(StorageUnavailable, match="names no copy of a database"):
        plan_of(backup, tmp_path / "new")
    rewritten(backup, database="parley.db", database_at=name and 7)
    with pytest.raises(StorageUnavailable, match="lacks database_at"):
        plan_of(backup, tmp_path / "new")


def test_a_newer_backup_names_the_version_it_needs(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of a database that nobody can read."""
    monkeypatch.setattr("gateway.storage.schema.REVISION", "0001")
    with pytest.raises(DatabaseTooNew, match="install Parley"):
        plan_of(backup, tmp_path / "new")


def test_one_that_was_cut_off_goes_on(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the home does not start, and takes no other backup."""
    home = tmp_path / "new"

    copied = shutil.copyfile

    def full(source: Path, target: Path, **options: bool) -> None:
        if target.name == "parley.db.partial":
            raise OSError(28, "No space left on device", "parley.db")
        copied(source, target, **options)

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StorageUnavailable, match="No space left"):
        restore(plan_of(backup, home))
    monkeypatch.undo()
    assert (home / "SOUL.md").exists()
    with (
        pytest.raises(GatewayError, match=r"a restore into .* is not finished"),
        own_home(settings_of(home)),
    ):
        pass
    other = shutil.copytree(backup, tmp_path / "parley-20200101T000000Z", symlinks=True)
    with pytest.raises(GatewayError, match="is not finished: give that again"):
        plan_of(Path(other), home)
    restore(plan_of(backup, home))
    assert (home / "parley.db").exists()
    with own_home(settings_of(home)):
        assert not (home / RESTORING).exists()


def test_a_disk_without_room_is_told_before(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both sizes."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000))
    with pytest.raises(StorageUnavailable, match="0 MB left"):
        plan_of(backup, tmp_path / "new")
