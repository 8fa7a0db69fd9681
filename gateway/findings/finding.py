"""A finding: a possible problem, its check, why it matters and the remedy.

A check is a function decorated by a `Finding`: it yields what it sees in the evidence and changes
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
"""The requirement of a check: readable settings, a database of this version, responses of the
providers (requested by `parley doctor`, known to a running gateway), or a running gateway."""


@dataclass(frozen=True)
class Evidence:
    """The input of all checks.

    Attributes:
        found: The settings; None if unreadable, with the reasons in `problems`.
        opened: The database; None if unreadable by this version.
        line: The models in order, with the windows reported by their providers.
        asked: Whether the providers were asked, for the fields below.
        accounts: Reports on tokens by `platform:account`.
        servers: Why each MCP server is not connected; "" if connected.
        clock: The difference to a model server's clock.
        live: The state of this process; None outside a gateway.
        running: The response of the running gateway, unless it is this process.
        hangs: Why it does not answer.
        left_out: A line for each plugin or engine that cannot be loaded.
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

    # `lacks` ensures that a check has what it needs.
    @property
    def loaded(self) -> Loaded:
        """The settings with their origins, for checks that need them."""
        return cast("Loaded", self.found)

    @property
    def settings(self) -> Settings:
        """The effective settings, for checks that need them."""
        return self.loaded.settings

    @property
    def database(self) -> Connection:
        """The database, for checks that need it."""
        return cast("Connection", self.opened)

    @property
    def gateway(self) -> LiveFacts:
        """The state of this process; empty outside a gateway."""
        return self.live or LiveFacts()

    @cached_property
    def location(self) -> Location:
        """The database's location."""
        return location_of(self.settings)

    @cached_property
    def migrations(self) -> Sequence[str]:
        """The migrations of the next start; empty if the database is unreadable."""
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
        """Whether a gateway runs here, possibly this process."""
        return self.live is not None or self.running is not None or bool(self.hangs)

    def lacks(self, needs: Needs) -> str:
        """Return why a check is impossible, or ""."""
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
"""note: worth knowing, no action needed; warning: may become a problem; error: a problem."""
Fix = Callable[[], str]
"""Applies a safe fix (`parley doctor --fix`) and describes it."""


@dataclass(frozen=True, slots=True)
class Sight:
    """An occurrence of a finding.

    Attributes:
        subject: What is affected; the whole sentence if the finding has no text.
        values: Values of the text's other fields.
        level: Replaces the finding's level; owners are not notified of a lower one.
        text: Replaces the finding's text, like `why` and `remedy`.
        since_s: Seconds since it began; 0 if unknown.
        fix: A safe fix; None if a person must act.
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
    """A possible problem, and the decorator that turns a check into a finding.

    Its texts come from the check's docstring: the healthy state, why it matters, the usual remedy,
    `Text` (the message with `{subject}` and the values of a sight), and `Over` (the message at its
    end). Without `Over`, owners end it, or it ends by itself.

    Attributes:
        id: Stable across versions; also the anchor in docs/operations.md.
        blocks: Whether it makes the gateway not ready (`/readyz`).
        page: Its console page below /admin, for the overview; "" if only the doctor shows it.
        at_start: Whether the start shows it.
        told: Whether owners are notified (docs/alerts.md).
        after_s: Seconds before they are notified.
        announced: Whether its finder notifies owners in direct chats itself; the alert then goes
            only to the chats of `alerts.to`.
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
        """Return the finding for a check, with the texts of its docstring."""
        title, *rest = _WORDS.split(cleandoc(look.__doc__ or ""))
        words = {"title": title.removesuffix(".")} | {
            rest[n].lower(): " ".join(rest[n + 1].split()) for n in range(0, len(rest), 2)
        }
        return replace(self, look=look, **cast("dict[str, Any]", words))

    def text_of(self, seen: Sight, quoted: Callable[[str], str] = str) -> str:
        """Describe a sight in a sentence without the full stop.

        Args:
            quoted: Removes secrets and markup from external texts.
        """
        values = {name: quoted(value) for name, value in seen.values.items()}
        if seen.text:
            return quoted(seen.text)
        return self.text.format(subject=quoted(seen.subject), **values)


def open_to_others(path: Path, mode: int) -> Iterator[Sight]:
    """Report a file or folder accessible to others; its fix sets this mode."""

    def fix() -> str:
        path.chmod(mode)
        return f"{path} has the mode {mode:04o} now"

    if (found := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        yield Sight(f"{path} has the mode {found:04o}", level="error", fix=fix)
