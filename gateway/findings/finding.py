"""A finding: one thing that may be wrong, how it is found, why it matters and what to do.

A look is decorated with a `Finding`; its docstring has the words. It yields what it sees in the
facts and changes nothing. What can be fixed safely comes with a function that does it, for `parley
doctor --fix`.
"""

import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import cleandoc
from pathlib import Path
from typing import Any, Literal, cast

from sqlalchemy import Connection

from adapters.registry import AccountReport
from gateway.errors import GatewayError
from gateway.settings.loading import Loaded
from gateway.settings.tree import Settings
from gateway.storage import maintenance, migrations
from gateway.storage.database import DatabaseServer, Location, location_of
from gateway.storage.reports import health
from gateway.storage.reports.health import GivenUp
from gateway.supervision.credentials import Checked, Configured
from gateway.supervision.vitals import LiveFacts

Needs = Literal["nothing", "settings", "database", "answers", "gateway"]
"""What has to be there for a look: settings that can be read, a database of this version, answers
of the providers (`parley doctor` asks them, a running gateway knows them), a gateway that runs."""


@dataclass(frozen=True)
class Evidence:
    """What there is to look at.

    Attributes:
        found: The settings; None where they cannot be read.
        problems: Why not, a line each.
        opened: The database, to read; None where it cannot be read by this version.
        line: The models in order, with the windows that their providers told.
        asked: Whether the providers were asked: what the three below have.
        keys: What became of the keys of models.
        accounts: What the platforms say of the tokens, by `platform:account`.
        servers: Why each MCP server is not connected, "" if it is; None if none was asked.
        clock: What a model's server says against this machine's clock.
        live: What this process knows of itself; None where it is no gateway.
        running: What the gateway that runs here answers; None where none runs, or it is this one.
        hangs: Why it does not answer.
        tried: What trying the settings has logged, with `event`: plugins that cannot be loaded.
        deep: Whether to look at everything that takes long, too.
    """

    home: Path
    found: Loaded | None = None
    problems: tuple[str, ...] = ()
    opened: Connection | None = None
    database_trouble: str = ""
    line: Sequence[Configured] = ()
    asked: bool = False
    keys: Sequence[Checked] = ()
    accounts: Mapping[str, AccountReport] = field(default_factory=dict)
    servers: Mapping[str, str] | None = None
    clock: str = ""
    live: LiveFacts | None = None
    running: Mapping[str, Any] | None = None
    hangs: str = ""
    tried: Sequence[Mapping[str, Any]] = ()
    deep: bool = False

    # What a look needs is there when it is made (`lacks`).
    @property
    def loaded(self) -> Loaded:
        """The settings with their origins, for looks that need them."""
        return cast("Loaded", self.found)

    @property
    def settings(self) -> Settings:
        """The effective settings, for looks that need them."""
        return self.loaded.settings

    @cached_property
    def location(self) -> Location:
        """Where the database is."""
        return location_of(self.settings)

    @property
    def on_server(self) -> bool:
        """Whether it is PostgreSQL."""
        return isinstance(self.location, DatabaseServer)

    @property
    def database(self) -> Connection:
        """The database, for looks that need it."""
        return cast("Connection", self.opened)

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

    @cached_property
    def given_up(self) -> Sequence[GivenUp]:
        """What was given up within a day."""
        return health.given_up(self.database, health.DAY_S)

    @property
    def gateway(self) -> LiveFacts:
        """What this process knows of itself, for looks inside of a gateway."""
        return cast("LiveFacts", self.live)

    @property
    def told(self) -> Sequence[Mapping[str, Any]]:
        """The findings that the gateway that runs here reports, as `Row.as_data` wrote them."""
        told: Sequence[Mapping[str, Any]] = (self.running or {}).get("findings", ())
        return told

    @property
    def is_running(self) -> bool:
        """Whether a gateway runs here, be it this one."""
        return self.live is not None or self.running is not None or bool(self.hangs)

    def lacks(self, needs: Needs) -> str:
        """Return why a look cannot be made; empty where it can."""
        is_known = self.live is not None or self.running is not None
        match needs:
            case "settings" | "database" | "answers" if self.found is None:
                return "the settings cannot be read"
            case "database" if self.opened is None:
                return self.database_trouble
            case "answers" if not (self.asked or is_known):
                return "no provider was asked (--offline), and no gateway tells"
            case "gateway" if not is_known:
                return "the gateway does not answer" if self.hangs else "no gateway runs here"
        return ""


Level = Literal["note", "warning", "error"]
"""note: worth knowing, nothing to do; warning: may become trouble; error: is trouble."""


Fix = Callable[[], str]
"""Fixes something, and says what was done."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A finding that is there.

    Attributes:
        subject: What has it; the whole sentence where the finding has no text of its own.
        values: What the text says besides that.
        level: Other than that of the finding; owners are not told of a lower one.
        text: Instead of that of the finding, as `why` and `remedy`.
        since_s: How long ago it began; 0 for unknown.
        fix: Fixes it and says what was done; None if a person has to.
    """

    subject: str
    values: Mapping[str, str] = field(default_factory=dict)
    level: Level | None = None
    text: str = ""
    why: str = ""
    remedy: str = ""
    since_s: float = 0.0
    fix: Fix | None = None


@dataclass(frozen=True, slots=True)
class Unsure:
    """State unknown: keep an open alert unchanged."""

    subject: str


@dataclass(frozen=True, slots=True)
class Told:
    """How owners are told of a finding (docs/alerts.md).

    Attributes:
        over: What is told at its end; empty where owners end it themselves, or it ends by itself.
        after_s: How long it lasts before they are told.
        quiet_s: How long nobody may have seen it before it is over.
        announced: Owners are told in their direct chats anyhow, by what found it: only chats that
            `alerts.to` names are told by the alert.
    """

    over: str = ""
    after_s: float = 0.0
    quiet_s: float = 60.0
    announced: bool = False


Look = Callable[[Evidence], Iterator[Sight | Unsure]]
_WORDS = re.compile(r"\n+(Why|Remedy|Text|Over): ")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that may be wrong, and the decorator that makes one of a look.

    Its words are the look's docstring: what holds where all is well, why it matters, how it is
    fixed in general, `Text`, what is said of it, with `{subject}` and the values of what was seen,
    and `Over`, what is told at its end; without one owners end it themselves, or it ends by itself.

    Attributes:
        id: Stays the same from version to version; also the anchor in docs/operations.md.
        live: A running gateway sees it, and tells those who ask it.
        blocks: The gateway is not ready meanwhile (`/readyz`).
        page: The page of the console that deals with it, below /admin: it needs somebody and is on
            the overview. Empty: advice, which the doctor gives.
        at_start: The start says it too.
        told: How owners are told of it; None: they are not.
    """

    id: str
    level: Level = "warning"
    needs: Needs = "settings"
    live: bool = False
    blocks: bool = False
    page: str = ""
    at_start: bool = False
    told: Told | None = None
    title: str = ""
    why: str = ""
    remedy: str = ""
    text: str = "{subject}"
    look: Look = field(default=lambda _: iter(()), compare=False)

    def __call__(self, look: Look) -> "Finding":
        """Return the finding that this look finds, in the words of its docstring."""
        title, *rest = _WORDS.split(cleandoc(look.__doc__ or ""))
        said = {rest[n]: " ".join(rest[n + 1].split()) for n in range(0, len(rest), 2)}
        return replace(
            self,
            title=title.removesuffix("."),
            why=said["Why"],
            remedy=said["Remedy"],
            text=said.get("Text", self.text),
            told=self.told and replace(self.told, over=said.get("Over", "")),
            look=look,
        )

    def text_of(self, seen: Sight, quoted: Callable[[str], str] = str) -> str:
        """Return what was seen, in a sentence without its full stop.

        Args:
            quoted: Takes secrets and markup out of what others say.
        """
        values = {name: quoted(value) for name, value in seen.values.items()}
        if seen.text:
            return quoted(seen.text)
        return self.text.format(subject=quoted(seen.subject), **values)


def open_to_others(path: Path, mode: int) -> Iterator[Sight]:
    """Yield a file or folder that others can read or enter; its fix gives it this mode."""

    def fix() -> str:
        path.chmod(mode)
        return f"{path} has the mode {mode:04o} now"

    if (found := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        yield Sight(f"{path} has the mode {found:04o}", level="error", fix=fix)
