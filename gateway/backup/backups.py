"""Backups: the database, the home's files and the workspaces in one folder, created atomically.

A backup is a folder `parley-<time>`. It is written under another name, verified, and renamed; the
next backup removes leftovers of a kill or a full disk. `backup.json` lists its files with
checksums. gateway/backup/restoring.py restores it.
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
"""Our entries in a folder of backups, which no backup includes."""
_MOST_LIST_BYTES = 200_000_000
"""Largest list of files, in bytes: more than a million files."""
_NAMED = 5
"""Number of skipped entries to name; `backup.json` lists all."""
LOOK_EVERY_S = 60.0
RETRY_AFTER_S = 900.0
"""Pause after a failed backup, in seconds."""
HOUR_S = 3600.0
_SKEW_S = HOUR_S
"""Accepted clock skew of another machine."""
_LATE = 1.5
"""Multiple of `backup.every_h` after which a backup is overdue."""
FIRST_WITHIN_S = HOUR_S
"""Time limit for the first backup, which is due at once and tried four times by then."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete backup; `manifest` is its `backup.json`."""

    path: Path
    at: datetime
    size_bytes: int
    manifest: Mapping[str, Any]

    @property
    def left_out(self) -> Mapping[str, str]:
        """Skipped entries with reasons; empty for backups of older versions."""
        found: Mapping[str, str] = self.manifest.get("left_out", {})
        return found

    @property
    def lacks(self) -> str:
        """A text about skipped entries; "" without any."""
        if not self.left_out:
            return ""
        first = [f"{name} ({why})" for name, why in islice(self.left_out.items(), _NAMED)]
        more = f", … (all of them: {MANIFEST})" if len(self.left_out) > _NAMED else ""
        return f"not in it, as it could not be copied: {', '.join(first)}{more}"

    def age_s(self, now: datetime) -> float:
        """Return the age in seconds, at least 0 even if the clock was changed."""
        return max((now - self.at).total_seconds(), 0.0)


def newest(to: Path | None) -> Backup | None:
    """Return the newest complete backup in a folder, or None.

    Ignores a backup from the future, due to a wrong clock, which would silently prevent others
    until then.
    """
    latest = datetime.now(UTC) + timedelta(seconds=_SKEW_S)
    found = _found(to) if to is not None else ()
    return next((each for each in found if each.at <= latest), None)


def newest_age_s(to: Path) -> float | None:
    """Return the age of the newest backup, or None.

    Called every few seconds, so it only checks names and the presence of lists, which may have
    megabytes.
    """
    now = datetime.now(UTC)
    times = (_begun(each) for each in _named(to) if (each / MANIFEST).is_file())
    ages = ((now - at).total_seconds() for at in times if at is not None)
    return next((max(age_s, 0.0) for age_s in ages if age_s >= -_SKEW_S), None)


def overdue_s(settings: Settings, running_s: float) -> float | None:
    """Return the time since the last backup if overdue, else None.

    Without any backup, `running_s` (the process age) counts after `FIRST_WITHIN_S`.
    """
    to = folder_of(settings)
    if to is None:
        return None
    age_s = newest_age_s(to)
    if age_s is None:
        return running_s if running_s > FIRST_WITHIN_S else 0.0
    return age_s if age_s > _LATE * settings.backup.every_h * HOUR_S else None


def _found(to: Path) -> Iterator[Backup]:
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
    """Return a folder's backup by its list; None without a valid list."""
    file = path / MANIFEST
    try:
        if not is_plain(file) or file.stat().st_size > _MOST_LIST_BYTES:
            return None
        told = orjson.loads(file.read_bytes())
        size = sum(each.get("bytes", 0) for each in told["files"].values())
        began = _begun(path) or datetime.strptime(told["at"], _TIME).replace(tzinfo=UTC)
        # The list may be forged.
        texts = (told["version"], told["database"], told["revision"] or "")
        sums = (each.get("sha256", each.get("link")) for each in told["files"].values())
        reasons = told.get("left_out", {}).values()
        is_list = all(isinstance(each, str) for each in (*texts, *sums, *reasons))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Backup(path, began, size, told) if is_list else None


def is_plain(path: Path) -> bool:
    """Whether a path is a regular file and not a link."""
    return path.is_file() and not path.is_symlink()


def folder_of(settings: Settings) -> Path | None:
    """Return the configured folder of backups, resolved against PARLEY_HOME, or None."""
    to = settings.backup.to
    return None if to is None else settings.home / to.expanduser()


def make(
    settings: Settings, to: Path, keep: int | None = None, stopped: Stopped = lambda: False
) -> Backup:
    """Make a backup, even while a gateway runs; blocks until the copy is complete.

    Args:
        keep: Number of complete backups to keep, including this one; None for all.
        stopped: Polled; True aborts and removes the backup.

    Raises:
        StorageUnavailable: It failed; nothing of it remains.
    """
    name = f"parley-{datetime.now(UTC):{_TIME}}Z"
    unfinished = to / f"{_UNFINISHED}{name}"
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(to / LOCK, timeout=0):
            # Leftovers of a killed process.
            left = (_UNFINISHED, _REMOVED)
            for each in [each for each in to.iterdir() if each.name.startswith(left)]:
                shutil.rmtree(each)
            try:
                _write(settings, to, unfinished, stopped)
                # A rename can only replace an empty folder, never a backup.
                unfinished.rename(to / name)
            finally:
                # Within the lock, since otherwise the name may belong to another backup.
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
    """Return a folder's backup.

    Raises:
        StorageUnavailable: It has none.
    """
    found = read(path)
    if found is None:
        raise StorageUnavailable(
            f"{path} is no backup: its {MANIFEST} is not there or not readable"
        )
    return found


def _write(settings: Settings, to: Path, target: Path, stopped: Stopped) -> None:
    """Write a backup with its list last, flush it to the disk, and verify it."""
    location, root = location_of(settings), Workspaces(settings.tools.workspace, settings.home).root
    guard = RoomGuard(to, stopped)
    # By device and inode, since a folder may have several paths.
    backups = (each.stat() for each in (to, folder_of(settings) or to) if each.is_dir())
    theirs = frozenset((each.st_dev, each.st_ino) for each in backups)
    copied = Copying(_apart(settings, root), theirs, _OURS, guard)
    sources = {HOME: settings.home.resolve(), WORKSPACES: root.resolve()}
    sources = {name: source for name, source in sources.items() if source.is_dir()}
    _require_room(to, location, sum(map(copied.size_of, sources.values())))
    target.mkdir(mode=0o700)
    # The database first: later files in a workspace do no harm, but missing ones would.
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
        # Prefer the reason of a stop.
        guard.check()
        raise
    copy.chmod(0o600)
    return copy


def _place(path: Path, home: Path) -> str:
    """Return a path relative to PARLEY_HOME if it is below, resolving both."""
    found, home = _spelled(path), home.resolve()
    return str(found.relative_to(home) if found.is_relative_to(home) else path)


def _spelled(path: Path) -> Path:
    """Resolve a path except its last part, which may be a link."""
    return path.parent.resolve() / path.name


def _apart(settings: Settings, workspaces: Path) -> frozenset[Path]:
    """Return the resolved paths not copied with the home.

    They are copied separately, or used by this process.

    Closing a copied database would drop SQLite's locks on the original.
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


def verify(path: Path, told: Mapping[str, Any], stopped: Stopped = lambda: False) -> None:
    """Verify a backup: each file's checksum, and the database as a database.

    Raises:
        StorageUnavailable: It differs from its list; `BackupStopped` if the process ends.
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
    """Remove the oldest complete backups, but never the new one, even if the clock was set back."""
    old = list(_found(to))[keep:] if keep is not None else ()
    for each in (each for each in old if each.path != made):
        gone = to / f"{_REMOVED}{each.path.name}"
        each.path.rename(gone)
        shutil.rmtree(gone)


@dataclass(frozen=True, slots=True)
class Backups:
    """Makes scheduled backups in one of all replicas, if `backup.to` is set.

    The newest backup's age is the schedule, so a restart neither adds nor skips one.
    """

    database: Database
    replica: Replica
    settings: Settings

    async def run(self) -> None:
        """Make due backups until cancelled."""
        to = folder_of(self.settings)
        while to is not None:
            pause_s = LOOK_EVERY_S
            try:
                if await self._is_due(to):
                    await self._make(to)
            except StorageError as exc:
                # The reason is enough; a traceback would not add anything.
                log.error("backup_failed", to=str(to), error=str(exc))  # noqa: TRY400
                pause_s = RETRY_AFTER_S
            except Exception as exc:
                # Workspaces may contain anything, and messages must still be answered.
                log.exception("backup_failed", to=str(to), error=repr(exc))
                pause_s = RETRY_AFTER_S
            await asyncio.sleep(pause_s)

    async def _is_due(self, to: Path) -> bool:
        age_s = await asyncio.to_thread(newest_age_s, to)
        if age_s is not None and age_s < self.settings.backup.every_h * HOUR_S:
            return False
        # Only the oldest of several replicas.
        return await self.database.read(health.oldest_replica) == self.replica.id

    async def _make(self, to: Path) -> None:
        stopping, began = threading.Event(), time.monotonic()
        work = asyncio.get_running_loop().run_in_executor(
            None, make, self.settings, to, self.settings.backup.keep, stopping.is_set
        )
        try:
            made = await asyncio.shield(work)
        except asyncio.CancelledError:
            # Signal the thread to stop and wait for it.
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
            # Names may be chosen to mislead a reader, so only the list contains them.
            log.warning("backup_incomplete", path=str(made.path), entries=len(made.left_out))
