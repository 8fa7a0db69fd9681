"""PARLEY_HOME: created for its owner, locked by one process, kept closed to others.

The sandbox keeps commands of the tool `terminal` from opening Parley's files, but not from changing
their modes, so the modes are restored.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from pydantic import SecretStr

from gateway.agent_ports.tools import Workspaces
from gateway.errors import SettingsError
from gateway.settings.changes import KEY_FILE, kept_secret
from gateway.settings.rules import is_weak_token
from gateway.settings.tree import Settings
from gateway.storage.database import location_of
from gateway.storage.sqlite_file import lock_database
from gateway.supervision import crash_journal
from gateway.supervision.crash_journal import CrashJournal

log = structlog.get_logger()

LOOK_EVERY_S = 10.0
LOCKED = "parley"
"""Name of the lock (PARLEY_HOME/parley.lock) without a database file."""
RESTORING = "restoring"
"""File in PARLEY_HOME during a restore (gateway/backup/restoring.py)."""
WEB_TOKEN = "web.token"  # noqa: S105 - a file's name
TOKEN_BYTES = 32
OWN_SECRETS = (WEB_TOKEN, KEY_FILE)
"""Files in PARLEY_HOME with generated secrets."""


@contextmanager
def own_home(settings: Settings) -> Iterator[CrashJournal]:
    """Lock PARLEY_HOME for this process and keep its crash journal meanwhile.

    A database file is locked with it; replicas on one machine have a PARLEY_HOME each.

    Raises:
        SettingsError: It cannot be created, or a restore is unfinished.
        DatabaseLocked: Another process holds it.
    """
    prepare_home(settings.home)
    if (settings.home / RESTORING).exists():
        text = f"a restore into {settings.home} is not finished: give `parley restore` again"
        raise SettingsError(text)
    location = location_of(settings)
    held = location if isinstance(location, Path) else settings.home / LOCKED
    with lock_database(held), crash_journal.keeping_journal(settings.home) as journal:
        yield journal


def prepare_home(home: Path) -> None:
    """Create PARLEY_HOME, accessible only to its owner.

    Raises:
        SettingsError: It cannot be created, or belongs to another user.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise SettingsError(f"PARLEY_HOME {home} cannot be created: {exc.strerror}") from exc
    found, me = home.stat(), os.geteuid()
    # A shared folder like /tmp: closing it would lock out its users.
    if found.st_mode & stat.S_ISVTX and found.st_mode & stat.S_IWOTH:
        text = f"PARLEY_HOME {home} is a folder of all users; name one of Parley's own"
        raise SettingsError(text)
    if me not in {0, found.st_uid} and found.st_uid != 0:
        text = f"PARLEY_HOME {home} belongs to another user, who could read and change all of it"
        raise SettingsError(text)


def with_web_token(settings: Settings) -> Settings:
    """Return the settings with the web chat's token, configured or stored in PARLEY_HOME.

    The first start creates the stored token.

    Raises:
        SettingsError: It cannot be read or created, or is not a valid token.
    """
    if settings.web.token is not None:
        return settings
    file = settings.home / WEB_TOKEN
    try:
        token = kept_secret(file, TOKEN_BYTES)
    except OSError as exc:
        raise SettingsError(f"{file} cannot be read or made: {exc.strerror}") from exc
    if is_weak_token(token):
        raise SettingsError(f"{file} holds no token any more; delete it, and a start makes another")
    web = settings.web.model_copy(update={"token": SecretStr(token)})
    return settings.model_copy(update={"web": web})


async def keep_modes(current: Callable[[], Settings]) -> None:
    """Restore the modes periodically if a tool could change them."""
    if "terminal" in (settings := current()).tools.enabled:
        await asyncio.to_thread(restore_modes, settings)


def restore_modes(settings: Settings) -> None:
    """Set directories to mode 0700; let the owner read and write files, and no one else write.

    Generated secrets are readable only by their owner. Files of another user stay unchanged, since
    no command could change them.
    """
    for path in _own(settings):
        try:
            found = path.stat()
            mode = stat.S_IMODE(found.st_mode)
            wanted = 0o600 if path.name in OWN_SECRETS else _wanted(found.st_mode)
            if found.st_uid == os.geteuid() and mode != wanted:
                path.chmod(wanted)
                log.warning("mode_restored", path=str(path), mode=f"{mode:04o}")
        except FileNotFoundError:
            continue
        except OSError as exc:
            log.warning("mode_not_restored", path=str(path), error=str(exc))


def _own(settings: Settings) -> Iterator[Path]:
    home, location = settings.home, location_of(settings)
    yield from (home, home / "logs", Workspaces(settings.tools.workspace, home).root)
    yield from (home / name for name in ("parley.yaml", *OWN_SECRETS))
    if isinstance(location, Path):
        yield from (Path(f"{location}{end}") for end in ("", "-wal", "-shm"))


def _wanted(mode: int) -> int:
    """Return the corrected mode: others may read files but not enter directories."""
    if stat.S_ISDIR(mode):
        return stat.S_IMODE(mode) & ~0o777 | 0o700
    return stat.S_IMODE(mode) & ~0o022 | 0o600
