"""PARLEY_HOME and the machine: who can read what, and whether there is room."""

import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from agent.network import UnusableEnvironment, proxy_for, tls_for, troubles
from gateway.backup import backups
from gateway.doctor.checks import Examined, Sight, check, open_to_others
from gateway.logging.recent import LATELY_S, MOST_LINES, RecentLines, lately, newest, tallied
from gateway.logging.setup import log_path, predecessors
from gateway.storage.engine import NETWORK_FILESYSTEMS, filesystem_of
from gateway.supervision.home import OWN_SECRETS

FULL_BYTES, SCARCE_BYTES = 200_000_000, 2_000_000_000
"""Free room on a disk: less is wrong, or a warning."""
LEAST_MEMORY = 300_000_000
LEAST_DESCRIPTORS = 1024
LARGE_LOG = 5_000_000_000
AHEAD_S = 120.0
CLOCK_WITHIN_S = 5.0
_DATED = {9: "is not valid yet", 10: "has expired"}
"""By OpenSSL's code. Source: openssl-verification-options(1)."""
MOST_EVENTS = 5


@check(
    "home-there",
    "PARLEY_HOME exists and is writable",
    why="It holds the database, the log and tokens.",
    remedy="Create it for the user that Parley runs as, or choose another with --home.",
    needs="nothing",
)
def _there(examined: Examined) -> Iterator[Sight]:
    home = examined.home
    if not home.exists():
        yield Sight("note", f"{home} is not there yet; the first start makes it")
    elif not home.is_dir():
        yield Sight("wrong", f"{home} is no folder")
    elif not os.access(home, os.W_OK | os.X_OK):
        yield Sight("wrong", f"{home} cannot be written by this user")


@check(
    "home-mode",
    "Only its owner can enter PARLEY_HOME",
    why="Others could read what people wrote, and the token of the web chat.",
    remedy="`chmod 700` it.",
    needs="nothing",
)
def _mode(examined: Examined) -> Iterator[Sight]:
    if examined.home.is_dir():
        yield from open_to_others(examined.home, 0o700)


@check(
    "home-owner",
    "PARLEY_HOME belongs to the user that runs Parley",
    why="Its owner can read and change all of it.",
    remedy="`chown -R` it, or run Parley as its owner.",
    needs="nothing",
)
def _owner(examined: Examined) -> Iterator[Sight]:
    if examined.home.is_dir() and (owner := examined.home.stat().st_uid) != os.geteuid():
        yield Sight("warning", f"it belongs to user {owner}, and this is user {os.geteuid()}")


@check(
    "home-files",
    "Others cannot read the files in PARLEY_HOME",
    why="They hold what people wrote, and a token.",
    remedy="`chmod 600` them.",
    needs="nothing",
)
def _files(examined: Examined) -> Iterator[Sight]:
    for file in _private(examined.home):
        # Nobody but the owner gets to them while the folder is closed.
        is_closed = not examined.home.stat().st_mode & 0o077
        yield from open_to_others(file, 0o600, "warning" if is_closed else "wrong")


def _private(home: Path) -> Iterator[Path]:
    if home.is_dir():
        yield from (each for each in sorted(home.glob("*.db*")) if each.is_file())
        yield from (home / each for each in OWN_SECRETS if (home / each).is_file())


@check(
    "home-filesystem",
    "PARLEY_HOME lies on a disk of this machine",
    why="SQLite's locks fail on network file systems: two processes could write at once.",
    remedy="Put it on a local disk, or use PostgreSQL (`storage.url`).",
)
def _filesystem(examined: Examined) -> Iterator[Sight]:
    kind = None if examined.on_server else filesystem_of(examined.home)
    if kind in NETWORK_FILESYSTEMS:
        yield Sight("wrong", f"{examined.home} lies on {kind}")


@check(
    "disk-room",
    "There is room on the disks",
    why="Nothing can be stored on a full disk: messages wait at the platforms until there is room.",
    remedy="Make room; `retention.*` keeps less, `parley db compact` gives back what is unused.",
)
def _room(examined: Examined) -> Iterator[Sight]:
    for place in _places(examined):
        free = shutil.disk_usage(place).free
        text = f"{free / 1e9:.1f} GB are free on the disk of {place}"
        if free < FULL_BYTES:
            yield Sight("wrong", text)
        elif free < SCARCE_BYTES:
            yield Sight("warning", text)


@check(
    "disk-inodes",
    "The disks can hold more files",
    why="Without free inodes no file can be created, however much space is left.",
    remedy="Remove small files that nobody needs.",
)
def _inodes(examined: Examined) -> Iterator[Sight]:
    for place in _places(examined):
        found = os.statvfs(place)
        if found.f_files and found.f_favail < found.f_files // 100:
            yield Sight(
                "warning", f"{found.f_favail} of {found.f_files} inodes are free at {place}"
            )


def _places(examined: Examined) -> list[Path]:
    """Return a folder of each disk that Parley writes to."""
    file = examined.settings.logging.file
    named = [examined.home, *([file.parent] if isinstance(file, Path) else [])]
    if isinstance(examined.location, Path):
        named.append(examined.location.parent)
    there = (next(each for each in (place, *place.parents) if each.is_dir()) for place in named)
    return list({place.stat().st_dev: place for place in there}.values())


@check(
    "log-size",
    "The log is no larger than it should be",
    why="Parley rotates its log by size, so something else must be writing there.",
    remedy="See what it is: `parley logs -n 100`.",
)
def _log_size(examined: Examined) -> Iterator[Sight]:
    file = examined.settings.logging.file
    folder = file.parent if isinstance(file, Path) else examined.home / "logs"
    if file is False or not folder.is_dir():
        return
    name = (file.stem if isinstance(file, Path) else "parley") + "*"
    size = sum(each.stat().st_size for each in folder.glob(name))
    if size > LARGE_LOG:
        yield Sight("warning", f"the log in {folder} takes {size / 1e9:.1f} GB")


@check(
    "log-warnings",
    f"The log has no warnings of the last {LATELY_S // 60} minutes",
    why="Something that Parley needs did not answer, or was refused, though Parley itself goes on.",
    remedy="See what they say: `parley logs --level warning --since 15m`.",
)
def _log_warnings(examined: Examined) -> Iterator[Sight]:
    path = log_path(examined.settings.logging, examined.home)
    if path is None:
        yield Sight("unknown", "skipped: no log file is written (logging.file is false)")
        return
    found = tallied(newest(RecentLines(), (path, *predecessors(path)[:1]), lately(), MOST_LINES))
    often = ", ".join(f"{each.count:,} of {each.name}" for each in found[:MOST_EVENTS])
    rest = f", and {len(found) - MOST_EVENTS} more" if len(found) > MOST_EVENTS else ""
    if found:
        yield Sight("warning", f"warnings and errors of the last 15 minutes: {often}{rest}")


@check(
    "memory-free",
    "There is enough memory",
    why="When memory runs out, the system kills a process, perhaps in the middle of an answer.",
    remedy="Give the machine more memory, or stop what else uses it.",
    needs="nothing",
)
def _memory(_examined: Examined) -> Iterator[Sight]:
    file = Path("/proc/meminfo")
    lines = file.read_text(encoding="ascii").splitlines() if file.exists() else []
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    available = found.get("MemAvailable")
    if available is not None and available < LEAST_MEMORY:
        yield Sight("warning", f"{available / 1e6:.0f} MB are free")


@check(
    "descriptors",
    "Enough files and connections may be open",
    why="Each platform, stream of an answer and browser takes one; without a free one new"
    " connections are refused.",
    remedy="Raise `LimitNOFILE` of the service, or `ulimit -n`.",
    needs="nothing",
)
def _descriptors(_: Examined) -> Iterator[Sight]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < LEAST_DESCRIPTORS:
        yield Sight("warning", f"at most {hard} can be open")


@check(
    "user-not-root",
    "Parley does not run as root",
    why="Anything that breaks out of a tool would own the machine.",
    remedy="Run it as its own user.",
    needs="nothing",
)
def _root(_: Examined) -> Iterator[Sight]:
    if os.geteuid() == 0:
        yield Sight("warning", "this runs as root")


@check(
    "python-version",
    "This Python is maintained",
    why="An old one no longer gets security fixes.",
    remedy="Install Parley with Python 3.12 or newer.",
    needs="nothing",
)
def _python(_: Examined) -> Iterator[Sight]:
    found = sys.version_info
    # Source: devguide.python.org/versions: five years from the first release in October.
    last_year = found.minor + 2016
    if time.gmtime()[:2] > (last_year, 10):
        text = f"Python {found.major}.{found.minor} had its last release in {last_year}"
        yield Sight("warning", text)


@check(
    "clock",
    "The clock is right",
    why="Slack refuses requests that are five minutes off, times in the transcript mislead the"
    " model, and daily budgets begin at the wrong hour.",
    remedy="Turn on time synchronisation (`timedatectl set-ntp true`).",
    needs="nothing",
)
def _clock(examined: Examined) -> Iterator[Sight]:
    if not examined.home.is_dir():
        return
    # Parley itself, too: a machine without a clock of its own begins in the past.
    files = [*examined.home.iterdir(), Path(__file__)]
    newest, when = max((each.stat().st_mtime, str(each)) for each in files)
    if newest - time.time() > AHEAD_S:
        ahead = (newest - time.time()) / 60
        yield Sight("wrong", f"{when} was written in {ahead:,.0f} minutes from now")
    if examined.clock:
        yield Sight("wrong", examined.clock)


async def clock_trouble(url: str) -> str:
    """Compare this machine's clock with that of a server; return what is wrong."""
    host = urlsplit(url).hostname
    timeout = aiohttp.ClientTimeout(total=CLOCK_WITHIN_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.head(url, proxy=proxy_for(url), ssl=tls_for(url)) as answer,
        ):
            told = parsedate_tz(answer.headers.get("Date", ""))
    except (UnusableEnvironment, aiohttp.ClientError, TimeoutError, ValueError) as exc:
        code = getattr(getattr(exc, "certificate_error", None), "verify_code", 0)
        return f"by it, the certificate of {host} {_DATED[code]}" if code in _DATED else ""
    ahead_s = time.time() - mktime_tz(told) if told else 0.0
    side = "ahead of" if ahead_s > 0 else "behind"
    return f"it is {abs(ahead_s) / 60:,.0f} minutes {side} {host}" if abs(ahead_s) > AHEAD_S else ""


@check(
    "proxy-loopback",
    "A proxy is not asked for this machine's own addresses",
    why="Parley would look for local models and MCP servers behind the proxy.",
    remedy="Add `localhost,127.0.0.1` to NO_PROXY.",
    needs="nothing",
)
def _proxy(_: Examined) -> Iterator[Sight]:
    # The check `environment` reports a proxy that cannot be used.
    with suppress(UnusableEnvironment):
        if proxy_for("http://localhost") and proxy_for("http://127.0.0.1"):
            yield Sight("warning", "a proxy is set, and NO_PROXY does not name localhost")


@check(
    "environment",
    "Proxies and certificates of the environment can be used",
    why="Whoever needs what a variable names cannot be reached: a platform, a model, a server.",
    remedy="Correct or unset the variable that the line names"
    " (docs/operations.md, *Behind an HTTP proxy or a private CA*).",
    needs="nothing",
)
def _environment(_: Examined) -> Iterator[Sight]:
    yield from (Sight("wrong", each) for each in troubles())


@check(
    "port-free",
    "The port of the web chat is free, or Parley's own",
    why="Parley does not start if another program listens on it.",
    remedy="Choose another `web.port`, or stop that program.",
)
def _port(examined: Examined) -> Iterator[Sight]:
    if examined.running is not None:
        return
    web = examined.settings.web
    family = socket.AF_INET6 if ":" in web.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((web.host, web.port))
        except OSError as exc:
            yield Sight("wrong", f"{web.host}:{web.port} cannot be used: {exc.strerror}")


@check(
    "backups-age",
    "There is a recent backup",
    why="If the disk fails, everything is lost: people's words are nowhere else.",
    remedy="Set `backup.to`, or run `parley backup --to FOLDER` from a timer.",
    needs="settings",
)
def _backups(examined: Examined) -> Iterator[Sight]:
    to = backups.folder_of(examined.settings)
    if to is None:
        yield Sight("note", "no backups are made by Parley itself (`backup.to`)")
        return
    last = backups.newest(to)
    if last is None:
        yield Sight("warning", f"there is no backup in {to} yet", "`parley backup` makes one.")
        return
    hours = last.age_s(datetime.now(UTC)) / 3600
    if hours > backups.LATE * examined.settings.backup.every_h:
        remedy = "`parley logs --event 'backup_*'` says why; `parley backup` makes one."
        yield Sight("wrong", f"the newest backup in {to} is {hours:,.0f} hours old", remedy)
