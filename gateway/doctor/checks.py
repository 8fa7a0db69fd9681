"""The register of checks: each has an id, says what it saw, why that matters and how to fix it.

A check is a generator of what it saw, under `@check`. It is told what there is to look at
(`Examined`) and changes nothing; what can be fixed safely comes with a function that does it, for
`parley doctor --fix`. tests/gateway/doctor/page.py writes docs/doctor.md.
"""

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

from sqlalchemy import Connection

from adapters.registry import AccountReport
from agent.network import in_words
from gateway.errors import GatewayError
from gateway.settings.loading import Loaded
from gateway.settings.tree import Settings
from gateway.storage import maintenance, migrations
from gateway.storage.database import DatabaseServer, Location, location_of
from gateway.supervision.start_checks import Finding, Outcome
from gateway.wiring import Configured

Level = Literal["fine", "note", "warning", "wrong", "unknown"]
"""fine; note: worth knowing, nothing to do; warning: may become trouble; wrong: is trouble;
unknown: could not be looked at."""
Needs = Literal["nothing", "settings", "database", "answers", "gateway"]
"""What has to be there for a check: settings that can be read, a database of this version, answers
of the providers (not with `--offline`), a gateway that runs."""

HANGS = "hangs"
OF_OUTCOMES: Mapping[Outcome, Level] = {
    "accepted": "fine",
    "not_checked": "note",
    "unreachable": "warning",
    "refused": "wrong",
    "no_credit": "wrong",
}
"""How bad it is what became of a key or token."""

Fix = Callable[[], str]
"""Fixes something, and says what was done."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a check saw.

    Attributes:
        text: One sentence; it holds no secret.
        remedy: What to do about it; empty: that of the check.
        fix: Fixes it and says what was done; None where a person has to.
    """

    level: Level
    text: str
    remedy: str = ""
    fix: Fix | None = None


@dataclass(frozen=True)
class Examined:
    """What there is to look at.

    Attributes:
        found: The settings; None where they cannot be read.
        problems: Why not, a line each.
        opened: The database, to read; None where it cannot be read by this version.
        line: The models in order, with the windows that their providers told.
        accounts: What the platforms say of the tokens, by `platform:account`; None where nobody was
            asked.
        findings: What became of their keys; None where nobody was asked.
        running: What the gateway that runs here says of itself, or why it does not, as `HANGS`;
            None where none runs.
        tried: What trying the settings has logged, with `event`: plugins that cannot be loaded.
        servers: Why each MCP server is not connected, "" if it is; None if none was asked.
        clock: What a model's server says against this machine's clock.
        deep: Whether to look at everything that takes long, too.
    """

    home: Path
    found: Loaded | None = None
    problems: tuple[str, ...] = ()
    opened: Connection | None = None
    database_trouble: str = ""
    line: Sequence[Configured] = ()
    accounts: Mapping[str, AccountReport] | None = None
    findings: Sequence[Finding] | None = None
    running: Mapping[str, object] | None = None
    tried: Sequence[Mapping[str, Any]] = ()
    servers: Mapping[str, str] | None = None
    clock: str = ""
    deep: bool = False

    # What a check needs is there when it is made (`lacks`).
    @property
    def loaded(self) -> Loaded:
        """The settings with their origins, for checks that need them."""
        return cast("Loaded", self.found)

    @property
    def settings(self) -> Settings:
        """The effective settings, for checks that need them."""
        return self.loaded.settings

    @cached_property
    def location(self) -> Location:
        """Where the database is."""
        return location_of(self.settings)

    @cached_property
    def migrations(self) -> Sequence[str]:
        """What the next start would migrate; nothing if the database cannot be read at all."""
        if self.opened is not None:
            return ()
        try:
            with maintenance.reading(self.location) as conn:
                migrations.refuse_newer(conn)
                return migrations.behind(migrations.schema_revision(conn))
        except GatewayError:
            return ()

    @property
    def on_server(self) -> bool:
        """Whether it is PostgreSQL."""
        return isinstance(self.location, DatabaseServer)

    @property
    def database(self) -> Connection:
        """The database, for checks that need it."""
        return cast("Connection", self.opened)

    @property
    def said(self) -> Mapping[str, object]:
        """What the gateway says of itself, for checks that need it."""
        return cast("Mapping[str, object]", self.running)

    def lacks(self, needs: Needs) -> str:
        """Return why a check cannot be made; empty where it can."""
        match needs:
            case "settings" if self.found is None:
                return "the settings cannot be read"
            case "database" if self.opened is None:
                return self.database_trouble or "the settings cannot be read"
            case "answers" if self.found is None:
                return "the settings cannot be read"
            case "answers" if self.findings is None:
                return "no provider was asked (--offline)"
            case "gateway" if self.running is None or HANGS in self.running:
                return "the gateway does not answer" if self.running else "no gateway runs here"
        return ""


Look = Callable[[Examined], Iterator[Sight]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at.

    Attributes:
        id: Stays the same from version to version.
        title: What holds where all is well.
        why: What happens where it does not hold.
        remedy: How that is fixed in general.
    """

    id: str
    room: str
    title: str
    why: str
    remedy: str
    needs: Needs
    look: Look = field(compare=False)


def open_to_others(
    path: Path, mode: int, level: Level = "wrong", holds: str = ""
) -> Iterator[Sight]:
    """Yield a file or folder that others can read or enter; its fix gives it this mode."""
    if (found := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        fix = partial(_with_mode, path, mode)
        yield Sight(level, f"{path} {holds}has the mode {found:04o}", fix=fix)


def _with_mode(path: Path, mode: int) -> str:
    path.chmod(mode)
    return f"{path} has the mode {mode:04o} now"


CHECKS: dict[str, Check] = {}
"""By id."""


def check(
    name: str, title: str, *, why: str, remedy: str, needs: Needs = "settings"
) -> Callable[[Look], Look]:
    """Register a check; its room is the file it stands in."""

    def register(look: Look) -> Look:
        room = look.__module__.rpartition(".")[2]
        if name in CHECKS:
            raise ValueError(f"two checks are called {name}")
        CHECKS[name] = Check(name, room, title, why, remedy, needs, look)
        return look

    return register


@dataclass(frozen=True, slots=True)
class Result:
    """What one check saw, at least one thing."""

    check: Check
    seen: tuple[Sight, ...]

    @property
    def level(self) -> Level:
        """The worst of it."""
        return max((each.level for each in self.seen), key=WORSE.index)


WORSE: Sequence[Level] = ("fine", "note", "unknown", "warning", "wrong")


def made(each: Check, examined: Examined) -> Result:
    """Make a check.

    One that breaks tells so: the others go on, and nobody takes it for a good sign.
    """
    if reason := examined.lacks(each.needs):
        return Result(each, (Sight("unknown", f"skipped: {reason}"),))
    try:
        seen = tuple(each.look(examined))
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is told
        seen = (Sight("unknown", f"the check itself failed: {in_words(exc, quoted=True)}"),)
    return Result(each, seen or (Sight("fine", each.title),))


def exit_code(results: Sequence[Result]) -> int:
    """Return 2 where something is wrong, 1 for warnings, 3 where all else could not be looked at.

    Source: the codes of monitoring plugins (monitoring-plugins.org, Plugin Return Codes).
    """
    levels = {each.level for each in results}
    if "wrong" in levels:
        return 2
    if "warning" in levels:
        return 1
    return 0 if levels - {"unknown"} else 3


ROOMS = ("settings", "home", "database", "models", "people", "safety", "versions")
"""Files of checks, in their order."""


def in_order() -> list[Check]:
    """Return all checks, room by room."""
    return [each for room in ROOMS for each in CHECKS.values() if each.room == room]
