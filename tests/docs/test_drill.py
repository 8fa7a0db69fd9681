"""docs/operations.md, *At 3 am*: each planted fault leads to what the code tells and finds."""

import re
from pathlib import Path

import pytest

from gateway.findings.report import FINDINGS
from gateway.findings.telling import PAGE as TOLD_PAGE
from tests.gateway.findings.pages import alerts

TOLD = {name for name, each in FINDINGS.items() if each.told}
ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs" / "operations.md").read_text("utf-8").partition("## At 3 am\n")[2]
ROWS = re.findall(
    r"^\| (\d+) \| (.+?) \| `([a-z-]+)`: (.+?) \| (.+?) \| (.+?) \|$",
    SECTION.partition("\n## ")[0],
    re.MULTILINE,
)
UNTOLD = re.findall(
    r"^\| (?:it|the page) [^|]+ \| (.+?) \| .+ \|$", SECTION.partition("\n## ")[0], re.MULTILINE
)
EVENTS = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "logging.md").read_text("utf-8"), re.M))


def test_there_are_twenty_five() -> None:
    """Of every kind at least one."""
    assert [int(row[0]) for row in ROWS] == list(range(1, 26))
    assert {row[2] for row in ROWS} == TOLD
    assert len(UNTOLD) == 4


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_is_told_is_what_the_code_tells(row: tuple[str, ...]) -> None:
    """Word for word; the table of docs/alerts.md has it as well."""
    told = re.sub(r"[{}]", "*", FINDINGS[row[2]].text)
    assert row[3] == told
    assert f"| {told} |" in alerts()


@pytest.mark.parametrize("seen", [*(row[4] for row in ROWS), *UNTOLD])
def test_checks_and_events_are_there(seen: str) -> None:
    """Who reads the row at night types what is there."""
    named = re.findall(r"`([a-z]+(?:[-_][a-z]+)+)`", seen)
    known = EVENTS | FINDINGS.keys() | {"delay_s", "origin_refused", "host_refused"}
    assert [name for name in named if name not in known] == []
    assert named or "parley" in seen


def test_each_alert_leads_to_a_row() -> None:
    """The link in a chat ends with the anchor of the kind."""
    anchors = re.findall(r'<a id="([a-z-]+)"></a>', SECTION)
    assert TOLD_PAGE == "docs/operations.md"
    assert sorted(anchors) == sorted(TOLD)
