"""Copies files and a server's database, flushed to the disk.

pg_dump and pg_restore copy the database. Secrets of the URL are passed in their environment, never
in arguments, which all users of a machine can read.
"""

import errno
import hashlib
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.network import in_words
from gateway.errors import StorageUnavailable
from gateway.storage.database import DatabaseServer

SPARE_BYTES = 50_000_000
"""Space left free on the disk of the backups."""
_CHUNK = 1 << 20
DEEPEST = 100
"""Deepest nesting of copied folders; commands may create deeper ones in a workspace."""
_LONGEST = 2_000
"""Longest path of a copied file in bytes; the system's limit is 4,096, including the target
folder."""
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM})
_COPIED = frozenset({stat.S_IFDIR, stat.S_IFLNK, stat.S_IFREG})

LOOK_EVERY_S = 0.25
_VARIABLES = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "dbname": "PGDATABASE",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "passfile": "PGPASSFILE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
}
"""Source: https://www.postgresql.org/docs/current/libpq-envars.html"""

Stopped = Callable[[], bool]


class BackupStopped(StorageUnavailable):
    """The process ends; the unfinished backup is removed."""


@dataclass(slots=True)
class RoomGuard:
    """Stops a copy when the process ends or the disk is nearly full."""

    to: Path
    stopped: Stopped
    _why: StorageUnavailable | None = None

    def ends(self) -> bool:
        """Whether the copy must stop; then `check` raises the reason."""
        if self.stopped():
            self._why = BackupStopped("the backup was stopped")
        elif (free := shutil.disk_usage(self.to).free) < SPARE_BYTES:
            text = f"cannot back up to {self.to}: its disk has only {free / 1e6:,.0f} MB left"
            self._why = StorageUnavailable(text)
        return self._why is not None

    def check(self) -> None:
        """Return if the copy may continue.

        Raises:
            BackupStopped: The process ends.
            StorageUnavailable: The disk has at most `SPARE_BYTES` left.
        """
        if self._why is None:
            self.ends()
        if self._why is not None:
            raise self._why


@dataclass(slots=True)
class Copying:
    """Copies folders with links as links; skips special files and files that vanish meanwhile.

    Workspaces may contain anything: the walk is iterative, and an entry that cannot be copied does
    not fail the backup.

    Attributes:
        apart: Resolved paths to skip.
        backups: Device and inode of backup folders, whose entries match `ours`.
        files: Facts of each file by its path in the backup.
        left_out: Reasons for skipped entries by printable path.
    """

    apart: frozenset[Path]
    backups: frozenset[tuple[int, int]]
    ours: re.Pattern[str]
    guard: RoomGuard
    files: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def size_of(self, source: Path) -> int:
        """Return the number of bytes that copying a folder would take."""
        size, waiting = 0, [source]
        while waiting:
            self.guard.check()
            folder = waiting.pop()
            try:
                inside = [folder / each for each in self._names(folder)]
                known = [(each, each.lstat()) for each in inside if each not in self.apart]
            except OSError:
                # Copying will report the problem.
                continue
            waiting += [each for each, found in known if stat.S_ISDIR(found.st_mode)]
            size += sum(found.st_size for _, found in known if stat.S_ISREG(found.st_mode))
        return size

    def take(self, source: Path, target: Path, name: str) -> None:
        """Copy a folder with its contents."""
        waiting = [*self._folder(source, target, name)]
        while waiting:
            self.guard.check()
            each, copy, label = waiting.pop()
            try:
                waiting += self._copied(each, copy, label)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as exc:
                # An error of the copy is a disk problem that affects all following files.
                if exc.errno not in _UNREADABLE or exc.filename != str(each):
                    raise
                self._leave_out(label, in_words(exc))

    def _copied(self, each: Path, copy: Path, label: str) -> Sequence[tuple[Path, Path, str]]:
        """Copy one entry; return the contents if it is a folder."""
        mode = each.lstat().st_mode
        if each in self.apart or stat.S_IFMT(mode) not in _COPIED:
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
            self.files[label] = _file(each, copy, self.guard)
        return ()

    def _folder(self, source: Path, target: Path, label: str) -> Sequence[tuple[Path, Path, str]]:
        """Create a folder; return its contents to copy, in reverse order."""
        names = sorted(self._names(source), reverse=True)
        target.mkdir(mode=0o700)
        return [(source / each, target / each, f"{label}/{each}") for each in names]

    def _names(self, folder: Path) -> list[str]:
        found = folder.stat()
        is_theirs = (found.st_dev, found.st_ino) in self.backups
        names = [each.name for each in folder.iterdir()]
        return [each for each in names if not (is_theirs and self.ours.match(each))]

    def _leave_out(self, label: str, why: str) -> None:
        self.left_out[encodable(label)] = why


def _misfit(label: str, link: str) -> str:
    """Return why an entry cannot be backed up, or ""."""
    try:
        length, _ = len(label.encode()), link.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    is_deep = label.count("/") > DEEPEST or length > _LONGEST
    return "it lies too deep" if is_deep else ""


def encodable(path: str | Path) -> str:
    """Return a path with bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _file(source: Path, copy: Path, guard: RoomGuard) -> dict[str, Any]:
    """Copy a file with its times, readable only by its owner; return the copy's facts.

    Ignores bytes appended meanwhile, which may come faster than they are copied.

    Raises:
        FileNotFoundError: It is no longer a regular file.
    """
    digest = hashlib.sha256()
    # A command may replace it with a link or a pipe at any time.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(str(source), flags)
    except OSError as exc:
        if source.is_symlink():
            raise FileNotFoundError(f"{source} is a link now") from exc
        raise
    with open(handle, "rb") as reading:  # noqa: PTH123 - a handle, no path
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(f"{source} is no file any more")
        left = found.st_size
        with copy.open("xb") as writing:
            while part := reading.read(min(left, _CHUNK)):
                guard.check()
                digest.update(part)
                writing.write(part)
                left -= len(part)
    os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
    # It may contain keys regardless of its mode, and must be readable later.
    copy.chmod(stat.S_IMODE(found.st_mode) & 0o700 | 0o400)
    return {"bytes": found.st_size - left, "sha256": digest.hexdigest()}


def digest_of(file: Path, stopped: Stopped = lambda: False) -> str:
    """Return a file's checksum; raise `BackupStopped` if the process ends."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(_CHUNK):
            if stopped():
                raise BackupStopped("the backup was stopped")
            digest.update(part)
    return digest.hexdigest()


def flush(folder: Path, stopped: Stopped = lambda: False) -> None:
    """Flush a folder and its contents to the disk; raise `BackupStopped` if the process ends."""
    for each in _below(folder):
        if stopped():
            raise BackupStopped("the backup was stopped")
        flush_one(each)


def flush_one(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _below(folder: Path) -> Iterator[Path]:
    """Yield the contents of a folder, depth first, then the folder."""
    waiting, folders = [folder], list[Path]()
    while waiting:
        folders.append(waiting.pop())
        for each in folders[-1].iterdir():
            mode = each.lstat().st_mode
            if stat.S_ISDIR(mode):
                waiting.append(each)
            elif stat.S_ISREG(mode):
                yield each
    yield from reversed(folders)


def dump(server: DatabaseServer, target: Path, stopped: Stopped) -> None:
    """Write a consistent copy while replicas run, and check it.

    Raises:
        StorageUnavailable: The program is missing or fails.
    """
    _run("pg_dump", ["--format=custom", f"--file={target}"], server, stopped)
    check_dump(target)


def check_dump(dumped: Path) -> None:
    """Read the table of contents of a copy.

    Raises:
        StorageUnavailable: It is not a copy or is incomplete.
    """
    _run("pg_restore", ["--list", "--file=/dev/null", str(dumped)], None, lambda: False)


def restore_dump(server: DatabaseServer, dumped: Path) -> None:
    """Restore a copy into an empty database, all or nothing.

    Raises:
        StorageUnavailable: The program is missing or fails.
    """
    whole = ["--single-transaction", "--exit-on-error", "--no-owner"]
    name = _environment(server)["PGDATABASE"]
    _run("pg_restore", [*whole, f"--dbname={name}", str(dumped)], server, lambda: False)


def place_of(server: DatabaseServer) -> str:
    """Return a database's address, `host:port/name`, without secrets."""
    found = _environment(server)
    host = found.get("PGHOSTADDR") or found.get("PGHOST", "")
    return f"{host}:{found.get('PGPORT', '')}/{found['PGDATABASE']}"


def _environment(server: DatabaseServer) -> dict[str, str]:
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    found = conninfo_to_dict(server.direct.get_secret_value())
    names = {_VARIABLES[key]: str(value) for key, value in found.items() if key in _VARIABLES}
    return {"PGDATABASE": names.get("PGUSER", "postgres")} | names


def _run(
    name: str, arguments: Sequence[str], server: DatabaseServer | None, stopped: Stopped
) -> None:
    program = shutil.which(name)
    if program is None:
        raise StorageUnavailable(
            f"{name} is not installed here: install PostgreSQL's client programs of the server's"
            " version, or copy the database where they are (docs/operations.md, *Backup and"
            " restore*)"
        )
    environment = {"PATH": str(Path(program).parent), "PGCONNECT_TIMEOUT": "10"}
    if server is not None:
        environment |= _environment(server)
    with subprocess.Popen(  # noqa: S603 - a program of PostgreSQL's, and no shell
        [program, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as running:
        said = _said(running, stopped)
    if running.returncode != 0:
        lines = said.decode(errors="replace").strip().splitlines() or ["it was ended"]
        raise StorageUnavailable(f"{name}: {lines[-1]}")


def _said(running: subprocess.Popen[bytes], stopped: Stopped) -> bytes:
    """Wait for a program's end, or kill it when stopped; return its stderr."""
    while True:
        try:
            return running.communicate(timeout=LOOK_EVERY_S)[1]
        except subprocess.TimeoutExpired:
            if stopped():
                running.kill()
