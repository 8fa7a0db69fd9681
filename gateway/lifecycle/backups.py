"""Backups: the database, the home's files and the workspaces in one folder, whole or not there.

A backup is a folder `parley-<time>`, for its owner alone. It is written under another name, read
again, and renamed: what a kill or a full disk leaves has a name that does not count, and the next
backup removes it. `backup.json` in it says what there is, with a checksum of each file; restoring:
gateway/lifecycle/restoring.py.
"""

import asyncio
import errno
import hashlib
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import structlog
from filelock import FileLock, Timeout

from gateway.agent_ports.tools import Workspaces
from gateway.errors import StorageError, StorageUnavailable
from gateway.lifecycle.replica import Replica
from gateway.logging.setup import log_path, predecessors
from gateway.settings.tree import Settings
from gateway.storage import maintenance
from gateway.storage.database import Database, location_of
from gateway.storage.reports import health

log = structlog.get_logger()

MANIFEST = "backup.json"
DATABASE = "parley.db"
DUMP = "parley.dump"
HOME = "home"
WORKSPACES = "workspaces"
LOCK = ".parley-backup.lock"
_NAME = re.compile(r"parley-([0-9]{8}T[0-9]{6})Z")
_TIME = "%Y%m%dT%H%M%S"
_UNFINISHED = ".unfinished-"
_REMOVED = ".removed-"
_CHUNK = 1 << 20
_SPARE_BYTES = 50_000_000
"""Room that is left on the disk of the backups."""
DEEPEST = 100
"""Folders above a file that is copied: commands may make many more in a workspace."""
_LONGEST = 2_000
"""Bytes of such a file's path; the system takes 4,096, with those of the folder it is in."""
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM})
_NAMED = 5
"""So many of those that were left out are named; the others stand in the list."""
_COPIED = frozenset({stat.S_IFDIR, stat.S_IFLNK, stat.S_IFREG})
LOOK_EVERY_S = 60.0
RETRY_AFTER_S = 900.0
"""Pause after a backup that failed."""
HOUR_S = 3600.0
LATE = 1.5
"""A backup is overdue when it is so many times as old as `backup.every_h`."""

Stopped = Callable[[], bool]


class BackupStopped(StorageUnavailable):
    """The process ends; what was written is removed."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A whole backup.

    Attributes:
        at: When it was begun.
        size_bytes: Of all files in it.
        manifest: What `backup.json` says.
    """

    path: Path
    at: datetime
    size_bytes: int
    manifest: Mapping[str, Any]

    @property
    def left_out(self) -> Mapping[str, str]:
        """What could not be copied, and why; nothing where an older version wrote it."""
        found: Mapping[str, str] = self.manifest.get("left_out", {})
        return found

    @property
    def lacks(self) -> str:
        """What could not be copied, in words; "" where there is no such thing."""
        if not self.left_out:
            return ""
        first = [f"{name} ({why})" for name, why in islice(self.left_out.items(), _NAMED)]
        more = f", … (all of them: {MANIFEST})" if len(self.left_out) > _NAMED else ""
        return f"not in it, as it could not be copied: {', '.join(first)}{more}"

    def age_s(self, now: datetime) -> float:
        """Return how old it is; never less than 0, whatever was done to the clock."""
        return max((now - self.at).total_seconds(), 0.0)


def newest(to: Path | None) -> Backup | None:
    """Return the newest whole backup in a folder; None where there is none, or no folder."""
    return next(_found(to), None) if to is not None else None


def overdue_s(settings: Settings) -> float | None:
    """Return the age of the newest backup where it should not be that old, else None.

    None as well where Parley makes none, and where there never was one.
    """
    last = newest(folder_of(settings))
    age_s = 0.0 if last is None else last.age_s(datetime.now(UTC))
    return age_s if age_s > LATE * settings.backup.every_h * HOUR_S else None


def _found(to: Path) -> Iterator[Backup]:
    """Yield the whole backups in a folder, the newest first; nothing where there is no folder."""
    try:
        named = sorted((each for each in to.iterdir() if _NAME.fullmatch(each.name)), reverse=True)
    except OSError:
        return
    for each in named:
        if (found := read(each)) is not None:
            yield found


def read(path: Path) -> Backup | None:
    """Return the backup that a folder is, as its list says; None for another folder."""
    named = _NAME.fullmatch(path.name)
    try:
        told = orjson.loads((path / MANIFEST).read_bytes())
        size = sum(each.get("bytes", 0) for each in told["files"].values())
        began = datetime.strptime(named[1] if named else told["at"], _TIME).replace(tzinfo=UTC)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Backup(path, began, size, told)


def folder_of(settings: Settings) -> Path | None:
    """Return where backups are kept, by the settings: relative to PARLEY_HOME; None for nowhere."""
    to = settings.backup.to
    return None if to is None else settings.home / to.expanduser()


def make(
    settings: Settings, to: Path, keep: int | None = None, stopped: Stopped = lambda: False
) -> Backup:
    """Make a backup, also while a gateway runs; blocking, for as long as the copy takes.

    Args:
        to: The folder of all backups.
        keep: Whole backups that stay, this one counted; None: all.
        stopped: Asked now and again; when it says so, nothing is kept.

    Raises:
        StorageUnavailable: It cannot be made; nothing of it is there.
    """
    name = f"parley-{datetime.now(UTC):{_TIME}}Z"
    unfinished = to / f"{_UNFINISHED}{name}"
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(to / LOCK, timeout=0):
            _clear(to)
            _require_room(settings, to)
            unfinished.mkdir(mode=0o700)
            _write(settings, to, unfinished, stopped)
            os.sync()
            # A folder is renamed over an empty one only: a backup is never replaced.
            unfinished.rename(to / name)
            _thin_out(to, keep)
            return require(to / name)
    except Timeout as exc:
        raise StorageUnavailable(f"another backup is being written to {to}") from exc
    except OSError as exc:
        where = _encodable(exc.filename or to)
        raise StorageUnavailable(f"cannot back up to {to}: {exc.strerror} ({where})") from exc
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def require(path: Path) -> Backup:
    """Return the backup that a folder is.

    Raises:
        StorageUnavailable: It is none.
    """
    found = read(path)
    if found is None:
        raise StorageUnavailable(
            f"{path} is no backup: its {MANIFEST} is not there or not readable"
        )
    return found


def _clear(to: Path) -> None:
    """Remove what a process that was killed has left."""
    for each in to.iterdir():
        if each.name.startswith((_UNFINISHED, _REMOVED)):
            shutil.rmtree(each)


def _require_room(settings: Settings, to: Path) -> None:
    location = location_of(settings)
    wanted = location.stat().st_size if isinstance(location, Path) and location.exists() else 0
    if (free := shutil.disk_usage(to).free) < wanted + _SPARE_BYTES:
        raise StorageUnavailable(
            f"cannot back up to {to}: the database has {wanted / 1e6:,.0f} MB, the disk"
            f" {free / 1e6:,.0f} MB left"
        )


def _write(settings: Settings, to: Path, target: Path, stopped: Stopped) -> None:
    """Write all of a backup, its list last, and read it again."""
    location, root = location_of(settings), Workspaces(settings.tools.workspace, settings.home).root
    # The database first: what came later in a workspace does no harm, a missing one would.
    if isinstance(location, Path):
        maintenance.backup(location, target / DATABASE, stopped)
        database = DATABASE
    else:
        from gateway.lifecycle import dumps  # noqa: PLC0415

        dumps.dump(location, target / DUMP, stopped)
        database = DUMP
    (target / database).chmod(0o600)
    copied = _Copying(_apart(settings, root), _folders_of_backups(settings, to), stopped)
    copied.files[database] = _known(target / database)
    for source, name in ((settings.home, HOME), (root, WORKSPACES)):
        if source.is_dir():
            copied.take(source, target / name, name)
    told = {
        "format": 1,
        "version": version("parley"),
        "at": target.name.removeprefix(f"{_UNFINISHED}parley-").removesuffix("Z"),
        "revision": maintenance.current(location),
        "database": database,
        "database_at": _place(location, settings.home) if isinstance(location, Path) else None,
        "workspaces_at": _place(root, settings.home),
        "objects": settings.storage.files,
        "files": copied.files,
        "left_out": copied.left_out,
    }
    handle = os.open(target / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as stream:  # noqa: PTH123 - a handle, no path
        stream.write(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    verify(target, told)


def _place(path: Path, home: Path) -> str:
    """Return a path, relative to PARLEY_HOME where it is below."""
    return str(path.relative_to(home) if path.is_relative_to(home) else path)


def _apart(settings: Settings, workspaces: Path) -> frozenset[Path]:
    """Return what is no part of the home's files: copied apart, made anew, or of this process."""
    home, location = settings.home, location_of(settings)
    database = location if isinstance(location, Path) else home / DATABASE
    ends = ("", "-wal", "-shm", "-journal", ".lock", ".partial")
    log_file = log_path(settings.logging, home)
    return frozenset({
        *(Path(f"{database}{end}") for end in ends),
        home / f"{database.name}.mark",
        home / "parley.lock",
        home / "process.json",
        home / "fatal.txt",
        home / "fatal.previous.txt",
        home / "logs",
        workspaces,
        *([log_file, *predecessors(log_file)] if log_file else []),
    })


def _folders_of_backups(settings: Settings, to: Path) -> frozenset[tuple[int, int]]:
    """Return which folders hold backups, as the disk knows them: a path has several spellings."""
    found = (each.stat() for each in (to, folder_of(settings) or to) if each.is_dir())
    return frozenset((each.st_dev, each.st_ino) for each in found)


class _Copying:
    """Copies folders, links as links; what is no file, and what goes away meanwhile, is not told.

    Commands write into workspaces what they like: it is walked without recursion, and what cannot
    be copied makes no backup fail.

    Attributes:
        files: What is known of each file, by its place in the backup.
        left_out: Why something is not in it, by the place that it would have, printable.
    """

    def __init__(
        self, apart: frozenset[Path], backups: frozenset[tuple[int, int]], stopped: Stopped
    ) -> None:
        self.files: dict[str, Any] = {}
        self.left_out: dict[str, str] = {}
        self._apart = apart
        self._backups = backups
        self._stopped = stopped

    def take(self, source: Path, target: Path, name: str) -> None:
        """Copy a folder with all that is in it."""
        waiting = [*self._folder(source, target, name)]
        while waiting:
            if self._stopped():
                raise BackupStopped("the backup was stopped")
            each, copy, label = waiting.pop()
            try:
                waiting += self._copied(each, copy, label)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as exc:
                # Of the copy it is the disk's trouble, and that of all that comes after it.
                if exc.errno not in _UNREADABLE or exc.filename != str(each):
                    raise
                self._leave_out(label, exc.strerror or type(exc).__name__)

    def _copied(self, each: Path, copy: Path, label: str) -> Sequence[tuple[Path, Path, str]]:
        """Copy one entry; return what is in it where it is a folder."""
        mode = each.lstat().st_mode
        if each in self._apart or stat.S_IFMT(mode) not in _COPIED:
            return ()
        link = str(each.readlink()) if stat.S_ISLNK(mode) else ""
        if why := _misfit(label, link):
            self._leave_out(label, why)
        elif stat.S_ISDIR(mode):
            return self._folder(each, copy, label)
        elif link:
            copy.symlink_to(link)
            self.files[label] = {"link": link}
        else:
            shutil.copy2(each, copy, follow_symlinks=False)
            # Keys may stand in it, whatever its mode was; and it has to be read again.
            copy.chmod(stat.S_IMODE(mode) & 0o700 | 0o400)
            self.files[label] = _known(copy)
        return ()

    def _folder(self, source: Path, target: Path, label: str) -> Sequence[tuple[Path, Path, str]]:
        """Make a folder; return what comes into it, the last first."""
        names = sorted((each.name for each in source.iterdir()), reverse=True)
        found = source.stat()
        if (found.st_dev, found.st_ino) in self._backups:
            names = [each for each in names if not _is_ours(each)]
        target.mkdir(mode=0o700)
        return [(source / each, target / each, f"{label}/{each}") for each in names]

    def _leave_out(self, label: str, why: str) -> None:
        self.left_out[_encodable(label)] = why


def _encodable(path: str | Path) -> str:
    """Return a path whose bytes that are no UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _misfit(label: str, link: str) -> str:
    """Return why something has no place in a backup; "" where it has."""
    try:
        length, _ = len(label.encode()), link.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    is_deep = label.count("/") > DEEPEST or length > _LONGEST
    return "it lies too deep" if is_deep else ""


def _is_ours(name: str) -> bool:
    """Whether something in a folder of backups belongs to them: they are in no other backup."""
    return bool(_NAME.fullmatch(name)) or name.startswith((_UNFINISHED, _REMOVED, LOCK))


def _known(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": digest_of(file)}


def digest_of(file: Path) -> str:
    """Return the checksum of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(_CHUNK):
            digest.update(part)
    return digest.hexdigest()


def verify(path: Path, told: Mapping[str, Any]) -> None:
    """Read a backup as a whole: each file, and the database as a database.

    Raises:
        StorageUnavailable: It is not what its list says.
    """
    for name, known in told["files"].items():
        file = path / name
        if "link" in known:
            sound = file.is_symlink() and str(file.readlink()) == known["link"]
        else:
            sound = file.is_file() and not file.is_symlink() and digest_of(file) == known["sha256"]
        if not sound:
            raise StorageUnavailable(f"{file} is not what was written")
    copy = path / told["database"]
    if told["database"] == DUMP:
        from gateway.lifecycle import dumps  # noqa: PLC0415

        dumps.check(copy)
    elif (found := maintenance.opened_revision(copy)) != told["revision"]:
        raise StorageUnavailable(f"{copy} has schema revision {found}, not {told['revision']}")


def _thin_out(to: Path, keep: int | None) -> None:
    """Remove the oldest whole backups; one that is half removed has a name that does not count."""
    for each in list(_found(to))[keep:] if keep is not None else ():
        gone = to / f"{_REMOVED}{each.path.name}"
        each.path.rename(gone)
        shutil.rmtree(gone)


class Backups:
    """Makes backups on a timer: in one of all replicas, and none where `backup.to` names no folder.

    The clock is the age of the newest backup: a restart neither makes one early nor forgets one.
    """

    def __init__(self, database: Database, replica: Replica, settings: Settings) -> None:
        self._database = database
        self._replica = replica
        self._settings = settings

    async def run(self) -> None:
        """Make a backup whenever one is due, until cancelled."""
        to = folder_of(self._settings)
        while to is not None:
            pause_s = LOOK_EVERY_S
            try:
                if await self._is_due(to):
                    await self._make(to)
            except StorageError as exc:
                # With its reason: a traceback would not say more.
                log.error("backup_failed", to=str(to), error=str(exc))  # noqa: TRY400
                pause_s = RETRY_AFTER_S
            except Exception as exc:
                # Workspaces hold what commands like: whatever it is, people go on being answered.
                log.exception("backup_failed", to=str(to), error=repr(exc))
                pause_s = RETRY_AFTER_S
            await asyncio.sleep(pause_s)

    async def _is_due(self, to: Path) -> bool:
        last = await asyncio.to_thread(newest, to)
        age_s = None if last is None else last.age_s(datetime.now(UTC))
        if age_s is not None and age_s < self._settings.backup.every_h * HOUR_S:
            return False
        # Of several replicas the one that lives for longest; on SQLite there is one.
        return await self._database.read(health.oldest_replica) == self._replica.id

    async def _make(self, to: Path) -> None:
        stopping, began = threading.Event(), time.monotonic()
        work = asyncio.get_running_loop().run_in_executor(
            None, make, self._settings, to, self._settings.backup.keep, stopping.is_set
        )
        try:
            made = await asyncio.shield(work)
        except asyncio.CancelledError:
            # The thread goes on until it is told, and a stop waits for it.
            stopping.set()
            await asyncio.wait({work})
            raise
        log.info(
            "backup_made",
            path=str(made.path),
            bytes=made.size_bytes,
            duration_ms=round((time.monotonic() - began) * 1000),
        )
        if made.left_out:
            # Their names are in its list: whoever gave them may have meant to be read here.
            log.warning("backup_incomplete", path=str(made.path), entries=len(made.left_out))
