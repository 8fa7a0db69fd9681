"""The machine: PARLEY_HOME, disks, clock, proxies; the sandbox, MCP programs and plugins."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from agent.messages import count
from agent.network import UnusableEnvironment, proxy_for, tls_for, troubles
from agent.processes import sandbox
from gateway.agent_ports.tools import unconfined_in
from gateway.backup import backups
from gateway.findings.finding import Evidence, Finding, Level, Sight, Unsure, open_to_others
from gateway.logging.recent import MOST_LINES, RECENT, RecentLines, lately, newest, tallied
from gateway.logging.setup import log_path, predecessors
from gateway.storage.people import mcp

SCARCE_BYTES = 2_000_000_000
ROOMIER = 1.2
"""A full disk ends at this multiple of the minimum space."""
MOST_EVENTS = 5
AHEAD_S = 120.0
"""Accepted clock skew, in seconds."""
CLOCK_WITHIN_S = 5.0
_DATED = {9: "is not valid yet", 10: "has expired"}
"""Texts by OpenSSL error code. Source: openssl-verification-options(1)."""
OF_DISKS = ("disk-full", "backup-overdue")
"""Findings that access folders, which may be on a dead mount."""


@Finding("home-mode", level="error", needs="nothing")
def _mode(facts: Evidence) -> Iterator[Sight]:
    """Only the user that runs Parley can enter PARLEY_HOME.

    Why: Others could read what people wrote, and the token of the web chat.
    Remedy: `chmod 700` it; `chown -R` it to that user if it is another's.
    """
    if facts.home.is_dir():
        yield from open_to_others(facts.home, 0o700)
        if (owner := facts.home.stat().st_uid) != (user := os.geteuid()):
            text = f"{facts.home} belongs to user {owner}, and this is user {user}"
            yield Sight(text, level="warning")


@Finding("disk-full", level="error", page="doctor", told=True)
def _full(facts: Evidence) -> Iterator[Sight | Unsure]:
    """There is room on the disks.

    Why: Nothing can be stored on a full disk: messages wait at the platforms until there is room.
    Remedy: Make room; `retention.*` keeps less, `parley db compact` gives back what is unused.
    Text: only {free} are free on the disk of {subject}
    Over: there is room on the disk of {subject} again
    """
    file, least = facts.settings.logging.file, facts.settings.alerts.disk_free_bytes
    places = [facts.home, *([file.parent] if isinstance(file, Path) else [])]
    if isinstance(facts.location, Path):
        places.append(facts.location.parent)
    disks: set[int] = set()
    for place in places:
        try:
            disk, files = place.stat().st_dev, os.statvfs(place)
            free = shutil.disk_usage(place).free
        except OSError:
            # Its disk may be unmounted, or the first start will create it.
            yield Unsure(str(place))
            continue
        if disk not in disks:
            disks.add(disk)
            yield from _of_disk(str(place), free, least, files)


def _of_disk(
    place: str, free: int, least: int, files: os.statvfs_result
) -> Iterator[Sight | Unsure]:
    if free < max(least * ROOMIER, SCARCE_BYTES):
        level: Level = "error" if free < least else "warning"
        yield Sight(place, {"free": f"{free / 1e6:,.0f} MB"}, level)
    if least <= free < least * ROOMIER:
        yield Unsure(place)
    if files.f_files and files.f_favail < files.f_files // 100:
        text = f"{files.f_favail} of {files.f_files} inodes are free at {place}"
        yield Sight(f"inodes of {place}", level="warning", text=text)


@Finding("backup-overdue", page="doctor", told=True)
def _backup(facts: Evidence) -> Iterator[Sight | Unsure]:
    """There is a recent backup.

    Why: If the disk fails, everything is lost: people's words are nowhere else.
    Remedy: `parley logs --event 'backup_*'` says why; `parley backup` makes one.
    Text: there has been no new backup for {hours}
    Over: there is a new backup
    """
    if (to := backups.folder_of(facts.settings)) is None:
        remedy = "Set `backup.to`, or run `parley backup --to FOLDER` from a timer."
        yield Sight("backup", level="note", text="Parley makes no backups", remedy=remedy)
    elif facts.live is not None and not facts.live.makes_backups:
        # Another replica owns the folder.
        yield Unsure("backup")
    else:
        if age_s := backups.overdue_s(facts.settings, facts.gateway.began_s):
            yield Sight("backup", {"hours": count(round(age_s / 3600), "hour")})
        elif age_s is not None and facts.live is not None:
            # Otherwise a restart would end the alert.
            yield Unsure("backup")
        elif age_s is not None:
            yield Sight("backup", text=f"there is no backup in {to} yet")


@Finding("log-warnings", page="log?level=warning")
def _log_warnings(facts: Evidence) -> Iterator[Sight | Unsure]:
    """The log has no warnings of the last 15 minutes.

    Why: Something that Parley needs did not answer, or was refused, though Parley itself goes on.
    Remedy: See what they say: `parley logs --level warning --since 15m`.
    """
    recent, files = RECENT, tuple[Path, ...]()
    if facts.live is None:
        # The checking process has other lines in memory than the gateway.
        if (path := log_path(facts.settings.logging, facts.home)) is None:
            yield Unsure("no log file is written")
            return
        recent, files = RecentLines(), (path, *predecessors(path)[:1])
    found = tallied(newest(recent, files, lately(), MOST_LINES))
    often = ", ".join(f"{each.count:,} of {each.name}" for each in found[:MOST_EVENTS])
    rest = f", and {len(found) - MOST_EVENTS} more" if len(found) > MOST_EVENTS else ""
    if found:
        yield Sight(f"warnings and errors of the last 15 minutes: {often}{rest}")


@Finding("descriptors", level="error", needs="gateway", blocks=True, page="doctor")
def _descriptors(facts: Evidence) -> Iterator[Sight]:
    """Enough files and connections may be open.

    Why: Each platform, stream of an answer and browser takes one; without a free one new
    connections are refused.
    Remedy: Raise `LimitNOFILE` of the service, or `ulimit -n`.
    """
    if facts.gateway.is_scarce:
        yield Sight("the process has hardly any file descriptors left")


@Finding("user-not-root", needs="nothing")
def _root(_: Evidence) -> Iterator[Sight]:
    """Parley does not run as root.

    Why: Anything that breaks out of a tool would own the machine.
    Remedy: Run it as its own user.
    """
    if os.geteuid() == 0:
        yield Sight("this runs as root")


@Finding("clock", level="error", needs="nothing")
def _clock(facts: Evidence) -> Iterator[Sight]:
    """The clock is right.

    Why: Slack refuses requests that are five minutes off, times in the transcript mislead the
    model, and daily budgets begin at the wrong hour.
    Remedy: Turn on time synchronisation (`timedatectl set-ntp true`).
    """
    if facts.clock:
        yield Sight(facts.clock)


async def clock_trouble(url: str) -> str:
    """Compare this machine's clock with a server's; return the problem, if any."""
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


@Finding("environment", needs="nothing", at_start=True)
def _environment(_: Evidence) -> Iterator[Sight]:
    """Proxies and certificates of the environment can be used.

    Why: Without them platforms, models or servers cannot be reached.
    Remedy: Correct or unset the variable that the line names (docs/operations.md, *Behind an HTTP
    proxy or a private CA*).
    """
    yield from (Sight(trouble, level="error") for trouble in troubles())
    with suppress(UnusableEnvironment):
        if proxy_for("http://localhost") and proxy_for("http://127.0.0.1"):
            remedy = "Add `localhost,127.0.0.1` to NO_PROXY: local models and MCP servers."
            text = "a proxy is set, and NO_PROXY does not name localhost"
            yield Sight(text, remedy=remedy)


@Finding("sandbox-holds", level="error", at_start=True)
def _holds(facts: Evidence) -> Iterator[Sight]:
    """A sandbox works on this machine.

    Why: Without one, `terminal`, the file tools and confined MCP programs are off.
    Remedy: Install bubblewrap, or set `tools.sandbox.backend`.
    """
    tools = facts.settings.tools
    programs = [each for each in tools.mcp.values() if each.enabled and each.command]
    if off := sandbox.why_off(tools):
        yield Sight(off)
    if any(each.is_confined_by_word for each in programs) and isinstance(
        reason := sandbox.choose(tools.sandbox), str
    ):
        yield Sight(f"MCP programs are not started: no wall works here ({reason})")


@Finding("mcp-connected", level="error")
def _connected(facts: Evidence) -> Iterator[Sight | Unsure]:
    """MCP servers are connected.

    Why: Otherwise calls of their tools fail.
    Remedy: Install the program, or follow the line's advice.
    """
    told = facts.live.servers if facts.live else facts.servers
    servers = {name: each for name, each in facts.settings.tools.mcp.items() if each.enabled}
    for name, server in servers.items():
        if server.command and shutil.which(server.command) is None:
            yield Sight(name, text=f"{name}: there is no program {server.command}")
    if servers and (reason := facts.lacks("answers")):
        yield Unsure(reason)
    for name, problem in (told or {}).items():
        if problem:
            yield Sight(name, text=f"{name}: {problem}")


@Finding("mcp-confined", level="note", needs="database", at_start=True)
def _confined(facts: Evidence) -> Iterator[Sight]:
    """MCP programs are confined to their directories.

    Why: An unconfined one may do whatever Parley may, as in other clients.
    Remedy: Nothing, if you trust these programs. Otherwise set `confined: true`, and name what they
    need in `readable`, `writable` and `network`.
    Text: these MCP programs run unconfined, as Parley itself does: {subject}
    """
    if names := unconfined_in(facts.settings, mcp.confined(facts.database)):
        yield Sight(", ".join(names))


@Finding("mcp-held", needs="database", page="mcp")
def _held(facts: Evidence) -> Iterator[Sight]:
    """No tool of an MCP server waits for an owner.

    Why: Its description may give the model orders: it is not offered until an owner agrees.
    Remedy: Read it with `/mcp` or in the console, and approve or deny it there.
    """
    for each in mcp.texts(facts.database):
        server = facts.settings.tools.mcp.get(each.held.server)
        if each.state == "asked" and server is not None and server.enabled:
            yield Sight(f"{each.held.server}: {each.held.tool}: {each.held.why}")


@Finding("plugins-there", level="error", at_start=True)
def _plugins(facts: Evidence) -> Iterator[Sight]:
    """Each plugin that is switched on can be loaded, and the context engine.

    Why: Otherwise what a plugin adds is missing, and another engine takes over. Without a plugin
    that may forbid calls, tools that touch the world are refused.
    Remedy: Do what the line says, or take the plugin out of `plugins.enabled`; then restart.
    """
    yield from map(Sight, facts.left_out)
