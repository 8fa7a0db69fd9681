"""Backups: whole or not there, verified, on a timer; and one that is killed."""

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from gateway.backup import backups, copying
from gateway.backup.backups import Backups, make, newest
from gateway.backup.restoring import plan_of
from gateway.errors import StorageUnavailable
from gateway.settings.tree import Settings
from gateway.storage import maintenance
from tests.support.gateway import running, serving, settings_of

pytestmark = pytest.mark.usefixtures("sqlite_alone")

LIST = {"files": {}, "version": "0.6.0", "database": "parley.db", "revision": None}
"""Of a backup without files."""


def lived_in(home: Path, **backup: Any) -> Settings:
    """Return the settings of a home with a database, files, links, and what is left out."""

    async def talk() -> None:
        async with running(home) as chat:
            await chat.ask("one")
            await chat.gateway.delivery.wait_idle()

    asyncio.run(talk())
    for name, text in (
        ("parley.yaml", "web: {port: 0}\n"),
        ("SOUL.md", "calm"),
        ("skills/cook/SKILL.md", "how"),
        ("workspaces/1/out/result.txt", "42"),
        ("logs/parley.jsonl", "{}"),
        ("process.json", "{}"),
        ("settings.last.json", "{}"),
    ):
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (home / "parley.yaml").chmod(0o644)
    (home / "workspaces/1/link").symlink_to("/etc/passwd")
    os.mkfifo(home / "workspaces/1/pipe")
    return settings_of(home, backup=backup)


def names_in(folder: Path) -> set[str]:
    """Return what is in a folder, below it too; no folders."""
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if not each.is_dir()}


class Clock(NamedTuple):
    """Tells another second each time."""

    times: list[datetime]

    def now(self, zone: Any) -> datetime:
        """Return the next time."""
        return self.times.pop(0)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backup has a second of its own."""
    began = datetime(2026, 11, 27, 6, 0, tzinfo=UTC)
    clock = Clock([began + timedelta(seconds=each) for each in range(60)])

    class Times(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return clock.now(tz)

    monkeypatch.setattr(backups, "datetime", Times)


def test_a_backup_has_all_of_a_home(tmp_path: Path) -> None:
    """Database, files, workspaces; no log, no process's own file, nothing that is no file."""
    settings = lived_in(tmp_path / "home")
    made = make(settings, tmp_path / "kept")
    assert names_in(made.path) == {
        "backup.json",
        "parley.db",
        "home/parley.yaml",
        "home/SOUL.md",
        "home/skills/cook/SKILL.md",
        "workspaces/1/out/result.txt",
        "workspaces/1/link",
    }
    assert (made.path / "workspaces/1/link").is_symlink()
    assert maintenance.opened_revision(made.path / "parley.db") == made.manifest["revision"]
    modes = {stat.S_IMODE(each.lstat().st_mode) & 0o077 for each in made.path.rglob("[!l]*")}
    assert modes == {0}
    assert newest(tmp_path / "kept") == made


def test_a_folder_within_the_home_does_not_copy_itself(tmp_path: Path) -> None:
    """Nor do backups that go elsewhere copy those on a timer."""
    settings = lived_in(tmp_path / "home", to="backups")
    first = make(settings, tmp_path / "home" / "backups")
    second = make(settings, tmp_path / "elsewhere")
    assert "home/backups" not in " ".join(names_in(first.path) | names_in(second.path))


@pytest.mark.parametrize("place", ["", "workspaces", "workspaces/1", "workspaces/1/kept"])
def test_wherever_it_goes_it_does_not_copy_itself(tmp_path: Path, place: str) -> None:
    """Not by another spelling of the home either; what lies beside it is copied all the same."""
    lived_in(tmp_path / "real")
    (tmp_path / "home").symlink_to("real")
    to = tmp_path / "real" / place
    made = make(settings_of(tmp_path / "home"), to)
    found = names_in(made.path)
    assert not [each for each in found if each.count("parley-") or each.count("backup.json") > 1]
    assert {"home/SOUL.md", "workspaces/1/out/result.txt", "workspaces/1/link"} <= found
    assert names_in(make(settings_of(tmp_path / "home"), tmp_path / "apart").path) >= found


@pytest.mark.parametrize(("home", "other"), [("link", "real"), ("real", "link")])
@pytest.mark.parametrize("root", ["workspaces", "", ".."])
def test_a_database_is_known_by_any_name(tmp_path: Path, home: str, other: str, root: str) -> None:
    """It is never copied as a file: closing that gives up SQLite's locks on a running one."""
    lived_in(tmp_path / "above/real")
    (tmp_path / "link").symlink_to("above/real")
    homes = {"link": tmp_path / "link", "real": tmp_path / "above/real"}
    workspace = {"root": homes[other].resolve() / root if root == ".." else homes[other] / root}
    made = make(settings_of(homes[home], tools={"workspace": workspace}), tmp_path / "kept")
    assert not [each for each in names_in(made.path) if each.endswith("/parley.db")]
    assert made.manifest["database_at"] == "parley.db"
    if root == "workspaces":
        assert made.manifest["workspaces_at"] == "workspaces"
        assert names_in(made.path / "home") == {"parley.yaml", "SOUL.md", "skills/cook/SKILL.md"}
    assert [each for each in names_in(made.path) if each.endswith("1/out/result.txt")]


def test_a_database_behind_a_link_is_copied_once(tmp_path: Path) -> None:
    """Neither the link nor, in the home, what it leads to is one of the home's files."""
    settings, home = lived_in(tmp_path / "home"), tmp_path / "home"
    (home / "disk").mkdir()
    (home / "parley.db").rename(home / "disk/real.db")
    (home / "parley.db").symlink_to("disk/real.db")
    made = make(settings, tmp_path / "kept")
    assert names_in(made.path / "home") == {"parley.yaml", "SOUL.md", "skills/cook/SKILL.md"}


def test_a_link_is_copied_as_a_link(tmp_path: Path) -> None:
    """To a folder, to nothing, to itself."""
    settings = lived_in(tmp_path / "home")
    links = {"folder": "/etc", "nothing": "gone", "itself": "itself", "above": "../.."}
    for name, target in links.items():
        (tmp_path / "home/workspaces/1" / name).symlink_to(target)
    made = make(settings, tmp_path / "kept")
    copies = made.path / "workspaces/1"
    assert {name: str((copies / name).readlink()) for name in links} == links
    assert made.left_out == {}


def test_what_no_backup_can_hold_is_left_out(tmp_path: Path) -> None:
    """Names that are no text, and folders without end: with the reason, and all else is there."""
    settings = lived_in(tmp_path / "home")
    workspace = os.fsencode(tmp_path / "home/workspaces/1")
    Path(os.fsdecode(workspace + b"/caf\xe9")).write_text("coffee")
    Path(os.fsdecode(workspace + b"/\xff")).mkdir()
    Path(os.fsdecode(workspace + b"/to")).symlink_to(os.fsdecode(b"\xfe"))
    deep = tmp_path / "home/workspaces/1/d"
    try:
        below = deep
        for _ in range(1_100):
            below.mkdir()
            below = below / "d"
        made = make(settings, tmp_path / "kept")
    finally:
        subprocess.run(["rm", "-rf", deep], check=True)
    depth = "workspaces/1" + "/d" * copying.DEEPEST
    assert made.left_out == {
        depth: "it lies too deep",
        "workspaces/1/\\xff": "its name is not UTF-8",
        "workspaces/1/caf\\xe9": "its name is not UTF-8",
        "workspaces/1/to": "its name is not UTF-8",
    }
    assert "workspaces/1/caf\\xe9 (its name is not UTF-8)" in made.lacks
    assert (made.path / "workspaces/1/out/result.txt").read_text() == "42"
    assert made.lacks in "".join(plan_of(made.path, tmp_path / "new").lines())


@pytest.mark.thorough
def test_what_may_not_be_read_is_left_out(tmp_path: Path) -> None:
    """A folder and a file of mode 000."""
    settings, to = lived_in(tmp_path / "home"), tmp_path / "kept"
    out = tmp_path / "home/workspaces/1/out"
    (tmp_path / "home/workspaces/1/mine").write_text("hidden")
    for each in (out, tmp_path / "home/workspaces/1/mine"):
        each.chmod(0)
    code = (
        "import sys; from pathlib import Path; from gateway.backup import backups\n"
        "from tests.support.gateway import settings_of\n"
        "backups.make(settings_of(Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    # Root may read all that it wants, until it has given that up.
    able = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    subprocess.run(
        [*(able if os.geteuid() == 0 else []), sys.executable, "-c", code, settings.home, to],
        cwd=Path(__file__).parents[3],
        check=True,
    )
    out.chmod(0o700)
    made = newest(to)
    assert made is not None
    assert made.left_out == {
        "workspaces/1/mine": "Permission denied",
        "workspaces/1/out": "Permission denied",
    }
    assert "home/SOUL.md" in names_in(made.path)


@pytest.mark.usefixtures("seconds")
def test_the_oldest_go(tmp_path: Path) -> None:
    """So many stay as are to be kept; what is no backup is left alone."""
    settings, to = lived_in(tmp_path / "home"), tmp_path / "kept"
    to.mkdir()
    (to / "notes.txt").write_text("mine")
    (to / "parley-20200101T000000Z").mkdir()
    made = [make(settings, to, 2) for _ in range(3)]
    left = {each.name for each in to.iterdir()} - {backups.LOCK}
    kept = {each.path.name for each in made[1:]}
    assert left == kept | {"notes.txt", "parley-20200101T000000Z"}
    assert newest(to) == made[-1]


def test_a_backup_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk has changed on the way is found, and does not stay."""
    settings = lived_in(tmp_path / "home")
    utime = os.utime

    def damaging(copy: Path, **options: Any) -> None:
        copy.write_text("another")
        utime(copy, **options)

    monkeypatch.setattr(os, "utime", damaging)
    with pytest.raises(StorageUnavailable, match="is not what was written"):
        make(settings, tmp_path / "kept")
    assert names_in(tmp_path / "kept") == {backups.LOCK}


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, where it shows; else with its reason. Nothing is left."""
    settings, to = lived_in(tmp_path / "home"), tmp_path / "kept"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000))
    with pytest.raises(StorageUnavailable, match="disk has only 0 MB left"):
        make(settings, to)
    monkeypatch.undo()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "SOUL.md")

    monkeypatch.setattr(os, "utime", full)
    with pytest.raises(StorageUnavailable, match=r"No space left on device .SOUL\.md"):
        make(settings, to)
    assert names_in(to) == {backups.LOCK}
    assert newest(to) is None


def test_files_and_workspaces_need_room_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written."""
    settings, to = lived_in(tmp_path / "home"), tmp_path / "kept"
    with (tmp_path / "home/workspaces/1/large").open("wb") as large:
        large.truncate(200_000_000)
    usage = shutil.disk_usage(tmp_path)._replace(free=copying.SPARE_BYTES + 100_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(maintenance, "backup", lambda *_: pytest.fail("it was begun"))
    with pytest.raises(StorageUnavailable, match=r"workspaces have 20. MB, the disk 150 MB left"):
        make(settings, to)
    assert names_in(to) == {backups.LOCK}


@pytest.mark.parametrize("name", ["parley.db.partial", "home", "workspaces/1/out"])
def test_room_that_goes_meanwhile_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Others keep the rest; whatever is being copied."""
    settings, to = lived_in(tmp_path / "home"), tmp_path / "kept"
    usage = shutil.disk_usage(tmp_path)

    def shrinking(_: Path) -> Any:
        return usage._replace(free=1_000_000 if [*to.glob(f".unfinished*/{name}")] else 10**12)

    monkeypatch.setattr(shutil, "disk_usage", shrinking)
    with pytest.raises(StorageUnavailable, match="its disk has only 1 MB left"):
        make(settings, to)
    assert names_in(to) == {backups.LOCK}


@pytest.mark.parametrize("name", ["parley.db.partial", "parley.db", "home", "backup.json"])
def test_a_stop_ends_each_part_of_one(tmp_path: Path, name: str) -> None:
    """Copying the database, reading it, copying files, reading all of it again."""
    settings, to = lived_in(tmp_path / "home"), tmp_path / "kept"
    with pytest.raises(copying.BackupStopped):
        make(settings, to, stopped=lambda: bool([*to.glob(f".unfinished*/{name}")]))
    assert names_in(to) == {backups.LOCK}


def test_it_has_its_name_when_the_disk_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file and folder, and nothing of others' files."""
    settings, to = lived_in(tmp_path / "home"), tmp_path / "kept"
    written: set[Path] = set()
    sync, rename = os.fsync, Path.rename

    def noting(handle: int) -> None:
        written.add(Path(f"/proc/self/fd/{handle}").readlink())
        sync(handle)

    def asserting(path: Path, target: Path) -> Path:
        inside = {each for each in path.rglob("*") if each.is_dir() or each.is_file()}
        assert {each for each in inside if not each.is_symlink()} | {path} <= written
        assert all(each.is_relative_to(to) for each in written)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(os, "sync", lambda: pytest.fail("the whole machine waits"))
    monkeypatch.setattr(Path, "rename", asserting)
    make(settings, to)
    assert to in written


KILLED = """
import os, signal, sys
from pathlib import Path
from gateway.backup import backups
from tests.support.gateway import settings_of

os.utime = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
backups.make(settings_of(Path(sys.argv[1])), Path(sys.argv[2]))
"""


@pytest.mark.thorough
def test_a_killed_backup_does_not_count(tmp_path: Path) -> None:
    """What it left has another name, and the next one removes it."""
    settings, to = lived_in(tmp_path / "home"), tmp_path / "kept"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "home"), str(to)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == -signal.SIGKILL
    [left] = [each for each in to.iterdir() if each.name != backups.LOCK]
    assert (left / "parley.db").exists()
    assert newest(to) is None
    made = make(settings, to)
    assert {each.name for each in to.iterdir()} == {backups.LOCK, made.path.name}


@pytest.mark.parametrize("told", ["", "{}", "[]", '{"files": {"a": 1}}'])
def test_a_folder_without_its_list_is_none(tmp_path: Path, told: str) -> None:
    """However it came to its name."""
    folder = tmp_path / "parley-20261127T060000Z"
    folder.mkdir()
    (folder / backups.MANIFEST).write_text(told)
    assert newest(tmp_path) is None
    with pytest.raises(StorageUnavailable, match="is no backup"):
        backups.require(folder)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("parley-20269999T999999Z", {"files": {}}),
        ("parley-20261127T060000Z", {"files": {"a": {"bytes": "many"}}}),
        ("another", {"files": {}}),
    ],
)
def test_a_list_that_makes_no_sense_is_none(
    tmp_path: Path, name: str, told: dict[str, Any]
) -> None:
    """Whoever looks for the newest one goes on."""
    (tmp_path / name).mkdir()
    (tmp_path / name / backups.MANIFEST).write_text(json.dumps(told))
    assert newest(tmp_path) is None
    assert backups.read(tmp_path / name) is None


def test_a_backup_is_never_younger_than_now(tmp_path: Path) -> None:
    """A clock that was set back makes none of its ages negative."""
    folder = tmp_path / "parley-20261127T060000Z"
    folder.mkdir()
    (folder / backups.MANIFEST).write_text(json.dumps(LIST))
    found = backups.read(folder)
    assert found is not None
    assert found.age_s(datetime(2026, 11, 27, 7, 0, tzinfo=UTC)) == 3600
    assert found.age_s(datetime(2026, 11, 26, tzinfo=UTC)) == 0


def test_a_clock_that_was_wrong_keeps_no_backup_from_being_made(tmp_path: Path) -> None:
    """One of the future counts for nothing, and has none removed that was just made."""
    settings = settings_of(tmp_path, backup={"to": "kept", "every_h": 2})
    folder = tmp_path / "kept" / f"parley-{datetime.now(UTC) + timedelta(days=900):%Y%m%dT%H%M%S}Z"
    folder.mkdir(parents=True)
    (folder / backups.MANIFEST).write_text(json.dumps(LIST))
    assert newest(tmp_path / "kept") is None
    assert backups.newest_age_s(tmp_path / "kept") is None
    assert backups.overdue_s(settings, 1e6) == 1e6
    made = make(lived_in(tmp_path / "home"), tmp_path / "kept", 1)
    assert newest(tmp_path / "kept") == made
    assert backups.newest_age_s(tmp_path / "kept") is not None


def test_one_that_is_overdue_is_known(tmp_path: Path) -> None:
    """Late is half as long again as the time between two; the first one is due at once."""
    settings = settings_of(tmp_path, backup={"to": "kept", "every_h": 2})
    assert backups.overdue_s(settings, 3600) == 0
    assert backups.overdue_s(settings, 3601) == 3601
    began = datetime.now(UTC) - timedelta(hours=2.5)
    folder = tmp_path / "kept" / f"parley-{began:%Y%m%dT%H%M%S}Z"
    folder.mkdir(parents=True)
    (folder / backups.MANIFEST).write_text(json.dumps(LIST))
    assert backups.overdue_s(settings, 1e6) is None
    folder.rename(tmp_path / "kept" / f"parley-{began - timedelta(hours=1):%Y%m%dT%H%M%S}Z")
    assert (backups.overdue_s(settings, 0.0) or 0) > 3 * 3600
    assert backups.overdue_s(settings_of(tmp_path), 1e6) is None


async def test_a_gateway_makes_them_on_a_timer(tmp_path: Path) -> None:
    """The first at once; a restart makes none before its time."""
    options = {"backup": {"to": "kept"}}
    async with serving(tmp_path, **options) as gateway:
        told = await gateway.chat.logged("backup_made")
    assert newest(tmp_path / "kept") == backups.read(Path(told["path"]))
    async with running(tmp_path, **options) as chat:
        gateway = chat.gateway
        timer = Backups(gateway.database, gateway.replica, gateway.settings)
        assert not await timer._is_due(tmp_path / "kept")
        shutil.rmtree(told["path"])
        assert await timer._is_due(tmp_path / "kept")


async def test_only_one_replica_makes_them(tmp_path: Path) -> None:
    """That which lives for longest."""
    async with running(tmp_path, backup={"to": "kept"}) as chat:
        gateway = chat.gateway

        class Younger:
            id = gateway.replica.id + 1

        timer = Backups(gateway.database, Younger(), gateway.settings)  # type: ignore[arg-type]
        assert not await timer._is_due(tmp_path / "kept")


async def test_a_stop_ends_one_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it stays, and the stop does not wait for the rest."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def endless(_: Any, to: Path, __: Any, stopped: copying.Stopped) -> Any:
        loop.call_soon_threadsafe(begun.set)
        while not stopped():
            os.sched_yield()
        raise copying.BackupStopped("the backup was stopped")

    monkeypatch.setattr(backups, "make", endless)
    async with running(tmp_path, backup={"to": "kept"}) as chat:
        gateway = chat.gateway
        async with asyncio.timeout(60):
            task = asyncio.ensure_future(
                Backups(gateway.database, gateway.replica, gateway.settings).run()
            )
            await begun.wait()
            task.cancel()
            await asyncio.wait({task})
        assert task.cancelled()


async def test_one_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its reason; the gateway goes on."""
    (tmp_path / "kept").write_text("no folder")
    monkeypatch.setattr(backups, "RETRY_AFTER_S", 3600.0)
    async with serving(tmp_path, backup={"to": "kept"}) as gateway:
        told = await gateway.chat.logged("backup_failed")
        assert await gateway.chat.ask("one") == "re: one"
    assert "kept" in told["error"]


async def test_whatever_it_fails_with_the_gateway_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody has thought of is told with its trace, and it is tried again."""
    calls = []

    def broken(*_: Any) -> Any:
        calls.append(1)
        raise RecursionError("too deep")

    monkeypatch.setattr(backups, "make", broken)
    monkeypatch.setattr(backups, "RETRY_AFTER_S", 0.01)
    async with serving(tmp_path, backup={"to": "kept"}) as gateway:
        told = await gateway.chat.logged("backup_failed", 2)
        assert await gateway.chat.ask("one") == "re: one"
    assert told["error"] == "RecursionError('too deep')"
    assert len(calls) >= 2


async def test_one_that_lacks_something_says_so(tmp_path: Path) -> None:
    """In the log how much; the names are in its list."""
    os.makedirs(os.fsencode(tmp_path) + b"/workspaces/1/caf\xe9")  # noqa: PTH103 - of bytes
    async with serving(tmp_path, backup={"to": "kept"}) as gateway:
        told = await gateway.chat.logged("backup_incomplete")
    assert told["entries"] == 1
    found = backups.require(Path(told["path"]))
    assert list(found.left_out) == ["workspaces/1/caf\\xe9"]


@pytest.mark.thorough
def test_two_at_once_are_one(tmp_path: Path) -> None:
    """The second one says that the first is under way."""
    settings, to = lived_in(tmp_path / "home"), tmp_path / "kept"
    to.mkdir()
    theirs = to / ".unfinished-parley-20261127T060000Z/parley.db"
    theirs.parent.mkdir()
    theirs.write_text("of the first one, begun within the same second")
    with backups.FileLock(to / backups.LOCK), capture_logs():
        # Another process, as a lock is taken twice within one.
        code = (
            "import sys; from pathlib import Path; from gateway.backup import backups\n"
            "from tests.support.gateway import settings_of\n"
            "class Times(backups.datetime):\n"
            "    now = classmethod(lambda cls, _: cls(2026, 11, 27, 6, tzinfo=backups.UTC))\n"
            "backups.datetime = Times\n"
            "try: backups.make(settings_of(Path(sys.argv[1])), Path(sys.argv[2]))\n"
            "except Exception as exc: print(exc)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "home"), str(to)],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        )
    assert "another backup is being written" in done.stdout
    assert theirs.exists()
    assert settings.home == tmp_path / "home"
