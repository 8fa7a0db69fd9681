"""A backup is restored into a home, and what that home would run is listed first."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.backup import restoring
from gateway.backup.backups import MANIFEST, make
from gateway.backup.restoring import MOST_NAMED, plan_of, restore, would_run
from gateway.errors import DatabaseLocked, DatabaseTooNew, GatewayError, StorageUnavailable
from gateway.storage.sqlite_file import lock_database
from gateway.supervision.home import RESTORING, own_home
from tests.gateway.backup.test_backups import lived_in, names_in
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
    with pytest.raises(StorageUnavailable, match="is no backup"):
        plan_of(backup, tmp_path / "new")
    rewritten(backup, database="parley.db", database_at=name and 7)
    with pytest.raises(StorageUnavailable, match="lacks database_at"):
        plan_of(backup, tmp_path / "new")


@pytest.mark.parametrize(
    "told",
    [
        {"revision": 31},
        {"database": ["parley.db"]},
        {"version": None},
        {"left_out": ["x"]},
        {"files": {"home/SOUL.md": {"sha256": 5}}},
        {"files": {"home/SOUL.md": {}}},
        {"files": ["home/SOUL.md"]},
    ],
)
def test_a_list_of_other_types_is_refused(
    backup: Path, tmp_path: Path, told: dict[str, Any]
) -> None:
    """In one line, and nothing is written."""
    rewritten(backup, **told)
    with pytest.raises(StorageUnavailable, match="is no backup"):
        plan_of(backup, tmp_path / "new")


@pytest.mark.parametrize("name", [MANIFEST, "home", "workspaces", "parley.db"])
def test_a_part_that_is_a_link_is_refused(backup: Path, tmp_path: Path, name: str) -> None:
    """It could lead to anything of this machine, or to what never ends."""
    (backup / name).rename(tmp_path / "elsewhere")
    (backup / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageUnavailable, match=r"is a link|is no backup"):
        plan_of(backup, tmp_path / "new")


@pytest.mark.parametrize("name", [MANIFEST, "home/parley.yaml"])
def test_a_pipe_is_not_waited_for(backup: Path, tmp_path: Path, name: str) -> None:
    """Neither as the list nor as settings: it would be read for ever."""
    told = json.loads((backup / MANIFEST).read_bytes())
    del told["files"]["home/parley.yaml"]
    rewritten(backup, files=told["files"])
    (backup / name).unlink()
    os.mkfifo(backup / name)
    if name == MANIFEST:
        with pytest.raises(StorageUnavailable, match="is no backup"):
            plan_of(backup, tmp_path / "new")
    else:
        assert "is a pipe" in "\n".join(plan_of(backup, tmp_path / "new").lines())


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


KILLS = """
import os, shutil, signal, sys
from pathlib import Path
from gateway.supervision.home import RESTORING
from gateway.backup.restoring import plan_of, restore

backup, place = Path(sys.argv[1]), Path(sys.argv[2])
restore(plan_of(backup, place / "warm"))  # Nothing is imported later on.

def killed_at(nth, home):
    plan, reached = plan_of(backup, home), 0
    def look(event, details):
        nonlocal reached
        flags = details[2] if event == "open" else os.O_WRONLY
        if event in EVENTS and flags & (os.O_WRONLY | os.O_RDWR) and home.exists():
            reached += 1
            if reached == nth:
                print(event, *details[:2], flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    fsync = os.fsync
    os.fsync = lambda handle: (look("fsync", [handle]), fsync(handle))
    sys.addaudithook(look)
    restore(plan)

EVENTS = {"open", "fsync", "os.mkdir", "os.rename", "os.remove", "os.symlink", "os.chmod"}
nth = 0
while True:
    nth += 1
    home = place / str(nth)
    if (child := os.fork()) == 0:
        killed_at(nth, home)
        os._exit(0)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        break
print("whole", flush=True)
"""


@pytest.mark.thorough
def test_one_that_is_killed_anywhere_goes_on(backup: Path, tmp_path: Path) -> None:
    """Before each change of the disk: the home starts when all is there, and not before."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(backup), str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    *points, last = done.stdout.splitlines()
    assert last == "whole", done.stderr
    whole = names_in(tmp_path / "warm")
    assert {each.split()[0] for each in points} >= {"fsync", "os.rename", "os.remove"}
    for nth, point in enumerate(points, 1):
        home = tmp_path / str(nth)
        is_marked, is_whole = (home / RESTORING).exists(), names_in(home) >= whole
        assert is_marked or is_whole or names_in(home) <= restoring._ALLOWED, point
        if is_marked or not is_whole:
            restore(plan_of(backup, home))
        assert names_in(home) == whole, point
        assert (home / "parley.db").read_bytes() == (backup / "parley.db").read_bytes()


@pytest.mark.parametrize("text", [b"", b"\0\0\0", b"/cut/o"])
def test_a_mark_that_was_not_written_takes_any(backup: Path, tmp_path: Path, text: bytes) -> None:
    """As when the machine goes down; what lies elsewhere is not replaced for that."""
    home, place = tmp_path / "new", tmp_path / "disk/parley.db"
    home.mkdir()
    (home / RESTORING).write_bytes(text)
    (home / "SOUL.md").write_text("half of")
    place.parent.mkdir()
    place.write_text("of somebody else")
    whole = (backup / MANIFEST).read_bytes()
    rewritten(backup, database_at=str(place))
    with pytest.raises(GatewayError, match="is there already"):
        plan_of(backup, home, outside=[place])
    (backup / MANIFEST).write_bytes(whole)
    restore(plan_of(backup, home))
    assert (home / "SOUL.md").read_text() == "calm"
    assert place.read_text() == "of somebody else"


def test_the_mark_goes_when_the_disk_has_all(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file and folder, the mark before them, and that it is gone."""
    home = tmp_path / "new"
    written: list[Path] = []
    sync, unlink = os.fsync, Path.unlink

    def noting(handle: int) -> None:
        written.append(Path(f"/proc/self/fd/{handle}").readlink())
        sync(handle)

    def asserting(path: Path, **options: Any) -> None:
        if path.name == RESTORING:
            inside = {each for each in home.rglob("*") if not each.is_symlink()}
            assert inside | {home} <= set(written)
            assert written[:2] == [path, home]
            written.clear()
        unlink(path, **options)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(Path, "unlink", asserting)
    restore(plan_of(backup, home))
    assert written == [home]


def test_what_was_opened_meanwhile_does_not_stay(backup: Path, tmp_path: Path) -> None:
    """The log of a database that was there before it is none of the new one's."""
    home = tmp_path / "new"
    restore(plan_of(backup, home))
    (home / RESTORING).write_text(f"{backup}\n")
    (home / "parley.db-wal").write_text("of another")
    restore(plan_of(backup, home))
    assert not (home / "parley.db-wal").exists()


def test_a_disk_without_room_is_told_before(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both sizes."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000))
    with pytest.raises(StorageUnavailable, match="0 MB left"):
        plan_of(backup, tmp_path / "new")


REST = {
    "access.mode": "lets anybody in (access.mode: open)",
    "access.telegram": "lets in on telegram: 7",
    "context.engine": "runs a context engine in its own process: other",
    "tools.mcp": "contacts an MCP server: https://mcp.example/x (tools.mcp.far)",
}
SETTINGS = {
    "access": {"mode": "open", "telegram": ["7"]},
    "context": {"engine": "other"},
    "tools": {
        "mcp": {
            "far": {"url": "https://mcp.example/x"},
            "off": {"command": "never", "enabled": False},
        }
    },
    "web": {"public_url": "https://chat.example"},
}


def told(home: Path) -> list[str]:
    """Return the lines about a home."""
    return list(would_run(home, home))


@pytest.mark.parametrize("key", REST)
def test_each_thing_has_its_line(tmp_path: Path, key: str) -> None:
    """Disabled parts, and Parley's own address, have no line."""
    (tmp_path / "parley.yaml").write_text(yaml.safe_dump(SETTINGS))
    assert REST[key] in told(tmp_path)
    assert len(told(tmp_path)) == len(REST)


def test_settings_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    """The files are still listed."""
    (tmp_path / "parley.yaml").write_text("web: {port: none}\n")
    (tmp_path / "plugins" / "p").mkdir(parents=True)
    problem, plugin = told(tmp_path)
    assert problem.startswith("settings: web.port: 'none'")
    assert plugin == "holds a plugin for each of: p"


def test_settings_elsewhere_are_said(tmp_path: Path) -> None:
    """Also with a link in their place: it may lead to a file of this machine."""
    (tmp_path / "parley.yaml").symlink_to("/etc/hostname")
    assert told(tmp_path) == [
        "settings: no parley.yaml is in it; those in use there decide the rest"
    ]


def test_long_lists_are_counted(tmp_path: Path) -> None:
    """One line has room for some names."""
    (tmp_path / "parley.yaml").write_text("{}")
    for number in range(MOST_NAMED + 2):
        (tmp_path / "plugins" / f"p{number:02}").mkdir(parents=True)
    [line] = told(tmp_path)
    assert line.endswith(f"p{MOST_NAMED - 1:02} and 2 more")
