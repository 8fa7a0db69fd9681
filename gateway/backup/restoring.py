"""Restores a backup into an empty PARLEY_HOME: verified first, then all or nothing.

During a restore the home has a mark: `parley run` refuses it, and repeating the same restore starts
over. The mark is removed once everything is on the disk.

Everything that the home would run, read and contact is listed beforehand: references of foreign
settings are not resolved (`gateway.settings.loading.read_foreign`), and files are only counted.
"""

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from adapters.registry import account_types
from agent.plugins.loading import find_folders
from agent.plugins.registry import BUILT_IN
from agent.prompt.skills import SkillShelf
from agent.safety.redaction import Redactor
from gateway.backup import backups, copying
from gateway.backup.backups import DATABASE, DUMP, HOME, MANIFEST, WORKSPACES, Backup
from gateway.backup.copying import flush, flush_one
from gateway.errors import DatabaseTooNew, GatewayError, SettingsError, StorageUnavailable
from gateway.settings.loading import CONFIG_NAME, read_foreign
from gateway.settings.references import is_reference, unresolved
from gateway.settings.tree import Settings, dotted, flatten
from gateway.storage import maintenance, schema
from gateway.storage.database import DatabaseServer
from gateway.storage.sqlite_file import lock_database
from gateway.supervision.home import LOCKED, RESTORING, prepare_home

_ALLOWED = frozenset({RESTORING, f"{DATABASE}.lock", f"{LOCKED}.lock", "logs"})
"""Entries allowed in an empty home."""
MOST_NAMED = 20
"""Most names per line; further ones are only counted."""
_ADDRESS_KEYS = ("url", "endpoint", "issuer", "webhook")
"""Suffixes of settings with a URL."""
_OWN_ADDRESSES = frozenset({"public_url", "webhook_url"})
"""Settings with Parley's own URLs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned restore.

    Attributes:
        database: The target file, or the server with an empty database.
        workspaces: The target folder of workspaces; None if the backup has none.
    """

    backup: Backup
    home: Path
    database: Path | DatabaseServer
    workspaces: Path | None

    def lines(self) -> Iterator[str]:
        """Describe the plan."""
        told = self.backup.manifest
        files = sum(name.startswith(f"{HOME}/") for name in told["files"])
        size, began = self.backup.size_bytes, self.backup.at
        yield f"{self.backup.path}: {size:,} bytes of {began:%Y-%m-%d %H:%M} UTC"
        yield f"  written by Parley {told['version']}, schema revision {told['revision']}"
        is_on_server = isinstance(self.database, DatabaseServer)
        where = "the server's database" if is_on_server else self.database
        yield f"  the database into {where}"
        yield f"  {files:,} files (settings, prompts, skills, …) into {self.home}"
        if self.workspaces is not None:
            count = sum(name.startswith(f"{WORKSPACES}/") for name in told["files"])
            yield f"  {count:,} files of workspaces into {self.workspaces}"
        if self.backup.lacks:
            yield f"  {self.backup.lacks}"
        runs = list(would_run(self.backup.path / HOME, self.home))
        yield "a gateway in the restored home (nothing of this is run or read before it starts):"
        yield from (f"  {line}" for line in runs or ["runs nothing but itself"])


def plan_of(
    path: Path, home: Path, server: DatabaseServer | None = None, outside: Collection[Path] = ()
) -> Plan:
    """Check a backup and its target home without changes.

    Args:
        server: Target of a PostgreSQL copy.
        outside: Paths outside the home that the backup may write to.

    Raises:
        StorageUnavailable: The backup is invalid or incomplete, or the disk is too small.
        DatabaseTooNew: A newer version wrote its schema.
        GatewayError: The home or the database is not empty.
    """
    found = backups.require(path)
    told = found.manifest
    if told.get("database") not in {DATABASE, DUMP}:
        raise StorageUnavailable(f"{path} is no backup: {MANIFEST} names no copy of a database")
    backups.verify(path, told)
    if told["revision"] is None or told["revision"] > schema.REVISION:
        raise DatabaseTooNew(
            f"{path} has schema revision {told['revision']}, this version knows {schema.REVISION}:"
            f" install Parley {told['version']} or newer"
        )
    mark = _marked(home)
    _require_empty(home, path, mark)
    workspaces = None
    if (path / WORKSPACES).is_dir():
        workspaces = _place(found, "workspaces_at", home, outside)
    if workspaces is not None:
        _require_absent(workspaces, home, mark)
    if told["database"] == DUMP:
        if server is None:
            raise GatewayError("the backup is PostgreSQL's: name an empty database (storage.url)")
        if maintenance.holds_anything(server) and not _is_in(server, mark):
            text = "the database that storage.url names is not empty: name another one"
            if mark is not None:
                text += ", or create it again (a restore was cut off and may have filled it)"
            raise GatewayError(text)
        return Plan(found, home, server, workspaces)
    database = _place(found, "database_at", home, outside)
    if workspaces in database.parents and workspaces not in (home, *home.parents):
        raise GatewayError(f"{path} would put its database among the workspaces, in {workspaces}")
    _require_absent(database, home, mark)
    _require_room(home, found.size_bytes)
    return Plan(found, home, database, workspaces)


def restore(plan: Plan) -> None:
    """Execute a plan; blocking. A killed restore starts over.

    Raises:
        DatabaseLocked: A gateway runs in the home.
        StorageUnavailable: A target is not writable.
    """
    prepare_home(plan.home)
    held = plan.home / LOCKED if isinstance(plan.database, DatabaseServer) else plan.database
    places = [plan.home, *([plan.workspaces] if plan.workspaces is not None else [])]
    with lock_database(held):
        try:
            if not _marked(plan.home):
                _mark(plan.home, str(plan.backup.path), os.O_CREAT | os.O_TRUNC)
            for place, name in zip(places, (HOME, WORKSPACES), strict=False):
                _copy(plan.backup.path / name, place)
            _copy_database(plan)
            for place in places:
                flush(place)
            (plan.home / RESTORING).unlink()
            # Otherwise it may reappear after a power cut, and another restore would undo later
            # changes.
            flush_one(plan.home)
        except OSError as exc:
            text = f"cannot restore into {plan.home}: {exc.strerror} ({exc.filename})"
            raise StorageUnavailable(text) from exc


def _copy_database(plan: Plan) -> None:
    copy = plan.backup.path / plan.backup.manifest["database"]
    if isinstance(plan.database, DatabaseServer):
        is_there = _is_in(plan.database, _marked(plan.home))
        if not (is_there and maintenance.holds_anything(plan.database)):
            copying.restore_dump(plan.database, copy)
            _mark(plan.home, copying.place_of(plan.database))
        return
    # Leftovers of an interrupted restore.
    for end in ("-wal", "-shm", "-journal"):
        Path(f"{plan.database}{end}").unlink(missing_ok=True)
    # Renamed last, so that the database appears atomically.
    partial = plan.database.with_name(f"{plan.database.name}.partial")
    partial.unlink(missing_ok=True)
    shutil.copyfile(copy, partial)
    partial.chmod(0o600)
    flush_one(partial)
    partial.replace(plan.database)
    flush_one(plan.database.parent)


def _mark(home: Path, line: str, how: int = os.O_APPEND) -> None:
    handle = os.open(home / RESTORING, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | how, 0o600)
    try:
        os.write(handle, os.fsencode(f"{line}\n"))
        os.fsync(handle)
    finally:
        os.close(handle)
    flush_one(home)


def _marked(home: Path) -> Sequence[str] | None:
    """Return the lines of the home's mark (the backup, the restored database), else None.

    Empty after a kill or power cut, which allows any backup.
    """
    try:
        text = os.fsdecode((home / RESTORING).read_bytes())
    except FileNotFoundError:
        return None
    # A line without a newline is incomplete.
    lines = text.strip("\0").split("\n")[:-1]
    return [each for each in lines if each]


def _is_in(server: DatabaseServer, mark: Sequence[str] | None) -> bool:
    """Whether the mark records that a server's database was restored."""
    return mark is not None and copying.place_of(server) in mark[1:]


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with links as links into a new or existing one, never through a link."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in sorted(source.iterdir()):
        place = target / each.name
        if each.is_symlink():
            place.unlink(missing_ok=True)
            place.symlink_to(each.readlink())
        elif each.is_dir():
            if place.is_symlink():
                place.unlink()
            _copy(each, place)
        else:
            place.unlink(missing_ok=True)
            shutil.copy2(each, place, follow_symlinks=False)


def _place(found: Backup, key: str, home: Path, outside: Collection[Path]) -> Path:
    """Return a listed target: below the home, or one of `outside`.

    A link in the backup's home, which is copied first, must not redirect it.
    """
    named = found.manifest.get(key)
    if not isinstance(named, str):
        raise StorageUnavailable(f"{found.path} is no backup: {MANIFEST} lacks {key}")
    place = Path(os.path.normpath(home / named))
    inside = place.relative_to(home) if place.is_relative_to(home) else None
    if inside is None or inside == Path():
        if place in {Path(os.path.normpath(each)) for each in outside}:
            return place
        raise GatewayError(
            f"{found.path} would be written to {place}, which is not below {home}: if it belongs"
            f" there, say so with --outside {place}"
        )
    above = (inside, *inside.parents[:-1])
    if link := next((each for each in above if (found.path / HOME / each).is_symlink()), None):
        raise GatewayError(f"{found.path} would be written through a link, {HOME}/{link}")
    return place


def _require_empty(home: Path, path: Path, mark: Sequence[str] | None) -> None:
    if mark and mark[0] != str(path):
        raise GatewayError(f"a restore of {mark[0]} into {home} is not finished: give that again")
    if mark is not None:
        return
    there = [each.name for each in home.iterdir()] if home.exists() else []
    there = sorted(each for each in there if each not in _ALLOWED)
    if there:
        raise GatewayError(
            f"{home} is not empty ({', '.join(there[:5])}{', …' if len(there) > 5 else ''}):"
            " name an empty folder with --home, or move what is there away"
        )


def _require_absent(place: Path, home: Path, mark: Sequence[str] | None) -> None:
    """Refuse a target with contents that are not from a restore."""
    if mark is not None and (mark or place.is_relative_to(home)):
        return
    is_empty = place.is_dir() and not any(place.iterdir())
    if place.exists() and not is_empty:
        raise GatewayError(f"{place} is there already: move it away first")


def _require_room(home: Path, wanted: int) -> None:
    above = next(each for each in (home, *home.parents) if each.exists())
    if (free := shutil.disk_usage(above).free) < wanted:
        raise StorageUnavailable(
            f"the backup has {wanted / 1e6:,.0f} MB, the disk of {home} {free / 1e6:,.0f} MB left"
        )


def would_run(files: Path, home: Path) -> Iterator[str]:
    """Yield a line for everything that a gateway with these files would run, read or contact.

    Args:
        files: A copy of PARLEY_HOME.
        home: Its future path, the base of relative paths in settings.
    """
    file = files / CONFIG_NAME
    if file.is_symlink() or not file.exists():
        yield f"settings: no {CONFIG_NAME} is in it; those in use there decide the rest"
    else:
        try:
            yield from would_run_by(read_foreign(file, home))
        except SettingsError as exc:
            yield from (f"settings: {line}" for line in str(exc).splitlines())
    yield from _of_files(files)


def would_run_by(settings: Settings) -> Iterator[str]:
    """Yield the lines of `would_run` for only the settings."""
    for path, text in unresolved(settings):
        kind, _, rest = text.partition(":")
        what = "runs for a secret" if kind == "command" else f"reads a secret ({kind})"
        yield f"{what}: {_masked(rest)} ({dotted(path)})"
    for name, server in settings.tools.mcp.items():
        if server.enabled and server.command is None:
            yield f"contacts an MCP server: {_masked(str(server.url))} (tools.mcp.{name})"
        elif server.enabled:
            line = " ".join((str(server.command), *server.args))
            yield f"runs an MCP server: {_masked(line)} (tools.mcp.{name})"
    if settings.plugins.enabled:
        yield f"runs plugins in its own process: {_named(settings.plugins.enabled)}"
    if settings.context.engine not in BUILT_IN:
        yield f"runs a context engine in its own process: {settings.context.engine}"
    if "terminal" in settings.tools.enabled:
        wall = "confined" if settings.tools.terminal.confine else "NOT confined"
        yield f"runs commands of the model (terminal), {wall}"
    for path, value in flatten(settings):
        key = str(path[-1])
        is_address = key.endswith(_ADDRESS_KEYS) and key not in _OWN_ADDRESSES
        if is_address and (address := _address(value)):
            yield f"contacts {address} ({dotted(path)})"
    yield from _people(settings)


def _people(settings: Settings) -> Iterator[str]:
    access = settings.access
    if access.owners:
        yield f"obeys as owners: {_named(access.owners)}"
    for platform in account_types():
        if people := access.listed(platform):
            yield f"lets in on {platform}: {_named(people)}"
    if access.mode == "open":
        yield "lets anybody in (access.mode: open)"


def _of_files(files: Path) -> Iterator[str]:
    for what, found in (
        ("a plugin", find_folders(files, "plugin")),
        ("an engine", find_folders(files, "engine")),
    ):
        if found:
            yield f"holds {what} for each of: {_named([each.name for each in found])}"
    skills = SkillShelf(files / "skills")
    for name in skills.names():
        if programs := skills.files(name):
            yield f"holds a skill with files of its own, {name}: {_named(programs)}"


def _address(value: Any) -> str:
    """Return a URL's scheme and host, or ""; the rest may be secret."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str) or is_reference(text):
        return ""
    try:
        parts = urlsplit(text)
    except ValueError:
        return "an address that cannot be read"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _masked(text: str) -> str:
    return Redactor().text(text)
