"""Backups: the database, the home's files and the workspaces in one folder, whole or not there.

A backup is a folder `parley-<time>`, for its owner alone. It is written under another name, read
again, and renamed: what a kill or a full disk leaves has a name that does not count, and the next
backup removes it. `backup.json` in it says what there is, with a checksum of each file; restoring:
gateway/backup/restoring.py.
"""

import asyncio
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import structlog
from filelock import FileLock, Timeout

from gateway.agent_ports.tools import Workspaces
from gateway.backup.copying import (
    SPARE_BYTES,
    Copying,
    RoomGuard,
    Stopped,
    check_dump,
    digest_of,
    dump,
    encodable,
    flush,
    flush_one,
)
from gateway.errors import StorageError, StorageUnavailable
from gateway.logging.setup import log_path, predecessors
from gateway.replicas.replica import Replica
from gateway.settings.loading import LAST_USED
from gateway.settings.tree import Settings
from gateway.storage import maintenance
from gateway.storage.database import Database, Location, location_of
from gateway.storage.reports import health
from gateway.supervision.home import RESTORING

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
_OURS = re.compile(rf"{_NAME.pattern}$|{'|'.join(map(re.escape, (_UNFINISHED, _REMOVED, LOCK)))}")
"""What belongs to a folder of backups: it is in no other backup."""
MOST_LIST_BYTES = 200_000_000
"""Of a list: more than a million files."""
_NAMED = 5
"""So many of those that were left out are named; the others stand in the list."""
LOOK_EVERY_S = 60.0
RETRY_AFTER_S = 900.0
"""Pause after a backup that failed."""
HOUR_S = 3600.0
SKEW_S = HOUR_S
"""By so much another machine's clock may be ahead."""
LATE = 1.5
"""A backup is overdue when it is so many times as old as `backup.every_h`."""
FIRST_WITHIN_S = HOUR_S
"""The first backup is due at once: it was tried four times by then."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A whole backup.

    Attributes:
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
    """Return the newest whole backup in a folder; None where there is none, or no folder.

    What was begun in the future, by a clock that was wrong, does not count: else there would be no
    other one until then, and nobody would be told.
    """
    latest = datetime.now(UTC) + timedelta(seconds=SKEW_S)
    found = _found(to) if to is not None else ()
    return next((each for each in found if each.at <= latest), None)


def newest_age_s(to: Path) -> float | None:
    """Return how old what `newest` returns is; None where there is none.

    A list of all files may have megabytes, and this is asked every few seconds: what has the name
    of a whole backup, and a list, is taken for one.
    """
    now = datetime.now(UTC)
    times = (_begun(each) for each in _named(to) if (each / MANIFEST).is_file())
    ages = ((now - at).total_seconds() for at in times if at is not None)
    return next((max(age_s, 0.0) for age_s in ages if age_s >= -SKEW_S), None)


def overdue_s(settings: Settings, running_s: float) -> float | None:
    """Return for how long there has been no new backup where that is too long, else None.

    Where there never was one that is `running_s`, the age of the process, and 0 within
    `FIRST_WITHIN_S`; None as well where Parley makes none.
    """
    to = folder_of(settings)
    if to is None:
        return None
    age_s = newest_age_s(to)
    if age_s is None:
        return running_s if running_s > FIRST_WITHIN_S else 0.0
    return age_s if age_s > LATE * settings.backup.every_h * HOUR_S else None


def _found(to: Path) -> Iterator[Backup]:
    """Yield the whole backups in a folder, the newest first; nothing where there is no folder."""
    return (found for each in _named(to) if (found := read(each)) is not None)


def _named(to: Path) -> list[Path]:
    try:
        return sorted((each for each in to.iterdir() if _NAME.fullmatch(each.name)), reverse=True)
    except OSError:
        return []


def _begun(path: Path) -> datetime | None:
    named = _NAME.fullmatch(path.name)
    try:
        return datetime.strptime(named[1] if named else "", _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def read(path: Path) -> Backup | None:
    """Return the backup that a folder is, as its list says; None for another folder."""
    file = path / MANIFEST
    try:
        if not is_plain(file) or file.stat().st_size > MOST_LIST_BYTES:
            return None
        told = orjson.loads(file.read_bytes())
        size = sum(each.get("bytes", 0) for each in told["files"].values())
        began = _begun(path) or datetime.strptime(told["at"], _TIME).replace(tzinfo=UTC)
        # Its author may be a stranger.
        texts = (told["version"], told["database"], told["revision"] or "")
        sums = (each.get("sha256", each.get("link")) for each in told["files"].values())
        reasons = told.get("left_out", {}).values()
        is_list = all(isinstance(each, str) for each in (*texts, *sums, *reasons))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Backup(path, began, size, told) if is_list else None


def is_plain(path: Path) -> bool:
    """Whether a path is a file, not a link to one, nor a pipe that never ends."""
    return path.is_file() and not path.is_symlink()


def folder_of(settings: Settings) -> Path | None:
    """Return where backups are kept, by the settings: relative to PARLEY_HOME; None for nowhere."""
    to = settings.backup.to
    return None if to is None else settings.home / to.expanduser()


def make(
    settings: Settings, to: Path, keep: int | None = None, stopped: Stopped = lambda: False
) -> Backup:
    """Make a backup, also while a gateway runs; blocking, for as long as the copy takes.

    Args:
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
            # What a process that was killed has left.
            left = (_UNFINISHED, _REMOVED)
            for each in [each for each in to.iterdir() if each.name.startswith(left)]:
                shutil.rmtree(each)
            try:
                _write(settings, to, unfinished, stopped)
                # A folder is renamed over an empty one only: a backup is never replaced.
                unfinished.rename(to / name)
            finally:
                # Within the lock: without it another one's may have this name.
                shutil.rmtree(unfinished, ignore_errors=True)
            flush_one(to)
            _thin_out(to, keep, to / name)
            return require(to / name)
    except Timeout as exc:
        raise StorageUnavailable(f"another backup is being written to {to}") from exc
    except OSError as exc:
        where = encodable(exc.filename or to)
        raise StorageUnavailable(f"cannot back up to {to}: {exc.strerror} ({where})") from exc


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


def _write(settings: Settings, to: Path, target: Path, stopped: Stopped) -> None:
    """Write all of a backup, its list last, read it again, and have the disk write it."""
    location, root = location_of(settings), Workspaces(settings.tools.workspace, settings.home).root
    guard = RoomGuard(to, stopped)
    copied = Copying(_apart(settings, root), _folders_of_backups(settings, to), _OURS, guard)
    sources = {HOME: settings.home.resolve(), WORKSPACES: root.resolve()}
    sources = {name: source for name, source in sources.items() if source.is_dir()}
    _require_room(to, location, sum(map(copied.size_of, sources.values())))
    target.mkdir(mode=0o700)
    # The database first: what came later in a workspace does no harm, a missing one would.
    database = _copy_database(location, target, guard)
    copied.files[database.name] = {
        "bytes": database.stat().st_size,
        "sha256": digest_of(database, stopped),
    }
    for name, source in sources.items():
        copied.take(source, target / name, name)
    told = {
        "format": 1,
        "version": version("parley"),
        "at": target.name.removeprefix(f"{_UNFINISHED}parley-").removesuffix("Z"),
        "revision": maintenance.current(location),
        "database": database.name,
        "database_at": _place(location, settings.home) if isinstance(location, Path) else None,
        "workspaces_at": _place(root, settings.home),
        "files": copied.files,
        "left_out": copied.left_out,
    }
    handle = os.open(target / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as stream:  # noqa: PTH123 - a handle, no path
        stream.write(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    flush(target, stopped)
    verify(target, told, stopped)


def _require_room(to: Path, location: Location, others: int) -> None:
    wanted = others
    if isinstance(location, Path) and location.exists():
        wanted += location.stat().st_size
    if (free := shutil.disk_usage(to).free) < wanted + SPARE_BYTES:
        raise StorageUnavailable(
            f"cannot back up to {to}: database, files and workspaces have {wanted / 1e6:,.0f} MB,"
            f" the disk {free / 1e6:,.0f} MB left"
        )


def _copy_database(location: Location, folder: Path, guard: RoomGuard) -> Path:
    try:
        if isinstance(location, Path):
            copy = folder / DATABASE
            maintenance.backup(location, copy, guard.ends)
        else:
            copy = folder / DUMP
            dump(location, copy, guard.ends)
    except StorageUnavailable:
        # Why it had to end comes before what ended it.
        guard.check()
        raise
    copy.chmod(0o600)
    return copy


def _place(path: Path, home: Path) -> str:
    """Return a path, relative to PARLEY_HOME where it is below, however both are spelled."""
    found, home = _spelled(path), home.resolve()
    return str(found.relative_to(home) if found.is_relative_to(home) else path)


def _spelled(path: Path) -> Path:
    """Return the one spelling of a path; what it names itself may be a link, and stays one."""
    return path.parent.resolve() / path.name


def _apart(settings: Settings, workspaces: Path) -> frozenset[Path]:
    """Return what is no part of the home's files: copied apart, made anew, or of this process.

    In one spelling: where it would be copied as well, closing a copied database gives up SQLite's
    locks on it.
    """
    home, location = settings.home, location_of(settings)
    database = location if isinstance(location, Path) else home / DATABASE
    ends = ("", "-wal", "-shm", "-journal", ".lock", ".partial")
    log_file = log_path(settings.logging, home)
    places = (
        *(Path(f"{database}{end}") for end in ends),
        *(Path(f"{database.resolve()}{end}") for end in ends),
        home / f"{database.name}.mark",
        home / "parley.lock",
        home / "process.json",
        home / LAST_USED,
        home / "fatal.txt",
        home / "fatal.previous.txt",
        home / "logs",
        home / RESTORING,
        workspaces,
        workspaces.resolve(),
        *([log_file, *predecessors(log_file)] if log_file else []),
    )
    return frozenset(map(_spelled, places))


def _folders_of_backups(settings: Settings, to: Path) -> frozenset[tuple[int, int]]:
    """Return which folders hold backups, as the disk knows them: a path has several spellings."""
    found = (each.stat() for each in (to, folder_of(settings) or to) if each.is_dir())
    return frozenset((each.st_dev, each.st_ino) for each in found)


def verify(path: Path, told: Mapping[str, Any], stopped: Stopped = lambda: False) -> None:
    """Read a backup as a whole: each file, and the database as a database.

    Raises:
        BackupStopped: The process ends.
        StorageUnavailable: It is not what its list says.
    """
    for name in (HOME, WORKSPACES, told["database"]):
        if (path / name).is_symlink():
            raise StorageUnavailable(f"{path / name} is a link, and no part of a backup")
    for name, known in told["files"].items():
        file = path / name
        if "link" in known:
            sound = file.is_symlink() and str(file.readlink()) == known["link"]
        else:
            sound = is_plain(file) and digest_of(file, stopped) == known["sha256"]
        if not sound:
            raise StorageUnavailable(f"{file} is not what was written")
    copy = path / told["database"]
    if told["database"] == DUMP:
        check_dump(copy)
    elif (found := maintenance.opened_revision(copy, stopped)) != told["revision"]:
        raise StorageUnavailable(f"{copy} has schema revision {found}, not {told['revision']}")


def _thin_out(to: Path, keep: int | None, made: Path) -> None:
    """Remove the oldest whole backups; one that is half removed has a name that does not count.

    Never what was just made: by a clock that was set back it may be the oldest.
    """
    old = list(_found(to))[keep:] if keep is not None else ()
    for each in (each for each in old if each.path != made):
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
        age_s = await asyncio.to_thread(newest_age_s, to)
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
