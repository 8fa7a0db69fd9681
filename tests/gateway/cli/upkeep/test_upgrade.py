"""`parley upgrade --check`: what a start would change, without asking anybody."""

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gateway.http import control
from gateway.storage import migrations
from gateway.storage.schema import REVISION
from tests.gateway.cli.test_main import fill
from tests.support.command_line import Run as Parley
from tests.support.storage import Store, made_newer

pytestmark = pytest.mark.usefixtures("sqlite_alone")


def found(parley: Parley, *options: str) -> dict[str, tuple[str, str]]:
    """Return level and text of each thing that was compared."""
    told = json.loads(parley("upgrade", "--check", "--json", *options).out)
    return {each["about"]: (each["level"], each["text"]) for each in told}


def test_a_home_of_this_version_is_fine(parley: Parley, tmp_path: Path) -> None:
    """Each line says so, and the exit code."""
    fill(tmp_path, "one")
    assert {level for level, _ in found(parley).values()} == {"fine"}
    result = parley("upgrade", "--check")
    assert result.code == 0
    assert f"revision {REVISION}" in result.out


def test_without_check_nothing_is_done(parley: Parley) -> None:
    """Parley does not replace itself."""
    result = parley("upgrade")
    assert result.code == 2
    assert "does not replace itself" in result.err


def test_migrations_that_wait_are_listed(
    parley: Parley, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each with what it is for; and the backup that should be made before."""
    fill(tmp_path, "one")
    monkeypatch.setattr(migrations, "schema_revision", lambda _: "0005")
    told = found(parley)
    assert told["schema"][0] == "note"
    assert told["schema"][1].startswith("revision 0005")
    assert told["migration"][1].startswith(f"{REVISION} ")
    assert told["backup"] == (
        "note",
        "`parley backup --to FOLDER` first: it is the only way back from a migration",
    )
    (tmp_path / "parley.yaml").write_text("backup: {to: kept}\n")
    assert parley("backup").code == 0
    assert found(parley)["backup"][0] == "fine"


def test_a_newer_database_blocks(parley: Parley, store: Store) -> None:
    """An older version must not start on it."""
    store.run(made_newer)
    store.connection.engine.dispose()
    told = found(parley)
    assert told["schema"][0] == "blocked"
    assert parley("upgrade", "--check").code == 1


def test_a_setting_that_is_not_known_blocks(parley: Parley, tmp_path: Path) -> None:
    """With its place; nothing else can be said then."""
    (tmp_path / "parley.yaml").write_text("queue: {mood: calm}\n")
    told = found(parley)
    assert list(told) == ["settings"]
    assert "queue.mood" in told["settings"][1]


def test_what_a_start_would_refuse_blocks(parley: Parley, tmp_path: Path) -> None:
    """Also what only shows when the parts are built, as `parley config check` finds it."""
    (tmp_path / "parley.yaml").write_text("tools: {enabled: [gone]}\n")
    told = found(parley)
    assert told["settings"][0] == "blocked"
    assert "gone" in told["settings"][1]
    assert parley("upgrade", "--check").code == 1


def test_an_older_process_is_named(
    parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is to be restarted."""
    fill(tmp_path, "one")

    async def ready(_: Path) -> dict[str, Any]:
        return {"ready": True, "version": "0.0.1"}

    monkeypatch.setattr(control, "ready_in", ready)
    here = version("parley")
    assert found(parley)["program"] == ("note", f"{here} is installed, 0.0.1 runs: restart it")


def test_too_little_room_blocks(
    parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration that fills the disk is worse than none."""
    fill(tmp_path, "one")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000))
    assert found(parley)["disk"][0] == "blocked"


def test_plugins_are_named(parley: Parley, tmp_path: Path) -> None:
    """One that cannot be loaded blocks; one that is not enabled is nobody's business."""
    for name, code in (("good", "def register(_): ..."), ("other", "")):
        folder = tmp_path / "plugins" / name
        folder.mkdir(parents=True)
        (folder / "plugin.yaml").write_text(f"name: {name}\ndescription: x\n")
        (folder / "__init__.py").write_text(code)
    (tmp_path / "parley.yaml").write_text("plugins: {enabled: [good]}\n")
    assert found(parley)["plugin"] == ("fine", "good (folder) can be tried")
