"""Reports of findings for doctor, status, console, start and `/readyz`.

A report combines the current checks, the running gateway's own report, and the open alerts: the
same finding with the same subject is one row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from agent.network import in_words
from gateway.findings import database, machine, models, people, settings
from gateway.findings.finding import Evidence, Finding, Fix, Needs, Sight
from gateway.storage.queue import alerts
from gateway.storage.queue.alerts import Alert
from gateway.storage.schema import iso_time
from gateway.supervision.vitals import LiveFacts, Vitals

ROOMS = (settings, machine, database, models, people)
"""The files with findings, in order."""
FINDINGS: dict[str, Finding] = {
    each.id: each for room in ROOMS for each in vars(room).values() if isinstance(each, Finding)
}
"""All findings by id; docs/doctor.md and the table of docs/alerts.md are generated from it."""

OF_GATEWAY = frozenset[Needs](("answers", "gateway"))
"""Requirements that a running gateway meets when it reports to `parley doctor`."""
Shown = Literal["fine", "note", "unknown", "warning", "error"]
"""Severity of a row, ascending; unknown: it could not be checked."""
WORSE: Sequence[Shown] = ("fine", "note", "unknown", "warning", "error")


class Row(NamedTuple):
    """A line of a report; each finding has at least one, which may say that all is well.

    Attributes:
        text: A sentence without secrets.
        subject: What is affected; empty if all is well.
        fix: See `Sight.fix`.
    """

    id: str
    level: Shown
    text: str
    why: str
    remedy: str
    subject: str = ""
    since_s: float = 0.0
    fix: Fix | None = None

    @property
    def needs_attention(self) -> bool:
        """Whether an operator should do something."""
        return self.level in {"warning", "error"}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> "Row":
        """Parse a row written by `as_data`."""
        return cls(**{name: data[name] for name in cls._fields if name != "fix"})

    def as_data(self) -> dict[str, object]:
        """Return the row as JSON data."""
        data = self._asdict()
        return data | {"fixable": data.pop("fix") is not None}


def report(wanted: Iterable[Finding], facts: Evidence, opened: Sequence[Alert] = ()) -> list[Row]:
    """Run checks; return the rows of each finding, worst first.

    Args:
        opened: The open alerts, which get a row even if not seen here.
    """
    rows = [row for each in wanted for row in _rows(each, facts, opened)]
    return sorted(rows, key=lambda each: -WORSE.index(each.level))


def _rows(what: Finding, facts: Evidence, opened: Sequence[Alert]) -> Iterable[Row]:
    here, told = _looked(what, facts), (facts.running or {}).get("findings", ())
    rows = [*here, *(Row.of_data(each) for each in told if each["id"] == what.id)]
    for alert in opened:
        if alert.kind == what.id:
            text = f"{alert.text}, since {iso_time(alert.since)}"
            rows.append(_row(what, Sight(alert.subject, text=text)))
    seen: dict[str, Row] = {}
    for row in rows:
        if row.subject:
            seen.setdefault(row.subject, row)
    # An unknown state counts only if no other source has seen the finding.
    if rows := list(seen.values()) or here:
        return rows
    if what.needs in OF_GATEWAY and "findings" not in (facts.running or {"findings": ()}):
        text = "skipped: the gateway that runs here is of an older version"
        return [_unseen(what, "unknown", text)]
    return [_unseen(what, "fine", what.title)]


def _looked(what: Finding, facts: Evidence) -> list[Row]:
    """Run a check; an exception becomes its row, and the others continue."""
    if reason := facts.lacks(what.needs):
        return [_unseen(what, "unknown", f"skipped: {reason}")]
    try:
        found = list(what.look(facts))
    except Exception as exc:  # noqa: BLE001 - it is shown
        return [_unseen(what, "unknown", f"the check itself failed: {in_words(exc, quoted=True)}")]
    if rows := [_row(what, each) for each in found if isinstance(each, Sight)]:
        return rows
    unsure = ", ".join(each.subject for each in found)
    return [_unseen(what, "unknown", f"not known now: {unsure}")] if unsure else []


def _row(what: Finding, seen: Sight) -> Row:
    words = (what.text_of(seen), seen.why or what.why, seen.remedy or what.remedy)
    return Row(what.id, seen.level or what.level, *words, seen.subject, seen.since_s, seen.fix)


def _unseen(what: Finding, level: Shown, text: str) -> Row:
    return Row(what.id, level, text, what.why, what.remedy)


def pressing(rows: Iterable[Row]) -> list[Row]:
    """Return the rows at or above their finding's level; lower ones are advice."""
    return [
        row
        for row in rows
        if row.subject and WORSE.index(row.level) >= WORSE.index(FINDINGS[row.id].level)
    ]


def is_ready(rows: Iterable[Row]) -> bool:
    """Whether a gateway can do its work (`/readyz`)."""
    return not any(row.level == "error" and FINDINGS[row.id].blocks for row in rows)


def exit_code(rows: Sequence[Row]) -> int:
    """Return 2 for problems, 1 for warnings, 3 if nothing could be checked, else 0.

    Source: the codes of monitoring plugins (monitoring-plugins.org, Plugin Return Codes).
    """
    levels = {each.level for each in rows}
    if "error" in levels:
        return 2
    if "warning" in levels:
        return 1
    return 0 if levels - {"unknown"} else 3


@dataclass(frozen=True, slots=True)
class Examination:
    """Runs the checks within a gateway, for console, alerts and start; asks no provider.

    Attributes:
        evidence: Returns the evidence known without the database, except `live`.
    """

    vitals: Vitals
    evidence: Callable[[], Evidence]

    async def facts(self, *, whole: bool = True) -> Evidence:
        """Gather the evidence without the database; `whole` as in `Vitals.live`."""
        return replace(self.evidence(), live=await self.vitals.live(whole=whole))

    async def of_live(self, *, whole: bool = True) -> tuple[LiveFacts, list[Row]]:
        """Return this gateway's state and its rows."""
        facts = await self.facts(whole=whole)
        seen_here = OF_GATEWAY if whole else ()
        wanted = (each for each in FINDINGS.values() if each.blocks or each.needs in seen_here)
        rows = report(wanted, facts)
        return facts.gateway, [row for row in rows if row.subject]

    async def report(
        self, wanted: Callable[[Finding], object], facts: Evidence | None = None
    ) -> list[Row]:
        """Report the wanted findings and their open alerts.

        Args:
            facts: The current evidence, if already known.

        Raises:
            StorageUnavailable: The database is unreadable.
        """
        facts = facts or await self.facts()
        named = [each for each in FINDINGS.values() if wanted(each)]
        return await self.vitals.database.search(
            lambda conn: report(named, replace(facts, opened=conn), alerts.found(conn))
        )
