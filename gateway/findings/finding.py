"""A finding: one thing that may be wrong, how it is found, why it matters and what to do.

A look is a function that a `Finding` decorates: it yields what it sees in the evidence and changes
nothing.
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
from gateway.storage.database import Location, location_of
from gateway.supervision.credentials import Checked, Configured
from gateway.supervision.vitals import LiveFacts

Needs = Literal["nothing", "settings", "database", "answers", "gateway"]
"""What a look needs: settings that can be read, a database of this version, answers of the
providers (`parley doctor` asks them, a running gateway knows them), a gateway that runs."""


@dataclass(frozen=True)
class Evidence:
    """What the looks read.

    Attributes:
        found: The settings, or None if they cannot be read: `problems` has a line for each reason.
        opened: The database, or None if this version cannot read it.
        line: The models in order, with the windows that their providers report.
        asked: Whether the providers were asked: for the four below.
        accounts: Reports on the tokens, by `platform:account`.
        servers: Why each MCP server is not connected; "" if it is.
        clock: The difference to the clock of a model's server.
        live: The state of this process; None outside of a gateway.
        running: The answer of the gateway that runs here, unless that is this process.
        hangs: Why it does not answer.
        left_out: A line for each plugin, and the engine, that cannot be loaded.
        deep: Whether to read the whole database.
        crowding: Why prompt and tools leave little room, or "".
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
    left_out: Sequence[str] = ()
    deep: bool = False
    crowding: str = ""

    # `lacks` makes sure that a look has what it needs.
    @property
    def loaded(self) -> Loaded:
        """The settings with their origins, for looks that need them."""
        return cast("Loaded", self.found)

    @property
    def settings(self) -> Settings:
        """The effective settings, for looks that need them."""
        return self.loaded.settings

    @property
    def database(self) -> Connection:
        """The database, for looks that need it."""
        return cast("Connection", self.opened)

    @property
    def gateway(self) -> LiveFacts:
        """The state of this process; empty outside of a gateway."""
        return self.live or LiveFacts()

    @cached_property
    def location(self) -> Location:
        """Where the database is."""
        return location_of(self.settings)

    @cached_property
    def migrations(self) -> Sequence[str]:
        """The migrations of the next start; none if the database cannot be read at all."""
        if self.opened is not None:
            return ()
        try:
            with maintenance.reading(self.location) as conn:
                migrations.refuse_newer(conn)
                return migrations.behind(migrations.schema_revision(conn))
        except GatewayError:
            return ()

    @property
    def is_running(self) -> bool:
        """Whether a gateway runs here, be it this one."""
        return self.live is not None or self.running is not None or bool(self.hangs)

    def lacks(self, needs: Needs) -> str:
        """Return why a look cannot be made, or ""."""
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
"""Fixes something safely (`parley doctor --fix`), and says what was done."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A finding that is there.

    Attributes:
        subject: Where it is; the whole sentence if the finding has no text of its own.
        values: For the other fields of the text.
        level: Replaces that of the finding; owners are not told of a lower one.
        text: Replaces that of the finding, as do `why` and `remedy`.
        since_s: How long ago it began; 0 for unknown.
        fix: None if a person has to fix it.
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


Look = Callable[[Evidence], Iterator[Sight | Unsure]]
_WORDS = re.compile(r"\n+(Why|Remedy|Text|Over): ")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that may be wrong, and the decorator that makes one of a look.

    Its words are the look's docstring: the state if all is well, why it matters, the usual remedy,
    `Text`, the message with `{subject}` and the values of a sight, and `Over`, the message at its
    end. Without `Over` owners end it themselves, or it ends by itself.

    Attributes:
        id: Stays the same from version to version; also the anchor in docs/operations.md.
        blocks: The gateway is not ready meanwhile (`/readyz`).
        page: The console's page for it below /admin, for the overview; "": only the doctor has it.
        at_start: The start says it too.
        told: Owners are told of it (docs/alerts.md).
        after_s: How long it lasts before they are told.
        announced: What found it tells owners in their direct chats; the alert tells only chats
            that `alerts.to` names.
    """

    id: str
    level: Level = "warning"
    needs: Needs = "settings"
    blocks: bool = False
    page: str = ""
    at_start: bool = False
    told: bool = False
    after_s: float = 0.0
    announced: bool = False
    title: str = ""
    why: str = ""
    remedy: str = ""
    text: str = "{subject}"
    over: str = ""
    look: Look = field(default=lambda _: iter(()), compare=False)

    def __call__(self, look: Look) -> "Finding":
        """Return the finding of this look, in the words of its docstring."""
        title, *rest = _WORDS.split(cleandoc(look.__doc__ or ""))
        words = {"title": title.removesuffix(".")} | {
            rest[n].lower(): " ".join(rest[n + 1].split()) for n in range(0, len(rest), 2)
        }
        return replace(self, look=look, **cast("dict[str, Any]", words))

    def text_of(self, seen: Sight, quoted: Callable[[str], str] = str) -> str:
        """Describe a sight in a sentence without its full stop.

        Args:
            quoted: Takes secrets and markup out of texts of others.
        """
        values = {name: quoted(value) for name, value in seen.values.items()}
        if seen.text:
            return quoted(seen.text)
        return self.text.format(subject=quoted(seen.subject), **values)


def open_to_others(path: Path, mode: int) -> Iterator[Sight]:
    """Report a file or folder that others can read or enter; its fix gives it this mode."""

    def fix() -> str:
        path.chmod(mode)
        return f"{path} has the mode {mode:04o} now"

    if (found := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        yield Sight(f"{path} has the mode {found:04o}", level="error", fix=fix)
